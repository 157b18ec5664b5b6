"""Meta-learning with 10,000 tasks: one network from which a new task adapts in a few gradient steps.

    python examples/meta_learning.py [--case sinusoids|digits] [--short] [--out DIR]

sinusoids: regression of a·sin(t − b) from ten points. digits: five digits told apart from five images of each, turned
and perhaps mirrored in ways that no training task has shown for these digits.

Ways to train the same network on the same number of samples: jointly on all tasks; by first-order MAML (Finn, Abbeel,
Levine 2017), where a task changes the whole network, or its last layer; and as `bilevax.problems.meta_learning`, where
a task changes the last layer and 25 of the 10,000 lower problems are looked at in a step (also with a first-order
gradient in the place of the bilevel one). Prints the error on new tasks
after some gradient steps, with the step size that is best on other new tasks, and draws it as
meta_learning_sinusoids.png or meta_learning_digits.png.
"""

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import optax
from sklearn.datasets import load_digits

import bilevax as bx

matplotlib.use("Agg")
from matplotlib import pyplot as plt

TASKS_PER_STEP, INNER_STEPS = 25, 20
ALL, HEAD = ("body", "head"), ("head",)  # what a task changes
COUNTS = (0, 1, 2, 5, 10, 20)  # gradient steps of a new task
STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # their sizes, of which each way takes its best


class Samples(NamedTuple):
    """Tasks: what they adapt to and what they are judged by, each with a leading axis of tasks."""

    support: Any
    query: Any


class Case(NamedTuple):
    """`loss(x, task, batch)` to be trained on, `error(x, batch)` to be judged by, and the settings of both methods."""

    x0: Any
    loss: Any
    error: Any
    train: Samples
    validation: Samples
    test: Samples
    ridge: float
    lower_step: float
    maml_step: float
    steps: int
    decay: float  # of the weights, in all ways


def body(x, rows):
    """The two hidden layers."""
    for layer in x["body"]:
        rows = jnp.tanh(rows @ layer["weights"] + layer["shift"][None, :])
    return rows


def network(x, rows):
    """The last layer, on what the body makes of the rows."""
    return body(x, rows) @ x["head"]["weights"] + x["head"]["shift"][None, :]


def random_network(key, inputs, hidden, outputs):
    """Two hidden layers and a last one."""

    def layer(k, inputs, outputs):
        weights, shift = jax.random.split(jax.random.fold_in(key, k))
        scale = inputs**-0.5
        return {"weights": scale * jax.random.normal(weights, (inputs, outputs), np.float32),
                "shift": scale * jax.random.normal(shift, (outputs,), np.float32)}  # fmt: skip

    return {"body": [layer(0, inputs, hidden), layer(1, hidden, hidden)], "head": layer(2, hidden, outputs)}


def sinusoids(tasks, seed, others):
    """Ten points to adapt to and ten to be judged by, of curves with amplitudes .1 to 5 and phases 0 to π."""
    rng = np.random.default_rng(seed)

    def draw(tasks):
        amplitude, phase = rng.uniform(0.1, 5, (tasks, 1)), rng.uniform(0, np.pi, (tasks, 1))
        t = rng.uniform(-5, 5, (tasks, 20)).astype(np.float32)
        value = (amplitude * np.sin(t - phase)).astype(np.float32)
        return Samples(*({"t": t[:, part], "value": value[:, part]} for part in (slice(10), slice(10, 20))))

    def squares(x, batch):
        return jnp.mean((network(x, batch["t"][:, None])[:, 0] - batch["value"]) ** 2)

    return Case(
        x0=random_network(jax.random.key(seed), 1, 40, 1), loss=lambda x, task, batch: squares(x, batch) / 2,
        error=squares, train=draw(tasks), validation=draw(others[0]), test=draw(others[1]), ridge=0.5, lower_step=0.05,
        maml_step=0.03, steps=10_000, decay=0.0,
    )  # fmt: skip


