"""What the README, the examples, the demo and the benchmarks show runs as printed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import pytest

import bilevax
from benchmarks import many

ROOT = Path(__file__).parent.parent


def run(*arguments, cwd=ROOT, as_users=False):
    """A command in a fresh interpreter, compiled quickly, or `as_users` would: in twice the time, to run faster."""
    environment = {name: value for name, value in os.environ.items() if not (as_users and name == "XLA_FLAGS")}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**environment, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=600,
    )


def python_blocks(path):
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)


APPLICATIONS = [page for page in sorted((ROOT / "docs" / "applications").glob("*.md")) if python_blocks(page)]
ONE_AFTER_THE_OTHER = """
import sys

for path in sys.argv[1:]:
    print(path, flush=True)
    exec(compile(open(path).read(), path, "exec"), {"__name__": "__main__"})
"""


GENERAL = [ROOT / "README.md", ROOT / "docs" / "guide.md", ROOT / "docs" / "scale.md"]


@pytest.mark.parametrize("pages", [GENERAL, APPLICATIONS[::2], APPLICATIONS[1::2]])
def test_the_code_of_pages_runs_as_printed(pages, tmp_path):
    """Each page with names of its own; one process for several, which saves imports."""
    codes = [tmp_path / f"{page.stem}.py" for page in pages]
    for page, code in zip(pages, codes, strict=True):
        blocks = python_blocks(page)
        assert blocks
        code.write_text("\n".join(blocks))
    shown = run("-c", ONE_AFTER_THE_OTHER, *codes, cwd=tmp_path)
    assert shown.returncode == 0, shown.stdout + shown.stderr


EXAMPLES = [(path, []) for path in sorted((ROOT / "examples").glob("*.py"))]
EXAMPLES.append((ROOT / "examples" / "meta_learning.py", ["--case", "digits"]))
EXAMPLES_IN_TURN = """
import json, runpy, sys

for path, *more in json.loads(sys.argv[1]):
    sys.argv = [path, *more]
    print(*sys.argv, flush=True)
    runpy.run_path(path, run_name="__main__")
"""


@pytest.mark.parametrize("half", [0, 1])
def test_examples_run_in_their_short_mode_and_draw(half, tmp_path):
    """One process for several, which saves imports."""
    folders = [tmp_path / str(k) for k in range(len(EXAMPLES))][half::2]
    calls = [[str(path), *more, "--short", "--out", str(folder)]
             for (path, more), folder in zip(EXAMPLES[half::2], folders, strict=True)]  # fmt: skip
    shown = run("-c", EXAMPLES_IN_TURN, json.dumps(calls))
    assert shown.returncode == 0, shown.stdout + shown.stderr
    for folder in folders:
        pictures = list(folder.glob("*.png"))
        assert pictures
        assert all(matplotlib.image.imread(picture).std() > 0.01 for picture in pictures)


SRBA_OVER_SOBA = """
import time, jax
import numpy as np
import bilevax as bx

A = np.random.default_rng(0).normal(size=(30_000, 20))
labels = np.sign(A[:, 0])
problem = bx.problems.reweighting(train_features=A, train_labels=labels, trusted_features=A, trusted_labels=labels)

def seconds(algorithm):
    @jax.jit
    def loop(problem, state, key):
        body = lambda t, state: algorithm.step(problem, state, jax.random.fold_in(key, t))[0]
        return jax.lax.fori_loop(0, 500, body, state)

    state = loop(problem, jax.jit(algorithm.init)(problem, jax.random.key(0)), jax.random.key(1))
    begun = time.perf_counter()
    jax.block_until_ready(loop(problem, jax.block_until_ready(state), jax.random.key(2)))
    return time.perf_counter() - begun

settings = {"batch_size": 4, "initialization": "cheap", "upper_step": 0.01, "lower_step": 0.01}
print(seconds(bx.srba(period=10_000, **settings)) / seconds(bx.soba(**settings)))
"""


def test_srba_looks_at_all_samples_only_where_it_is_time_to():
    """A step in between is as fast as a few of SOBA's. XLA likes to move the look at all samples out of its loop."""
    shown = run("-c", SRBA_OVER_SOBA, as_users=True)
    assert shown.returncode == 0, shown.stderr
    assert float(shown.stdout) < 10


