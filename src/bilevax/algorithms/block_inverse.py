"""What stands for H_i⁻¹∇y f_i in BSVRB: H_i itself, floored at λ (v1), or h_i as a variable that is followed (v2).

Where a problem's ∇²yy g is λI, or not needed, neither is estimated (`served`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from bilevax import delay, lapack, projection
from bilevax.bounds import Bounds
from bilevax.curvature.base import At
from bilevax.curvature.dense import matrices
from bilevax.curvature.tracked import first_solution, radius_of
from bilevax.problem import Problem
from bilevax.schedule import Rates


class Seen(NamedTuple):
    """What a sample shows of a block at one point: ∇y f, ∇y g and the map to ∇²g·h."""

    f_y: Float[Array, " dy"]
    g_y: Float[Array, " dy"]
    at: At


class Inverse(NamedTuple):
    """What stands for H_i⁻¹∇y f_i: functions on what is kept of it for one block.

    - `start(problem, seen, bounds)`: from the first batch.
    - `bring(kept, bring_lower)`: over the steps in which the block was not drawn.
    - `sample(problem, seen, h)`: what MSVR follows, at one of two points with its h.
    - `estimate(kept)`: MSVR's estimate of it; `points(kept)`: h at the current and at the previous point, or none.
    - `update(problem, kept, estimate, rates, bounds)`: with the new estimate.
    - `solve(problem, kept, updated, f_y, f_y_before)`: h for the direction, for the current and the previous point.
    - `products(problem)`: products of second derivatives with a vector for a sample at a point.
    """

    start: Callable[..., PyTree]
    bring: Callable[..., PyTree]
    sample: Callable[..., Array]
    estimate: Callable[[PyTree], Array]
    points: Callable[[PyTree], tuple[Any, Any]]
    update: Callable[..., PyTree]
    solve: Callable[..., tuple[Array, Array]]
    products: Callable[[Problem], int]


def _hessian(problem: Problem, seen: Seen) -> Float[Array, "dy dy"]:
    return matrices(seen.at.second, problem.dim_y, problem.dtype).hessian


def _floored(problem: Problem, hessian: Float[Array, "dy dy"]) -> Float[Array, "dy dy"]:
    return projection.matrix_floor(hessian, problem.strong_convexity, problem.strong_convexity / 100)


FLOORED = Inverse(
    start=lambda problem, seen, bounds: _floored(problem, _hessian(problem, seen)),
    bring=lambda kept, bring_lower: kept,
    sample=lambda problem, seen, h: _hessian(problem, seen),
    estimate=lambda kept: kept,
    points=lambda kept: (None, None),
    update=lambda problem, kept, estimate, rates, bounds: _floored(problem, estimate),
    solve=lambda problem, kept, updated, f_y, f_y_before: (lapack.solve(updated, f_y), lapack.solve(kept, f_y_before)),
    products=lambda problem: problem.dim_y + 1,
)
"""v1: H_i, floored at λ."""


class Solution(NamedTuple):
    """h_t, h_{t−1} and the estimate r of ∇²yy g·h − ∇y f."""

    h: Float[Array, " dy"]
    h_before: Float[Array, " dy"]
    residual: Float[Array, " dy"]


def _first_solution(problem: Problem, seen: Seen, bounds: Bounds) -> Solution:
    h, _, hessian = first_solution(problem, seen.at.second, seen.f_y, radius_of(problem, bounds))
    return Solution(h, h, hessian - seen.f_y)


def _stepped(problem: Problem, kept: Solution, estimate: Array, rates: Rates, bounds: Bounds) -> Solution:
    h = projection.ball(kept.h - rates.lower_step * estimate, radius_of(problem, bounds))
    return Solution(h, kept.h, estimate)


FOLLOWED = Inverse(
    start=_first_solution,
    bring=lambda kept, bring_lower: Solution(*bring_lower(delay.Lower(*kept))),
    sample=lambda problem, seen, h: seen.at.second(h)[1] - seen.f_y,
    estimate=lambda kept: kept.residual,
    points=lambda kept: (kept.h, kept.h_before),
    update=_stepped,
    solve=lambda problem, kept, updated, f_y, f_y_before: (kept.h, kept.h_before),
    products=lambda problem: 2,
)
"""v2: h_i, a variable of its own."""


def _without_estimate(solve: Callable[[Problem, Array], Array], products: int) -> Inverse:
    """h_i from ∇y f_i on the fresh sample alone: MSVR has nothing to follow."""
    return Inverse(
        start=lambda problem, seen, bounds: jnp.zeros(0, problem.dtype),
        bring=lambda kept, bring_lower: kept,
        sample=lambda problem, seen, h: jnp.zeros(0, problem.dtype),
        estimate=lambda kept: kept,
        points=lambda kept: (None, None),
        update=lambda problem, kept, estimate, rates, bounds: kept,
        solve=lambda problem, kept, updated, f_y, f_y_before: (solve(problem, f_y), solve(problem, f_y_before)),
        products=lambda problem: products,
    )


KNOWN = _without_estimate(lambda problem, f_y: f_y / problem.strong_convexity, products=1)
"""h_i = ∇y f_i/λ, where ∇²yy g = λI."""

UNNEEDED = _without_estimate(lambda problem, f_y: jnp.zeros_like(f_y), products=0)
"""h_i = 0, for min-max."""


def served(inverse: Inverse, problem: Problem) -> Inverse:
    """What serves a problem: the given one where ∇²yy g has to be estimated."""
    return {"estimated": inverse, "known": KNOWN, "unneeded": UNNEEDED}[problem.hessian]
