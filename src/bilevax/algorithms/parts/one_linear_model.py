"""SVRB on one linear model with x brought up to date row by row: a step costs O(batch·d' + d'²), not O(n·d').

With V = diag(q)·A and u = 0, line 9 of Algorithm 1 says x_{t+1} = x_t + η_t q_{t+1} ∘ A h_{t+1}, h = H⁻¹v. Between two
draws of sample j, q_j only fades: q_j = ρ q̂_j with ρ the product of (1 − β) and a constant q̂_j. So x_j has moved by

    q̂_j · a_jᵀ(G_t − G_last),    G_t = Σ_s η_s ρ_{s+1} h_{s+1},

and it is enough to keep G, and for each row the number a_jᵀG of the time when it was last seen. c fades in the same
way. The difference cancels once ρ is small, with a relative error of ε/ρ, so when ρ has fallen to ε^{1/3} all rows are
brought up to date in O(n·d') and ρ starts again at one: every 5/β steps in float32, every 12/β in float64.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from bilevax import draw, projection
from bilevax.algorithms.contract import Cost, Info, Variables
from bilevax.algorithms.frame import SpecialForm, all_finite, count_both
from bilevax.curvature.linear import Linear, linear_model, solve_near, solve_ridge, update_factors
from bilevax.linear_model import Factors, data_of, factors_at, features, low_rank, rows_at
from bilevax.problem import Problem
from bilevax.samples import Indices, Shared
from bilevax.schedule import Mixing
from bilevax.tasks import ScaledRow

VANISHED = 1e-18  # what is left of a scale where β = 1 leaves nothing


class LowerEstimates(NamedTuple):
    """y_t, y_{t−1}, and the estimates v of ∇y f and w of ∇y g."""

    y: Float[Array, " dy"]
    y_before: Float[Array, " dy"]
    v: Float[Array, " dy"]
    w: Float[Array, " dy"]


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
    lower: LowerEstimates
    own: Any  # as the general form has it: its stages decide on the rates
    scales: Any
    initial_cost: Cost


def _start(method: Any, problem: Problem, key: Key[Array, ""]) -> RowsState:
    """Line 1, as for any problem."""
    own, tables, cost = method.start(problem, key)
    scales, more = method.find_scales(problem, key)
    task = jax.tree.map(lambda leaf: leaf[0], tables.tasks)
    q, c, hessian = task.VH
    return RowsState(
        step=jnp.int32(1),
        x=problem.x0,
        seen=jnp.zeros_like(problem.x0),
        q=q,
        c=c,
        hessian=hessian,
        path=jnp.zeros(problem.dim_y, problem.dtype),
        h=solve_ridge(problem, hessian, task.v),
        last_step=jnp.zeros((), problem.dtype),
        lower=LowerEstimates(task.y, task.y, task.v, task.w),
        own=own._replace(x_before=(), d=(), clock=()),
        scales=scales,
        initial_cost=cost + more,
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
    rows = jnp.arange(len(entries), dtype=jnp.int32)
    batch = dict(jax.tree.map(lambda leaf: leaf[entries], data_of(problem)), row=rows)
    return problem.replace(lower_data=Shared(batch, len(entries)), unravel_x=lambda x: x)


class RowInnovation(NamedTuple):
    """∇(now) − (1−β)∇(before) of ∇y f, ∇y g and of the two factors of ∇²g."""

    v: Float[Array, " dy"]
    w: Float[Array, " dy"]
    factors: Factors


def _look(part: Problem, beta: Mixing, x: Array, x_before: Array, lower: LowerEstimates, xi: Indices) -> RowInnovation:
    """What the same samples tell at the current and at the previous point; x are the weights of the drawn ones."""
    i, y, y_before = jnp.int32(0), lower.y, lower.y_before
    storm = lambda beta, now, before: now - (1 - beta) * before
    now, before = factors_at(part, i, None, x, y), factors_at(part, i, None, x_before, y_before)
    return RowInnovation(
        v=storm(beta.f_y, part.upper_gradients(x, y, i, xi)[1], part.upper_gradients(x_before, y_before, i, xi)[1]),
        w=storm(beta.g_y, part.lower_gradient(x, y, i), part.lower_gradient(x_before, y_before, i)),
        factors=Factors(storm(beta.g_xy, now.q, before.q), storm(beta.g_yy, now.c, before.c)),
    )


def _do_not_vanish(row: ScaledRow) -> ScaledRow:
    return row._replace(scale=jnp.maximum(row.scale, VANISHED))


def _step(method: Any, problem: Problem, state: RowsState, key: Key[Array, ""]) -> tuple[RowsState, Info]:
    """Lines 3 to 10 of Algorithm 1 for the drawn samples."""
    rates = method.rates_at(problem, state, state.step)
    beta, bounds = rates.mixing, problem.bounds_of(0)
    state = _before_it_cancels(problem, state, beta)
    drawn = draw.draw_step(problem, method.sampling, key)
    xi, entries = (None if batch is None else batch[0] for batch in (drawn.upper, drawn.lower))
    rows, at = rows_at(problem, entries), slice(None) if entries is None else entries

    q_hat, seen = state.q.values[at], rows @ state.path
    q, c = (ScaledRow(row.scale * row.values[at], row.scale) for row in (state.q, state.c))
    x = state.x[at] + q_hat * (seen - state.seen[at])
    x_before = x - state.last_step * q.values * (rows @ state.h)
    new = _look(_part_of(problem, entries), beta, x, x_before, state.lower, xi)

    v = projection.ball((1 - beta.f_y) * state.lower.v + new.v, bounds.f_y)  # line 5
    kept = Linear(q, c, state.hessian)
    q, c, change = update_factors(kept, new.factors, entries, rows, beta, bounds)  # lines 6 and 7
    q, c = _do_not_vanish(q), _do_not_vanish(c)
    w = (1 - beta.g_y) * state.lower.w + new.w  # line 8
    y = state.lower.y
    trial = projection.onto(y - rates.lower_step * w, bounds.y)
    lower = LowerEstimates(y + rates.relaxation * (trial - y), y, v, w)
    longest = rates.upper_step * q.scale / problem.strong_convexity * v  # ‖h‖ ≤ ‖v‖/λ
    finite = all_finite((x, q.values, c.values, change, lower, state.path, longest))
    # Known before M is changed, so that M can be changed in place.
    fade = jnp.where(finite, 1 - beta.g_yy, 1)
    hessian = fade * state.hessian + low_rank(rows, jnp.where(finite, change, 0))
    h = solve_near(problem, hessian, v, state.h)  # line 9
    path = state.path + rates.upper_step * q.scale * h  # line 10, for all rows at once

    choose = lambda new, old: jax.tree.map(partial(jnp.where, finite), new, old)
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
        lower=choose(lower, state.lower),
    )
    batch, tasks = method.sampling.batch_size, jnp.zeros(1, jnp.int32)
    cost = count_both(problem, tasks, batch, points=2, products=linear_model.products(problem))
    return after, Info(cost, finite)


def special_form(method: Any, adapt: Callable[[Problem], Problem]) -> SpecialForm:
    """This form of a method of RSVRB's family; `method` is that of any problem, seen as `adapt` says."""

    def serves(problem: Problem) -> bool:
        """Whether x moves by nothing but −V H⁻¹v of one linear model."""
        structure, curvature = problem.structure, method.curvature
        one = problem.num_tasks == problem.shards.count == 1 and structure.linear_model and not structure.upper_uses_x
        return one and method.optimizer is None and (curvature is None or curvature is linear_model)

    return SpecialForm(
        serves=serves,
        state=RowsState,
        init=partial(_start, method),
        step=lambda problem, state, key: _step(method, adapt(problem), state, key),
        variables=lambda problem, state: Variables(_all_rows(problem, state).x, state.lower.y[None]),
    )
