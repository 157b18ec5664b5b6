"""175 binary tasks on one representation: a few of them a step, or all of them, for the mean area under the ROC curve.

    python examples/multi_task_auc.py [--short] [--out DIR]

The tasks are questions about real images: is this digit one of these one, two or three? Each number of tasks takes the
best of four learning rates, which fall along a cosine, on 300 images, and is judged on 497 others. Draws
multi_task_auc.png: mean test AUC against samples and against seconds, the mean of several seeds.
"""

import argparse
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from sklearn.datasets import load_digits

import bilevax as bx
from bilevax.models import network

matplotlib.use("Agg")
from matplotlib import pyplot as plt

HIDDEN, TRAIN, CHOICE, BATCH = 32, 1000, 300, 32
RATES, SHARES = (3e-3, 1e-2, 3e-2, 1e-1), (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
SUBSETS = [subset for size in (1, 2, 3) for subset in itertools.combinations(range(10), size)]


def digits(seed):
    """Training images and others with the labels of all tasks, −1 or +1."""
    held, rng = load_digits(), np.random.default_rng(seed)
    order = rng.permutation(len(held.target))
    labels = np.stack([np.where(np.isin(held.target, subset), 1.0, -1.0) for subset in SUBSETS], axis=1)
    images = held.data / 16.0
    return (images[order[:TRAIN]], labels[order[:TRAIN]]), (images[order[TRAIN:]], labels[order[TRAIN:]])


def mean_area(scores, positive):
    """The mean over tasks of the area under the ROC curve, from ranks."""
    ranks = np.argsort(np.argsort(scores, axis=0), axis=0) + 1.0
    n = positive.sum(0)
    return float(np.mean(((ranks * positive).sum(0) - n * (n + 1) / 2) / (n * (len(positive) - n))))


def run(tasks_per_step, rate, samples, seed):
    """One run to a number of samples; its trace with the mean AUC on images to choose by, and on test images."""
    (images, labels), (new, truth) = digits(seed)
    m = len(SUBSETS)
    problem = bx.problems.auc(
        features=images, labels=labels, represent=network.representation, ridge=1e-4,
        body0=network.random_layers(jax.random.key(seed), (64, HIDDEN, 1), jnp.float32)[:-1],
        heads0=np.random.default_rng(seed).normal(size=(m, HIDDEN)) / 10,
    )  # fmt: skip
    steps = samples // (2 * BATCH * tasks_per_step)
    algorithm = bx.block_soba(
        lower_step=0.3, mixing=1.0, tasks_per_step=tasks_per_step, batch_size=BATCH, initialization="cheap",
        upper_optimizer=optax.adam(optax.cosine_decay_schedule(rate, steps)),
    )  # fmt: skip

    def area(problem, variables):
        x = problem.unravel_x(variables.x)
        scores = network.representation(x["body"], jnp.asarray(new, jnp.float32)) @ x["heads"].T
        parts = {"choice": slice(CHOICE), "area": slice(CHOICE, None)}
        return {name: mean_area(np.asarray(scores)[part], truth[part] > 0) for name, part in parts.items()}

    every = max(1, steps // 16)
    return bx.solve(problem, algorithm, samples=samples, seed=seed, record_every=every, metrics=area).trace


def mean_curve(traces):
    """The mean of several traces, record by record."""
    length = min(len(trace) for trace in traces)
    names = ("samples", "seconds", "choice", "area")
    return {name: np.mean([trace[name][:length] for trace in traces], axis=0) for name in names}


def main():
    """Run all numbers of tasks to the same number of samples and draw their curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="few samples, one seed, one learning rate")
    parser.add_argument("--out", type=Path, default=Path("."), help="where multi_task_auc.png goes")
    chosen = parser.parse_args()
    samples, seeds, rates = (30_000, 1, RATES[:1]) if chosen.short else (500_000, 5, RATES)
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained", sharey=True)
    for tasks_per_step in (5, 10, 40, len(SUBSETS)):
        curves = {
            rate: mean_curve([run(tasks_per_step, rate, samples, seed) for seed in range(seeds)]) for rate in rates
        }
        rate = max(curves, key=lambda rate: curves[rate]["choice"][-1])
        curve, name = curves[rate], "all" if tasks_per_step == len(SUBSETS) else tasks_per_step
        for axis, measure in zip(axes, ("samples", "seconds"), strict=True):
            axis.plot(curve[measure], curve["area"], label=f"{name} tasks a step")
        shown = ", ".join(f"{np.interp(share * samples, curve['samples'], curve['area']):.4f}" for share in SHARES)
        print(f"{name} tasks a step, rate {rate}: mean test AUC {shown} after {SHARES} of {samples:,} samples, "
              f"{curve['seconds'][-1]:.2f} s of steps", flush=True)  # fmt: skip
    axes[0].set(xlabel="samples drawn", ylabel="mean test AUC", title=f"{len(SUBSETS)} tasks, one representation")
    axes[1].set(xlabel="seconds of steps", title="the same against time")
    axes[0].legend()
    chosen.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(chosen.out / "multi_task_auc.png", dpi=110)


if __name__ == "__main__":
    main()
