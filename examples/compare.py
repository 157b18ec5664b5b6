"""RSVRB with constant steps, RE-RSVRB, and different numbers of tasks per step, on a quadratic with known solution.

    python examples/compare.py [--short] [--out DIR]

Draws compare.png: the gap F(x) − F* against samples, from the closed form, the mean of three seeds.
"""

import argparse
from pathlib import Path

import matplotlib
import numpy as np

import bilevax as bx

matplotlib.use("Agg")
from matplotlib import pyplot as plt

TASKS = 100


def settings(tasks_per_step):
    """Steps and mixing in proportion to the share of tasks that a step looks at."""
    share = tasks_per_step / TASKS
    return {
        "upper_step": 0.4 * share,
        "lower_step": 0.5 * share,
        "mixing": 0.2 * share,
        "tasks_per_step": tasks_per_step,
        "batch_size": 8,
    }


def main():
    """Run all methods to the same number of samples and draw their curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a tenth of the samples, one seed")
    parser.add_argument("--out", type=Path, default=Path("."), help="where compare.png goes")
    chosen = parser.parse_args()
    samples, seeds = (100_000, 1) if chosen.short else (1_500_000, 3)
    truth = bx.problems.quadratic(num_tasks=TASKS, noise=0.5)
    best = float(truth.objective(truth.solution))
    methods = {
        "RSVRB, 5 tasks a step": bx.rsvrb(**settings(5)),
        "RSVRB, 20 tasks a step": bx.rsvrb(**settings(20)),
        "RE-RSVRB, 20 tasks a step": bx.re_rsvrb(first_stage=500, **settings(20)),
    }
    gap = lambda problem, variables: {"gap": truth.objective(variables.x) - best}
    figure, axis = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for name, algorithm in methods.items():
        traces = [
            bx.solve(truth.problem, algorithm, samples=samples, seed=seed, record_every=100, metrics=gap).trace
            for seed in range(seeds)
        ]
        gaps = np.mean([trace["gap"] for trace in traces], axis=0)
        axis.loglog(traces[0]["samples"], gaps, label=name)
        print(
            f"{name}: F(x) - F* = {gaps[0]:.3g} at the start, {gaps[-max(1, len(gaps) // 10) :].mean():.3g} at the end"
        )
    axis.set(xlabel="samples drawn", ylabel="F(x) − F*", title=f"A noisy quadratic with {TASKS} lower problems")
    axis.legend()
    chosen.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(chosen.out / "compare.png", dpi=110)


if __name__ == "__main__":
    main()
