"""Lower problems solved to high accuracy: L-BFGS (optax), then Newton's method down to rounding."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from bilevax import oracle
from bilevax.draw import Indices
from bilevax.oracle import X, Y
from bilevax.problem import Problem

DENSE_UP_TO = 512  # variables for which H is formed and factorised rather than multiplied with


class Progress(NamedTuple):
    """Where L-BFGS is: the point, its own state, the gradient's norm there and how many it has computed."""

    y: Y
    optimizer: Any
    gradient_norm: Float[Array, ""]
    gradients: Int[Array, ""]
    steps: Int[Array, ""]


def minimise(objective: Callable[[Y], Float[Array, ""]], start: Y, max_steps: int = 500) -> tuple[Y, Int[Array, ""]]:
    """L-BFGS until the gradient is √ε small relative to the first one; the point and the gradients it took.

    optax keeps part of its state in JAX's default floating type, so the iteration is in that type too.
    """
    optimizer = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(objective)

    def one_step(at: Progress) -> Progress:
        value, gradient = value_and_grad(at.y, state=at.optimizer)
        updates, state = optimizer.update(gradient, at.optimizer, at.y, value=value, grad=gradient, value_fn=objective)
        searched = optax.tree.get(state, "info").num_linesearch_steps.astype(jnp.int32)
        norm = jnp.linalg.norm(optax.tree.get(state, "grad"))
        return Progress(optax.apply_updates(at.y, updates), state, norm, at.gradients + searched, at.steps + 1)

    with jax.numpy_dtype_promotion("standard"):
        begin = start.astype(float)
        norm = jnp.linalg.norm(jax.grad(objective)(begin))
        tolerance = jnp.sqrt(jnp.finfo(start.dtype).eps).astype(float) * jnp.maximum(norm, 1)
        unfinished = lambda at: (at.steps < max_steps) & (at.gradient_norm > tolerance)
        first = Progress(begin, optimizer.init(begin), norm, jnp.int32(1), jnp.int32(0))
        end = jax.lax.while_loop(unfinished, one_step, first)
    return end.y.astype(start.dtype), end.gradients


def solve_hessian(product: Callable[[Y], Y], right: Y) -> Y:
    """H⁻¹ right: by Cholesky for up to a few hundred variables, else by conjugate gradients."""
    if right.shape[0] <= DENSE_UP_TO:
        hessian = jax.vmap(product)(jnp.eye(right.shape[0], dtype=right.dtype))
        return jax.scipy.linalg.solve(hessian, right, assume_a="pos")
    tolerance = 100 * jnp.finfo(right.dtype).eps
    return jax.scipy.sparse.linalg.cg(product, right, tol=float(tolerance), maxiter=10 * right.shape[0])[0]


def _newton(problem: Problem, x: X, y: Y, i: Any, indices: Indices) -> Y:
    """One Newton step, kept only if the gradient got smaller."""
    gradient, second = oracle.lower_derivatives(problem, x, y, i, indices)
    moved = y - solve_hessian(lambda h: second(h)[1], gradient)
    new = oracle.lower_gradient(problem, x, moved, i, indices)
    return jnp.where(jnp.linalg.norm(new) < jnp.linalg.norm(gradient), moved, y)


def solve(
    problem: Problem, x: X, start: Y, i: Any, indices: Indices = None, newton_steps: int = 3
) -> tuple[Y, Int[Array, ""]]:
    """y_i*(x) on the given samples, and the number of gradients it took."""
    y, n = minimise(lambda y: oracle.lower_loss(problem, x, y, i, indices), start)
    for _ in range(newton_steps):
        y = _newton(problem, x, y, i, indices)
    return y, n + 2 * newton_steps
