"""bilevax beside what people use today: the same problems, the same effort for tuning, one run.

    python -m benchmarks.race [--peers PATH] [--cases quadratic,penalties,cleaning,a8a-1,a8a-100] [--seconds 4]
                              [--tries 16] [--tune-seconds 8] [--batch 32] [--steps-only] [--short] [--json FILE]

- Ours: `bx.solve(problem, seconds=...)` with nothing tuned, and every method by `bx.tune` with `--tries` settings in
  `--tune-seconds`.
- Theirs: the solvers of benchmark_bilevel in the checkout `--peers` (nothing of it is in this repository); each tries
  `--tries` pairs of steps, from the same ranges around L_g and the scale of x that ours start from, in `--tune-seconds`
  altogether, too. And full-batch loops as people write them, with optimistix (where it is installed): BFGS on the lower
  problems, implicit differentiation, Adam with `--tries` steps or L-BFGS on x.

The best setting of each then runs `--seconds` with another seed, if its solver has one. Seconds are those of steps:
compilation and evaluation count on no side. F* is the smallest F that anybody found. The table has seconds to gaps of
10 %, 1 % and 0.1 % of F(x_0) - F*; a second one microseconds of a step with the same batch, where both sides have the
method, measured in turn. The last lines:

- `race_worst`: seconds to 1 % of our best over those of the best of theirs, on the worst problem.
- `step_worst`: microseconds of a step of ours over theirs, the worst of all.

Without `--peers` it runs ours and the loops.
"""

import contextlib
import importlib.util

import jax
import numpy as np

import bilevax as bx
from benchmarks import harness
from benchmarks.race import theirs
from benchmarks.race.cases import CASES
from benchmarks.untuned.__main__ import reach, run
from bilevax.exact import evaluation
from bilevax.scales import measure_scales

OURS = ("soba", "ma_soba", "saba", "srba", "block_soba", "bsvrb_v2", "sustain", "mrbo", "ttsa", "stocbio")
BOTH = ("soba", "saba", "srba", "ttsa", "stocbio", "sustain", "mrbo")
TERMS = 10  # of Neumann series, as theirs have by default
ROUNDS = 7
RANGES = ((0.05, 2.0), (2.0**-6, 2.0**6))  # of steps on y, over 1/L_g, and on x, over what was found


def pairs_of_steps(problem, tries):
    """Steps on y and on x, evenly spread over the ranges on a logarithmic scale."""
    scales, *_ = measure_scales(problem, jax.random.key(0), None, 1.0)
    units = 1 / float(scales.smoothness), float(scales.step)
    k = np.arange(tries) + 0.5
    spread = (k / tries, (k * (np.sqrt(5) - 1) / 2) % 1)
    return [
        tuple(unit * low * (high / low) ** part for unit, (low, high), part in zip(units, RANGES, parts, strict=True))
        for parts in zip(*spread, strict=True)
    ]


def last_of(curve):
    """F at the end of a run; infinite where it is no number."""
    return curve["objective"][-1] if np.isfinite(curve["objective"][-1]) else np.inf


def race_ours(problem, chosen):
    """Curves of ours, by name."""
    curves = {"bilevax solve, untuned": run(problem, None, chosen.seconds)}
    names = [*OURS, "svrb" if problem.num_tasks == 1 else "rsvrb"]
    for name in names[:1] if chosen.short else names:
        settings = {"batch_size": chosen.batch}
        try:
            tuned = bx.tune(
                problem, getattr(bx, name), seconds=chosen.tune_seconds, tries=chosen.tries, progress=False,
                settings=settings,
            )  # fmt: skip
        except (TypeError, ValueError, RuntimeError, MemoryError) as error:
            print(f"    {name}: {str(error)[:100]}", flush=True)
            continue
        curves[f"bilevax {name}"] = run(problem, tuned.algorithm, chosen.seconds)
    return curves


def race_theirs(problem, steps, chosen):
    """Curves of their solvers, by name."""
    curves = {}
    for name in theirs.METHODS:
        try:
            solver = theirs.Solver(problem, name, chosen.batch)
        except MemoryError as error:
            print(f"    their {name}: {error}", flush=True)
            continue
        ends = []
        for pair in steps:
            looks = theirs.Looks()
            looks.next = chosen.tune_seconds / len(steps)
            solver.run(pair, chosen.tune_seconds / len(steps), looks)
            looks.rows = looks.rows[-1:]
            ends.append(last_of(looks.curve(problem, evaluation.objective)) if looks.rows else np.inf)
        looks = theirs.Looks()
        solver.made.random_state = 2
        solver.run(steps[int(np.argmin(ends))], chosen.seconds, looks)
        curves[f"benchmark_bilevel {name}"] = looks.curve(problem, evaluation.objective)
    return curves


