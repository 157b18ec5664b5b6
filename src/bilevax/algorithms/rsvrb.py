"""RSVRB, Algorithm 2 of the paper: a few of the m lower problems in a step, variance-reduced throughout.

For a drawn task i, with the same sample at the current and the previous point and 1/p_i before each,

     4   u_i ← Π_C[(1−β)(u_i − ∇x f_i(before; ξ)/p_i) + ∇x f_i(now; ξ)/p_i]        estimate of ∇x f_i
     5   v_i ← Π_C[(1−β)(v_i − ∇y f_i(before; ξ)/p_i) + ∇y f_i(now; ξ)/p_i]        estimate of ∇y f_i
     6   V_i ← S^u_C[(1−β)(V_i − ∇²xy g_i(before; ζ)/p_i) + ∇²xy g_i(now; ζ)/p_i]  estimate of ∇²xy g_i
     7   H_i ← S^l_λ[(1−β)(H_i − ∇²yy g_i(before; ζ)/p_i) + ∇²yy g_i(now; ζ)/p_i]  estimate of ∇²yy g_i
     8   w_i ← (1−β)(w_i − ∇y g_i(before; ζ)/p_i) + ∇y g_i(now; ζ)/p_i             estimate of ∇y g_i
     9   z_i = u_i − V_i H_i⁻¹ v_i

and for every other task (1−β) times what was there, delayed until it is needed (`bilevax.tasks`). Then, with tasks j
that are drawn uniformly (10) and their z_j before (11) and after (12) this step,

    13   d ← (1−β)(d − z_j) + z_j⁺
    14   x ← x − η_t γ d
    15   y_i ← (1−τ_t) y_i + τ_t Π_Y[y_i − τ w_i]

Several tasks in a step: 1/p_i becomes 1/(expected number of draws of i), d uses the mean over the j drawn.
Guo, Hu, Zhang, Yang: Randomized Stochastic Variance-Reduced Methods for Multi-Task Stochastic Bilevel
Optimization. O(C(p)/(m ε³)) samples to an ε-stationary point (Theorem 2).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from bilevax import arguments, chunks, draw, tasks
from bilevax import curvature as curvatures
from bilevax.algorithms.contract import Algorithm, Variables, described
from bilevax.algorithms.frame import (
    Change,
    Method,
    Move,
    Optimizer,
    RatesAt,
    Some,
    Start,
    State,
    assemble,
    count_both,
    rows_of,
)
from bilevax.algorithms.parts import one_linear_model
from bilevax.algorithms.registry.tuning import FIRST_BATCHES, MIXED_STEPS, Tuning, shared_steps
from bilevax.algorithms.start import FirstBatch, cost_of_estimates, first_batch_of, first_point
from bilevax.bounds import Bounds
from bilevax.curvature.contract import Curvature, Drift, Sample, Second, Sleepers, Update, Visit
from bilevax.draw import Draw, Sampling
from bilevax.problem import Problem
from bilevax.projection import ball, onto
from bilevax.samples import Indices
from bilevax.schedule import Mixing, RateRule, Rates, as_rates
from bilevax.tasks import Clock, Decay, Eras, Lower

# Theorem 2's shape: all in proportion to the share of tasks that a step looks at.
UPPER_STEP, LOWER_STEP, MIXING = RateRule(0.25, "step", 1), RateRule(1 / 3, "1/smoothness", 1), RateRule(0.2, "1", 1)


class Task(NamedTuple):
    """What is kept of one lower problem, as it was right after its last visit; or of several.

    u is `None` where f does not depend on x: u = 0 needs no estimate. V and H are what the curvature makes of them.
    """

    y: Float[Array, "*B dy"]
    y_before: Float[Array, "*B dy"]
    u: Float[Array, "*B d"] | None
    v: Float[Array, "*B dy"]
    VH: PyTree
    w: Float[Array, "*B dy"]
    visit: Any  # the Reading of the clock at that visit


class Own(NamedTuple):
    """x_{t−1}, d_t, the clock of the delayed updates, and the stages of RE-RSVRB."""

    x_before: Float[Array, " d"]
    d: Float[Array, " d"]
    clock: Clock
    stages: PyTree


class TaskTables(NamedTuple):
    """A `Task` for each lower problem, and the clock's table of eras."""

    tasks: Task
    eras: Eras


class Innovation(NamedTuple):
    """What the samples of one task tell its five estimates: (∇(now) − (1−β)∇(before))/p_i for each of them."""

    u: Float[Array, "*B d"] | None
    v: Float[Array, "*B dy"]
    VH: Second
    w: Float[Array, "*B dy"]


