"""SVRB on one linear model with x brought up to date row by row: a step costs O(batch·d' + d'²), not O(n·d').

With V = diag(q)·A and u = 0, line 9 of Algorithm 1 says x_{t+1} = x_t + η_t q_{t+1} ∘ A h_{t+1}, h = H⁻¹v. Between two
draws of sample j, q_j only fades: q_j = ρ q̂_j with ρ the product of (1 − β) and a constant q̂_j. So x_j has moved by

    q̂_j · a_jᵀ(G_t − G_last),    G_t = Σ_s η_s ρ_{s+1} h_{s+1},

and it is enough to keep G, and for each row the number a_jᵀG of the time when it was last seen. c fades in the same
way. The difference cancels once ρ is small, with a relative error of ε/ρ, so when ρ has fallen to ε^{1/3} all rows are
brought up to date in O(n·d') and ρ starts again at one: every 5/β steps in float32, every 12/β in float64.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from bilevax import draw
from bilevax.algorithms.base import Cost, Info, Variables
from bilevax.algorithms.cost import Sizes, count_cost
from bilevax.algorithms.move import all_finite, unless_diverged
from bilevax.algorithms.state import Method, Settings, Task, rates_of
from bilevax.algorithms.state import start as start_any
from bilevax.algorithms.visit import look, update_vectors
from bilevax.curvature.linear_model import (
    Linear,
    data_of,
    features,
    linear_model,
    low_rank,
    solve,
    solve_near,
    taken,
    update_factors,
)
from bilevax.data import Shared
from bilevax.draw import Indices
from bilevax.problem import Problem
from bilevax.rows import ScaledRow
from bilevax.schedule import Mixing

VANISHED = 1e-18  # what is left of a scale where β = 1 leaves nothing


class RowsState(NamedTuple):
    """Θ_t of one linear model: x, q and c as each row was left at its last visit, the rest as it is now."""

    step: Int[Array, ""]
    x: Float[Array, " n"]
    seen: Float[Array, " n"]  # a_jᵀG when x_j was last brought up to date
    q: ScaledRow
    c: ScaledRow
    hessian: Float[Array, "dy dy"]  # M = Aᵀ diag(c) A
    path: Float[Array, " dy"]  # G
    h: Float[Array, " dy"]
    last_step: Float[Array, ""]  # η_{t−1}
    task: Task
    timetable: PyTree
    initial_cost: Cost


def serves(settings: Settings, problem: Problem) -> bool:
    """Whether x moves by nothing but −V H⁻¹v of one linear model."""
    plain = problem.num_tasks == 1 and settings.optimizer is None and not problem.upper_uses_x
    return plain and settings.curvature is linear_model


def start(settings: Settings, problem: Problem, key: Key[Array, ""]) -> RowsState:
    """Line 1, as for any problem."""
    first = start_any(settings, problem, key)
    task = jax.tree.map(lambda leaf: leaf[0], first.tasks)
    q, c, hessian = task.curvature
    zero = jnp.zeros((), problem.dtype)
    return RowsState(
        step=jnp.int32(1),
        x=first.x,
        seen=jnp.zeros_like(first.x),
        q=q,
        c=c,
        hessian=hessian,
        path=jnp.zeros(problem.dim_y, problem.dtype),
        h=solve(problem, hessian, task.f_y),
        last_step=zero,
        task=task._replace(curvature=None, visit=None),
        timetable=first.timetable,
        initial_cost=first.initial_cost,
    )


def _all_rows(problem: Problem, state: RowsState) -> RowsState:
    """Every row up to date, and ρ at one again."""
    one = jnp.ones((), problem.dtype)
    return state._replace(
        x=state.x + state.q.values * (features(problem) @ state.path - state.seen),
        seen=jnp.zeros_like(state.seen),
        q=ScaledRow(state.q.scale * state.q.values, one),
        c=ScaledRow(state.c.scale * state.c.values, one),
        path=jnp.zeros_like(state.path),
    )


def _before_it_cancels(problem: Problem, state: RowsState, mixing: Mixing) -> RowsState:
    """All rows brought up to date where this step would make ρ too small; a loop of no or one round."""
    depth = float(jnp.finfo(problem.dtype).eps) ** (1 / 3)
    smallest = jnp.minimum((1 - mixing.g_xy) * state.q.scale, (1 - mixing.g_yy) * state.c.scale)
    rounds = (smallest < depth).astype(jnp.int32)
    return jax.lax.fori_loop(0, rounds, lambda _, state: _all_rows(problem, state), state)


def _part_of(problem: Problem, entries: Indices) -> Problem:
    """The problem of the drawn samples alone: its x are their weights."""
    if entries is None:
        return problem
    batch = dict(
        jax.tree.map(lambda leaf: leaf[entries], data_of(problem)), row=jnp.arange(len(entries), dtype=jnp.int32)
    )
    return problem.replace(lower_data=Shared(batch), unravel_x=lambda x: x)


def _fades(row: ScaledRow) -> ScaledRow:
    return row._replace(scale=jnp.maximum(row.scale, VANISHED))


def step(settings: Settings, problem: Problem, state: RowsState, key: Key[Array, ""]) -> tuple[RowsState, Info]:
    """Lines 3 to 10 of Algorithm 1 for the drawn samples."""
    rates = rates_of(problem, settings, state, state.step)
    mixing, bounds = rates.mixing, settings.bounds(problem.bounds).of(0)
    state = _before_it_cancels(problem, state, mixing)
    drawn = jax.tree.map(lambda leaf: leaf[0], draw.draw_step(problem, settings.sampling, key))
    entries, rows = drawn.lower, taken(problem, drawn.lower)
    at = slice(None) if entries is None else entries

    q_hat, seen = state.q.values[at], rows @ state.path
    q, c = (ScaledRow(row.scale * row.values[at], row.scale) for row in (state.q, state.c))
    x = state.x[at] + q_hat * (seen - state.seen[at])
    x_before = x - state.last_step * q.values * (rows @ state.h)
    current = state.task._replace(curvature=Linear(q, c, state.hessian))
    sample = (drawn.tasks, drawn.weights, drawn.upper, None)
    new = look(_part_of(problem, entries), settings, x, x_before, mixing, current, sample)

    task = update_vectors(problem, settings, rates, current.visit, 0, current, new)._replace(curvature=None)
    q, c, change = update_factors(current.curvature, new.curvature, entries, rows, mixing, bounds)
    q, c = _fades(q), _fades(c)
    longest = rates.upper_step * q.scale / problem.strong_convexity * task.f_y  # ‖h‖ ≤ ‖v‖/λ
    finite = all_finite((x, q.values, c.values, change, task, state.path, longest))
    # Known before M is changed, so that M can be changed in place.
    fade = jnp.where(finite, 1 - mixing.g_yy, 1)
    hessian = fade * state.hessian + low_rank(rows, jnp.where(finite, change, 0))
    h = solve_near(problem, hessian, task.f_y, state.h)  # line 9
    path = state.path + rates.upper_step * q.scale * h  # line 10, for all rows at once

    choose = functools.partial(unless_diverged, finite)
    put = lambda row, new: ScaledRow(
        row.values.at[at].set(choose(new.values / new.scale, row.values[at])), choose(new.scale, row.scale)
    )
    after = state._replace(
        step=choose(state.step + 1, state.step),
        x=state.x.at[at].set(x),
        seen=state.seen.at[at].set(seen),
        q=put(state.q, q),
        c=put(state.c, c),
        hessian=hessian,
        path=choose(path, state.path),
        h=choose(h, state.h),
        last_step=choose(rates.upper_step, state.last_step),
        task=choose(task, state.task),
    )
    batch = settings.sampling.batch_size
    cost = count_cost(problem, linear_model.products(problem), jnp.zeros(1, jnp.int32), Sizes(batch, batch), points=2)
    return after, Info(cost, finite)


def variables(settings: Settings, problem: Problem, state: RowsState) -> Variables:
    """x with every row up to date, and y."""
    return Variables(_all_rows(problem, state).x, state.task.y[None])


ONE_LINEAR_MODEL = Method(start, step, variables)
