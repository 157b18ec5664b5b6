"""SABA (Dagréou et al. 2022): SAGA on each term of the three directions; a single loop over a finite sum.

The samples of f and of g are split into fixed blocks of a batch each. A table holds, for every task and block, the
terms of the directions as they were when the block was last drawn:

    of f:  ∇y f_i,  ∇x f_i          of g:  ∇y g_i,  ∇²yy g_i·h_i,  ∇²xy g_i·h_i
    est(term) = term(now; block) − table[block] + mean(table),   table[block] ← term(now; block)
    y_i ← y_i − ρ·est(∇y g_i),   h_i ← Π[h_i − ρ(est(∇²yy g_i·h_i) − est(∇y f_i))]
    x ← x − γ mean_i(est(∇x f_i) − est(∇²xy g_i·h_i))

A block is drawn with a probability in proportion to its samples, so the estimates are unbiased also where the blocks
are not all of one size. A step reads and writes one row of each table for each task, in place. O(n^{2/3} ε⁻²) samples
to an ε-stationary point of a finite sum of n; the tables hold m·n/batch·(2d + 3d') numbers. Means of a table follow its
changes and are not summed anew: in float32 what was rounded on the way stays in them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from bilevax import arguments, chunks, draw, tasks
from bilevax.algorithms.contract import Algorithm, Cost, described
from bilevax.algorithms.frame import Change, Move, RatesAt, State, assemble
from bilevax.algorithms.parts.all_tasks import common
from bilevax.algorithms.parts.hypergradient import Points
from bilevax.algorithms.parts.three_directions import ThreeDirections, evaluation_cost, points_of, step_along
from bilevax.algorithms.registry.tuning import STEPS, Tuning, constant_steps
from bilevax.algorithms.start import all_tasks
from bilevax.problem import Problem
from bilevax.samples import Data, NoData, Ragged, Sampler, Samples, UnevenBlock
from bilevax.schedule import RateRule
from bilevax.words import random_words

UPPER_STEP, LOWER_STEP = RateRule(0.25, "step", condition_power=0.5), RateRule(0.5, "1/smoothness")


class Split(NamedTuple):
    """Samples 0..n−1 in consecutive blocks of `base` or `base + 1` samples; the first `longer` blocks have one more."""

    blocks: int
    base: int
    longer: int
    whole: bool  # one block, of every sample there is

    def block_of(self, sample: Array) -> Int[Array, "..."]:
        """The block in which a sample lies."""
        first = self.longer * (self.base + 1)
        return jnp.where(sample < first, sample // (self.base + 1), self.longer + (sample - first) // self.base)

    def indices(self, block: Int[Array, ""]) -> Samples:
        """The samples of a block."""
        if self.whole:
            return None
        begin = block * self.base + jnp.minimum(block, self.longer)
        own = begin + jnp.arange(self.base, dtype=jnp.int32)
        if self.longer == 0:
            return own
        has_last = block < self.longer
        last = jnp.where(has_last, begin + self.base, begin)[None]
        return UnevenBlock(own, last, jnp.where(has_last, 1 / (self.base + 1), 0.0))

    @property
    def samples(self) -> int:
        """n."""
        return self.blocks * self.base + self.longer

    def size(self, block: Int[Array, "..."]) -> Float[Array, "..."]:
        """The samples in a block. Its share of all is its probability, and its weight in the mean."""
        return jnp.where(block < self.longer, self.base + 1.0, float(self.base))


def split(data: Data, size: int | None) -> Split:
    """Blocks of at most `size` samples, as equal as can be."""
    n = data.max_length
    if size is None or isinstance(data, NoData) or size >= n:
        return Split(1, n, 0, True)
    blocks = -(-n // size)
    return Split(blocks, n // blocks, n % blocks, False)


class UpperTerms(NamedTuple):
    """The terms of f; `f_x` is `None` where f does not depend on x."""

    f_y: Any
    f_x: Any


class LowerTerms(NamedTuple):
    """The terms of g."""

    g_y: Any
    hessian: Any
    cross: Any


def _upper_terms(problem: Problem, at: Points, i: Int[Array, ""], xi: Samples) -> UpperTerms:
    f_x, f_y = problem.upper_gradients(at.x, at.y[i], i, xi)
    return UpperTerms(f_y, f_x if problem.structure.upper_uses_x else None)


def _lower_terms(problem: Problem, at: Points, i: Int[Array, ""], zeta: Samples) -> LowerTerms:
    g_y, second = problem.lower_derivatives(at.x, at.y[i], i, zeta)
    cross, hessian = second(at.h[i])
    return LowerTerms(g_y, hessian, cross)


class Half(NamedTuple):
    """The table of one of the two losses: its terms, its blocks, and a row for each task and block."""

    terms: Callable[[Problem, Points, Any, Samples], Any]
    split: Split

    def start(self, problem: Problem, at: Points) -> tuple[PyTree, PyTree]:
        """The table at the first point, and its mean over the blocks of each task."""
        blocks = self.split.blocks

        def row(k: Int[Array, ""]) -> PyTree:
            return self.terms(problem, at, k // blocks, self.split.indices(k % blocks))

        each = problem.work if self.split.whole else self.split.base * problem.dim_y
        self._require(jax.eval_shape(row, jax.ShapeDtypeStruct((), np.int32)), problem.num_tasks * blocks)
        table = chunks.for_all(row, problem.num_tasks * blocks, each)
        shares = (self.split.size(jnp.arange(blocks)) / self.split.samples).astype(problem.dtype)
        mean = lambda leaf: jnp.einsum("mk...,k->m...", leaf.reshape(problem.num_tasks, blocks, -1), shares)
        return table, jax.tree.map(mean, table)

    def _require(self, row: PyTree, rows: int) -> None:
        try:
            chunks.require(row, rows)
        except MemoryError as error:
            raise MemoryError(
                f"saba's table of {rows} blocks does not fit: give a larger batch_size, which makes fewer blocks, or "
                f"use bilevax.srba, which keeps no table. ({error})"
            ) from None

    def find(
        self, problem: Problem, at: Points, table: PyTree, mean: PyTree, key: Key[Array, ""]
    ) -> tuple[PyTree, PyTree, Callable[[Bool[Array, ""]], PyTree], Float[Array, ""]]:
        """The estimates of all terms of all tasks, the new means, how the table is written, the samples drawn."""
        numbers, words = all_tasks(problem), random_words(key, (2, problem.num_tasks))
        drawn = self.split.block_of(draw.below(words, self.split.samples))
        sizes = self.split.size(drawn)
        rows = numbers * self.split.blocks + drawn
        of_task = lambda i, block: self.terms(problem, at, i, self.split.indices(block))
        fresh, old = jax.vmap(of_task)(numbers, drawn), tasks.read(table, rows)
        share = (sizes / self.split.samples).astype(problem.dtype)[:, None]
        estimates = jax.tree.map(lambda new, old, mean: new - old + mean, fresh, old, mean)
        means = jax.tree.map(lambda new, old, mean: mean + share * (new - old), fresh, old, mean)
        return estimates, means, lambda keep: tasks.write(table, rows, fresh, keep), jnp.sum(sizes.astype(float))


def _refuse_others(problem: Problem) -> None:
    for name, data in [("upper_data", problem.upper_data), ("lower_data", problem.lower_data)]:
        if isinstance(data, (Ragged, Sampler)):
            kind = "ragged" if isinstance(data, Ragged) else "made by bilevax.sampler"
            raise ValueError(
                f"saba keeps a table of fixed blocks of samples, as many for every task: {name} must be bilevax.shared "
                f"or bilevax.per_task; it is {kind}. bilevax.srba takes such data."
            )


class SABA(ThreeDirections):
    """SABA with its settings; it keeps the means of its two tables."""

    def check(self, problem: Problem) -> None:
        """Refuse ragged data."""
        _refuse_others(problem)

    def _halves(self, problem: Problem) -> tuple[Half, Half]:
        return (
            Half(_upper_terms, split(problem.upper_data, self.batch_size)),
            Half(_lower_terms, split(problem.lower_data, self.batch_size)),
        )

    def start_estimate(self, problem: Problem, at: Points) -> tuple[PyTree, Any, Cost]:
        """Both tables at the first point, and their means."""
        tables, means = zip(*(half.start(problem, at) for half in self._halves(problem)), strict=True)
        return means, tables, evaluation_cost(problem, None)

    def step(
        self, problem: Problem, rates_at: RatesAt, state: State, key: Key[Array, ""], move: Callable[[Array], Move]
    ) -> Change:
        """SAGA on every term, and a step along the directions that they make."""
        keys, at = jax.random.split(key), points_of(state)
        found = [
            half.find(problem, at, *parts)
            for half, *parts in zip(self._halves(problem), state.tables, state.own.estimate, keys, strict=True)
        ]
        (upper, lower), means, writes, sizes = zip(*found, strict=True)
        toward = -lower.cross if upper.f_x is None else upper.f_x - lower.cross
        estimates = Points(toward.mean(0), lower.g_y, lower.hessian - upper.f_y)
        samples = [
            jnp.where(isinstance(data, NoData), 0, size)
            for data, size in zip((problem.upper_data, problem.lower_data), sizes, strict=True)
        ]
        cost = Cost(samples[0] + samples[1], sizes[0] + sizes[1], 2 * sizes[1])
        write = lambda keep: tuple(write(keep) for write in writes)
        change = step_along(problem, rates_at(state.step), state, move, estimates, cost, keep=means, write=write)
        # x itself is looked at, not its direction, before the tables are written: XLA would else read rows for x after
        # that, and copy the tables.
        return change._replace(move=change.move._replace(finite=jnp.asarray(True)), watch=(change.watch, change.move.x))


@described(
    paper="Dagréou et al. 2022",
    loops="single",
    batch="O(1)",
    samples="n^{2/3} ε⁻²",
    tasks="all",
    memory="n/batch·(2d + 3d')",
    curvature="h followed",
    accepts="as many samples in every task",
    tuning=Tuning("SABA", STEPS, constant_steps),
)
@arguments.known_keywords
def saba(
    *,
    upper_step: Any = UPPER_STEP,
    lower_step: Any = LOWER_STEP,
    batch_size: int | None = 32,
    upper_optimizer: optax.GradientTransformation | None = None,
    initialization: str = "theorem",
    initial_batch_size: int | None = None,
) -> Algorithm:
    """SABA: est(term) = term(now; block) − table[block] + mean(table), for each term of SOBA's three directions.

    `upper_step` (γ) and `lower_step` (ρ) are numbers or schedules of the step; `batch_size` is the size of a block: the
    table takes n/batch_size rows of 2d + 3d' numbers for each task. h is kept in the ball of radius C_fy/λ where
    `Bounds.f_y` is given. All tasks are looked at in every step. Source: Dagréou, Ablin, Vaiter, Moreau, A Framework
    for Bilevel Optimization that Enables Stochastic and Global Variance Reduction Algorithms, NeurIPS 2022, Algorithm
    SABA.
    """
    settings = dict(locals())
    return assemble("saba", SABA(**common(settings)), settings)
