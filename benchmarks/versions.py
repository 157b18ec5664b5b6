"""Steps of this checkout against those of another one: microseconds of each, in turn, and their ratio.

    python -m benchmarks.versions OTHER_CHECKOUT [--cases a1a-1,a1a-200] [--rounds 12] [--short]

Each checkout runs in a process of its own, on the same problem with the same algorithm; the processes take turns, so
that a busy machine slows both. The least of all rounds counts, and the median stands beside it. A ratio above one says
that this checkout is slower. Data are those of BILEVAX_DATA, or made-up rows of their shape.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

BATCH, TASKS = 32, 10
CASES = {  # steps in one call, by algorithm
    "a1a-1": {"linear_model": 3000, "tracked": 2000, "dense": 50, "bsvrb_v1": 500, "bsvrb_v2": 3000, "block_soba": 3000,
              "soba": 3000, "ma_soba": 3000, "saba": 2000, "srba": 2000, "stable": 300, "ttsa": 1000, "mrbo": 500},
    "a8a-1": {"linear_model": 1000, "tracked": 500, "dense": 10, "bsvrb_v1": 200, "bsvrb_v2": 1500, "soba": 1500,
              "saba": 500},
    "w8a-1": {"linear_model": 300, "tracked": 200, "bsvrb_v2": 500, "soba": 500, "saba": 200},
    "a1a-200": {"linear_model": 50, "tracked": 300, "dense": 10, "bsvrb_v2": 500, "block_soba": 500},
    "a8a-100": {"linear_model": 20, "tracked": 50, "bsvrb_v2": 300, "block_soba": 300},
    "w1a-500": {"linear_model": 10, "tracked": 100, "bsvrb_v2": 200},
}  # fmt: skip


def algorithm_of(bx, name, num_tasks):
    """An algorithm with rates that are harmless on all problems; steps shrink with the share of tasks."""
    share = min(TASKS, num_tasks) / num_tasks
    common = {"batch_size": BATCH, "initialization": "cheap"}
    if name in ("soba", "ma_soba", "saba", "srba", "stable", "ttsa", "mrbo"):
        series = {"neumann_step": 0.5, "neumann_terms": 5} if name in ("ttsa", "mrbo") else {}
        return getattr(bx, name)(upper_step=1.0, lower_step=0.1, **common, **series)
    rates = {"lower_step": 0.3 * share, "mixing": 0.03 if num_tasks == 1 else 0.3 * share, **common}
    tasks = {"tasks_per_step": min(TASKS, num_tasks)}
    if name in ("bsvrb_v1", "bsvrb_v2", "block_soba"):
        return getattr(bx, name)(upper_step=share if name == "block_soba" else 10 * share, **rates, **tasks)
    rates |= {"upper_step": 10 * share, "curvature": getattr(bx.curvature, name)}
    return bx.svrb(**rates) if num_tasks == 1 else bx.rsvrb(**rates, **tasks)


def problem_of(bx, data, num_tasks):
    """The paper's re-weighting problem, by names that every checkout has; made-up rows for the data set `tiny`."""
    import numpy as np

    rng = np.random.default_rng(0)
    if data == "tiny":
        train, test = rng.normal(size=(2, 60, 5))
        labels, test_labels = np.sign(train[:, 0]), np.sign(test[:, 0])
    else:
        parts = [bx.datasets.load(name) for name in (data, f"{data}.t")]
        (train, labels), (test, test_labels) = ((part.features, part.labels) for part in parts)
    temperatures = None
    if num_tasks > 1:
        some = rng.permutation(len(test_labels))[:100]
        test, test_labels = test[some], test_labels[some]
        temperatures = np.random.default_rng(1).uniform(1, 11, num_tasks)  # as `bilevax.lab.cases` has them
    return bx.problems.reweighting(
        train_features=train, train_labels=labels, trusted_features=test, trusted_labels=test_labels,
        temperatures=temperatures, ridge=1e-2, rows="dense",
    )  # fmt: skip


def serve(checkout):
    """Time what the lines of standard input ask for, with the sources of one checkout."""
    sys.path.insert(0, str(Path(checkout) / "src"))
    import jax
    import jax.numpy as jnp

    import bilevax as bx

    assert Path(bx.__file__).is_relative_to(Path(checkout).resolve()), bx.__file__
    for line in sys.stdin:
        case, name, steps = json.loads(line)
        if case is not None:
            data, num_tasks = case.rsplit("-", 1)
            problem, algorithm = problem_of(bx, data, int(num_tasks)), algorithm_of(bx, name, int(num_tasks))
            body = lambda k, carry: _one_step(jax, algorithm, carry, k)  # noqa: B023
            loop = jax.jit(lambda *at: jax.lax.fori_loop(0, at[3], body, at[:3])[1], donate_argnums=1)  # noqa: B023
            state = jax.jit(algorithm.init)(problem, jax.random.key(0))
        start = time.perf_counter()
        state = jax.block_until_ready(loop(problem, state, jax.random.key(1), jnp.int32(steps)))
        print(json.dumps((time.perf_counter() - start) / steps * 1e6), flush=True)


def _one_step(jax, algorithm, carry, k):
    problem, state, key = carry
    return problem, algorithm.step(problem, state, jax.random.fold_in(key, k))[0], key


def race(checkouts, case, name, steps, rounds):
    """Microseconds of a step of each checkout, in all rounds."""

    def ask(process, *request):
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    commands = [[sys.executable, __file__, "--serve", str(folder)] for folder in checkouts]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for command in commands]
    try:
        for process in processes:
            ask(process, case, name, steps)
        times = [[], []]
        for k in range(2 * rounds):
            which = (k + k // 2) % 2  # first one, then the other goes first
            times[which].append(ask(processes[which], None, name, steps))
        return times
    finally:
        for process in processes:
            process.stdin.close()
            process.wait()


def main(arguments=None):
    """Race all cases and return the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="another checkout of the project")
    parser.add_argument("--cases", default="a1a-1,a1a-200", help="some of " + ",".join(CASES))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--short", action="store_true", help="one small case: to see that it runs")
    options = parser.parse_args(arguments)
    cases = {"tiny-1": {"soba": 20}} if options.short else {case: CASES[case] for case in options.cases.split(",")}
    checkouts = options.other, Path(__file__).parents[1]
    table, ratios = Table("case", "algorithm", "other, µs", "this, µs", "ratio", "of medians"), {}
    for case, steps in cases.items():
        for name, count in steps.items():
            other, this = race(checkouts, case, name, count, 2 if options.short else options.rounds)
            ratios[f"{case}.{name}"] = min(this) / min(other)
            medians = statistics.median(this) / statistics.median(other)
            row = (f"{min(other):.1f}", f"{min(this):.1f}", f"{min(this) / min(other):.3f}", f"{medians:.3f}")
            table.add_row(case, name, *row)
    Console(width=100).print(table)
    print(f"worst_ratio={max(ratios.values()):.3f}")
    return ratios


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    else:
        main()
