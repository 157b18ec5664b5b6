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
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key

from bilevax import arguments, delay, draw, estimator, memory
from bilevax import curvature as curvatures
from bilevax.algorithms import by_rows
from bilevax.algorithms.base import Algorithm, Info, Variables, described
from bilevax.algorithms.cost import Sizes, count_cost
from bilevax.algorithms.first import as_beginning
from bilevax.algorithms.move import all_finite, check_optimizer, finite_move, move, unless_diverged
from bilevax.algorithms.state import (
    Method,
    Settings,
    State,
    Task,
    Timetable,
    hypergradient,
    rates_of,
    start,
)
from bilevax.algorithms.visit import Innovation, look, update_vectors
from bilevax.curvature.base import Asked, Curvature, Drawn, Fresh, chosen_now
from bilevax.draw import Sampling
from bilevax.problem import Problem
from bilevax.schedule import Mixing, Rates, as_rates


def _bring(problem: Problem, settings: Settings, state: State, i: Int[Array, ""], task: Task) -> Task:
    """The task as it is now: all updates that were delayed since its last visit, made."""
    rates_at = lambda t: rates_of(problem, settings, state, t)
    region = settings.bounds(problem.bounds).of(i).y
    passed = delay.elapsed(state.clock, task.visit, rates_at)
    kept = delay.Lower(task.y, task.y_before, task.g_y)
    brought = delay.bring_lower(state.clock, task.visit, passed, kept, region, rates_at)
    return task._replace(
        y=brought.y,
        y_before=brought.y_before,
        f_x=None if task.f_x is None else passed.decay.f_x * task.f_x,
        f_y=passed.decay.f_y * task.f_y,
        g_y=brought.g_y,
        curvature=settings.curvature.age(problem, task.curvature, passed, task.f_y),
    )


def _update(
    problem: Problem, settings: Settings, rates: Rates, visit: delay.Reading, drawn: draw.Draw, current: Task, new: Any
) -> Task:
    """Lines 4 to 8 and 15 for all drawn tasks."""
    same = draw.repeats(settings.sampling, drawn.tasks)
    vectors = draw.merged(same, new._replace(curvature=None))
    update = lambda i, task, new: update_vectors(problem, settings, rates, visit, i, task, new)
    updated = jax.vmap(update)(drawn.tasks, current, vectors)
    entries = draw.looked_at(same, drawn.lower)
    fresh = Fresh(drawn.tasks, same, entries, updated.f_y, rates, settings.bounds(problem.bounds))
    curvature = settings.curvature.update(problem, current.curvature, new.curvature, fresh)  # lines 6, 7: V, H
    return updated._replace(curvature=curvature)


def _direction(
    problem: Problem,
    settings: Settings,
    state: State,
    mixing: Mixing,
    drawn: draw.Draw,
    current: Task,
    updated: Task,
) -> Float[Array, " d"]:
    """Lines 9 to 13: d_{t+1} = (1−β)(d_t − z_{j,t}) + z_{j,t+1}, the mean over the drawn j."""
    if problem.num_tasks == 1 and not memory.in_part(updated):  # d_0 = z_0 makes d_t = z_t for ever
        return hypergradient(problem, settings, jax.tree.map(lambda leaf: leaf[0], updated))
    asleep = memory.read(state.tasks, drawn.direction_tasks)
    same = draw.same_task(drawn.direction_tasks, drawn.tasks)
    before = jax.vmap(lambda visit: delay.elapsed_decay(state.clock, visit))(asleep.visit)
    later = delay.Decay(*((1 - beta) * decay for beta, decay in zip(mixing[:5], before, strict=True)))
    hit, at = same.any(1), same.argmax(1)

    def before_and_now(decay: str, kept: Array, updated: Array) -> tuple[Array, Array]:
        old, aged = (getattr(decays, decay)[:, None] * kept for decays in (before, later))  # line 11, line 12
        return old, chosen_now(hit, at, aged, updated)

    v_before, v_now = before_and_now("f_y", asleep.f_y, updated.f_y)
    asked = Asked(asleep.curvature, before, later, v_before, v_now, hit, at)
    entries = draw.looked_at(draw.repeats(settings.sampling, drawn.tasks), drawn.lower)
    seen = Drawn(drawn.tasks, entries, current.curvature, updated.curvature)
    change = -settings.curvature.change(problem, asked, seen, mixing)
    if asleep.f_x is not None and updated.f_x is not None:
        u_before, u_now = before_and_now("f_x", asleep.f_x, updated.f_x)
        change += estimator.innovation(u_now.mean(0), u_before.mean(0), mixing.direction)
    return estimator.storm(state.direction, change, mixing.direction)