def digits(tasks, seed, others):
    """Five of the digits, turned and perhaps mirrored; five images of each to adapt to and five to be judged by."""
    rng, held = np.random.default_rng(seed), load_digits()
    views = [np.rot90(images, k, (1, 2)) for images in (held.images, held.images.swapaxes(1, 2)) for k in range(4)]
    views = np.stack(views).reshape(8, -1, 64).astype(np.float32) / 16
    of_digit = [np.flatnonzero(held.target == digit) for digit in range(10)]
    ways = rng.permuted(np.broadcast_to(np.arange(8), (10, 8)), axis=1)  # five of a digit's views are for training

    def draw(tasks, allowed):
        chosen = rng.permuted(np.broadcast_to(np.arange(10), (tasks, 10)), axis=1)[:, :5]
        view = ways[chosen, rng.choice(allowed, (tasks, 5))]
        picks = np.array([[rng.choice(of_digit[digit], 10, replace=False) for digit in digits] for digits in chosen])
        images = views[view[:, :, None], picks]
        label = np.broadcast_to(np.arange(5)[:, None], (tasks, 5, 5)).reshape(tasks, 25)
        parts = (images[:, :, :5], images[:, :, 5:])
        return Samples(*({"image": part.reshape(tasks, 25, 64), "label": label} for part in parts))

    def loss(x, task, batch):
        return optax.softmax_cross_entropy_with_integer_labels(network(x, batch["image"]), batch["label"]).mean()

    def wrong(x, batch):
        return jnp.mean((network(x, batch["image"]).argmax(1) != batch["label"]).astype(np.float32))

    return Case(
        x0=random_network(jax.random.key(seed), 64, 100, 5), loss=loss, error=wrong, train=draw(tasks, range(5)),
        validation=draw(others[0], range(5, 8)), test=draw(others[1], range(5, 8)), ridge=0.03, lower_step=0.1,
        maml_step=0.05,
        steps=3000, decay=1.0,
    )  # fmt: skip


def adapt(case, parts, ridge, x, support, step, count):
    """`count` gradient steps on y from zero, of loss(x + y) + ridge/2 ‖y‖², where y changes some parts of x."""
    others = {name: part for name, part in x.items() if name not in parts}

    def penalised(y):
        changed = {name: jax.tree.map(jnp.add, x[name], y[name]) for name in parts}
        loss = case.loss({**others, **changed}, None, support)
        return loss + ridge / 2 * optax.tree.norm(y, squared=True), changed

    def descend(_, y):
        return jax.tree.map(lambda y, slope: y - step * slope, y, jax.grad(penalised, has_aux=True)(y)[0])

    y = jax.lax.fori_loop(0, count, descend, jax.tree.map(jnp.zeros_like, {name: x[name] for name in parts}))
    return {**others, **penalised(y)[1]}


def optimizer_of(case, steps):
    """The optimizer of x, for all ways."""
    return optax.adamw(optax.cosine_decay_schedule(3e-3, steps), weight_decay=case.decay)


def by_gradients(case, gradient, steps, seed):
    """Train by gradient(x, support, query), the mean over 25 tasks drawn at random."""
    optimizer, train = optimizer_of(case, steps), jax.tree.map(jnp.asarray, case.train)
    tasks = len(jax.tree.leaves(train)[0])

    def step(t, carry):
        x, state = carry
        drawn = jax.random.randint(jax.random.fold_in(jax.random.key(seed), t), (TASKS_PER_STEP,), 0, tasks)
        slopes = jax.vmap(lambda i: gradient(x, *jax.tree.map(lambda leaf: leaf[i], train)))(drawn)
        updates, state = optimizer.update(jax.tree.map(lambda leaf: leaf.mean(0), slopes), state, x)
        return optax.apply_updates(x, updates), state

    return jax.jit(lambda x: jax.lax.fori_loop(0, steps, step, (x, optimizer.init(x)))[0])(case.x0)


def jointly(case, steps, seed):
    """One network for all tasks."""
    both = lambda x, support, query: (case.loss(x, None, support) + case.loss(x, None, query)) / 2
    return by_gradients(case, jax.grad(both), steps, seed)


def first_order(parts, same):
    """∇f at the network after gradient steps of these parts on the support samples, from y = 0 in every visit.

    Ten steps of MAML's own size; or, for the `same`, the lower problem and the steps of the bilevel way.
    """

    def train(case, steps, seed):
        settings = (case.ridge, case.lower_step, INNER_STEPS) if same else (0.0, case.maml_step, 10)

        def gradient(x, support, query):
            ridge, step, count = settings
            return jax.grad(case.loss)(adapt(case, parts, ridge, x, support, step, count), None, query)

        return by_gradients(case, gradient, steps, seed)

    return train


def bilevel(case, steps, seed):
    """The bilevel problem with a lower problem for each task."""
    problem = bx.problems.meta_learning(
        loss=case.loss, x0=case.x0, support=bx.per_task(case.train.support), query=bx.per_task(case.train.query),
        ridge=case.ridge, adapts=HEAD,
    )  # fmt: skip
    algorithm = bx.block_soba(
        lower_step=case.lower_step, mixing=1.0, tasks_per_step=TASKS_PER_STEP, batch_size=None,
        inner_steps=INNER_STEPS,
        upper_optimizer=optimizer_of(case, steps), initialization="cheap",
    )  # fmt: skip
    return bx.solve(problem, algorithm, steps=steps, seed=seed, metrics=None, progress=False).x


class Way(NamedTuple):
    """How to train, what a new task changes, and whether it does so with the ridge of the bilevel problem."""

    train: Any
    parts: tuple
    with_ridge: bool


