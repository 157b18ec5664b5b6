"""`linear_model`: V = diag(q)·A and H = Aᵀ diag(c) A + λI, two vectors for a task; for weights on samples.

For a `bilevax.linear_model.LinearModel` one sample's ∇²xy g is one row, q_j a_jᵀ in row j, and its ∇²yy g is
c_j a_j a_jᵀ + λI. STORM is linear in its samples, so the estimates that the paper keeps as matrices n × d' and d' × d'
are exactly those of the vectors q and c, of which a step changes the entries of the drawn samples. Two projections on
convex sets that hold the truth take the place of the paper's:

- c ≥ 0 for S^l_λ: then H ⪰ λI, without an eigendecomposition (losses are convex and weights not negative);
- |q_j| ‖a_j‖ ≤ C for S^u_C: no row of V is longer than ‖V‖.

M = Aᵀ diag(c) A is kept beside c, and changes by the low-rank part that the drawn samples bring.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bilevax import lapack
from bilevax import rows as sparse
from bilevax.bounds import Bounds
from bilevax.curvature.contract import Curvature, Drift, Sample, Second, Sleepers, Update, Visit
from bilevax.draw import AtEntries
from bilevax.linear_model import Factors, factors_at, features, low_rank, rows_at, sum_repeats
from bilevax.problem import Problem
from bilevax.schedule import Mixing, Rates
from bilevax.tasks import Decay, ScaledRow

TO_ROUNDING, ROUNDING = 0.95, 8.0  # power of ε that conjugate gradients go to; ε that a factorisation leaves, at most


class Linear(NamedTuple):
    """q_i and c_i, of which a step reads and writes the drawn entries, and M_i = Aᵀ diag(c_i) A."""

    q: ScaledRow
    c: ScaledRow
    hessian: Float[Array, "*B dy dy"] | lapack.Factor


def ceiling(q: Array, rows: Float[Array, "e dy"], bounds: Bounds) -> Array:
    """q with |q_j| ‖a_j‖ ≤ C."""
    if bounds.g_xy is None:
        return q
    limit = bounds.g_xy / jnp.maximum(jnp.linalg.norm(rows, axis=1), float(jnp.finfo(q.dtype).tiny))
    return jnp.clip(q, -limit, limit)


def update_factors(
    kept: Linear,
    new: Factors,
    entries: Int[Array, " e"] | None,
    rows: Float[Array, "e dy"],
    mixing: Mixing,
    bounds: Bounds,
) -> tuple[ScaledRow, ScaledRow, Float[Array, " e"]]:
    """Lines 6 and 7 of Algorithm 2: q and c of a drawn task, and the change of c for each of the given rows."""
    new_q, _ = sum_repeats(entries, new.q)
    new_c, share = sum_repeats(entries, new.c)
    q = kept.q.times(1 - mixing.g_xy)
    c = kept.c.times(1 - mixing.g_yy)
    floored = jnp.maximum(c.values + new_c, 0)
    q = q._replace(values=ceiling(q.values + new_q, rows, bounds))
    return q, c._replace(values=floored), (floored - c.values) * share


def solve_ridge(
    problem: Problem, hessian: Float[Array, "dy dy"] | lapack.Factor, v: Float[Array, " dy"]
) -> Float[Array, " dy"]:
    """(M + λI)⁻¹ v."""
    if isinstance(hessian, lapack.Factor):
        return lapack.solve_with(hessian, v)
    return lapack.solve_positive(_with_ridge(problem, hessian), v)


def _with_ridge(problem: Problem, hessian: Float[Array, "dy dy"]) -> Float[Array, "dy dy"]:
    return hessian + problem.strong_convexity * jnp.eye(problem.dim_y, dtype=problem.dtype)


class LinearModelCurvature(Curvature):
    """See the top of this file."""

    name = "linear_model"
    long_rows = True

    def check(self, problem: Problem) -> None:
        """Refuse a problem whose lower loss is not a LinearModel with a known ridge on shared data."""
        if not problem.structure.linear_model:
            raise TypeError(
                "curvature=linear_model needs a problem whose lower loss is a bilevax.curvature.LinearModel on "
                "bilevax.shared data, with ridge=True, as bilevax.problems.reweighting makes it; this problem's is "
                f"{problem.lower!r}. Use curvature=dense (small d') or tracked (large d')."
            )

    def products(self, problem: Problem) -> int:
        """One row and one rank-one matrix, as much as one product with each of the two matrices."""
        return 2

    def start(self, problem: Problem, sample: Sample, v: Float[Array, " dy"], bounds: Bounds) -> Linear:
        """q, c and M of the first batch."""
        indices = sample.indices
        first, rows = factors_at(problem, sample.i, indices, sample.x, sample.y), rows_at(problem, indices)
        c = jnp.maximum(first.c, 0)
        one, empty = jnp.ones((), problem.dtype), jnp.zeros(problem.dim_x, problem.dtype)
        spread = lambda values: values if indices is None else empty.at[indices].add(values)
        q = ceiling(spread(first.q), sparse.dense(features(problem)), bounds)
        return Linear(ScaledRow(q, one), ScaledRow(spread(c), one), low_rank(rows, c))

    def age(self, problem: Problem, kept: Linear, decay: Decay, drift: Drift | None) -> Linear:
        """(1−β)V and λI + (1−β)(H − λI): three numbers, whatever n is."""
        return Linear(kept.q.times(decay.g_xy), kept.c.times(decay.g_yy), decay.g_yy * kept.hessian)

    def observe(self, problem: Problem, kept: Linear, now: Sample, before: Sample) -> tuple[Second, Second]:
        """q and c of the samples at both points."""
        mark = AtEntries if now.indices is not None else lambda values: values
        of = lambda at: Second(*map(mark, factors_at(problem, at.i, at.indices, at.x, at.y)))
        return of(now), of(before)

    def update(self, problem: Problem, rates: Rates, kept: Linear, new: Second, now: Update) -> Linear:
        """Lines 6 and 7 for a drawn task."""
        factors = Factors(*(part.values if isinstance(part, AtEntries) else part for part in new))
        rows, mixing = rows_at(problem, now.entries), rates.mixing
        q, c, change = update_factors(kept, factors, now.entries, rows, mixing, now.bounds)
        return Linear(q, c, (1 - mixing.g_yy) * kept.hessian + low_rank(rows, change))

    def correction(self, problem: Problem, kept: Linear, v: Float[Array, " dy"]) -> Float[Array, " n"]:
        """V H⁻¹ v = q ∘ A h, from a whole row q."""
        return kept.q.values * (features(problem) @ solve_ridge(problem, kept.hessian, v))

    def pull(self, problem: Problem, kept: Linear, dx: Float[Array, " n"]) -> Float[Array, " dy"]:
        """H⁻¹ Vᵀ dx = H⁻¹ Aᵀ(q ∘ dx), from a whole row q."""
        return solve_ridge(problem, kept.hessian, (kept.q.values * dx) @ features(problem))

    def factor(self, problem: Problem, kept: Linear) -> Linear:
        """M + λI factorised in the place of M."""
        if isinstance(kept.hessian, lapack.Factor):
            return kept
        return kept._replace(hessian=lapack.factor(_with_ridge(problem, kept.hessian)))

    def change(self, problem: Problem, sleepers: Sleepers, visit: Visit, mixing: Mixing) -> Float[Array, " n"]:
        """mean_j [q ∘ A h]_after − (1 − β)·[q ∘ A h]_before.

        While a task sleeps q only shrinks, so both are one product of A: ρ_after h_after − (1−β) ρ_before h_before.
        Where it was drawn, what the drawn entries of q gained comes on top.
        """
        kept, beta = sleepers.kept, mixing.direction
        fade = lambda decay: decay.g_yy[:, None, None] * kept.hessian
        # Both to rounding: what is left of both adds up in d.
        h_before = solve_ridges(problem, fade(sleepers.before), sleepers.v_before, jnp.zeros_like(sleepers.v_before))
        after = jnp.where(sleepers.hit[:, None, None], visit.after.hessian[sleepers.at], fade(sleepers.after))
        h = solve_ridges(problem, after, sleepers.v_after, h_before)
        step = sleepers.after.g_xy[:, None] * h - (1 - beta) * (sleepers.before.g_xy[:, None] * h_before)
        asleep = jnp.sum(kept.q.values.T * (features(problem) @ step.T), axis=1)
        return (asleep + _gain(problem, sleepers, visit, mixing, h)) / len(h)


def _gain(
    problem: Problem, sleepers: Sleepers, visit: Visit, mixing: Mixing, h: Float[Array, "J dy"]
) -> Float[Array, " n"]:
    """Σ of (q after − q faded) ∘ A h over the drawn entries of the tasks that are among the j."""
    hits = jnp.where(sleepers.hit, sleepers.at, -1)[:, None] == jnp.arange(len(visit.tasks))[None, :]  # (J, B)
    own = jnp.tensordot(hits.astype(h.dtype), h, axes=((0,), (0,)))  # h of each drawn task, zero where it is no j
    gains = visit.after.q.values - (1 - mixing.g_xy) * visit.before.q.values

    def of_task(entries: Int[Array, " e"] | None, gain: Array, h: Array) -> Array:
        _, share = sum_repeats(entries, gain)
        return gain * share * (rows_at(problem, entries) @ h)

    terms = jax.vmap(of_task)(visit.entries, gains, own)
    if visit.entries is None:
        return terms.sum(0)
    return jnp.zeros(problem.dim_x, problem.dtype).at[visit.entries.reshape(-1)].add(terms.reshape(-1))


def solve_near(
    problem: Problem,
    hessian: Float[Array, "dy dy"],
    v: Array,
    guess: Array,
    *,
    power: float = 0.6,
    scaled: bool = False,
) -> Float[Array, " dy"]:
    """(M + λI)⁻¹ v by conjugate gradients from a good guess, to ε^power of ‖v‖; as near as 20 + 2d' of them come.

    In units of the largest entry of v, so that nothing underflows while v vanishes. `scaled` by the diagonal they are
    fewer, of which each takes longer: that pays where the guess is poor.
    """
    product = lambda h: hessian @ h + problem.strong_convexity * h
    unit, tiny = jnp.max(jnp.abs(v)), float(jnp.finfo(problem.dtype).tiny) ** 0.5
    scale = jnp.maximum(unit, tiny)
    start = jnp.where(unit > tiny, guess / scale, 0)
    right = jnp.where(unit > tiny, v / scale, 0)
    diagonal = jnp.diagonal(hessian) + problem.strong_convexity
    precondition = (lambda r: r / diagonal) if scaled else None
    tolerance, most = float(jnp.finfo(problem.dtype).eps) ** power, 20 + 2 * problem.dim_y
    return scale * jax.scipy.sparse.linalg.cg(product, right, start, tol=tolerance, maxiter=most, M=precondition)[0]


def solve_ridges(
    problem: Problem, hessians: Float[Array, "J dy dy"], v: Float[Array, "J dy"], guess: Float[Array, "J dy"]
) -> Float[Array, "J dy"]:
    """(M + λI)⁻¹ v of several tasks to rounding, by conjugate gradients, or by factorisations if these fail.

    To rounding: what is left, v − (M + λI) h, is as small as that of a factorisation, some ε (‖M‖ ‖h‖ + ‖v‖).
    """
    solve = lambda hessian, v, guess: solve_near(problem, hessian, v, guess, power=TO_ROUNDING, scaled=True)
    h = jax.vmap(solve)(hessians, v, guess)
    lam, norm = problem.strong_convexity, lambda rows: jnp.linalg.norm(rows, axis=1)
    left = v - jnp.einsum("jab,jb->ja", hessians, h) - lam * h
    size = (jnp.linalg.norm(hessians, axis=(1, 2)) + lam) * norm(h) + norm(v)
    there = jnp.all(norm(left) <= ROUNDING * float(jnp.finfo(problem.dtype).eps) * size)
    factorise = lambda: jax.vmap(lambda hessian, v: solve_ridge(problem, hessian, v))(hessians, v)
    return jax.lax.cond(there, lambda: h, factorise)


linear_model = LinearModelCurvature()
"""V = diag(q)·A and H = Aᵀ diag(c) A + λI: two vectors and d'² numbers for a task, for weights on samples."""
