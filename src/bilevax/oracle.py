"""Derivatives of a Problem at a point on drawn samples, by automatic differentiation.

x and y are flat vectors, i is a task, `indices` are samples of that task (`None`: all of them).
"""

from collections.abc import Callable
from typing import Any

import jax
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
