"""What Algorithm 2 carries from step to step, and its line 1: how it starts."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from bilevax import delay, memory, oracle, projection
from bilevax.algorithms.base import Cost
from bilevax.algorithms.first import Beginning, first_point, initial_cost
from bilevax.algorithms.move import start_optimizer
from bilevax.bounds import Bounds
from bilevax.curvature.base import At
from bilevax.draw import Sampling
from bilevax.problem import Problem
from bilevax.schedule import Rates, Step


class Task(NamedTuple):
    """What is kept of one lower problem, as it was right after its last visit.

    `f_x` is `None` where f does not depend on x: u = 0 needs no estimate.
    """

    y: Float[Array, " dy"]
    y_before: Float[Array, " dy"]
    f_x: Float[Array, " d"] | None
    f_y: Float[Array, " dy"]
    g_y: Float[Array, " dy"]
    curvature: PyTree
    visit: delay.Reading


class State(NamedTuple):
    """Θ_t: x_t, x_{t−1}, d_t, and one `Task` for each lower problem."""

    x: Float[Array, " d"]
    x_before: Float[Array, " d"]
    direction: Float[Array, " d"]
    tasks: Task
    clock: delay.Clock
    timetable: PyTree
    optimizer: PyTree
    initial_cost: Cost


class FirstTask(NamedTuple):
    """A task at the start, and the lower gradients that solving it took."""

    task: Task
    solves: Int[Array, ""]


class Timetable(NamedTuple):
    """The rates of every step: `rates(begun, t)`, where `begun = begin(key)` may hold random stages."""

    begin: Callable[[Key[Array, ""]], PyTree]
    rates: Callable[[PyTree, Step], Rates]


class Settings(NamedTuple):
    """All that an algorithm of this family is made of."""

    timetable: Timetable
    sampling: Sampling
    curvature: Any  # a Curvature; `None` until the problem decides
    optimizer: optax.GradientTransformation | None
    beginning: Beginning
    bounds: Callable[[Bounds], Bounds] = lambda bounds: bounds


class Method(NamedTuple):
    """How steps are made: `start(settings, problem, key)`, then as in `Algorithm`, with the settings first."""

    start: Callable[..., Any]
    step: Callable[..., Any]
    variables: Callable[..., Any]


def rates_of(problem: Problem, settings: Settings, state: Any, t: Step) -> Rates:
    """The rates of step t, in the floating type of the problem."""
    rates = settings.timetable.rates(state.timetable, t)
    return jax.tree.map(lambda rate: jnp.asarray(rate, problem.dtype), rates)


def hypergradient(problem: Problem, settings: Settings, task: Task) -> Float[Array, " d"]:
    """Line 9: z_i = u_i − V_i H_i⁻¹ v_i."""
    correction = settings.curvature.correction(problem, task.curvature, task.f_y)
    return -correction if task.f_x is None else task.f_x - correction


def _first_task(
    problem: Problem, settings: Settings, clock: delay.Clock, key: Key[Array, ""], i: Int[Array, ""]
) -> FirstTask:
    """Line 1 for one task: y_0 and the first estimates."""
    x, bounds = problem.x0, settings.bounds(problem.bounds).of(i)
    y, xi, zeta, solves = first_point(problem, settings.beginning, bounds.y, key, i)
    f_x, f_y = oracle.upper_gradients(problem, x, y, i, xi)
    g_y, second = oracle.lower_derivatives(problem, x, y, i, zeta)
    f_y = projection.ball(f_y, bounds.f_y)
    task = Task(
        y=y,
        y_before=y,
        f_x=projection.ball(f_x, bounds.f_x) if problem.upper_uses_x else None,
        f_y=f_y,
        g_y=g_y,
        curvature=settings.curvature.start(problem, i, zeta, At(x, y, second), f_y, bounds),
        visit=clock.now,
    )
    return FirstTask(task, solves)


def start(settings: Settings, problem: Problem, key: Key[Array, ""]) -> State:
    """Line 1: x_1 = x_0 and y_1 = y_0, first estimates of every task, d_0 the mean of all z_{i,0}."""
    settings.sampling.check(problem)
    # One task is drawn in every step, nothing of it is ever delayed.
    clock = delay.start(problem.dtype, delay.ERAS if problem.num_tasks > 1 else 1)
    begin_key, task_key = jax.random.split(key)
    build = lambda i: _first_task(problem, settings, clock, task_key, i)
    tasks, solves = memory.start(build, problem.num_tasks, problem.work)
    task = lambda i: jax.tree.map(lambda leaf: leaf[0], memory.read(tasks, i[None]))
    mean = memory.mean_of_all(lambda i: hypergradient(problem, settings, task(i)), problem.num_tasks, problem.work)
    return State(
        x=problem.x0,
        x_before=problem.x0,
        direction=mean,
        tasks=tasks,
        clock=clock,
        timetable=settings.timetable.begin(begin_key),
        optimizer=start_optimizer(problem, settings.optimizer),
        initial_cost=initial_cost(problem, settings.beginning, settings.curvature.products(problem), solves),
    )
