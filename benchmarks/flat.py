"""Microseconds per step against the number of tasks: the paper's promise is that it does not matter.

    python -m benchmarks.flat [--short] [--json FILE]

10 tasks a step with 32 samples each, d' = 32, float64.

- dense: V and H of every task; most of its step is eigendecompositions.
- dense_ridge: the same problem with its ridge declared, so that it is kept apart and needs no floor.
- linear_model: weights for 256 samples, the 32 features of a linear model; q, c and M of every task.
- tracked: matrix-free; vectors of every task.
- known: the cheapest there can be: V = −I and H = I are known and nothing is kept of them, so that only the vectors
  of a task are read and written, and a copy of anything large would show.
- bsvrb_v2: BSVRB v2, matrix-free as well; block_soba: block SOBA, where a task that is not drawn does not move.

Every m is timed in turn, several rounds, and the median counts: the machine is shared. The last line, flat_ratio=R, is
the largest m against the smallest, the worst of all.
"""

import gc

import jax
import jax.numpy as jnp
import numpy as np

import bilevax as bx
from benchmarks import harness
from bilevax.curvature import Curvature, dense, linear_model, tracked
from bilevax.curvature.contract import Second

DIMENSION, SAMPLES, TASKS_PER_STEP, BATCH = 32, 256, 10, 32


def upper(x, y, theta, batch):
    """A small smooth upper loss."""
    return 0.5 * jnp.mean((batch @ y - 1) ** 2) + 0.05 * jnp.sum(x**2)


def curved(x, y, theta, batch):
    """A strongly convex lower loss that is not quadratic."""
    return jnp.mean(jax.nn.softplus(batch @ y)) + 0.5 * jnp.sum((y - x) ** 2) + theta @ y


def simple(x, y, theta, batch):
    """A lower loss with ∇²yy g = I and ∇²xy g = -I."""
    return jnp.mean(batch @ y) + 0.5 * jnp.sum((y - x) ** 2) + theta @ y


def with_loss(lower, ridge=False):
    """m lower problems that share their samples and differ in one vector each."""

    def build(num_tasks):
        rng = np.random.default_rng(0)
        rows = jnp.asarray(rng.normal(size=(1000, DIMENSION)) / np.sqrt(DIMENSION))
        return bx.Problem(
            upper=upper,
            lower=lower,
            x0=jnp.ones(DIMENSION),
            y0=jnp.zeros(DIMENSION),
            y0_per_task=False,
            tasks=jnp.asarray(rng.random((num_tasks, DIMENSION))),
            upper_data=bx.shared(rows),
            lower_data=bx.shared(rows),
            strong_convexity=1.0,
            ridge=ridge,
        )

    return build


def weighted_samples(num_tasks):
    """m linear models that share the weights of their samples and differ in temperature."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(2 * SAMPLES, DIMENSION - 1))
    b = np.where(A @ rng.normal(size=DIMENSION - 1) > 0, 1.0, -1.0)
    return bx.problems.reweighting(
        train_features=A[:SAMPLES], train_labels=b[:SAMPLES], trusted_features=A[SAMPLES:], trusted_labels=b[SAMPLES:],
        temperatures=rng.uniform(1, 11, num_tasks), ridge=1e-2,
    )  # fmt: skip


class NothingKept(Curvature):
    """∇²yy g = I and ∇²xy g = −I are known: V H⁻¹ v = −v, and a step is all that is not curvature."""

    name = "nothing"

    def products(self, problem):
        """None."""
        return 0

    def start(self, problem, sample, v, bounds):
        """Nothing."""
        return ()

    def age(self, problem, kept, decay, drift):
        """Nothing."""
        return ()

    def observe(self, problem, kept, now, before):
        """Nothing."""
        return Second(None, None), Second(None, None)

    def update(self, problem, rates, kept, new, now):
        """Nothing."""
        return ()

    def correction(self, problem, kept, v):
        """−v."""
        return -v


known = NothingKept()
rsvrb = lambda curvature: lambda **settings: bx.rsvrb(curvature=curvature, **settings)
FORMS = {
    "dense": (with_loss(curved), rsvrb(dense)),
    "dense_ridge": (with_loss(curved, ridge=True), rsvrb(dense)),
    "linear_model": (weighted_samples, rsvrb(linear_model)),
    "tracked": (with_loss(curved), rsvrb(tracked)),
    "known": (with_loss(simple), rsvrb(known)),
    "bsvrb_v2": (with_loss(curved), bx.bsvrb_v2),
    "block_soba": (with_loss(curved), bx.block_soba),
}

IN_SHORT = ("linear_model", "tracked", "known", "block_soba")


def measure(sizes, form, steps, rounds):
    """Median microseconds per step for every m, the rounds interleaved."""
    build, factory = FORMS[form]
    timed = {}
    for m in sizes:
        share = TASKS_PER_STEP / m
        algorithm = factory(
            upper_step=0.01 * share,
            lower_step=0.1 * share,
            mixing=min(0.1, share),
            tasks_per_step=TASKS_PER_STEP,
            batch_size=BATCH,
            initialization="cheap",
        )
        timed[m] = harness.Timed(build(m), algorithm, steps)
    return harness.interleaved(timed, rounds)


def main(arguments=None):
    """Run the benchmark and return its figures."""
    chosen = harness.options(__doc__).parse_args(arguments)
    sizes, steps, rounds = ([100, 1000], 20, 3) if chosen.short else ([100, 1_000, 10_000, 100_000], 200, 9)
    figures, rows = {}, []
    with jax.enable_x64(True):
        for name in IN_SHORT if chosen.short else FORMS:
            times = measure(sizes, name, steps, rounds)
            ratio = times[sizes[-1]] / times[sizes[0]]
            figures |= {f"{name}.{m}.microseconds": times[m] for m in sizes}
            figures[f"{name}_ratio"] = ratio
            rows.append((name, *(f"{times[m]:.0f}" for m in sizes), f"{ratio:.2f}"))
            gc.collect()
    columns = ("curvature", *(f"m = {m:,}" for m in sizes), "ratio")
    harness.show("10 tasks a step, d' = 32: microseconds per step", columns, rows)
    figures["flat_ratio"] = max(value for name, value in figures.items() if name.endswith("_ratio"))
    harness.conclude(figures, chosen.json)
    return figures


if __name__ == "__main__":
    main()