def _unless_diverged(finite: Array, moved: State, unmoved: State) -> State:
    """Everything but the two tables, which are not written where the step is not taken."""
    small = lambda state: state._replace(tasks=(), clock=state.clock._replace(eras=()))
    kept = unless_diverged(finite, small(moved), small(unmoved))
    return kept._replace(clock=kept.clock._replace(eras=moved.clock.eras))


def _step(settings: Settings, problem: Problem, state: State, key: Key[Array, ""]) -> tuple[State, Info]:
    """Lines 3 to 15. All reads of per-task state come before its one write, so that it can be in place."""
    state = state._replace(clock=delay.settle(state.clock))
    rates = rates_of(problem, settings, state, state.clock.now.step)
    drawn = draw.draw_step(problem, settings.sampling, key)  # lines 3 and 10
    clock = delay.tick(state.clock, rates)

    def visit(task: Task, sample: tuple) -> tuple[Task, Innovation]:
        current = _bring(problem, settings, state, sample[0], task)
        return current, look(problem, settings, state.x, state.x_before, rates.mixing, current, sample)

    samples = (drawn.tasks, drawn.weights, drawn.upper, drawn.lower)
    entries = draw.looked_at(draw.repeats(settings.sampling, drawn.tasks), drawn.lower)
    current, new = jax.vmap(visit)(memory.read(state.tasks, drawn.tasks, entries), samples)
    updated = _update(problem, settings, rates, clock.now, drawn, current, new)  # lines 4 to 8 and 15
    direction = _direction(problem, settings, state, rates.mixing, drawn, current, updated)  # lines 9 to 13
    x, optimizer = move(problem, settings.optimizer, state.optimizer, state.x, rates.upper_step, direction)  # line 14
    finite = all_finite(updated) & finite_move(settings.optimizer, x, rates.upper_step, direction)
    tasks = memory.write(state.tasks, drawn.tasks, updated, ~finite, entries)
    moved = state._replace(x=x, x_before=state.x, direction=direction, clock=clock, optimizer=optimizer)
    after = _unless_diverged(finite, moved, state)._replace(tasks=tasks)
    batch = settings.sampling.batch_size
    cost = count_cost(problem, settings.curvature.products(problem), drawn.tasks, Sizes(batch, batch), points=2)
    return after, Info(cost, finite)


def _variables(settings: Settings, problem: Problem, state: State) -> Variables:
    state = state._replace(clock=delay.settle(state.clock))
    bring = lambda i, task: _bring(problem, settings, state, i, task).y
    return Variables(state.x, jax.vmap(bring)(jnp.arange(problem.num_tasks), state.tasks))


ANY_PROBLEM = Method(start, _step, _variables)


def _served(settings: Settings, problem: Problem) -> tuple[Settings, Method]:
    """The settings with the curvature for this problem, and how its steps are made."""
    settings = settings._replace(curvature=curvatures.chosen(settings.curvature, problem))
    return settings, by_rows.ONE_LINEAR_MODEL if by_rows.serves(settings, problem) else ANY_PROBLEM


def assemble(name: str, settings: Settings, chosen: Mapping[str, Any]) -> Algorithm:
    """The algorithm of this family with the given settings."""
    if not isinstance(settings.curvature, Curvature | None):
        raise TypeError(
            f"curvature must be one of bilevax.curvature: dense, linear_model or tracked; got {settings.curvature!r}."
        )
    check_optimizer(settings.optimizer)

    def init(problem: Problem, key: Key[Array, ""]) -> Any:
        served, method = _served(settings, problem)
        return method.start(served, problem, key)

    def step(problem: Problem, state: Any, key: Key[Array, ""]) -> tuple[Any, Info]:
        served, method = _served(settings, problem)
        return method.step(served, problem, state, key)

    def variables(problem: Problem, state: Any) -> Variables:
        served, method = _served(settings, problem)
        return method.variables(served, problem, state)

    return Algorithm(name, init, step, variables, chosen)


def scheduled(rates: Rates) -> Timetable:
    """The timetable of plain schedules of the step."""
    return Timetable(begin=lambda key: (), rates=lambda begun, t: rates.at(t))


@described(
    paper="Guo, Hu, Zhang, Yang 2021",
    loops="single",
    batch="O(1)",
    samples="ε⁻³",
    tasks="a few",
    memory="as its curvature",
    curvature="dense, linear_model or tracked",
    accepts="any",
)
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
    curvature: Curvature | None = None,
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
    - `curvature`: what is kept of ∇²g, `bilevax.curvature.dense` (matrices, any loss with small d'), `linear_model`
      (vectors, for `bilevax.problems.reweighting`) or `tracked` (matrix-free, large d'). By default
      `linear_model` where the problem is one, else `dense`.
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
        beginning=as_beginning(initialization, initial_batch_size, batch_size),
    )
    return assemble("rsvrb", settings, chosen)