@dataclass(frozen=True, eq=False)
class RSVRB(Method):
    """Algorithm 2 with its settings; `curvature` is `None` until the problem decides."""

    rates: Rates
    sampling: Sampling
    first: FirstBatch
    curvature: Curvature | None = None
    optimizer: Optimizer = None

    def check(self, problem: Problem) -> None:
        """Refuse a problem that cannot be sampled so, or that the curvature cannot serve."""
        self.sampling.check(problem)
        curvatures.choose(self.curvature, problem)

    def portion(self, problem: Problem) -> tuple[int | None, float]:
        """A batch of each drawn task."""
        return self.sampling.portion(problem)

    def start_stages(self, key: Key[Array, ""]) -> PyTree:
        """What decides on the stages; there are none here."""
        return ()

    def start(self, problem: Problem, key: Key[Array, ""]) -> Start:
        """Line 1: x_1 = x_0 and y_1 = y_0, first estimates of every task, d_0 the mean of all z_{i,0}."""
        curvature, clock = curvatures.choose(self.curvature, problem), tasks.start_clock(problem.dtype)
        stage_key, task_key = jax.random.split(key)

        def first_task(i: Int[Array, ""]) -> tuple[Task, Array]:
            x, C = problem.x0, problem.bounds_of(i)
            y, xi, zeta, gradients = first_point(problem, self.first, C.y, task_key, i)
            f_x, f_y = problem.upper_gradients(x, y, i, xi)
            g_y, second = problem.lower_derivatives(x, y, i, zeta)
            u = ball(f_x, C.f_x) if problem.structure.upper_uses_x else None
            v = ball(f_y, C.f_y)
            VH = curvature.start(problem, Sample(i, zeta, x, y, f_y, second), v, C)
            return Task(y=y, y_before=y, u=u, v=v, VH=VH, w=g_y, visit=clock.now), gradients

        def first_z(i: Int[Array, ""]) -> Float[Array, " d"]:
            task = jax.tree.map(lambda leaf: leaf[0], tasks.read(table, i[None]))
            return z(problem, curvature, task.u, task.VH, task.v)

        table, gradients = chunks.start(first_task, problem.num_tasks, problem.work)
        d = chunks.mean_of_all(first_z, problem.num_tasks, problem.work)
        return Start(
            own=Own(problem.x0, d, clock, problem.shards.first(self.start_stages(stage_key))),
            tables=TaskTables(table, tasks.start_eras(problem.dtype, problem.num_tasks > 1)),
            cost=cost_of_estimates(problem, self.first, curvature.products(problem), gradients),
        )

    def step(
        self, problem: Problem, rates_at: RatesAt, state: State, key: Key[Array, ""], move: Callable[[Array], Move]
    ) -> Change:
        """Lines 3 to 15, for all drawn tasks at once.

        All reads of per-task state come before its one write, so that it can be in place.
        """
        curvature, rates = curvatures.choose(self.curvature, problem), rates_at(state.step)
        clock, eras = tasks.tick(state.own.clock, state.tables.eras, rates)
        beta = rates.mixing

        drawn = draw.draw_step(problem, self.sampling, key)  # line 3: tasks i by p, with ξ and ζ; line 10: tasks j
        C = jax.vmap(problem.bounds_of)(drawn.tasks)
        rows = tasks.read(state.tables.tasks, drawn.tasks, drawn.entries)
        task = jax.vmap(partial(catch_up, problem, curvature, rates_at, state.own.clock, eras))(rows, C)
        new = jax.vmap(partial(innovate, problem, curvature, beta, state.x, state.own.x_before))(
            task, drawn.tasks, drawn.weights, drawn.upper, drawn.lower
        )
        if drawn.same is not None:
            new = draw.merge(drawn.same, new)

        u = None
        if task.u is not None and new.u is not None:
            u = jax.vmap(ball)((1 - beta.f_x) * task.u + new.u, C.f_x)  # line 4
        v = jax.vmap(ball)((1 - beta.f_y) * task.v + new.v, C.f_y)  # line 5
        update = jax.vmap(partial(curvature.update, problem, rates))
        VH = update(task.VH, new.VH, Update(v, C, drawn.entries))  # lines 6 and 7
        w = (1 - beta.g_y) * task.w + new.w  # line 8
        after = task._replace(u=u, v=v, VH=VH, w=w)
        d = follow_z(problem, curvature, beta, state, drawn, task, after)  # lines 9 to 13
        x = move(d)  # line 14
        trial = jax.vmap(onto)(task.y - rates.lower_step * w, C.y)
        y = task.y + rates.relaxation * (trial - task.y)  # line 15

        after = after._replace(y=y, y_before=task.y, visit=jax.tree.map(jnp.full_like, task.visit, clock.now))
        table = state.tables.tasks
        return Change(
            move=x,
            own=Own(state.x, d, clock, state.own.stages),
            cost=count_both(problem, drawn.tasks, self.sampling.batch_size, 2, curvature.products(problem)),
            watch=after,
            write=lambda keep: TaskTables(tasks.write(table, drawn.tasks, after, keep, drawn.entries), eras),
        )

    def variables(self, problem: Problem, rates_at: RatesAt, state: State, some: Some) -> Variables:
        """x, and y of every task, or of some, up to date."""
        curvature, clock = curvatures.choose(self.curvature, problem), state.own.clock
        _, eras = tasks.tick(clock, state.tables.eras, rates_at(state.step))
        C = jax.vmap(problem.bounds_of)(jnp.arange(problem.num_tasks) if some is None else some)
        kept = rows_of(state.tables.tasks, some)
        now = jax.vmap(partial(catch_up, problem, curvature, rates_at, clock, eras))(kept, C)
        return Variables(state.x, now.y)