def test_the_table_of_algorithms_is_printed():
    shown = run("-m", "bilevax.cli", "algorithms")
    assert shown.returncode == 0, shown.stderr
    assert all(facts.name in shown.stdout and facts.samples[:4] in shown.stdout for facts in bilevax.list_algorithms())


def test_the_demo_cleans_and_draws(tmp_path):
    shown = run("-m", "bilevax.cli", "demo", "--steps", "150", "--out", tmp_path / "out")
    assert shown.returncode == 0, shown.stderr
    percent = {name: float(value) for name, value in re.findall(r"test accuracy, (.*?) +│ +([\d.]+)%", shown.stdout)}
    assert percent["cleaned by bilevax"] > percent["labels as given"] + 15
    assert percent["true labels"] >= percent["cleaned by bilevax"]
    assert float(re.search(r"AUROC .*?│ +([\d.]+)", shown.stdout)[1]) > 0.85
    assert matplotlib.image.imread(tmp_path / "out" / "digits.png").std() > 0.05
    assert json.loads((tmp_path / "out" / "trace.json").read_text())["rows"][-1]["step"] == 150


def test_the_demo_refuses_a_wrong_option(tmp_path):
    shown = run("-m", "bilevax.cli", "demo", "--steps", "0", "--out", tmp_path / "out")
    assert shown.returncode == 2
    assert "0 is not in the range" in shown.stderr
    assert not (tmp_path / "out").exists()


def test_steps_of_two_checkouts_are_timed_in_turn():
    """This one against itself: a wrong one of the two would not have the sources it was told."""
    shown = run("-m", "benchmarks.versions", ".", "--short")
    assert shown.returncode == 0, shown.stderr
    ratio = re.fullmatch(r"worst_ratio=([\d.]+)", shown.stdout.strip().splitlines()[-1])
    assert 0.02 < float(ratio[1]) < 50
    assert "tiny-1" in shown.stdout


def test_the_flat_benchmark_prints_its_ratio(tmp_path):
    shown = run("-m", "benchmarks.flat", "--short", "--json", tmp_path / "flat.json")
    assert shown.returncode == 0, shown.stderr
    last = shown.stdout.strip().splitlines()[-1]
    ratio = float(re.fullmatch(r"flat_ratio=([\d.]+)", last)[1])
    figures = json.loads((tmp_path / "flat.json").read_text())
    ratios = {name: value for name, value in figures.items() if name.endswith("_ratio") and name != "flat_ratio"}
    assert set(ratios) == {f"{name}_ratio" for name in ("linear_model", "tracked", "known", "block_soba")}
    assert max(ratios.values()) == pytest.approx(ratio, rel=1e-3)
    assert ratio < 3


def test_the_step_benchmark_compares_every_curvature_with_numpy_and_the_machine(tmp_path):
    shown = run(
        "-m", "benchmarks.step", "--short", "--cases", "a1a-20", "--json", tmp_path / "step.json", as_users=True
    )
    assert shown.returncode == 0, shown.stderr
    figures = json.loads((tmp_path / "step.json").read_text())
    for case, method in [("a1a-20", "rsvrb")]:
        took = {name: figures[f"{case}.{method}.{name}.microseconds"] for name in ("linear_model", "tracked", "dense")}
        assert took["linear_model"] < took["dense"]
        assert figures[f"{case}.numpy.microseconds"] > 5 * took["linear_model"]
        assert figures[f"{case}.{method}.linear_model.over_limit"] > 1
        assert (
            figures[f"{case}.{method}.linear_model.state_megabytes"]
            < 0.2 * figures[f"{case}.{method}.dense.state_megabytes"]
        )


def test_the_benchmark_without_tuning_prints_its_ratios(tmp_path):
    shown = run("-m", "benchmarks.untuned", "--short", "--json", tmp_path / "u.json")
    assert shown.returncode == 0, shown.stderr
    figures = json.loads((tmp_path / "u.json").read_text())
    assert figures["quadratic-1.solve.seconds_to_0.01"] > 0
    assert figures["untuned_median"] == figures["untuned_worst"] > 0


