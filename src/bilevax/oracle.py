"""Derivatives of a Problem at a point on drawn samples, by automatic differentiation.

x and y are flat vectors, i is a task, `indices` are samples of that task (`None`: all of them).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bilevax.draw import Indices
from bilevax.problem import Problem

X = Float[Array, " d"]
Y = Float[Array, " dy"]
SecondOrder = Callable[[Y], tuple[X, Y]]


def _mean_loss(problem: Problem, loss: Callable, data: Any, x: X, y: Y, i: Any, indices: Indices) -> Array:
    on_batch = lambda batch: loss(problem.unravel_x(x), problem.unravel_y(y), problem.task(i), batch)
    return data.mean(on_batch, i) if indices is None else on_batch(data.take(i, indices))


def upper_loss(problem: Problem, x: X, y: Y, i: Any, indices: Indices = None) -> Float[Array, ""]:
    """f_i(x, y; ξ)."""
    return _mean_loss(problem, problem.upper, problem.upper_data, x, y, i, indices)


def lower_loss(problem: Problem, x: X, y: Y, i: Any, indices: Indices = None) -> Float[Array, ""]:
    """g_i(x, y; ζ)."""
    return _mean_loss(problem, problem.lower, problem.lower_data, x, y, i, indices)


def upper_gradients(problem: Problem, x: X, y: Y, i: Any, indices: Indices = None) -> tuple[X, Y]:
    """∇x f_i(x, y; ξ) and ∇y f_i(x, y; ξ)."""
    return jax.grad(upper_loss, argnums=(1, 2))(problem, x, y, i, indices)


def lower_gradient(problem: Problem, x: X, y: Y, i: Any, indices: Indices = None) -> Y:
    """∇y g_i(x, y; ζ)."""
    return jax.grad(lower_loss, argnums=2)(problem, x, y, i, indices)


def lower_derivatives(problem: Problem, x: X, y: Y, i: Any, indices: Indices = None) -> tuple[Y, SecondOrder]:
    """∇y g_i(x, y; ζ), and the map h ↦ (∇²xy g_i·h, ∇²yy g_i·h) on the same samples.

    Both products are one reverse pass over ∇y g_i: nothing of size d·d' or d'² is formed here.
    """
    return jax.vjp(lambda x, y: lower_gradient(problem, x, y, i, indices), x, y)


class Points(NamedTuple):
    """x, and y and h of some tasks, a row for each."""

    x: X
    y: Float[Array, "B dy"]
    h: Float[Array, "B dy"]


def hypergradient_innovation(problem: Problem, now: Points, before: Points, samples: tuple, mixing: Any) -> X:
    """G(now) − (1 − β)·G(before), with G the mean over some tasks of ∇x f_i − ∇²xy g_i·h_i on a batch of each.

    `samples` are the tasks and their samples of f and of g. One reverse pass for all tasks at both points: only one
    vector of size d is formed, and only where the samples touch it.
    """

    def lagrangian(x: X, y: Y, h: Y, i: Any, xi: Indices, zeta: Indices) -> Array:
        return upper_loss(problem, x, y, i, xi) - h @ lower_gradient(problem, x, y, i, zeta)

    def mean(at: Points, shift: X) -> Array:
        of_task = lambda y, h, *sample: lagrangian(at.x + shift, y, h, *sample)
        return jnp.mean(jax.vmap(of_task)(at.y, at.h, *samples))

    both = lambda shift: mean(now, shift) - (1 - mixing) * mean(before, shift)
    return jax.grad(both)(jnp.zeros_like(now.x))
