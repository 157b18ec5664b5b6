"""Derivatives of a Problem at a point on drawn samples, by automatic differentiation.

x and y are flat vectors, i is a task, `indices` are samples of that task (`None`: all of them).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bilevax.draw import Block, Samples
from bilevax.problem import Problem

X = Float[Array, " d"]
Y = Float[Array, " dy"]
SecondOrder = Callable[[Y], tuple[X, Y]]


def _mean_loss(problem: Problem, loss: Callable, data: Any, x: X, y: Y, i: Any, indices: Samples) -> Array:
    on_batch = lambda batch: loss(problem.unravel_x(x), problem.unravel_y(y), problem.task(i), batch)
    if isinstance(indices, Block):
        parts = (on_batch(data.take(i, part)) for part in (indices.indices, indices.last))
        return (1 - indices.share) * next(parts) + indices.share * next(parts)
    return data.mean(on_batch, i) if indices is None else on_batch(data.take(i, indices))


def upper_loss(problem: Problem, x: X, y: Y, i: Any, indices: Samples = None) -> Float[Array, ""]:
    """f_i(x, y; ξ)."""
    return _mean_loss(problem, problem.upper, problem.upper_data, x, y, i, indices)


def lower_loss(problem: Problem, x: X, y: Y, i: Any, indices: Samples = None) -> Float[Array, ""]:
    """g_i(x, y; ζ)."""
    return _mean_loss(problem, problem.lower, problem.lower_data, x, y, i, indices)


def upper_gradients(problem: Problem, x: X, y: Y, i: Any, indices: Samples = None) -> tuple[X, Y]:
    """∇x f_i(x, y; ξ) and ∇y f_i(x, y; ξ)."""
    return jax.grad(upper_loss, argnums=(1, 2))(problem, x, y, i, indices)


def lower_gradient(problem: Problem, x: X, y: Y, i: Any, indices: Samples = None) -> Y:
    """∇y g_i(x, y; ζ)."""
    return jax.grad(lower_loss, argnums=2)(problem, x, y, i, indices)


def lower_derivatives(problem: Problem, x: X, y: Y, i: Any, indices: Samples = None) -> tuple[Y, SecondOrder]:
    """∇y g_i(x, y; ζ), and the map h ↦ (∇²xy g_i·h, ∇²yy g_i·h) on the same samples.

    Both products are one reverse pass over ∇y g_i: nothing of size d·d' or d'² is formed here.
    """
    return jax.vjp(lambda x, y: lower_gradient(problem, x, y, i, indices), x, y)


class Points(NamedTuple):
    """x, and y and h of some tasks, a row for each; or directions for them."""

    x: X
    y: Float[Array, "B dy"]
    h: Float[Array, "B dy"]


def _lagrangians(problem: Problem, at: Points, samples: tuple) -> Float[Array, ""]:
    """Σ_i f_i − h_iᵀ∇y g_i on a batch of each task; `samples` are the tasks and their samples of f and of g.

    Its gradient is all that a matrix-free method needs: Σ_i ∇x f_i − ∇²xy g_i·h_i with respect to x, ∇y f_i −
    ∇²yy g_i·h_i with respect to y_i, −∇y g_i with respect to h_i.
    """

    def of_task(y: Y, h: Y, i: Any, xi: Samples, zeta: Samples) -> Array:
        return upper_loss(problem, at.x, y, i, xi) - h @ lower_gradient(problem, at.x, y, i, zeta)

    return jnp.sum(jax.vmap(of_task)(at.y, at.h, *samples))


def _uppers(problem: Problem, at: Points, samples: tuple) -> Float[Array, ""]:
    """Σ_i f_i on a batch of each task."""
    tasks, xi, _ = samples
    return jnp.sum(jax.vmap(lambda y, i, xi: upper_loss(problem, at.x, y, i, xi))(at.y, tasks, xi))


def directions(problem: Problem, at: Points, samples: tuple) -> Points:
    """D_x = mean_i ∇x f_i − ∇²xy g_i·h_i, and D_y = ∇y g_i, D_h = ∇²yy g_i·h_i − ∇y f_i of each task, on a batch."""
    x, y, h = jax.grad(_lagrangians, argnums=1)(problem, at, samples)
    return Points(x / len(at.y), -h, -y)


def hypergradient(problem: Problem, at: Points, samples: tuple) -> X:
    """G = mean_i ∇x f_i − ∇²xy g_i·h_i on a batch of each task."""
    return directions(problem, at, samples).x


def hypergradient_innovation(problem: Problem, now: Points, before: Points, samples: tuple, mixing: Any) -> X:
    """G(now) − (1 − β)·G(before) on the same samples; for min-max without the part of h.

    One reverse pass for all tasks at both points: only one vector of size d is formed, and only where the samples
    touch it.
    """

    summed = _uppers if problem.hessian == "unneeded" else _lagrangians

    def both(shift: X) -> Array:
        of = lambda at: summed(problem, at._replace(x=at.x + shift), samples) / len(at.y)
        return of(now) - (1 - mixing) * of(before)

    return jax.grad(both)(jnp.zeros_like(now.x))
