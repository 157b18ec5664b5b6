"""STORM on ∇y g and on a whole sample of the hypergradient: the frame of SUSTAIN and MRBO.

    G(x, y) = mean_i ∇x f_i(x, y_i; ξ) − ∇²xy g_i(x, y_i; ζ')·h_i,   h_i by a Neumann series on ∇y f_i(x, y_i; ξ)
    w_i ← (1−β_g)(w_i − ∇y g_i(before; ζ)) + ∇y g_i(now; ζ)
    z ← (1−β_f)(z − G(before)) + G(now)                      all samples of G, and their number, the same at both points
    y_i ← y_i − β w_i,   x ← x − α z

Estimates start from the first sample: β_g = β_f = 1 at t = 1.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from bilevax import draw, estimator, oracle
from bilevax.algorithms.cost import total, work
from bilevax.algorithms.nested import lower_gradients, upper_gradients
from bilevax.algorithms.neumann import Rows, Series
from bilevax.algorithms.together import Begun, Box, Move, Stepped, Together, all_tasks
from bilevax.oracle import Points
from bilevax.problem import Problem
from bilevax.schedule import Rates


class Followed(NamedTuple):
    """The previous point, and the estimates of ∇F and of every ∇y g_i."""

    x_before: Float[Array, " d"]
    y_before: Rows
    hypergradient: Float[Array, " d"]
    g_y: Rows


def hyper_storm(series: Series, size: int | None) -> Box:
    """The box with a way to h."""

    def start(problem: Problem, x: Array, y: Rows, key: Key[Array, ""]) -> Begun:
        return Begun(Followed(x, y, jnp.zeros_like(x), jnp.zeros_like(y)))

    def step(problem: Problem, rates: Rates, state: Together, key: Key[Array, ""], move: Move) -> Stepped:
        series_key, key = jax.random.split(key)
        (xi,), (zeta, cross) = draw.batches_of_all(problem, key, (size,), (size, size))
        factors, tasks, kept = series.draw(problem, series_key), all_tasks(problem), state.kept

        def hypergradient(x: Array, y: Rows) -> Array:
            h = series.apply(problem, x, y, upper_gradients(problem, x, y, xi), factors)
            return oracle.hypergradient(problem, Points(x, y, h), (tasks, xi, cross))

        def storm(estimate: Array, of: Callable[[Array, Rows], Array], mixing: Array) -> Array:
            mixing = jnp.where(state.step == 1, 1, mixing)
            new = estimator.innovation(of(state.x, state.y), of(kept.x_before, kept.y_before), mixing)
            return estimator.storm(estimate, new, mixing)

        g_y = storm(kept.g_y, lambda x, y: lower_gradients(problem, x, y, zeta), rates.mixing.g_y)
        direction = storm(kept.hypergradient, hypergradient, rates.mixing.direction)
        x, optimizer = move(direction)
        y = state.y - rates.lower_step * g_y
        cost = total(
            work(problem.upper_data, tasks, size, gradients=2),
            work(problem.lower_data, tasks, size, gradients=2),
            work(problem.lower_data, tasks, size, products=2),
            series.cost(problem, factors, 2),
        )
        return Stepped(x, optimizer, y, Followed(state.x, state.y, direction, g_y), cost)

    return Box(step, start)
