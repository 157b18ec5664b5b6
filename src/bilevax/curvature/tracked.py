"""Matrix-free: h_i ≈ H_i⁻¹ v_i is a variable of its own, for neural networks and large d'.

h minimises ½hᵀHh − hᵀv, and follows it by a variance-reduced recursion beside that of y. With the same sample at
the current and the previous point (x, y, h), and 1/p_i before each,

    s ← (1−β)(s − ∇²yy g(before; ζ) h_before) + ∇²yy g(now; ζ) h     estimate of ∇²yy g·h
    k ← (1−β)(k − ∇²xy g(before; ζ) h_before) + ∇²xy g(now; ζ) h     estimate of ∇²xy g·h, the correction
    h ← Π[h − τ_t τ (s − v)]                                        as y ← y − τ_t τ w

Both products are one reverse pass over ∇y g: nothing of size d'² or d·d' exists. While its task is not drawn, s and k
fade like H and V, and h drifts along −(s − v) of its last visit as y along −w. Π is the ball of radius C_fy/λ, which
holds H⁻¹v, where `Bounds.f_y` is given.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bilevax import draw, estimator, projection
from bilevax.bounds import Bounds
from bilevax.curvature.base import At, Curvature, Fresh, accept_all, change_of_rows
from bilevax.delay import Decay, Elapsed
from bilevax.draw import Indices
from bilevax.oracle import SecondOrder
from bilevax.problem import Problem


class Tracked(NamedTuple):
    """h_t, h_{t−1}, and the estimates s of ∇²yy g·h and k of ∇²xy g·h."""

    h: Float[Array, " dy"]
    h_before: Float[Array, " dy"]
    hessian: Float[Array, " dy"]
    cross: Float[Array, " d"]


class Products(NamedTuple):
    """∇²yy g·h and ∇²xy g·h on a sample, or their innovations."""

    hessian: Float[Array, " dy"]
    cross: Float[Array, " d"]


def radius_of(problem: Problem, bounds: Bounds) -> Any:
    """C_fy/λ, the radius of a ball that holds H⁻¹v; `None` without a bound."""
    return None if bounds.f_y is None else bounds.f_y / problem.strong_convexity


def first_solution(
    problem: Problem, second: SecondOrder, f_y: Float[Array, " dy"], radius: Any
) -> tuple[Array, Array, Array]:
    """h = a·v with the a that is best along v, one step of conjugate gradients from zero; ∇²xy g·h and ∇²yy g·h."""
    cross, hessian = second(f_y)
    square, tiny = f_y @ f_y, float(jnp.finfo(problem.dtype).tiny)
    best = square / jnp.maximum(f_y @ hessian, problem.strong_convexity * square + tiny)
    h = projection.ball(best * f_y, radius)
    scale = (h @ f_y) / (square + tiny)
    return h, scale * cross, scale * hessian


def start(problem: Problem, i: Any, indices: Indices, at: At, f_y: Array, bounds: Bounds) -> Tracked:
    """The first h, and s and k to it."""
    h, cross, hessian = first_solution(problem, at.second, f_y, radius_of(problem, bounds))
    return Tracked(h, h, hessian, cross)


def _fade(problem: Problem, kept: Tracked, decay: Decay) -> Tracked:
    return kept._replace(hessian=decay.g_yy * kept.hessian, cross=decay.g_xy * kept.cross)


def age(problem: Problem, kept: Tracked, passed: Elapsed, f_y: Float[Array, " dy"]) -> Tracked:
    """s and k fade, h drifts along −(s − v) as y along −w."""
    residual = kept.hessian - f_y
    h = kept.h - jnp.where(passed.known, passed.length, 0) * residual
    h_before = jnp.where(passed.steps == 0, kept.h_before, h + passed.last_drift * passed.decay.g_y * residual)
    return _fade(problem, kept, passed.decay)._replace(h=h, h_before=h_before)


def innovation(
    problem: Problem, i: Int[Array, ""], indices: Indices, kept: Tracked, now: At, before: At, mixing: Any
) -> Products:
    """∇²g(now; ζ)·h − (1−β)·∇²g(before; ζ)·h_before, for both."""
    cross, hessian = now.second(kept.h)
    cross_before, hessian_before = before.second(kept.h_before)
    return Products(
        hessian=estimator.innovation(hessian, hessian_before, mixing.g_yy),
        cross=estimator.innovation(cross, cross_before, mixing.g_xy),
    )


def update(problem: Problem, kept: Tracked, new: Products, fresh: Fresh) -> Tracked:
    """The two estimates, then one step of h."""
    mixing, new = fresh.rates.mixing, draw.merged(fresh.same, new)
    hessian = estimator.storm(kept.hessian, new.hessian, mixing.g_yy)
    cross = estimator.storm(kept.cross, new.cross, mixing.g_xy)

    def into_ball(i: Array, h: Array) -> Array:
        return projection.ball(h, radius_of(problem, fresh.bounds.of(i)))

    h = jax.vmap(into_ball)(fresh.tasks, kept.h - fresh.rates.drift * (hessian - fresh.f_y))
    return Tracked(h, kept.h, hessian, cross)


def correction(problem: Problem, kept: Tracked, v: Float[Array, " dy"]) -> Float[Array, " d"]:
    """k, the estimate of ∇²xy g·h."""
    return kept.cross


def products(problem: Problem) -> int:
    """One with each of the two matrices."""
    return 2


tracked = Curvature(
    name="tracked",
    start=start,
    age=age,
    innovation=innovation,
    update=update,
    correction=correction,
    change=change_of_rows(_fade, correction),
    pull=None,
    products=products,
    check=accept_all,
)
"""Matrix-free: h_i ≈ H_i⁻¹ v_i as a variable of its own, for neural networks and large d'."""
