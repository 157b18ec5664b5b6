"""What Algorithm 2 carries from step to step, and its line 1: how it starts."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from bilevax import delay, draw, lower, memory, oracle, projection
from bilevax.algorithms.base import Cost
from bilevax.curvature import Curvature
from bilevax.draw import Sampling
from bilevax.problem import Bounds, Problem
from bilevax.schedule import Rates, Step


class Task(NamedTuple):
    """What is kept of one lower problem, as it was right after its last visit."""

    y: Float[Array, " dy"]
    y_before: Float[Array, " dy"]
    f_x: Float[Array, " d"]
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


class Sizes(NamedTuple):
    """The batch sizes for the upper and the lower loss; `None` is every sample there is."""

    upper: int | None
    lower: int | None


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
    curvature: Curvature
    optimizer: optax.GradientTransformation | None
    initialization: str
    initial_batch_size: int | None
    bounds: Callable[[Bounds], Bounds] = lambda bounds: bounds


def hypergradient(settings: Settings, f_x: Array, f_y: Array, curvature: PyTree) -> Float[Array, " d"]:
    """Line 9: z_i = u_i − V_i H_i⁻¹ v_i."""
    return f_x - settings.curvature.correction(curvature, f_y)


def count_cost(problem: Problem, curvature: Curvature, tasks: Array, sizes: Sizes, points: int) -> Cost:
    """The work of evaluating both losses at `points` points, on a batch of each task."""
    drawn = [
        draw.count_samples(data, tasks, size)
        for data, size in zip((problem.upper_data, problem.lower_data), sizes, strict=True)
    ]
    upper, lower_ = (jnp.maximum(count, float(len(tasks))) for count in drawn)  # no data: one evaluation a task
    return Cost(
        samples=drawn[0] + drawn[1],
        gradients=points * (upper + lower_),
        products=points * lower_ * float(curvature.products(problem)),
    )


def _first_sizes(problem: Problem, settings: Settings) -> Sizes:
    """How large the first batches are; `None`, everything there is, where there is no more than asked for."""
    size = settings.initial_batch_size
    whole = lambda data: size is None or data.max_length <= size
    return Sizes(*(None if whole(data) else size for data in (problem.upper_data, problem.lower_data)))


def _first_task(
    problem: Problem, settings: Settings, clock: delay.Clock, key: Key[Array, ""], i: Int[Array, ""]
) -> FirstTask:
    """Line 1 for one task: y_0 and the first estimates."""
    upper_key, lower_key = jax.random.split(jax.random.fold_in(key, i))
    sizes = _first_sizes(problem, settings)
    xi = draw.batch_indices(upper_key, problem.upper_data, i, sizes.upper)
    zeta = draw.batch_indices(lower_key, problem.lower_data, i, sizes.lower)
    x, y, solves = problem.x0, problem.y0_of(i), jnp.int32(0)
    bounds = settings.bounds(problem.bounds).of(i)
    if settings.initialization == "theorem":
        y, solves = lower.solve(problem, x, y, i, zeta)
    y = projection.ball(y, bounds.y)
    f_x, f_y = oracle.upper_gradients(problem, x, y, i, xi)
    g_y, second = oracle.lower_derivatives(problem, x, y, i, zeta)
    task = Task(
        y=y,
        y_before=y,
        f_x=projection.ball(f_x, bounds.f_x),
        f_y=projection.ball(f_y, bounds.f_y),
        g_y=g_y,
        curvature=settings.curvature.start(problem, second, bounds),
        visit=clock.now,
    )
    return FirstTask(task, solves)


def _initial_cost(problem: Problem, settings: Settings, solves: Int[Array, " m"]) -> Cost:
    """The first evaluation of everything, and the gradients that solving the lower problems took."""
    sizes, tasks = _first_sizes(problem, settings), jnp.arange(problem.num_tasks, dtype=jnp.int32)
    cost = count_cost(problem, settings.curvature, tasks, sizes, points=1)
    each = jax.vmap(lambda i: jnp.maximum(draw.count_samples(problem.lower_data, i[None], sizes.lower), 1.0))(tasks)
    return cost._replace(gradients=cost.gradients + jnp.sum(each * solves.astype(float)))


def start(settings: Settings, problem: Problem, key: Key[Array, ""]) -> State:
    """Line 1: x_1 = x_0 and y_1 = y_0, first estimates of every task, d_0 the mean of all z_{i,0}."""
    settings.sampling.check(problem)
    # One task is drawn in every step, nothing of it is ever delayed.
    clock = delay.start(problem.dtype, delay.ERAS if problem.num_tasks > 1 else 1)
    begin_key, task_key = jax.random.split(key)
    build = lambda i: _first_task(problem, settings, clock, task_key, i)
    tasks, solves = memory.start(build, problem.num_tasks)
    of_task = lambda task: hypergradient(settings, task.f_x, task.f_y, task.curvature)
    direction = jnp.mean(jax.vmap(of_task)(tasks), axis=0)
    x = problem.x0
    optimizer = () if settings.optimizer is None else settings.optimizer.init(problem.unravel_x(x))
    return State(
        x=x,
        x_before=x,
        direction=direction,
        tasks=tasks,
        clock=clock,
        timetable=settings.timetable.begin(begin_key),
        optimizer=optimizer,
        initial_cost=_initial_cost(problem, settings, solves),
    )