def test_the_rates_benchmark_fits_exponents(tmp_path):
    shown = run("-m", "benchmarks.rates", "--short", "--json", tmp_path / "r.json", "--picture", tmp_path / "r.png")
    assert shown.returncode == 0, shown.stderr
    figures = json.loads((tmp_path / "r.json").read_text())
    assert 0.5 < figures["m1.svrb.exponent"] < 6
    counts = [figures[f"m1.svrb.samples_to_{epsilon:.3f}"] for epsilon in (0.8, 0.6)]
    assert 0 < counts[0] <= counts[1]
    assert "m3.rsvrb.exponent" in figures
    assert matplotlib.image.imread(tmp_path / "r.png").std() > 0.01


def test_the_benchmark_beside_libauc_runs_without_it(tmp_path):
    shown = run("-m", "benchmarks.soap", "--short", "--cases", "a8a", "--json", tmp_path / "s.json")
    assert shown.returncode == 0, shown.stderr
    figures = json.loads((tmp_path / "s.json").read_text())
    assert all(0 < figures[f"a8a.{name}.precision"] < 1 for name in ("logistic loss", "bilevax"))
    assert "libauc" in shown.stdout or "a8a.LibAUC SOAP.precision" in figures


def test_the_quality_benchmark_reaches_its_gaps(tmp_path):
    shown = run("-m", "benchmarks.quality", "--short", "--json", tmp_path / "q.json", "--picture", tmp_path / "q.png")
    assert shown.returncode == 0, shown.stderr
    figures = json.loads((tmp_path / "q.json").read_text())
    assert figures["a1a-1.best_objective"] < figures["a1a-1.svrb.linear_model.objective"] + 1e-9
    assert figures["a1a-1.svrb.linear_model.objective"] < figures["a1a-1.first_objective"]
    assert figures["a1a-1.svrb.linear_model.seconds_to_0.5"] > 0
    assert matplotlib.image.imread(tmp_path / "q.png").std() > 0.01


def test_runs_that_are_killed_survive(tmp_path):
    shown = run("-m", "benchmarks.survive", "--short", "--json", tmp_path / "s.json")
    assert shown.returncode == 0, shown.stderr
    figures = json.loads((tmp_path / "s.json").read_text())
    assert figures["kills"] > 0
    assert figures["bit_equal"] == figures["ends"] > 0
    assert figures["corrupt_loaded"] == 0


def test_the_benchmark_of_very_many_tasks_tells_what_metrics_take(tmp_path):
    figures = many.main(["--short", "--json", str(tmp_path / "m.json")])
    assert json.loads((tmp_path / "m.json").read_text()) == figures
    assert 0 < figures["block_soba-30000.steps"] < figures["block_soba-30000.none"]


def test_the_benchmark_of_samples_on_disk_finds_the_same_bits(tmp_path):
    shown = run("-m", "benchmarks.disk", "--short", "--json", tmp_path / "d.json")
    assert shown.returncode == 0, shown.stderr
    figures = json.loads((tmp_path / "d.json").read_text())
    assert figures["same_bits"] == 1
    assert figures["cold_us"] > 0


def test_the_benchmark_of_processes_measures_one_and_two(tmp_path):
    shown = run("-m", "benchmarks.scale", "--short", "--json", tmp_path / "s.json")
    assert shown.returncode == 0, shown.stderr
    figures = json.loads((tmp_path / "s.json").read_text())
    assert figures["strong.P2.m40.d4.k1.us"] > figures["strong.P1.m40.d4.k1.us"] > 0


def test_the_race_runs_without_peers(tmp_path):
    shown = run("-m", "benchmarks.race", "--short", "--json", tmp_path / "race.json")
    assert shown.returncode == 0, shown.stderr
    figures = json.loads((tmp_path / "race.json").read_text())
    assert figures["quadratic.bilevax solve, untuned.seconds_to_0.01"] > 0
    assert "bilevax soba" in shown.stdout
    assert "step_worst" not in figures