def catch_up(
    problem: Problem, curvature: Curvature, rates_at: RatesAt, clock: Clock, eras: Eras, task: Task, C: Bounds
) -> Task:
    """The task as it is now: all updates that were delayed since its last visit, made."""
    absence = tasks.absence_since(clock, eras, task.visit, rates_at)
    y, y_before, w = tasks.catch_up(absence, Lower(task.y, task.y_before, task.w), C.y)
    return task._replace(
        y=y,
        y_before=y_before,
        u=None if task.u is None else absence.decay.f_x * task.u,
        v=absence.decay.f_y * task.v,
        VH=curvature.age(problem, task.VH, absence.decay, Drift(absence, task.v, C)),
        w=w,
    )


def innovate(
    problem: Problem,
    curvature: Curvature,
    beta: Mixing,
    x: Float[Array, " d"],
    x_before: Float[Array, " d"],
    task: Task,
    i: Int[Array, ""],
    weight: Float[Array, ""],
    xi: Indices,
    zeta: Indices,
) -> Innovation:
    """(∇(now) − (1−β)∇(before))/p_i of all five derivatives, on the same samples of one task."""
    y, y_before = task.y, task.y_before
    f_x, f_y = problem.upper_gradients(x, y, i, xi)
    f_x_before, f_y_before = problem.upper_gradients(x_before, y_before, i, xi)
    g_y, second = problem.lower_derivatives(x, y, i, zeta)
    g_y_before, second_before = problem.lower_derivatives(x_before, y_before, i, zeta)
    now = Sample(i, zeta, x, y, f_y, second)
    before = Sample(i, zeta, x_before, y_before, f_y_before, second_before)
    fresh, old = curvature.observe(problem, task.VH, now, before)
    storm = lambda beta, now, before: jax.tree.map(lambda a, b: weight * (a - (1 - beta) * b), now, before)
    return Innovation(
        u=storm(beta.f_x, f_x, f_x_before) if problem.structure.upper_uses_x else None,
        v=storm(beta.f_y, f_y, f_y_before),
        VH=Second(storm(beta.g_xy, fresh.cross, old.cross), storm(beta.g_yy, fresh.hessian, old.hessian)),
        w=storm(beta.g_y, g_y, g_y_before),
    )


def z(problem: Problem, curvature: Curvature, u: Array | None, VH: PyTree, v: Array) -> Float[Array, " d"]:
    """Line 9: z = u − V H⁻¹ v."""
    correction = curvature.correction(problem, VH, v)
    return -correction if u is None else u - correction


