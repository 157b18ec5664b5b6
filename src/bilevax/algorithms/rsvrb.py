"""RSVRB, Algorithm 2 of the paper: a few of the m lower problems in a step, variance-reduced throughout.

For a drawn task i, with the same sample at the current and the previous point and 1/p_i before each,

    u_i ← Π_C[(1−β)(u_i − ∇x f_i(before; ξ)/p_i) + ∇x f_i(now; ξ)/p_i]        estimate of ∇x f_i
    v_i ← Π_C[(1−β)(v_i − ∇y f_i(before; ξ)/p_i) + ∇y f_i(now; ξ)/p_i]        estimate of ∇y f_i
    V_i ← S^u_C[(1−β)(V_i − ∇²xy g_i(before; ζ)/p_i) + ∇²xy g_i(now; ζ)/p_i]  estimate of ∇²xy g_i
    H_i ← S^l_λ[(1−β)(H_i − ∇²yy g_i(before; ζ)/p_i) + ∇²yy g_i(now; ζ)/p_i]  estimate of ∇²yy g_i
    w_i ← (1−β)(w_i − ∇y g_i(before; ζ)/p_i) + ∇y g_i(now; ζ)/p_i             estimate of ∇y g_i
    z_i = u_i − V_i H_i⁻¹ v_i

and for every other task (1−β) times what was there, delayed until it is needed (`bilevax.delay`). Then

    d ← (1−β)(d − z_j) + z_j⁺,   x ← x − η_t γ d,   y_i ← (1−τ_t) y_i + τ_t Π_Y[y_i − τ w_i].

Several tasks in a step: 1/p_i becomes 1/(expected number of draws of i), d uses the mean over the j drawn.
Guo, Hu, Zhang, Yang: Randomized Stochastic Variance-Reduced Methods for Multi-Task Stochastic Bilevel
Optimization. O(C(p)/(m ε³)) samples to an ε-stationary point (Theorem 2).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from bilevax import arguments, delay, draw, estimator, memory, oracle, projection
from bilevax.algorithms.base import Algorithm, Info, Variables
from bilevax.algorithms.state import (
    Settings,
    Sizes,
    State,
    Task,
    Timetable,
    count_cost,
    hypergradient,
    start,
)
from bilevax.curvature import Curvature, dense
from bilevax.draw import Sampling
from bilevax.problem import Problem
from bilevax.schedule import Mixing, Rates, Step, as_rates


class Innovation(NamedTuple):
    """What the samples of one task tell about its five estimates."""

    f_x: Float[Array, " d"]
    f_y: Float[Array, " dy"]
    g_y: Float[Array, " dy"]
    curvature: PyTree


def _rates(problem: Problem, settings: Settings, state: State, t: Step) -> Rates:
    """The rates of step t, in the floating type of the problem."""
    rates = settings.timetable.rates(state.timetable, t)
    return jax.tree.map(lambda rate: jnp.asarray(rate, problem.dtype), rates)


def _innovation(
    problem: Problem, settings: Settings, state: State, mixing: Mixing, task: Task, drawn: tuple
) -> Innovation:
    """Fresh derivatives of one task at (x_t, y_t) and (x_{t−1}, y_{t−1}) on the same samples."""
    i, weight, xi, zeta = drawn
    now, before = (state.x, task.y), (state.x_before, task.y_before)
    f_x, f_y = oracle.upper_gradients(problem, *now, i, xi)
    f_x_before, f_y_before = oracle.upper_gradients(problem, *before, i, xi)
    g_y, second = oracle.lower_derivatives(problem, *now, i, zeta)
    g_y_before, second_before = oracle.lower_derivatives(problem, *before, i, zeta)
    new = Innovation(
        f_x=estimator.innovation(f_x, f_x_before, mixing.f_x),
        f_y=estimator.innovation(f_y, f_y_before, mixing.f_y),
        g_y=estimator.innovation(g_y, g_y_before, mixing.g_y),
        curvature=settings.curvature.innovation(second, second_before, mixing, problem.dim_y, problem.dtype),
    )
    return jax.tree.map(lambda leaf: weight * leaf, new)


def _bring(problem: Problem, settings: Settings, state: State, i: Int[Array, ""], task: Task) -> Task:
    """The task as it is now: all updates that were delayed since its last visit, made."""
    rates_at = lambda t: _rates(problem, settings, state, t)
    radius = settings.bounds(problem.bounds).of(i).y
    kept = delay.Lower(task.y, task.y_before, task.g_y)
    brought = delay.bring_lower(state.clock, task.visit, kept, radius, rates_at)
    decay = delay.elapsed_decay(state.clock, task.visit)
    return task._replace(
        y=brought.y,
        y_before=brought.y_before,
        f_x=decay.f_x * task.f_x,
        f_y=decay.f_y * task.f_y,
        g_y=brought.g_y,
        curvature=settings.curvature.age(problem, task.curvature, decay),
    )


def _update(
    problem: Problem,
    settings: Settings,
    rates: Rates,
    visit: delay.Reading,
    i: Any,
    task: Task,
    new: Innovation,
) -> Task:
    """Lines 4 to 8 and 15 for a drawn task."""
    mixing, bounds = rates.mixing, settings.bounds(problem.bounds).of(i)
    f_x = projection.ball(estimator.storm(task.f_x, new.f_x, mixing.f_x), bounds.f_x)  # line 4, u
    f_y = projection.ball(estimator.storm(task.f_y, new.f_y, mixing.f_y), bounds.f_y)  # line 5, v
    curvature = settings.curvature.update(problem, task.curvature, new.curvature, mixing, bounds)  # lines 6, 7: V, H
    g_y = estimator.storm(task.g_y, new.g_y, mixing.g_y)  # line 8, w
    trial = projection.ball(task.y - rates.lower_step * g_y, bounds.y)
    y = task.y + rates.relaxation * (trial - task.y)  # line 15
    return Task(y, task.y, f_x, f_y, g_y, curvature, visit)


def _aged(problem: Problem, settings: Settings, task: Task, decay: delay.Decay) -> Float[Array, " d"]:
    """z_i of a task that was not drawn, after its estimates have decayed."""
    aged = settings.curvature.age(problem, task.curvature, decay)
    return hypergradient(settings, decay.f_x * task.f_x, decay.f_y * task.f_y, aged)


def _direction(
    problem: Problem, settings: Settings, state: State, mixing: Mixing, drawn: draw.Draw, updated: Task
) -> Float[Array, " d"]:
    """Lines 9 to 13: d_{t+1} = (1−β)(d_t − z_{j,t}) + z_{j,t+1}, the mean over the drawn j."""
    fresh = jax.vmap(lambda task: hypergradient(settings, task.f_x, task.f_y, task.curvature))(updated)
    if problem.num_tasks == 1:
        return fresh[0]  # d_0 = z_0 makes d_t = z_t for ever
    one_step = delay.Decay(*(1 - beta for beta in mixing[:5]))

    def change(task: Task) -> tuple[Array, Array]:
        decay = delay.elapsed_decay(state.clock, task.visit)
        later = jax.tree.map(lambda passed, step: passed * step, decay, one_step)
        return _aged(problem, settings, task, decay), _aged(problem, settings, task, later)  # lines 11, 12

    before, aged = jax.vmap(change)(memory.read(state.tasks, drawn.direction_tasks))
    same = draw.same_task(drawn.direction_tasks, drawn.tasks)
    now = jnp.where(same.any(1)[:, None], fresh[same.argmax(1)], aged)
    return estimator.storm(
        state.direction, estimator.innovation(now.mean(0), before.mean(0), mixing.direction), mixing.direction
    )


def _move(problem: Problem, settings: Settings, state: State, rates: Rates, direction: Array) -> tuple[Array, PyTree]:
    """Line 14: x_{t+1} = x_t − η_t γ d_{t+1}, or what the user's optimizer makes of d_{t+1}."""
    if settings.optimizer is None:
        return state.x - rates.upper_step * direction, state.optimizer
    updates, optimizer = settings.optimizer.update(
        problem.unravel_x(direction), state.optimizer, problem.unravel_x(state.x)
    )
    return state.x + jax.flatten_util.ravel_pytree(updates)[0], optimizer