WAYS = {
    "jointly trained": Way(jointly, ALL, False),
    "first-order MAML": Way(first_order(ALL, same=False), ALL, False),
    "first-order MAML, last layer": Way(first_order(HEAD, same=False), HEAD, False),
    "first-order, lower problem of bilevax": Way(first_order(HEAD, same=True), HEAD, True),
    "bilevax": Way(bilevel, HEAD, True),
}


def errors(case, parts, ridge, x):
    """The mean error of new tasks after each count of steps, and the size of the steps."""

    @jax.jit
    def mean_error(samples, step, count):
        of_task = lambda support, query: case.error(adapt(case, parts, ridge, x, support, step, count), query)
        return jnp.mean(jax.vmap(of_task)(*samples))

    best = [min(STEPS, key=lambda step: np.nan_to_num(mean_error(case.validation, step, count), nan=np.inf))
            for count in COUNTS]  # fmt: skip
    return np.array([mean_error(case.test, *chosen) for chosen in zip(best, COUNTS, strict=True)]), best


def draw_curves(axes, case, models):
    """Three new tasks, what they adapt to, and what ten steps make of it."""
    t = jnp.linspace(-5, 5, 200)
    for k, axis in enumerate(axes):
        support, query = ({name: leaf[k] for name, leaf in part.items()} for part in case.test)
        for name, (x, parts, ridge, best) in models.items():
            fitted = adapt(case, parts, ridge, x, support, best[COUNTS.index(10)], 10)
            axis.plot(t, network(fitted, t[:, None])[:, 0], label=name)
        axis.plot(*support.values(), "ko", ms=5, label="what it adapts to")
        axis.plot(*query.values(), "kx", ms=5, label="what it is judged by")
        axis.set(title=f"a new task, ten steps ({k + 1})", xlabel="t")
    axes[-1].legend(fontsize=8)


def draw_images(axes, case):
    """The support images of a new task."""
    for axis, rows in zip(axes, case.test.support["image"][:3], strict=True):
        axis.imshow(
            np.block([[np.pad(image.reshape(8, 8), 1) for image in row] for row in rows.reshape(5, 5, 64)]),
            cmap="gray_r",
        )
        axis.set(title="a new task: five digits, a row each", xticks=[], yticks=[])


def compare(make, tasks, seeds, short):
    """The errors of each way on each seed; the last case, and the models that were trained on it."""
    measured, models = {name: [] for name in WAYS}, {}
    for seed in range(seeds):
        case = make(tasks, seed, (10, 20) if short else (300, 500))
        steps = 20 if short else case.steps
        for name, (train, parts, with_ridge) in WAYS.items():
            begun = time.perf_counter()
            x = jax.block_until_ready(train(case, steps, seed))
            seconds = time.perf_counter() - begun
            ridge = case.ridge if with_ridge else 0.0
            error, best = errors(case, parts, ridge, x)
            measured[name].append(error)
            models[name] = (x, parts, ridge, best)
            listed = ", ".join(f"{e:.4f}" for e in error)
            print(f"seed {seed}, {name}, {seconds:.0f} s: {listed} after {COUNTS} steps", flush=True)
    return measured, case, models


def tell(measured):
    """The table of the means over the seeds."""
    counts = " | ".join(f"{count} steps" for count in COUNTS)
    print(f"\n| mean error on new tasks | {counts} |\n|---|" + "---|" * len(COUNTS))
    for name, runs in measured.items():
        cells = [f"{m:.3f} ± {s:.3f}" for m, s in zip(np.mean(runs, 0), np.std(runs, 0), strict=True)]
        print(f"| {name} | " + " | ".join(cells) + " |")


def main():
    """Train in all ways on each seed, tell the errors on new tasks, draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=["sinusoids", "digits"], default="sinusoids")
    parser.add_argument("--short", action="store_true", help="40 tasks, 20 steps, one seed")
    parser.add_argument("--out", type=Path, default=Path("."), help="where the picture goes")
    chosen = parser.parse_args()
    tasks, seeds = (40, 1) if chosen.short else (10_000, 3)
    make = {"sinusoids": sinusoids, "digits": digits}[chosen.case]
    measured, case, models = compare(make, tasks, seeds, chosen.short)
    tell(measured)
    figure, axes = plt.subplots(1, 4, figsize=(16, 3.8), layout="constrained")
    for name, runs in measured.items():
        axes[0].plot(COUNTS, np.mean(runs, 0), "o-", label=name)
    axes[0].set(
        xlabel="gradient steps",
        title=f"error on {20 if chosen.short else 500} new tasks, mean of {seeds} seeds",
        yscale="log",
    )
    axes[0].legend()
    draw_curves(axes[1:], case, models) if chosen.case == "sinusoids" else draw_images(axes[1:], case)
    chosen.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(chosen.out / f"meta_learning_{chosen.case}.png", dpi=110)


if __name__ == "__main__":
    main()
