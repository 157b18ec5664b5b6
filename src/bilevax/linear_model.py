"""Lower losses that are weights on the samples of a linear model: their two factors say all of ∇²g.

For g_i(x, y; ζ_j) = s(x_j) ℓ(a_jᵀy/σ_i, b_j) + λ/2 ‖y‖² one sample's ∇²xy g is one row, q_j a_jᵀ in row j with
q_j = s'(x_j) ℓ', and its ∇²yy g is c_j a_j a_jᵀ + λI with c_j = s(x_j) ℓ''. What follows from that: `bilevax.curvature`
keeps two vectors instead of two matrices, `bilevax.exact` solves all tasks with one factorisation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from bilevax import arguments
from bilevax import rows as sparse
from bilevax.rows import SparseRows
from bilevax.samples import Indices


def losses(loss: Callable[..., Any], y: Float[Array, " dy"], task: PyTree, batch: PyTree) -> Any:
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

    def __post_init__(self) -> None:
        for name in ("loss", "weight"):
            if not callable(getattr(self, name)):
                raise TypeError(f"{name} must be a function; got {getattr(self, name)!r}.")
        arguments.positive("ridge", self.ridge)

    def __call__(self, x: Float[Array, " n"], y: Float[Array, " dy"], task: PyTree, batch: PyTree) -> Array:
        return jnp.mean(self.weight(x[batch["row"]]) * losses(self.loss, y, task, batch)) + self.ridge / 2 * (y @ y)

    def check(self, problem: Any) -> None:
        """Refuse functions without a slope, and a problem in which x_j is not the weight of sample j or λ the ridge."""
        number, label = (jax.ShapeDtypeStruct((), dtype) for dtype in (problem.dtype, data_of(problem)["labels"].dtype))
        _check_number("loss", jax.eval_shape(self.loss, number, label))
        _check_number("weight", jax.eval_shape(self.weight, number))
        if not problem.structure.linear_model:
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


def _check_number(name: str, out: Any) -> None:
    """Refuse a function that returns no single real number, or a whole one, which has no slope."""
    if not hasattr(out, "shape") or out.shape != () or not jnp.issubdtype(out.dtype, jnp.floating):
        kind = f"shape {out.shape} of {out.dtype}" if hasattr(out, "shape") else type(out).__name__
        raise TypeError(f"{name} of a LinearModel must return one real number for one sample; it returned {kind}.")


class Factors(NamedTuple):
    """q and c at some samples."""

    q: Float[Array, " batch"]
    c: Float[Array, " batch"]


def data_of(problem: Any) -> Any:
    """Features, labels and rows of all training samples."""
    return problem.lower_data.arrays


def features(problem: Any) -> Float[Array, "n dy"] | SparseRows:
    """A, row j for the sample that x_j weights."""
    return data_of(problem)["features"]


def rows_at(problem: Any, entries: Indices) -> Float[Array, "batch dy"]:
    """The rows of A at some entries, as an array."""
    if entries is None:
        return sparse.dense(features(problem))
    return sparse.dense(jax.tree.map(itemgetter(entries), features(problem)))


def sum_repeats(entries: Int[Array, " e"] | None, values: Float[Array, " e"]) -> tuple[Array, Array]:
    """To each entry the sum of the values of its repetitions, and one over their number."""
    if entries is None:
        return values, jnp.ones_like(values)
    same = (entries[:, None] == entries[None, :]).astype(values.dtype)
    return same @ values, 1 / same.sum(1)


def low_rank(rows: Float[Array, "e dy"], weights: Float[Array, " e"]) -> Float[Array, "dy dy"]:
    """Σ_e weights_e · a_e a_eᵀ."""
    return jax.lax.dot_general(rows * weights[:, None], rows, (((0,), (0,)), ((), ())))


def factors_at(problem: Any, i: Any, indices: Indices, x: Array, y: Array) -> Factors:
    """q and c of task i on a batch, or on all samples, at a point."""
    batch, model = data_of(problem), problem.lower
    if indices is not None:
        batch = jax.tree.map(itemgetter(indices), batch)
    return model.factors(problem.unravel_x(x), problem.unravel_y(y), problem.task(i), batch)
