"""h ≈ [∇²yy g]⁻¹ v by powers of I − ϑ∇²yy g, ϑ ≤ 1/L_g, a fresh batch for each factor: nothing of size d'² is formed.

    random length:  h = Qϑ · Π_{k=1..p}(I − ϑ∇²yy g(ζ_k)) v,   p uniform on {0, ..., Q−1}, another for each task
    sum:            h = ϑ Σ_{q=0..Q} Π_{k=1..q}(I − ϑ∇²yy g(ζ_k)) v

The bias falls as (1 − ϑλ)^Q; the first is an unbiased estimate of the second's first Q terms, at half its price.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, PyTree

from bilevax import arguments, draw
from bilevax.algorithms.contract import Cost
from bilevax.algorithms.frame import count_cost
from bilevax.algorithms.parts.all_tasks import Rows
from bilevax.algorithms.start import all_tasks
from bilevax.problem import Problem
from bilevax.samples import Batches
from bilevax.schedule import RateRule
from bilevax.words import random_words

NEUMANN_STEP = RateRule(0.5, "1/smoothness")  # a batch can have a larger L_g than those that were looked at


class Series(NamedTuple):
    """A way to h for all tasks.

    - `draw(problem, key)`: what decides on the samples of all factors, and on their number.
    - `apply(problem, theta, x, y, v, samples)`: h.
    - `cost(problem, samples, points)`: of applying it at so many points.
    """

    draw: Callable[[Problem, Key[Array, ""]], PyTree]
    apply: Callable[[Problem, Array, Array, Rows, Rows, PyTree], Rows]
    cost: Callable[[Problem, PyTree, int], Cost]


def hessian_products(problem: Problem, x: Array, y: Rows, h: Rows, zeta: Batches) -> Rows:
    """∇²yy g_i(x, y_i; ζ_i)·h_i for all tasks."""
    product = lambda y, h, i, zeta: problem.lower_derivatives(x, y, i, zeta)[1](h)[1]
    return jax.vmap(product)(y, h, all_tasks(problem), zeta)


def check_terms(terms: Any) -> None:
    """Refuse a number of factors that is none, or absurd."""
    arguments.count("neumann_terms", terms, most=100_000)


def _check(name: str, step: Any, terms: Any) -> None:
    if step is None:
        raise TypeError(
            f"{name} inverts ∇²yy g by a Neumann series and needs neumann_step, at most 1/L_g with L_g the largest "
            "eigenvalue of ∇²yy g on a batch; bilevax.check(problem).smoothness is that on all samples, a batch can "
            "have a larger one."
        )
    if not isinstance(step, RateRule):
        arguments.positive("neumann_step", step)
    check_terms(terms)


def random_length(name: str, step: Any, terms: int, size: int | None) -> Series:
    """Qϑ times a product of p_i factors, p_i uniform on {0, ..., Q−1}, independent: their noise averages out."""
    _check(name, step, terms)

    def draw_lengths(problem: Problem, key: Key[Array, ""]) -> tuple[Int[Array, " m"], Key[Array, ""]]:
        length_key, batch_key = jax.random.split(key)
        return draw.below(random_words(length_key, (2, problem.num_tasks)), terms), batch_key

    def apply(
        problem: Problem, theta: Array, x: Array, y: Rows, v: Rows, samples: tuple[Int[Array, " m"], Key[Array, ""]]
    ) -> Rows:
        lengths, key = samples

        def factor(k: Array, v: Rows) -> Rows:
            change = theta * hessian_products(problem, x, y, v, draw.batch_of_all(problem, key, k, size))
            return jnp.where((k < lengths)[:, None], v - change, v)

        return terms * theta * jax.lax.fori_loop(0, lengths.max(), factor, v)

    def cost(problem: Problem, samples: tuple[Int[Array, " m"], Key[Array, ""]], points: int) -> Cost:
        """Samples of the factors that count: a task that is done draws no more."""
        of_task = lambda i, p: count_cost(problem.lower_data, i[None], size, times=p.astype(float), products=points)
        return jax.tree.map(jnp.sum, jax.vmap(of_task)(all_tasks(problem), samples[0]))

    return Series(draw_lengths, apply, cost)


def whole_sum(name: str, step: Any, sizes: Sequence[int | None]) -> Series:
    """ϑ Σ_q of the products of the first q factors, q = 0, ..., Q; `sizes` are the batches of the Q factors."""
    _check(name, step, len(sizes))

    def draw_all(problem: Problem, key: Key[Array, ""]) -> list[Batches]:
        return draw.batches_of_all(problem, key, (), sizes)[1]

    def apply(problem: Problem, theta: Array, x: Array, y: Rows, v: Rows, samples: list[Batches]) -> Rows:
        def factor(batch: Batches, v: Rows, h: Rows) -> tuple[Rows, Rows]:
            v = v - theta * hessian_products(problem, x, y, v, batch)
            return v, h + v

        h = v
        for _, group in itertools.groupby(zip(sizes, samples, strict=True), key=lambda pair: pair[0]):
            batches = [batch for _, batch in group]  # of one size: one loop, compiled once
            stacked = jax.tree.map(lambda *same: jnp.stack(same), *batches)
            at = lambda k, stacked=stacked: jax.tree.map(lambda leaf: leaf[k], stacked)
            v, h = jax.lax.fori_loop(0, len(batches), lambda k, both, at=at: factor(at(k), *both), (v, h))
        return theta * h

    def cost(problem: Problem, samples: list[Batches], points: int) -> Cost:
        first, *rest = (count_cost(problem.lower_data, all_tasks(problem), size, products=points) for size in sizes)
        return sum(rest, first)

    return Series(draw_all, apply, cost)
