"""Weights on the samples of a linear model: V = diag(q)·A and H = Aᵀ diag(c) A + λI, two vectors for a task.

For g_i(x, y; ζ_j) = s(x_j) ℓ(a_jᵀy/σ_i, b_j) + λ/2 ‖y‖² one sample's ∇²xy g is one row, s'(x_j) ℓ'·a_jᵀ in row j, and
its ∇²yy g is s(x_j) ℓ''·a_j a_jᵀ + λI. STORM is linear in its samples, so the estimates that the paper keeps as
matrices n × d' and d' × d' are exactly those of the vectors q and c, of which a step changes the entries of the
drawn samples. Two projections on convex sets that hold the truth take the place of the paper's:

- c ≥ 0 for S^l_λ: then H ⪰ λI, without an eigendecomposition (losses are convex and weights not negative);
- |q_j| ‖a_j‖ ≤ C for S^u_C: no row of V is longer than ‖V‖.

M = Aᵀ diag(c) A is kept beside c, and changes by the low-rank part that the drawn samples bring.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from bilevax import arguments, draw, estimator, lapack
from bilevax import rows as sparse
from bilevax.bounds import Bounds
from bilevax.curvature.base import Asked, At, Curvature, Drawn, Fresh, chosen_now
from bilevax.data import Shared
from bilevax.delay import Elapsed
from bilevax.draw import Indices
from bilevax.problem import Problem
from bilevax.rows import ScaledRow, SparseRows


def losses(loss: Callable, y: Float[Array, " dy"], task: PyTree, batch: PyTree) -> Float[Array, " batch"]:
    """ℓ(a_jᵀy/σ_i, b_ji) for each sample j of the batch."""
    return loss((batch["features"] @ y) / task["temperature"], batch["labels"][:, task["column"]])


@dataclass(frozen=True)
class LinearModel:
    """The lower loss mean_j s(x_j) ℓ(a_jᵀy/σ_i, b_ji) + λ/2 ‖y‖² as a function of (x, y, task, batch).

    `loss` is ℓ(score, label) and `weight` is s, both of one number. A task is {"temperature": σ_i, "column": which
    column of the labels is its own}; a batch is {"features": a (or `SparseRows`), "labels": b, "row": j}.
    """

    loss: Callable[[Any, Any], Any]
    weight: Callable[[Any], Any]
    ridge: float

    def __call__(self, x: Float[Array, " n"], y: Float[Array, " dy"], task: PyTree, batch: PyTree) -> Array:
        return jnp.mean(self.weight(x[batch["row"]]) * losses(self.loss, y, task, batch)) + self.ridge / 2 * (y @ y)

    def check(self, problem: Problem) -> None:
        """Refuse a problem in which x_j is not the weight of sample j, or λ not the ridge."""
        if not serves(problem):
            return  # other curvatures do with any data
        rows = data_of(problem)["row"]
        if not arguments.is_concrete(rows) or not arguments.is_concrete(problem.strong_convexity):
            return
        if len(rows) != problem.dim_x or not np.array_equal(rows, np.arange(len(rows))):
            raise ValueError(
                'x of a LinearModel must have one weight for each sample, and the data\'s "row" must be 0, 1, 2, ...; '
                f"got {problem.dim_x} weights for {len(rows)} samples, and rows {np.asarray(rows)[:5]}..."
            )
        if abs(float(problem.strong_convexity) - self.ridge) > 1e-6 * self.ridge:
            raise ValueError(
                f"with ridge=True strong_convexity must be the ridge of the LinearModel, {self.ridge:g}; "
                f"got {float(problem.strong_convexity):g}."
            )

    def factors(self, x: Float[Array, " n"], y: Float[Array, " dy"], task: PyTree, batch: PyTree) -> "Factors":
        """s'(x_j) ℓ' and s(x_j) ℓ'', ℓ as a function of a_jᵀy, over the size of the batch."""
        sigma = task["temperature"]
        of_score = lambda score, label: self.loss(score / sigma, label)
        slope = jax.grad(of_score)
        scores, labels = batch["features"] @ y, batch["labels"][:, task["column"]]
        along, curved = jax.vmap(slope)(scores, labels), jax.vmap(jax.grad(slope))(scores, labels)
        weights = x[batch["row"]]
        return Factors(
            jax.vmap(jax.grad(self.weight))(weights) * along / len(scores),
            jax.vmap(self.weight)(weights) * curved / len(scores),
        )


class Factors(NamedTuple):
    """q and c at the drawn samples."""

    q: Float[Array, " batch"]
    c: Float[Array, " batch"]


class Linear(NamedTuple):
    """q_i and c_i, of which a step reads and writes the drawn entries, and M_i = Aᵀ diag(c_i) A."""

    q: ScaledRow
    c: ScaledRow
    hessian: Float[Array, "dy dy"] | lapack.Factor


def serves(problem: Problem) -> bool:
    """Whether the lower loss is a LinearModel with a known ridge on shared data."""
    return isinstance(problem.lower, LinearModel) and isinstance(problem.lower_data, Shared) and problem.ridge


def check(problem: Problem) -> None:
    """Refuse a problem whose lower loss is not a LinearModel with a known ridge on shared data."""
    if not serves(problem):
        raise TypeError(
            "curvature=linear_model needs a problem whose lower loss is a bilevax.curvature.LinearModel on "
            "bilevax.shared data, with ridge=True, as bilevax.problems.reweighting makes it; this problem's is "
            f"{problem.lower!r}. Use curvature=dense (small d') or tracked (large d')."
        )


def data_of(problem: Problem) -> Any:
    """Features, labels and rows of all training samples."""
    return problem.lower_data.arrays  # type: ignore[union-attr]  # `check` has seen that it is Shared


def features(problem: Problem) -> Float[Array, "n dy"] | SparseRows:
    """A, row j for the sample that x_j weights."""
    return data_of(problem)["features"]


def taken(problem: Problem, entries: Int[Array, " e"] | None) -> Float[Array, "e dy"]:
    """The rows of A at some entries, as an array."""
    if entries is None:
        return sparse.dense(features(problem))
    return sparse.dense(jax.tree.map(lambda leaf: leaf[entries], features(problem)))


def once(entries: Int[Array, " e"] | None, values: Float[Array, " e"]) -> tuple[Array, Array]:
    """To each entry the sum of the values of its repetitions, and one over their number."""
    if entries is None:
        return values, jnp.ones_like(values)
    same = (entries[:, None] == entries[None, :]).astype(values.dtype)
    return same @ values, 1 / same.sum(1)


def low_rank(rows: Float[Array, "e dy"], weights: Float[Array, " e"]) -> Float[Array, "dy dy"]:
    """Σ_e weights_e · a_e a_eᵀ."""
    return jax.lax.dot_general(rows * weights[:, None], rows, (((0,), (0,)), ((), ())))


def factors_at(problem: Problem, i: Any, indices: Indices, x: Array, y: Array) -> Factors:
    """q and c of task i on a batch, or on all samples, at a point."""
    batch, model = data_of(problem), problem.lower
    assert isinstance(model, LinearModel)
    if indices is not None:
        batch = jax.tree.map(lambda leaf: leaf[indices], batch)
    return model.factors(problem.unravel_x(x), problem.unravel_y(y), problem.task(i), batch)


def ceiling(q: Array, rows: Float[Array, "e dy"], bounds: Bounds) -> Array:
    """q with |q_j| ‖a_j‖ ≤ C."""
    if bounds.g_xy is None:
        return q
    limit = bounds.g_xy / jnp.maximum(jnp.linalg.norm(rows, axis=1), float(jnp.finfo(q.dtype).tiny))
    return jnp.clip(q, -limit, limit)


def start(problem: Problem, i: Any, indices: Indices, at: At, f_y: Array, bounds: Bounds) -> Linear:
    """q, c and M of the first batch."""
    given, rows = factors_at(problem, i, indices, at.x, at.y), taken(problem, indices)
    c = jnp.maximum(given.c, 0)
    one, size = jnp.ones((), problem.dtype), problem.dim_x
    spread = lambda values: values if indices is None else jnp.zeros(size, problem.dtype).at[indices].add(values)
    q = ceiling(spread(given.q), sparse.dense(features(problem)), bounds)
    return Linear(ScaledRow(q, one), ScaledRow(spread(c), one), low_rank(rows, c))


def age(problem: Problem, kept: Linear, passed: Elapsed, f_y: Array) -> Linear:
    """(1−β)V and λI + (1−β)(H − λI): three numbers, whatever n is."""
    decay = passed.decay
    return Linear(kept.q.times(decay.g_xy), kept.c.times(decay.g_yy), decay.g_yy * kept.hessian)


def innovation(
    problem: Problem, i: Int[Array, ""], indices: Indices, kept: Linear, now: At, before: At, mixing: Any
) -> Factors:
    """q and c of the batch at the current point − (1−β) times those at the previous one."""
    fresh, old = (factors_at(problem, i, indices, at.x, at.y) for at in (now, before))
    return Factors(
        estimator.innovation(fresh.q, old.q, mixing.g_xy),
        estimator.innovation(fresh.c, old.c, mixing.g_yy),
    )


def _of_all_draws(same: Bool[Array, "B B"] | None, entries: Array | None, new: Factors) -> Factors:
    """To each draw what is new at all its entries: those of draws of other tasks have nothing to add."""
    if same is None or entries is None:
        return draw.merged(same, new)
    spread = lambda leaf: (same.astype(leaf.dtype)[:, :, None] * leaf[None]).reshape(len(same), -1)
    return jax.tree.map(spread, new)


def update_factors(
    kept: Linear, new: Factors, entries: Int[Array, " e"] | None, rows: Array, mixing: Any, bounds: Bounds
) -> tuple[ScaledRow, ScaledRow, Float[Array, " e"]]:
    """Lines 6 and 7 of Algorithm 2: q and c of a drawn task, and the change of c for each of the given rows."""
    added_q, _ = once(entries, new.q)
    added_c, share = once(entries, new.c)
    q = kept.q.times(1 - mixing.g_xy)
    c = kept.c.times(1 - mixing.g_yy)
    floored = jnp.maximum(c.values + added_c, 0)
    q = q._replace(values=ceiling(q.values + added_q, rows, bounds))
    return q, c._replace(values=floored), (floored - c.values) * share


def update(problem: Problem, kept: Linear, new: Factors, fresh: Fresh) -> Linear:
    """Lines 6 and 7 for the drawn tasks."""

    mixing = fresh.rates.mixing

    def one(i: Array, entries: Indices, kept: Linear, new: Factors) -> Linear:
        rows = taken(problem, entries)
        q, c, change = update_factors(kept, new, entries, rows, mixing, fresh.bounds.of(i))
        return Linear(q, c, (1 - mixing.g_yy) * kept.hessian + low_rank(rows, change))

    return jax.vmap(one)(fresh.tasks, fresh.entries, kept, _of_all_draws(fresh.same, fresh.entries, new))


def _with_ridge(problem: Problem, hessian: Float[Array, "dy dy"]) -> Float[Array, "dy dy"]:
    return hessian + problem.strong_convexity * jnp.eye(problem.dim_y, dtype=problem.dtype)


def solve(problem: Problem, hessian: Float[Array, "dy dy"] | lapack.Factor, v: Float[Array, " dy"]) -> Array:
    """(M + λI)⁻¹ v."""
    if isinstance(hessian, lapack.Factor):
        return lapack.solve_with(hessian, v)
    return lapack.solve(_with_ridge(problem, hessian), v)


def factored(problem: Problem, kept: Linear) -> Linear:
    """M + λI factorised in the place of M."""
    if isinstance(kept.hessian, lapack.Factor):
        return kept
    return kept._replace(hessian=lapack.factor(_with_ridge(problem, kept.hessian)))


def solve_near(problem: Problem, hessian: Float[Array, "dy dy"], v: Array, guess: Array) -> Float[Array, " dy"]:
    """(M + λI)⁻¹ v by conjugate gradients from a good guess, to ε^{0.6} of ‖v‖.

    In units of the largest entry of v, so that nothing underflows while v vanishes.
    """
    product = lambda h: hessian @ h + problem.strong_convexity * h
    unit, tiny = jnp.max(jnp.abs(v)), float(jnp.finfo(problem.dtype).tiny) ** 0.5
    scale = jnp.maximum(unit, tiny)
    start = jnp.where(unit > tiny, guess / scale, 0)
    right = jnp.where(unit > tiny, v / scale, 0)
    tolerance = float(jnp.finfo(problem.dtype).eps) ** 0.6
    return scale * jax.scipy.sparse.linalg.cg(product, right, start, tol=tolerance, maxiter=2 * problem.dim_y)[0]


def correction(problem: Problem, kept: Linear, v: Float[Array, " dy"]) -> Float[Array, " n"]:
    """V H⁻¹ v = q ∘ A h, from a whole row q."""
    return kept.q.values * (features(problem) @ solve(problem, kept.hessian, v))


def pull(problem: Problem, kept: Linear, dx: Float[Array, " n"]) -> Float[Array, " dy"]:
    """H⁻¹ Vᵀ dx = H⁻¹ Aᵀ(q ∘ dx), from a whole row q."""
    return solve(problem, kept.hessian, (kept.q.values * dx) @ features(problem))


def change(problem: Problem, asked: Asked, drawn: Drawn, mixing: Any) -> Float[Array, " n"]:
    """mean_j [q ∘ A h]_now − (1 − β)·[q ∘ A h]_before.

    While a task sleeps q only shrinks, so both are one product of A: ρ_now h_now − (1−β) ρ_before h_before. Where
    it was drawn, what the drawn entries of q gained comes on top.
    """
    kept = asked.kept
    fade = lambda decay: decay.g_yy[:, None, None] * kept.hessian
    solutions = jax.vmap(lambda *given: solve(problem, *given))
    h_before = solutions(fade(asked.before), asked.v_before)
    hessian = chosen_now(asked.hit, asked.at, fade(asked.now), drawn.updated.hessian)
    h = solutions(hessian, asked.v_now)  # as exactly as h_before: what is left of both adds up in d
    step = estimator.innovation(asked.now.g_xy[:, None] * h, asked.before.g_xy[:, None] * h_before, mixing.direction)
    slept = jnp.sum(kept.q.values.T * (features(problem) @ step.T), axis=1)
    return (slept + _gained(problem, asked, drawn, mixing, h)) / len(h)


def _gained(problem: Problem, asked: Asked, drawn: Drawn, mixing: Any, h: Float[Array, "J dy"]) -> Float[Array, " n"]:
    """Σ of (q_updated − q_aged) ∘ A h over the drawn entries of the tasks that are also asked for."""
    hits = draw.same_task(jnp.where(asked.hit, asked.at, -1), jnp.arange(len(drawn.tasks)))  # (J, B)
    own = jnp.tensordot(hits.astype(h.dtype), h, axes=((0,), (0,)))  # h of each drawn task, zero where not asked for
    gains = drawn.updated.q.values - (1 - mixing.g_xy) * drawn.current.q.values

    def of_task(entries: Indices, gain: Array, h: Array) -> Array:
        _, share = once(entries, gain)
        return gain * share * (taken(problem, entries) @ h)

    terms = jax.vmap(of_task)(drawn.entries, gains, own)
    if drawn.entries is None:
        return terms.sum(0)
    return jnp.zeros(problem.dim_x, problem.dtype).at[drawn.entries.reshape(-1)].add(terms.reshape(-1))


def products(problem: Problem) -> int:
    """One row and one rank-one matrix, as much as one product with each of the two matrices."""
    return 2


linear_model = Curvature(
    name="linear_model",
    start=start,
    age=age,
    innovation=innovation,
    update=update,
    correction=correction,
    change=change,
    pull=pull,
    factored=factored,
    products=products,
    check=check,
)
"""V = diag(q)·A and H = Aᵀ diag(c) A + λI: two vectors and d'² numbers for a task, for weights on samples."""
