"""Lower problems solved to high accuracy: L-BFGS (optax), then Newton's method down to rounding."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from bilevax import oracle
from bilevax.draw import Indices
from bilevax.oracle import X, Y
from bilevax.problem import Problem

DENSE_UP_TO = 512  # variables for which H is formed and factorised rather than multiplied with


def minimise(
    objective: Callable[[Y], Float[Array, ""]], start: Y, max_steps: int = 500
) -> tuple[Y, Int[Array, ""]]:
    """L-BFGS until the gradient is √ε small relative to the first one; the point and the steps taken."""
    optimizer = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(objective)
    scale = jnp.maximum(jnp.linalg.norm(jax.grad(objective)(start)), 1)
    tolerance = jnp.sqrt(jnp.finfo(start.dtype).eps) * scale

    def unfinished(carry: tuple) -> Array:
        _, _, gradient_norm, n = carry
        return (n < max_steps) & (gradient_norm > tolerance)

    def one_step(carry: tuple) -> tuple:
        y, state, _, n = carry
        value, gradient = value_and_grad(y, state=state)
        updates, state = optimizer.update(
            gradient, state, y, value=value, grad=gradient, value_fn=objective
        )
        y = optax.apply_updates(y, updates)
        return y, state, jnp.linalg.norm(optax.tree.get(state, "grad")), n + 1

    first = (start, optimizer.init(start), jnp.asarray(jnp.inf, start.dtype), jnp.int32(0))
    y, _, _, n = jax.lax.while_loop(unfinished, one_step, first)
    return y, n


def solve_hessian(product: Callable[[Y], Y], right: Y) -> Y:
    """H⁻¹ right: by Cholesky for up to a few hundred variables, else by conjugate gradients."""
    if right.shape[0] <= DENSE_UP_TO:
        hessian = jax.vmap(product)(jnp.eye(right.shape[0], dtype=right.dtype))
        return jax.scipy.linalg.solve(hessian, right, assume_a="pos")
    tolerance = 100 * jnp.finfo(right.dtype).eps
    return jax.scipy.sparse.linalg.cg(product, right, tol=tolerance, maxiter=10 * right.shape[0])[0]


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
