"""solve without an algorithm, and all algorithms with their defaults, on problems that nothing was tuned for.

    python -m benchmarks.untuned [--half judge|develop|both] [--problems a,b] [--seconds 5] [--tuned soba,block_soba]
                                 [--tune-seconds 10] [--defaults] [--seeds 3] [--short] [--json FILE]

For each problem: seconds and samples to gaps of 10 %, 1 % and 0.1 % of `bx.solve(problem, seconds=...)`, beside
full-batch L-BFGS on the exact F and ∇F (scipy) and the methods of `--tuned`, each tuned by `bx.tune`. The quickest of
those is the mark. F* is the smallest F that anybody found. With `--defaults` every algorithm runs 10,000 steps with its
default arguments and each seed. The last lines:

- `untuned_median`, `untuned_worst`: seconds of solve to a gap of 1 % over those of the mark, over all problems.
- `defaults_diverged`: runs with defaults that ended diverged or with F above F(x_0), of `defaults_runs`.
- `defaults_half_way`: the share of them that brought F at least half way down.

Seconds are those of steps and of what choosing cost; compilation and evaluation do not count, on any side.
"""

import sys

import jax
import numpy as np

import bilevax as bx
from benchmarks import harness
from benchmarks.untuned.problems import DEVELOP, JUDGE
from bilevax.exact import evaluation
from bilevax.lab.reference import descend

GAPS = (0.1, 0.01, 0.001)
STEPS, SHORT_STEPS = 10_000, 200
SHORT = ("quadratic-1",)


def exact_objective(problem, variables):
    """The metric: F, every lower problem solved."""
    return {"objective": evaluation.objective(problem, variables.x, variables.y)}


def run(problem, algorithm, seconds, records=200):
    """The trace of a run with exact F, recorded about so many times."""
    every = 1
    if algorithm is not None and algorithm.name != "implicit":
        trial = bx.solve(problem, algorithm, steps=200, metrics=None, progress=False)
        every = max(1, int(seconds / max(trial.seconds, 1e-6) * 200 / records))
    return bx.solve(
        problem, algorithm, seconds=seconds, record_every=every, metrics=exact_objective, progress=False
    ).trace


def reach(trace, first, best):
    """Seconds and samples to each gap; infinite where it was not reached."""
    gaps = (trace["objective"] - best) / (first - best)
    found = []
    for gap in GAPS:
        there = np.flatnonzero(gaps <= gap)
        found.append(tuple(float(trace[name][there[0]]) if len(there) else np.inf for name in ("seconds", "samples")))
    return found


def compare(problem, seconds, tuned, tune_seconds):
    """What everybody needed to each gap, by name; `solve` first."""
    traces = {"solve": run(problem, None, seconds), "L-BFGS": descend(problem, seconds)}
    for name in tuned:
        if name != "svrb" or problem.num_tasks == 1:
            algorithm = bx.tune(problem, getattr(bx, name), seconds=tune_seconds, progress=False).algorithm
            traces[name] = run(problem, algorithm, seconds)
    first = float(traces["solve"]["objective"][0])
    best = min(float(np.nanmin(trace["objective"])) for trace in traces.values())
    return {name: reach(trace, first, best) for name, trace in traces.items()}, first, best


def defaults(problem, first, best, steps, seeds):
    """How far F came down with each algorithm's defaults and each seed: 1 is all of the way, below 0 is up."""
    found = {}
    for facts in bx.list_algorithms():
        if facts.name in bx.__all__ and (facts.name != "svrb" or problem.num_tasks == 1):
            algorithm = getattr(bx, facts.name)()
            for seed in range(seeds):
                try:
                    result = bx.solve(
                        problem, algorithm, steps=steps, seconds=60, seed=seed, metrics=None, progress=False
                    )
                except (TypeError, ValueError) as error:  # a problem that the method refuses
                    print(f"    {facts.name} refuses it: {str(error)[:80]}", flush=True)
                    break
                F = float(bx.exact_objective(problem, result.x))
                found[facts.name, seed] = -np.inf if result.status == "diverged" else (first - F) / (first - best)
    return found


def words(pairs):
    """Seconds and samples for a table."""
    return [f"{s:.3g} s, {n:.2g}" if np.isfinite(s) else "-" for s, n in pairs]


def main(arguments=None):
    """Run the benchmark and return its figures."""
    parser = harness.options(__doc__)
    parser.add_argument("--half", choices=["judge", "develop", "both"], default="judge")
    parser.add_argument("--problems", help="their names, separated by commas")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--tuned", default="", help="methods that are tuned, for the mark")
    parser.add_argument("--tune-seconds", type=float, default=10.0)
    parser.add_argument("--defaults", action="store_true", help="all algorithms with their defaults, too")
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args(arguments)
    halves = {"judge": JUDGE, "develop": DEVELOP, "both": {**DEVELOP, **JUDGE}}
    names = chosen.problems.split(",") if chosen.problems else SHORT if chosen.short else tuple(halves[chosen.half])
    steps, seeds = (SHORT_STEPS, 1) if chosen.short else (STEPS, chosen.seeds)
    figures, rows, ratios, ways = {}, [], [], {}
    for name in names:
        problem = halves["both"][name]()
        tuned = [method for method in chosen.tuned.split(",") if method]
        found, first, best = compare(problem, chosen.seconds, tuned, chosen.tune_seconds)
        mark = min(found[method][1][0] for method in found if method != "solve")
        ratio = found["solve"][1][0] / mark
        ratios.append(ratio if np.isfinite(mark) else 0.0)
        print(f"{name}: solve to 1 % in {found['solve'][1][0]:.3g} s, the mark {mark:.3g} s", flush=True)
        rows += [(name if method == "solve" else "", method, *words(pairs)) for method, pairs in found.items()]
        figures |= {f"{name}.{method}.seconds_to_0.01": pairs[1][0] for method, pairs in found.items()}
        if chosen.defaults:
            shares = defaults(problem, first, best, steps, seeds)
            ways |= {(name, *key): share for key, share in shares.items()}
            worst = sorted(shares, key=shares.get)[:3]
            print("    least: " + ", ".join(f"{key[0]} {shares[key]:.3f}" for key in worst), flush=True)
        jax.clear_caches()
    harness.show("seconds, samples to a gap of", ("problem", "", *(f"{gap:.1%}" for gap in GAPS)), rows)
    figures |= {"untuned_median": float(np.median(ratios)), "untuned_worst": float(np.max(ratios))}
    if chosen.defaults:
        figures["defaults_runs"] = len(ways)
        figures["defaults_diverged"] = sum(share < 0 for share in ways.values())
        figures["defaults_half_way"] = float(np.mean([share >= 0.5 for share in ways.values()]))
        figures |= {f"{'.'.join(map(str, key))}.way": share for key, share in ways.items()}
    last = ("untuned_median", "untuned_worst", "defaults_runs", "defaults_diverged", "defaults_half_way")
    harness.conclude({**figures, **{name: figures.pop(name) for name in last if name in figures}}, chosen.json)
    return figures


if __name__ == "__main__":
    main(sys.argv[1:])