def race_loops(problem, chosen):
    """Curves of full-batch loops, by name."""
    curves, evaluate = {}, theirs.implicit_gradient(problem)
    for name, loop in theirs.LOOPS.items():
        found, sizes = [], np.geomspace(1e-3, 3, chosen.tries) if loop is theirs.by_adam else [None]
        for size in sizes:
            looks = theirs.Looks()
            loop(problem, evaluate, size, chosen.tune_seconds / len(sizes), looks)
            looks.rows = looks.rows[-1:]
            found.append(last_of(looks.curve(problem, evaluation.objective)))
        looks = theirs.Looks()
        loop(problem, evaluate, sizes[int(np.argmin(found))], chosen.seconds, looks)
        curves[name] = looks.curve(problem, evaluation.objective)
    return curves


def step_of_ours(problem, name, batch):
    """A loop of steps of one of ours, at harmless rates."""
    series = {"neumann_step": 0.1, "neumann_terms": TERMS} if name in ("ttsa", "stocbio", "sustain", "mrbo") else {}
    algorithm = getattr(bx, name)(upper_step=1e-4, lower_step=1e-4, batch_size=batch, initialization="cheap", **series)
    return harness.Timed(problem, algorithm, theirs.CHUNK)


def race_steps(problem, chosen):
    """Microseconds of a step, ours and theirs in turn, by method."""
    found = {}
    for name in BOTH:
        try:
            solver = theirs.Solver(problem, name, chosen.batch)
        except MemoryError:
            continue
        ours, times = step_of_ours(problem, name, chosen.batch), []
        for _ in range(2 if chosen.short else ROUNDS):
            ours.call()
            times.append((ours.call(), theirs.step_microseconds(solver, (1e-4, 1e-4), 0.02)))
        found[name] = tuple(np.median(times, axis=0))
    return found


def main(arguments=None):
    """Run the race and return its figures."""
    parser = harness.options(__doc__)
    parser.add_argument("--peers", help="a checkout of benchmark_bilevel")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--tries", type=int, default=16)
    parser.add_argument("--tune-seconds", type=float, default=8.0)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps-only", action="store_true", help="microseconds of steps alone")
    chosen = parser.parse_args(arguments)
    names = chosen.cases.split(",")
    if chosen.short:
        names, chosen.seconds, chosen.tries, chosen.tune_seconds = ["quadratic"], 0.2, 4, 0.2
    figures, races, steps = {}, [], []
    for case in names:
        problem = CASES[case]()
        with theirs.installed(chosen.peers) if chosen.peers else contextlib.nullcontext():
            if not chosen.steps_only:
                races.append(race(case, problem, chosen, figures))
            if chosen.peers:
                steps.append(compare_steps(case, problem, chosen, figures))
    if any(map(np.isfinite, races)):
        figures["race_worst"] = float(np.nanmax(races))
    if steps:
        figures["step_worst"] = max(steps)
    harness.conclude(figures, chosen.json)
    return figures


def race(case, problem, chosen, figures):
    """One problem: a table, its figures, and seconds to 1 % of our best over those of their best."""
    steps = pairs_of_steps(problem, chosen.tries)
    curves = race_ours(problem, chosen)
    print(f"{case}: ours are done", flush=True)
    if importlib.util.find_spec("optimistix"):
        curves |= race_loops(problem, chosen)
    if chosen.peers:
        curves |= race_theirs(problem, steps, chosen)
    first = float(bx.exact_objective(problem, problem.unravel_x(problem.x0)))
    best = min(np.nanmin(curve["objective"]) for curve in curves.values())
    rows, to_1 = [], {True: np.inf, False: np.inf}
    for name, curve in sorted(curves.items(), key=lambda item: last_of(item[1])):
        seconds = [spent for spent, _ in reach({**curve, "samples": curve["seconds"]}, first, best)]
        is_ours = name.startswith("bilevax")
        to_1[is_ours] = min(to_1[is_ours], seconds[1])
        gap = (last_of(curve) - best) / (first - best)
        rows.append((name, *(f"{s:.3g}" if np.isfinite(s) else "–" for s in seconds), f"{gap:.2g}"))
        figures |= {f"{case}.{name}.seconds_to_{gap}": s for gap, s in zip((0.1, 0.01, 0.001), seconds, strict=True)}
    harness.show(f"{case}: F(x_0) = {first:.4g}, F* = {best:.4g}", ("", "s to 10 %", "1 %", "0.1 %", "last gap"), rows)
    figures[f"{case}.race"] = ratio = to_1[True] / to_1[False] if np.isfinite(to_1[False]) else np.nan
    return ratio


def compare_steps(case, problem, chosen, figures):
    """One problem: a table of microseconds a step, and the worst ratio."""
    found = race_steps(problem, chosen)
    rows = [(name, f"{ours:.1f}", f"{other:.1f}", f"{ours / other:.2f}") for name, (ours, other) in found.items()]
    harness.show(f"{case}: µs a step, batches of {chosen.batch}", ("", "ours", "theirs", "ratio"), rows)
    figures |= {f"{case}.{name}.step_ratio": ours / other for name, (ours, other) in found.items()}
    return max(ours / other for ours, other in found.values())


if __name__ == "__main__":
    main()
