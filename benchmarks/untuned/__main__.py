"""solve without an algorithm, and all algorithms with their defaults, on problems that nothing was tuned for.

    python -m benchmarks.untuned [--half judge|develop|both] [--problems a,b] [--paper] [--seconds 5]
                                 [--tuned all|soba,block_soba] [--tries 48] [--tune-seconds 4]
                                 [--defaults] [--seeds 3] [--default-seconds 20] [--short] [--json FILE]
                                 [--keep FOLDER]

For each problem: seconds and samples to gaps of 10 %, 1 % and 0.1 % of `bx.solve(problem, seconds=...)`, beside
full-batch L-BFGS on the exact F and ∇F (scipy), and methods of `--tuned`: each is tuned by `bx.tune` with `--tries`
settings, and the three that came down furthest are timed. The quickest of L-BFGS and those is the mark. F* is the
smallest F that anybody found. With `--defaults` every algorithm runs 10,000 steps, or as many as fit in
`--default-seconds`, with its default arguments and each seed. `--paper` takes the paper's a1a, a8a, w1a and w8a with
one lower problem. With `--keep` what was measured of a problem lies in a folder, and is not measured again: an
interrupted command goes on, and several can share the problems. The last lines:

- `untuned_median`, `untuned_worst`: seconds of solve to a gap of 1 % over those of the mark, over all problems.
- `defaults_diverged`: runs with defaults that ended diverged or with F above F(x_0), of `defaults_runs`.
- `defaults_half_way`: the share of them that brought F at least half way down.
- `defaults_least`: the least such share of one algorithm, over all problems and seeds.

Seconds are those of steps and of what choosing cost; compilation and evaluation do not count, on any side.
"""

import collections
import functools
import json
import sys
from pathlib import Path

import jax
import numpy as np

import bilevax as bx
from benchmarks import harness
from benchmarks.untuned.develop import DEVELOP
from benchmarks.untuned.judge import JUDGE
from bilevax.exact import evaluation
from bilevax.files import write_whole
from bilevax.lab.reference import run_lbfgs

PAPER = {name: functools.partial(harness.paper_problem, name) for name in ("a1a-1", "a8a-1", "w1a-1", "w8a-1")}
GAPS = (0.1, 0.01, 0.001)
STEPS, SHORT_STEPS = 10_000, 200
SHORT = ("quadratic-1",)
PACE = 50  # steps from which it is known how many come
FINALISTS = 3  # of the tuned methods, that are timed


class Shelf:
    """What was measured, a file each, so that an interrupted command goes on and several share the problems."""

    def __init__(self, folder):
        self.folder = folder and Path(folder)
        if folder:
            self.folder.mkdir(parents=True, exist_ok=True)

    def find(self, name, options, measure):
        """What was measured under this name with these options, else what `measure` finds now."""
        path = self.folder and self.folder / f"{name}.json"
        if path and path.exists():
            held = json.loads(path.read_text())
            if held["options"] == options:
                return held["found"]
        found = measure()
        if path:
            write_whole(path, json.dumps({"options": options, "found": found}).encode())
        return found


def exact_objective(problem, variables):
    """The metric: F, every lower problem solved."""
    return {"objective": evaluation.objective(problem, variables.x, variables.y)}


def curve_of(trace):
    """F over seconds and samples."""
    return {name: np.asarray(trace[name], float).tolist() for name in ("seconds", "samples", "objective")}


def run(problem, algorithm, seconds, records=200):
    """The curve of a run with exact F, recorded about so many times."""
    every = 1
    if algorithm is not None and algorithm.name != "implicit":
        first = bx.solve(problem, algorithm, steps=1, metrics=None, progress=False)
        trial = bx.solve(problem, algorithm, steps=1 + PACE, metrics=None, progress=False, resume=first)
        every = max(1, int(seconds / max(trial.seconds - first.seconds, 1e-6) * PACE / records))  # its start apart
    return curve_of(
        bx.solve(problem, algorithm, seconds=seconds, record_every=every, metrics=exact_objective, progress=False).trace
    )


def reach(curve, first, best):
    """Seconds and samples to each gap; infinite where it was not reached."""
    gaps = (np.array(curve["objective"]) - best) / (first - best)
    found = []
    for gap in GAPS:
        there = np.flatnonzero(gaps <= gap)
        found.append(tuple(curve[name][there[0]] if len(there) else np.inf for name in ("seconds", "samples")))
    return found


def methods_for(problem):
    """The names of all algorithms that can run on the problem."""
    names = [facts.name for facts in bx.list_algorithms() if facts.name in bx.__all__]
    return [name for name in names if name != "svrb" or problem.num_tasks == 1]


def run_tuned(problem, chosen):
    """Each method tuned alike, as far as it takes the problem; the curves of those that came down furthest, by name."""
    able, tuned = methods_for(problem), {}
    names = able if chosen.tuned == "all" else [name for name in chosen.tuned.split(",") if name in able]
    for name in names:
        if name == "implicit":
            continue
        try:
            tuned[name] = bx.tune(
                problem, getattr(bx, name), seconds=chosen.tune_seconds, tries=chosen.tries, progress=False
            )
        except (TypeError, ValueError, RuntimeError) as error:  # refused, or nothing to tune
            print(f"    {name}: {str(error)[:100]}", flush=True)
    order = sorted(tuned, key=lambda name: tuned[name].table[0]["last_round"])[:FINALISTS]
    print(f"    of {len(tuned)} tuned methods the best are {', '.join(order)}", flush=True)
    return {name: run(problem, tuned[name].algorithm, chosen.seconds) for name in order}


