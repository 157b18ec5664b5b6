"""One loop, three directions, any estimator: the frame of SOBA, MA-SOBA, SABA and SRBA.

    D_y = ∇y g_i(x, y_i; ζ),   D_h = ∇²yy g_i(x, y_i; ζ)·h_i − ∇y f_i(x, y_i; ξ)
    D_x = mean_i ∇x f_i(x, y_i; ξ) − ∇²xy g_i(x, y_i; ζ)·h_i
    y_i ← y_i − ρ·est(D_y),   h_i ← Π[h_i − ρ·est(D_h)],   x ← x − γ·est(D_x)

h starts at zero; Π is the ball of radius C_fy/λ where `Bounds.f_y` is given. A member of the family is an `Estimate`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Key, PyTree

from bilevax import draw, oracle, projection
from bilevax.algorithms.base import Cost
from bilevax.algorithms.cost import total, work
from bilevax.algorithms.neumann import Rows
from bilevax.algorithms.together import Begun, Box, Move, Stepped, Together, all_tasks
from bilevax.curvature.tracked import radius_of
from bilevax.oracle import Points
from bilevax.problem import Problem
from bilevax.schedule import Rates, Step


class Found(NamedTuple):
    """The estimates of the three directions, what is kept, how tables are written unless told to stay, the cost."""

    directions: Points
    own: PyTree
    cost: Cost
    write: Callable[[Bool[Array, ""]], PyTree] = lambda keep: ()


class Given(NamedTuple):
    """What an estimate is given: the step, the rates, the point, and what it keeps."""

    step: Step
    rates: Rates
    at: Points
    own: PyTree
    tables: PyTree


class Estimate(NamedTuple):
    """est: `start(problem, at) -> Begun`, `find(problem, given, key) -> Found`, `check(problem)`."""

    find: Callable[[Problem, Given, Key[Array, ""]], Found]
    start: Callable[[Problem, Points], Begun] = lambda problem, at: Begun()
    check: Callable[[Problem], None] = lambda problem: None


class Kept(NamedTuple):
    """h of every task, and what the estimate keeps."""

    h: Rows
    own: PyTree


def evaluation_cost(problem: Problem, size: int | None, points: int = 1) -> Cost:
    """The three directions on a batch, at so many points."""
    tasks = all_tasks(problem)
    return total(
        work(problem.upper_data, tasks, size, gradients=points),
        work(problem.lower_data, tasks, size, gradients=points, products=2 * points),
    )


def draw_samples(problem: Problem, key: Key[Array, ""], size: int | None) -> tuple:
    """The tasks, and a batch ξ and a batch ζ of each."""
    (xi,), (zeta,) = draw.batches_of_all(problem, key, (size,), (size,))
    return all_tasks(problem), xi, zeta


def three_directions(estimate: Estimate) -> Box:
    """The box with an estimate of the directions."""

    def start(problem: Problem, x: Array, y: Rows, key: Key[Array, ""]) -> Begun:
        h = jnp.zeros_like(y)
        begun = estimate.start(problem, Points(x, y, h))
        return begun._replace(kept=Kept(h, begun.kept))

    def in_ball(problem: Problem, h: Rows) -> Rows:
        into = lambda i, h: projection.ball(h, radius_of(problem, problem.bounds.of(i)))
        return jax.vmap(into)(all_tasks(problem), h)

    def step(problem: Problem, rates: Rates, state: Together, key: Key[Array, ""], move: Move) -> Stepped:
        at = Points(state.x, state.y, state.kept.h)
        found = estimate.find(problem, Given(state.step, rates, at, state.kept.own, state.tables), key)
        x, optimizer = move(found.directions.x)
        y = state.y - rates.lower_step * found.directions.y
        h = in_ball(problem, at.h - rates.lower_step * found.directions.h)
        return Stepped(x, optimizer, y, Kept(h, found.own), found.cost, found.write)

    return Box(step, start, estimate.check)


def plain(size: int | None) -> Estimate:
    """The sample itself."""

    def find(problem: Problem, given: Given, key: Key[Array, ""]) -> Found:
        directions = oracle.directions(problem, given.at, draw_samples(problem, key, size))
        return Found(directions, (), evaluation_cost(problem, size))

    return Estimate(find)


def averaged(size: int | None) -> Estimate:
    """The sample itself for y and h; for x the moving average d ← (1−θ)d + θD_x, which starts from the first sample."""

    def find(problem: Problem, given: Given, key: Key[Array, ""]) -> Found:
        fresh = plain(size).find(problem, given, key)
        theta = jnp.where(given.step == 1, 1, given.rates.mixing.direction)
        average = (1 - theta) * given.own + theta * fresh.directions.x
        return fresh._replace(directions=fresh.directions._replace(x=average), own=average)

    return Estimate(find, lambda problem, at: Begun(jnp.zeros_like(at.x)))
