"""∇²yy g = λI is known, or not needed at all: nothing of it is estimated.

- `known`: z = u − V v/λ, so V (d × d') alone is kept. For the compositional problems of the paper, where g_i is
  ½‖y‖² − yᵀE[g_i(x; ζ)], and for any other problem that is seen to have such a ∇²yy g.
- `unneeded`: z = u. For min-max problems, where ∇y f_i(x, y_i*) = 0, or y_i* is held by its set.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bilevax import draw, estimator, projection
from bilevax.bounds import Bounds
from bilevax.curvature.base import Asked, At, Curvature, Drawn, Fresh, change_of_rows
from bilevax.delay import Decay, Elapsed
from bilevax.draw import Indices
from bilevax.problem import Problem

Cross = Float[Array, "d dy"]


def _cross(problem: Problem, at: At) -> Cross:
    """∇²xy g on the samples, column by column."""
    return jax.vmap(lambda h: at.second(h)[0], out_axes=1)(jnp.eye(problem.dim_y, dtype=problem.dtype))


def start(problem: Problem, i: Any, indices: Indices, at: At, f_y: Array, bounds: Bounds) -> Cross:
    """S^u_C[∇²xy g] of the first batch."""
    return projection.singular_ceiling(_cross(problem, at), bounds.g_xy)


def _fade(problem: Problem, kept: Cross, decay: Decay) -> Cross:
    return decay.g_xy * kept


def age(problem: Problem, kept: Cross, passed: Elapsed, f_y: Array) -> Cross:
    """(1−β)V over the steps since the task was last drawn."""
    return _fade(problem, kept, passed.decay)


def innovation(
    problem: Problem, i: Int[Array, ""], indices: Indices, kept: Cross, now: At, before: At, mixing: Any
) -> Cross:
    """∇²xy g(now; ζ) − (1−β)·∇²xy g(before; ζ)."""
    return estimator.innovation(_cross(problem, now), _cross(problem, before), mixing.g_xy)


def update(problem: Problem, kept: Cross, new: Cross, fresh: Fresh) -> Cross:
    """Line 6 of Algorithm 2 for the drawn tasks; line 7 has nothing to do."""

    def one(i: Array, kept: Cross, new: Cross) -> Cross:
        raw = estimator.storm(kept, new, fresh.rates.mixing.g_xy)
        return projection.singular_ceiling(raw, fresh.bounds.of(i).g_xy)

    return jax.vmap(one)(fresh.tasks, kept, draw.merged(fresh.same, new))


def correction(problem: Problem, kept: Cross, v: Float[Array, " dy"]) -> Float[Array, " d"]:
    """V v/λ."""
    return kept @ v / problem.strong_convexity


def pull(problem: Problem, kept: Cross, dx: Float[Array, " d"]) -> Float[Array, " dy"]:
    """Vᵀ dx/λ."""
    return dx @ kept / problem.strong_convexity


def check(problem: Problem) -> None:
    """Refuse a problem whose ∇²yy g is not known to be λI."""
    if problem.hessian != "known":
        raise TypeError(
            "curvature=known needs a lower loss whose ∇²yy g is strong_convexity times the identity, whatever x, y and "
            f"the samples are, as bilevax.problems.compositional makes it; here it has to be {problem.hessian}."
        )


known = Curvature(
    name="known",
    start=start,
    age=age,
    innovation=innovation,
    update=update,
    correction=correction,
    change=change_of_rows(_fade, correction),
    pull=pull,
    products=lambda problem: problem.dim_y,
    check=check,
)
"""∇²yy g = λI is known, V (d × d') is kept: for compositional problems."""


def _nothing(problem: Problem, *given: Any) -> tuple:
    return ()


def _no_correction(problem: Problem, kept: tuple, v: Float[Array, " dy"]) -> Float[Array, " d"]:
    return jnp.zeros(problem.dim_x, problem.dtype)


def _no_change(problem: Problem, asked: Asked, drawn: Drawn, mixing: Any) -> Float[Array, " d"]:
    return jnp.zeros(problem.dim_x, problem.dtype)


def _check_unneeded(problem: Problem) -> None:
    if problem.hessian != "unneeded":
        raise TypeError(
            "curvature=unneeded is for min-max problems, whose lower loss is minus the upper one, as "
            "bilevax.problems.minmax makes them; elsewhere the hypergradient needs ∇²g."
        )


unneeded = Curvature(
    name="unneeded",
    start=_nothing,
    age=_nothing,
    innovation=_nothing,
    update=_nothing,
    correction=_no_correction,
    change=_no_change,
    pull=None,
    products=lambda problem: 0,
    check=_check_unneeded,
)
"""Nothing of ∇²g is kept: for min-max problems."""
