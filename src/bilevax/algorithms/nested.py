"""Steps on y, then a Neumann series, then one step on x: the frame of BSA, TTSA and StocBio.

y_i ← y_i − β ∇y g_i(x, y_i; ζ)                          so many times, a fresh batch each
h_i ≈ [∇²yy g_i]⁻¹ ∇y f_i(x, y_i; ξ)                      by a Neumann series, a fresh batch for each factor
x ← x − α mean_i(∇x f_i(x, y_i; ξ) − ∇²xy g_i(x, y_i; ζ')·h_i)
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from bilevax import draw, oracle
from bilevax.algorithms.cost import total, work
from bilevax.algorithms.neumann import Rows, Series
from bilevax.algorithms.together import Box, Move, Stepped, Together, all_tasks
from bilevax.draw import Batches
from bilevax.oracle import Points
from bilevax.problem import Problem
from bilevax.schedule import Rates, Step


def lower_gradients(problem: Problem, x: Array, y: Rows, zeta: Batches) -> Rows:
    """∇y g_i(x, y_i; ζ_i) for all tasks."""
    gradient = lambda y, i, zeta: oracle.lower_gradient(problem, x, y, i, zeta)
    return jax.vmap(gradient)(y, all_tasks(problem), zeta)


def upper_gradients(problem: Problem, x: Array, y: Rows, xi: Batches) -> Rows:
    """∇y f_i(x, y_i; ξ_i) for all tasks."""
    gradient = lambda y, i, xi: oracle.upper_gradients(problem, x, y, i, xi)[1]
    return jax.vmap(gradient)(y, all_tasks(problem), xi)


def descend(problem: Problem, x: Array, y: Rows, key: Key[Array, ""], count: Any, step: Any, size: int | None) -> Rows:
    """`count` steps along stochastic gradients of every g_i(x, ·)."""
    one_step = lambda k, y: y - step * lower_gradients(problem, x, y, draw.batch_of_all(problem, key, k, size))
    return jax.lax.fori_loop(0, count, one_step, y)


def nested(inner_steps: Callable[[Step], Any], series: Series, size: int | None) -> Box:
    """The box with so many inner steps at step t = 1, 2, ..."""

    def step(problem: Problem, rates: Rates, state: Together, key: Key[Array, ""], move: Move) -> Stepped:
        inner_key, series_key, key = jax.random.split(key, 3)
        count = jnp.asarray(inner_steps(state.step), jnp.int32)
        y = descend(problem, state.x, state.y, inner_key, count, rates.lower_step, size)
        (xi,), (zeta,) = draw.batches_of_all(problem, key, (size,), (size,))
        factors = series.draw(problem, series_key)
        h = series.apply(problem, state.x, y, upper_gradients(problem, state.x, y, xi), factors)
        tasks = all_tasks(problem)
        x, optimizer = move(oracle.hypergradient(problem, Points(state.x, y, h), (tasks, xi, zeta)))
        cost = total(
            work(problem.lower_data, tasks, size, times=count.astype(float), gradients=1),
            work(problem.upper_data, tasks, size, gradients=1),
            work(problem.lower_data, tasks, size, products=1),
            series.cost(problem, factors, 1),
        )
        return Stepped(x, optimizer, y, (), cost)

    return Box(step)
