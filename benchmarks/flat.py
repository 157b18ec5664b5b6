"""Microseconds per RSVRB step against the number of tasks: the paper's promise is that it does not matter.

    python -m benchmarks.flat [--short] [--json FILE]

10 tasks a step, d = d' = 32, float64. "dense" keeps V and H of every task; most of its step is the
eigendecompositions. "known" is the cheapest there can be: V = -I and H = I are known and nothing is kept of them,
so that only the vectors of a task are read and written, and a copy of anything large would show. Every m is timed in
turn, several rounds, and the median counts: the machine is shared. The last line, flat_ratio=R, is the largest m
against the smallest, the worse of the two.
"""

import argparse
import gc
import json
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import bilevax as bx
from bilevax.curvature import Curvature, dense

DIMENSION, TASKS_PER_STEP, BATCH = 32, 10, 32


def upper(x, y, theta, batch):
    """A small smooth upper loss."""
    return 0.5 * jnp.mean((batch @ y - 1) ** 2) + 0.05 * jnp.sum(x**2)


def curved(x, y, theta, batch):
    """A strongly convex lower loss that is not quadratic."""
    return jnp.mean(jax.nn.softplus(batch @ y)) + 0.5 * jnp.sum((y - x) ** 2) + theta @ y


def simple(x, y, theta, batch):
    """A lower loss with ∇²yy g = I and ∇²xy g = -I."""
    return jnp.mean(batch @ y) + 0.5 * jnp.sum((y - x) ** 2) + theta @ y


nothing = lambda *_: ()
known = Curvature("known", nothing, nothing, nothing, nothing, lambda kept, v: -v, lambda problem: 0)
FORMS = {"dense": (curved, dense), "known": (simple, known)}


def build_problem(num_tasks, lower):
    """m lower problems that share their samples and differ in one vector each."""
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
    )


class Timed:
    """One compiled loop of RSVRB steps that goes on from where it was at every call."""

    def __init__(self, num_tasks, form, steps):
        lower, curvature = FORMS[form]
        problem = build_problem(num_tasks, lower)
        share = TASKS_PER_STEP / num_tasks
        algorithm = bx.rsvrb(
            upper_step=0.01 * share,
            lower_step=0.1 * share,
            mixing=min(0.1, share),
            tasks_per_step=TASKS_PER_STEP,
            batch_size=BATCH,
            curvature=curvature,
            initialization="cheap",
        )

        def loop(problem, state, key):
            def body(k, carry):
                state, finite = carry
                state, info = algorithm.step(problem, state, jax.random.fold_in(key, k))
                return state, finite & info.finite

            return jax.lax.fori_loop(0, steps, body, (state, jnp.asarray(True)))

        self.problem, self.steps, self.calls = problem, steps, 0
        self.state = jax.jit(algorithm.init)(problem, jax.random.key(0))
        self.loop = jax.jit(loop, donate_argnums=1)

    def microseconds(self):
        """The time of one step, over one call."""
        begun = time.perf_counter()
        self.calls += 1
        state, finite = jax.block_until_ready(self.loop(self.problem, self.state, jax.random.key(self.calls)))
        spent = time.perf_counter() - begun
        assert finite, "the run diverged, its time means nothing"
        self.state = state
        return spent / self.steps * 1e6


def measure(sizes, form, steps, rounds):
    """Median microseconds per step for every m, the rounds interleaved."""
    timed = {m: Timed(m, form, steps) for m in sizes}
    for one in timed.values():
        one.microseconds()  # compiles, and touches the memory for the first time
        one.microseconds()
    taken = {m: [] for m in sizes}
    for _ in range(rounds):
        for m, one in timed.items():
            taken[m].append(one.microseconds())
    return {m: statistics.median(times) for m, times in taken.items()}


def main(arguments=None):
    """Run the benchmark and return its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="two small sizes, a few steps")
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    chosen = parser.parse_args(arguments)
    sizes, steps, rounds = ([100, 1000], 20, 3) if chosen.short else ([100, 1_000, 10_000, 100_000], 200, 9)
    figures = {}
    table = Table(title="RSVRB, 10 tasks a step, d = d' = 32: microseconds per step")
    for column in ("curvature", *(f"m = {m:,}" for m in sizes), "ratio"):
        table.add_column(column, justify="right")
    with jax.enable_x64(True):
        for name in FORMS:
            times = measure(sizes, name, steps, rounds)
            ratio = times[sizes[-1]] / times[sizes[0]]
            figures[name] = {"microseconds": times, "ratio": ratio}
            table.add_row(name, *(f"{times[m]:.0f}" for m in sizes), f"{ratio:.2f}")
            gc.collect()
    Console().print(table)
    for name, figure in figures.items():
        print(f"{name}_ratio={figure['ratio']:.3f}")
    if chosen.json:
        with open(chosen.json, "w") as file:
            json.dump(figures, file, indent=1)
    print(f"flat_ratio={max(figure['ratio'] for figure in figures.values()):.3f}")
    return figures


if __name__ == "__main__":
    main()
