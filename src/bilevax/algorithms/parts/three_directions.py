"""What SOBA, MA-SOBA, SABA and SRBA share: a step of y, h and x along estimates of three directions.

    D_y = ∇y g_i(x, y_i; ζ),   D_h = ∇²yy g_i(x, y_i; ζ)·h_i − ∇y f_i(x, y_i; ξ)
    D_x = mean_i ∇x f_i(x, y_i; ξ) − ∇²xy g_i(x, y_i; ζ)·h_i
    y_i ← y_i − ρ·est(D_y),   h_i ← Π[h_i − ρ·est(D_h)],   x ← x − γ·est(D_x)

h starts at zero; Π is the ball of radius C_fy/λ where `Bounds.f_y` is given.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree

from bilevax import draw, projection
from bilevax.algorithms.contract import Cost
from bilevax.algorithms.frame import Change, Move, Start, State, count_cost
from bilevax.algorithms.parts.all_tasks import AllTasks, Rows
from bilevax.algorithms.parts.hypergradient import Points, TaskSamples
from bilevax.algorithms.start import all_tasks, first_points
from bilevax.curvature.solution import radius_of
from bilevax.problem import Problem
from bilevax.schedule import Rates


class Own(NamedTuple):
    """y and h of every task, and what the estimate keeps."""

    y: Rows
    h: Rows
    estimate: PyTree


class ThreeDirections(AllTasks):
    """A method of this family; its file says how it estimates the directions."""

    def start_estimate(self, problem: Problem, at: Points) -> tuple[PyTree, Any, Cost | None]:
        """What the estimate keeps from the start on, its tables, and what they took."""
        return (), (), None

    def start(self, problem: Problem, key: Key[Array, ""]) -> Start:
        """y as the first batch says, h = 0."""
        point_key, _ = jax.random.split(key)
        y, cost = first_points(problem, self.first, point_key)
        h = jnp.zeros_like(y)
        estimate, tables, more = self.start_estimate(problem, Points(problem.x0, y, h))
        return Start(Own(y, h, estimate), tables, cost if more is None else cost + more)


def points_of(state: State) -> Points:
    """x, y and h of a state."""
    return Points(state.x, state.own.y, state.own.h)


def draw_samples(problem: Problem, key: Key[Array, ""], size: int | None) -> TaskSamples:
    """The tasks, and a batch ξ and a batch ζ of each."""
    (xi,), (zeta,) = draw.batches_of_all(problem, key, (size,), (size,))
    return all_tasks(problem), xi, zeta


def evaluation_cost(problem: Problem, size: int | None, points: int = 1) -> Cost:
    """The three directions on a batch, at so many points."""
    tasks = all_tasks(problem)
    cost = count_cost(problem.upper_data, tasks, size, gradients=points)
    return cost + count_cost(problem.lower_data, tasks, size, gradients=points, products=2 * points)


def step_along(
    problem: Problem,
    rates: Rates,
    state: State,
    move: Callable[[Array], Move],
    estimates: Points,
    cost: Cost,
    *,
    keep: PyTree = (),
    write: Callable[[Array], Any] = lambda keep: (),
) -> Change:
    """x, y and h after a step along the estimates of their directions; `keep` is what the estimate keeps."""
    x = move(estimates.x)
    y = state.own.y - rates.lower_step * estimates.y
    into_ball = lambda i, h: projection.ball(h, radius_of(problem, problem.bounds_of(i)))
    h = jax.vmap(into_ball)(all_tasks(problem), state.own.h - rates.lower_step * estimates.h)
    own = Own(y, h, keep)
    return Change(x, own, cost, (own, x.optimizer), write)