def run_defaults(problem, steps, seeds, seconds):
    """[method, F, steps] at the end of runs with each algorithm's defaults and each seed; no F where one diverged."""
    found = []
    for name in methods_for(problem):
        algorithm = getattr(bx, name)()
        for seed in range(seeds):
            try:
                result = bx.solve(
                    problem, algorithm, steps=steps, seconds=seconds, seed=seed, metrics=None, progress=False
                )
            except (TypeError, ValueError) as error:  # a problem that the method refuses
                print(f"    {name} refuses it: {str(error)[:80]}", flush=True)
                break
            F = None if result.status == "diverged" else float(bx.exact_objective(problem, result.x))
            found.append([name, F, result.steps])
    return found


def compare(name, make, chosen, shelf):
    """What everybody needed to each gap, by name, `solve` first; and how far down runs with defaults came."""
    problem, seconds = functools.cache(make), chosen.seconds
    curves = {
        "solve": shelf.find(f"{name}.solve", [seconds], lambda: run(problem(), None, seconds)),
        "L-BFGS": shelf.find(f"{name}.lbfgs", [seconds], lambda: curve_of(run_lbfgs(problem(), seconds))),
    }
    if chosen.tuned:
        options = [seconds, chosen.tuned, chosen.tries, chosen.tune_seconds]
        curves |= shelf.find(f"{name}.tuned", options, lambda: run_tuned(problem(), chosen))
    first = curves["solve"]["objective"][0]
    best = min(float(np.nanmin(curve["objective"])) for curve in curves.values())
    ways = []
    if chosen.defaults:
        options = [SHORT_STEPS, 1] if chosen.short else [STEPS, chosen.seeds]
        options.append(chosen.default_seconds)
        ends = shelf.find(f"{name}.defaults", options, lambda: run_defaults(problem(), *options))
        ways = [(method, -np.inf if F is None else (first - F) / (first - best), steps) for method, F, steps in ends]
    return {method: reach(curve, first, best) for method, curve in curves.items()}, ways


def words(pairs):
    """Seconds and samples for a table."""
    return [f"{s:.3g} s, {n:.2g}" if np.isfinite(s) else "-" for s, n in pairs]


def main(arguments=None):
    """Run the benchmark and return its figures."""
    parser = harness.options(__doc__)
    parser.add_argument("--half", choices=["judge", "develop", "both"], default="judge")
    parser.add_argument("--problems", help="their names, separated by commas")
    parser.add_argument("--paper", action="store_true", help="the paper's data instead")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--tuned", default="", help="methods that are tuned, for the mark, or all")
    parser.add_argument("--tries", type=int, default=48)
    parser.add_argument("--tune-seconds", type=float, default=4.0)
    parser.add_argument("--defaults", action="store_true", help="all algorithms with their defaults, too")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--default-seconds", type=float, default=20.0)
    parser.add_argument("--keep", metavar="FOLDER", help="where what was measured is found again")
    chosen = parser.parse_args(arguments)
    everything = {**DEVELOP, **JUDGE, **PAPER}
    half = PAPER if chosen.paper else {"judge": JUDGE, "develop": DEVELOP, "both": {**DEVELOP, **JUDGE}}[chosen.half]
    names = chosen.problems.split(",") if chosen.problems else SHORT if chosen.short else tuple(half)
    figures, rows, ratios, ways, shelf = {}, [], [], [], Shelf(chosen.keep)
    for name in names:
        found, ends = compare(name, everything[name], chosen, shelf)
        mark = min(found[method][1][0] for method in found if method != "solve")
        ratio = found["solve"][1][0] / mark
        ratios.append(ratio if np.isfinite(mark) else 0.0)
        print(f"{name}: solve to 1 % in {found['solve'][1][0]:.3g} s, the mark {mark:.3g} s", flush=True)
        rows += [(name if method == "solve" else "", method, *words(pairs)) for method, pairs in found.items()]
        figures |= {f"{name}.{method}.seconds_to_0.01": pairs[1][0] for method, pairs in found.items()}
        if ends:
            worst = sorted(ends, key=lambda end: end[1])[:6]
            told = ", ".join(f"{method} {share:.3f} ({steps:,} steps)" for method, share, steps in worst)
            print(f"    least: {told}", flush=True)
            ways += ends
        jax.clear_caches()
    harness.show("seconds, samples to a gap of", ("problem", "", *(f"{gap:.1%}" for gap in GAPS)), rows)
    figures |= {"untuned_median": float(np.median(ratios)), "untuned_worst": float(np.max(ratios))}
    if chosen.defaults:
        figures |= judge_defaults(ways)
    last = [name for name in figures if name.startswith(("untuned_", "defaults_"))]
    harness.conclude({**figures, **{name: figures.pop(name) for name in last}}, chosen.json)
    return figures


def judge_defaults(ways):
    """Figures of the runs with defaults, and the share of each that came half way, by algorithm."""
    half_way = collections.defaultdict(list)
    for method, share, _ in ways:
        half_way[method].append(share >= 0.5)
    by_method = {f"{method}.half_way": float(np.mean(shares)) for method, shares in half_way.items()}
    return {
        **by_method,
        "defaults_runs": len(ways), "defaults_diverged": sum(share < 0 for _, share, _ in ways),
        "defaults_half_way": float(np.mean([share >= 0.5 for _, share, _ in ways])),
        "defaults_least": min(by_method.values()),
    }  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