def follow_z(
    problem: Problem, curvature: Curvature, mixing: Mixing, state: State, drawn: Draw, task: Task, after: Task
) -> Float[Array, " d"]:
    """Lines 9 to 13: d ← (1−β)(d − z_j) + z_j⁺, the mean over the tasks j."""
    if problem.num_tasks == 1 and not curvature.long_rows:  # d_0 = z_0 makes d_t = z_t for ever
        return z(problem, curvature, *jax.tree.map(itemgetter(0), (after.u, after.VH, after.v)))
    j, d, beta = drawn.direction_tasks, state.own.d, mixing.direction
    asleep = tasks.read(state.tables.tasks, j)
    rho = jax.vmap(partial(tasks.decay_since, state.own.clock))(asleep.visit)
    rho_after = Decay(*((1 - jnp.stack(mixing[:5]))[:, None] * jnp.stack(rho)))
    same = j[:, None] == drawn.tasks[None, :]
    hit, at = same.any(1), same.argmax(1)  # a task j that is also drawn in this step, as the at-th
    choose = jax.vmap(jnp.where)
    u, u_after = None, None
    if asleep.u is not None and after.u is not None:
        u, u_after = rho.f_x[:, None] * asleep.u, choose(hit, after.u[at], rho_after.f_x[:, None] * asleep.u)
    v, v_after = rho.f_y[:, None] * asleep.v, choose(hit, after.v[at], rho_after.f_y[:, None] * asleep.v)
    if curvature.long_rows:  # z_j⁺ − (1−β)z_j in one go
        sleepers = Sleepers(asleep.VH, rho, rho_after, v, v_after, hit, at)
        change = -curvature.change(problem, sleepers, Visit(drawn.tasks, drawn.entries, task.VH, after.VH), mixing)
        if u is not None and u_after is not None:
            change += u_after.mean(0) - (1 - beta) * u.mean(0)
        return (1 - beta) * d + change
    age = jax.vmap(partial(curvature.age, problem), in_axes=(0, 0, None))
    VH, updated = age(asleep.VH, rho, None), jax.tree.map(itemgetter(at), after.VH)
    VH_after = jax.tree.map(partial(choose, hit), updated, age(asleep.VH, rho_after, None))
    z_of = jax.vmap(partial(z, problem, curvature))
    z_before, z_after = z_of(u, VH, v), z_of(u_after, VH_after, v_after)  # lines 9, 11 and 12
    return (1 - beta) * (d - z_before.mean(0)) + z_after.mean(0)  # line 13


def assemble_family(
    name: str,
    method: RSVRB,
    settings: Mapping[str, Any],
    adapt: Callable[[Problem], Problem] = lambda problem: problem,
) -> Algorithm:
    """The algorithm of this family with the given settings; one linear model has a form of its own."""
    curvatures.check_type(method.curvature)
    return assemble(name, method, settings, one_linear_model.special_form(method, adapt))


@described(
    paper="Guo, Hu, Zhang, Yang 2021",
    loops="single",
    batch="O(1)",
    samples="ε⁻³",
    tasks="a few",
    memory="as its curvature",
    curvature="dense, linear_model or tracked",
    accepts="any",
    tuning=Tuning("RSVRB", MIXED_STEPS, shared_steps, FIRST_BATCHES),
)
@arguments.known_keywords
def rsvrb(
    *,
    upper_step: Any = UPPER_STEP,
    lower_step: Any = LOWER_STEP,
    relaxation: Any = 1.0,
    mixing: Any = MIXING,
    tasks_per_step: int | None = None,
    batch_size: int | None = 32,
    task_probabilities: Any = None,
    upper_optimizer: optax.GradientTransformation | None = None,
    curvature: Curvature | None = None,
    initialization: str = "theorem",
    initial_batch_size: int | None = None,
) -> Algorithm:
    """RSVRB, Algorithm 2: z_i = u_i − V_i H_i⁻¹ v_i, d ← (1−β)(d − z_j) + z_j⁺, x ← x − η_t γ d.

    - `upper_step` (η_t γ), `lower_step` (τ), `relaxation` (τ_t) and `mixing` (β): numbers, or schedules of
      the step t = 1, 2, ..., which must stay in range as long as the run goes on. `mixing`
      can be a `bilevax.Mixing` with one for each estimate. What is not given is found, in the shape of
      Theorem 2: in proportion to the share of tasks that a step looks at, the step of y about 1/(3 L_g).
    - `tasks_per_step`: tasks drawn in a step, by default ten or all; `batch_size`: samples for each of them
      and each loss, `None` for all there are. `task_probabilities` (p): by default uniform and without
      replacement.
    - `upper_optimizer`: an optax transformation that takes d and gives the change of x; `upper_step` is
      then not used.
    - `curvature`: what is kept of ∇²g, `bilevax.curvature.dense` (matrices, any loss with small d'), `linear_model`
      (vectors, for `bilevax.problems.reweighting`) or `tracked` (matrix-free, large d'). By default
      `linear_model` where the problem is one, else `dense`.
    - `initialization`: "theorem" solves every lower problem at x_0 on the first batch and starts all
      estimates from it; "cheap" leaves y at y_0. The first batch has `initial_batch_size` samples for each
      task; by default all there are for "theorem", `batch_size` of them for "cheap".

    The noise of the estimates grows with m/tasks_per_step: with very many tasks lower the mixing, or give the bounds of
    the projections. Source: Guo, Hu, Zhang, Yang, Algorithm 2 and Theorem 2.
    """
    settings = dict(locals())
    method = RSVRB(
        rates=as_rates(upper_step, lower_step, relaxation, mixing, upper_optimizer),
        sampling=Sampling(tasks_per_step, batch_size, task_probabilities),
        first=first_batch_of(initialization, initial_batch_size, batch_size),
        curvature=curvature,
        optimizer=upper_optimizer,
    )
    return assemble_family("rsvrb", method, settings)
