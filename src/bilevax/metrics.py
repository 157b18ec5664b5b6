"""Exact F and ∇F, with every lower problem solved to high accuracy, and the distance of y to y*."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from bilevax import linear_lower, lower, memory, oracle
from bilevax.algorithms.base import Variables
from bilevax.lower import Solver
from bilevax.oracle import X, Y
from bilevax.problem import Problem


class Exact(NamedTuple):
    """F(x), ∇F(x) and all y_i*(x), from every sample."""

    objective: Float[Array, ""]
    gradient: Float[Array, " d"]
    y: Float[Array, "m dy"]


def _solved(problem: Problem, solver: Solver, x: X, i: Any) -> Exact:
    """f_i, its hypergradient ∇x f − ∇²xy g [∇²yy g]⁻¹ ∇y f, and y_i*, for one task (Proposition 1)."""
    y = solver.solve(i)
    value = oracle.upper_loss(problem, x, y, i)
    f_x, f_y = oracle.upper_gradients(problem, x, y, i)
    _, second = oracle.lower_derivatives(problem, x, y, i)
    return Exact(value, f_x - second(solver.invert(y, i, f_y))[0], y)


@jax.jit
def exact(problem: Problem, x: X, start: Float[Array, "m dy"] | None = None) -> Exact:
    """F(x), ∇F(x) and y*(x); `start` is where the lower solver begins, a good guess saves time."""
    starts = jax.vmap(problem.y0_of)(jnp.arange(problem.num_tasks)) if start is None else start
    solver = (linear_lower if linear_lower.serves(problem) else lower).solver(problem, x, starts)

    def one(i: Array) -> tuple[tuple[Array, X], Y]:
        value, gradient, y = _solved(problem, solver, x, i)
        return (value, gradient), y

    (objective, gradient), y = memory.mean_and_all(one, problem.num_tasks, problem.work)
    return Exact(objective, gradient, y)


@jax.jit
def objective(problem: Problem, x: X, start: Float[Array, "m dy"] | None = None) -> Float[Array, ""]:
    """F(x) alone; what only ∇F(x) needs is left out of the compiled program."""
    return exact(problem, x, start).objective


def _flat(problem: Problem, x: PyTree) -> X:
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a bilevax.Problem; got {type(problem).__name__}.")
    shapes = lambda tree: jax.tree.map(jnp.shape, tree)
    wanted, given = shapes(problem.unravel_x(problem.x0)), shapes(x)
    if wanted != given:
        raise ValueError(f"x must be a pytree like the x0 that the problem was made with, {wanted}; got {given}.")
    return jax.flatten_util.ravel_pytree(x)[0].astype(problem.dtype)


def exact_objective(problem: Problem, x: PyTree) -> Float[Array, ""]:
    """F(x) = (1/m) Σ_i f_i(x, y_i*(x)), every lower problem solved, every sample used."""
    return objective(problem, _flat(problem, x))


def exact_gradient(problem: Problem, x: PyTree) -> PyTree:
    """∇F(x) = (1/m) Σ_i ∇x f_i − ∇²xy g_i [∇²yy g_i]⁻¹ ∇y f_i at (x, y_i*(x)), as a pytree like x."""
    return problem.unravel_x(exact(problem, _flat(problem, x)).gradient)


def exact_metrics(problem: Problem, variables: Variables) -> dict[str, Float[Array, ""]]:
    """What `solve` records by default: F(x), ‖∇F(x)‖ and the mean of ‖y_i − y_i*(x)‖²."""
    truth = exact(problem, variables.x, variables.y)
    gaps = jnp.sum((variables.y - truth.y) ** 2, axis=1)
    return {
        "objective": truth.objective,
        "grad_norm": jnp.linalg.norm(truth.gradient),
        "lower_gap": jnp.mean(gaps),
    }