def _all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether all numbers are so far from overflow that their squares and delayed updates are finite too."""
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    small = lambda leaf: jnp.abs(leaf) < float(jnp.finfo(leaf.dtype).max) ** 0.5
    return jnp.all(jnp.stack([small(leaf).all() for leaf in floats]))


def _unless_diverged(finite: Array, moved: State, unmoved: State) -> State:
    """Everything but the two tables, which are not written where the step is not taken."""
    small = lambda state: state._replace(tasks=(), clock=state.clock._replace(eras=()))
    kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), small(moved), small(unmoved))
    return kept._replace(clock=kept.clock._replace(eras=moved.clock.eras))


def _step(settings: Settings, problem: Problem, state: State, key: Key[Array, ""]) -> tuple[State, Info]:
    """Lines 3 to 15. All reads of per-task state come before its one write, so that it can be in place."""
    state = state._replace(clock=delay.settle(state.clock))
    rates = _rates(problem, settings, state, state.clock.now.step)
    drawn = draw.draw_step(problem, settings.sampling, key)  # lines 3 and 10
    clock = delay.tick(state.clock, rates)

    def look(task: Task, sample: tuple) -> tuple[Task, Innovation]:
        current = _bring(problem, settings, state, sample[0], task)
        return current, _innovation(problem, settings, state, rates.mixing, current, sample)

    samples = (drawn.tasks, drawn.weights, drawn.upper, drawn.lower)
    current, new = jax.vmap(look)(memory.read(state.tasks, drawn.tasks), samples)
    new = draw.merge_repeats(settings.sampling, drawn.tasks, new)
    update = lambda i, task, new: _update(problem, settings, rates, clock.now, i, task, new)
    updated = jax.vmap(update)(drawn.tasks, current, new)  # lines 4 to 8 and 15

    direction = _direction(problem, settings, state, rates.mixing, drawn, updated)  # lines 9 to 13
    x, optimizer = _move(problem, settings, state, rates, direction)  # line 14
    finite = _all_finite((x, direction, updated))
    tasks = memory.write(state.tasks, drawn.tasks, updated, keep=~finite)
    moved = state._replace(x=x, x_before=state.x, direction=direction, clock=clock, optimizer=optimizer)
    after = _unless_diverged(finite, moved, state)._replace(tasks=tasks)
    batch = settings.sampling.batch_size
    cost = count_cost(problem, settings.curvature, drawn.tasks, Sizes(batch, batch), points=2)
    return after, Info(cost, finite, jnp.linalg.norm(direction))


def _variables(settings: Settings, problem: Problem, state: State) -> Variables:
    state = state._replace(clock=delay.settle(state.clock))
    bring = lambda i, task: _bring(problem, settings, state, i, task).y
    return Variables(state.x, jax.vmap(bring)(jnp.arange(problem.num_tasks), state.tasks))


def assemble(name: str, settings: Settings, chosen: Mapping[str, Any]) -> Algorithm:
    """The algorithm of this family with the given settings."""
    arguments.one_of("initialization", settings.initialization, ("theorem", "cheap"))
    if not isinstance(settings.curvature, Curvature):
        raise TypeError(f"curvature must be one of bilevax.curvature, for example dense; got {settings.curvature!r}.")
    if settings.optimizer is not None and not isinstance(settings.optimizer, optax.GradientTransformation):
        raise TypeError(
            "upper_optimizer must be an optax transformation, for example optax.adam(1e-2); "
            f"got {settings.optimizer!r}."
        )
    if settings.initial_batch_size is not None:
        arguments.count("initial_batch_size", settings.initial_batch_size)
    elif settings.initialization == "cheap":
        settings = settings._replace(initial_batch_size=settings.sampling.batch_size)
    return Algorithm(
        name=name,
        init=lambda problem, key: start(settings, problem, key),
        step=lambda problem, state, key: _step(settings, problem, state, key),
        variables=lambda problem, state: _variables(settings, problem, state),
        settings=chosen,
    )


def scheduled(rates: Rates) -> Timetable:
    """The timetable of plain schedules of the step."""
    return Timetable(begin=lambda key: (), rates=lambda begun, t: rates.at(t))


@arguments.known_keywords
def rsvrb(
    *,
    upper_step: Any = 0.1,
    lower_step: Any = 0.5,
    relaxation: Any = 1.0,
    mixing: Any = 0.1,
    tasks_per_step: int = 1,
    batch_size: int | None = 32,
    task_probabilities: Any = None,
    upper_optimizer: optax.GradientTransformation | None = None,
    curvature: Curvature = dense,
    initialization: str = "theorem",
    initial_batch_size: int | None = None,
) -> Algorithm:
    """RSVRB, Algorithm 2: z_i = u_i − V_i H_i⁻¹ v_i, d ← (1−β)(d − z_j) + z_j⁺, x ← x − η_t γ d.

    - `upper_step` (η_t γ), `lower_step` (τ), `relaxation` (τ_t) and `mixing` (β): numbers, or schedules of
      the step t = 1, 2, ... (checked at t = 1; they must stay in range as long as the run goes on). `mixing`
      can be a `bilevax.Mixing` with one for each estimate. Theorem 2 wants lower_step ≤ 1/(3 L_g), with L_g
      the largest eigenvalue of ∇²yy g (`bilevax.check` tells it), and all steps to shrink with 1/m.
    - `tasks_per_step`: tasks drawn in a step; `batch_size`: samples for each of them and each loss, `None`
      for all there are. `task_probabilities` (p): by default uniform and without replacement.
    - `upper_optimizer`: an optax transformation that takes d and gives the change of x; `upper_step` is
      then not used.
    - `initialization`: "theorem" solves every lower problem at x_0 on the first batch and starts all
      estimates from it; "cheap" leaves y at y_0. The first batch has `initial_batch_size` samples for each
      task; by default all there are for "theorem", `batch_size` of them for "cheap".

    The noise of the estimates grows with m/tasks_per_step: with very many tasks lower the mixing, or give
    the bounds of the projections. Source: Guo, Hu, Zhang, Yang, Algorithm 2 and Theorem 2.
    """
    chosen = dict(locals())
    settings = Settings(
        timetable=scheduled(as_rates(upper_step, lower_step, relaxation, mixing)),
        sampling=Sampling(tasks_per_step, batch_size, task_probabilities),
        curvature=curvature,
        optimizer=upper_optimizer,
        initialization=initialization,
        initial_batch_size=initial_batch_size,
    )
    return assemble("rsvrb", settings, chosen)
