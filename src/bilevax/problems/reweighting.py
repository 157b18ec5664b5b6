"""Weights on training samples, learned so that models trained with them do well on trusted data.

    min_x (1/m) Σ_i mean_j ℓ(a_jᵀy_i*(x)/σ_i; trusted),
    y_i*(x) = argmin_y mean_j s(x_j) ℓ(a_jᵀy/σ_i, b_ji) + λ/2 ‖y‖²

with a smooth convex loss ℓ and s(x_j) the weight of sample j: the problem of the paper's experiments. Tasks differ
in their labels, in their temperature σ_i, or in both.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bilevax import arguments
from bilevax.bounds import Bounds
from bilevax.curvature.linear_model import LinearModel, losses
from bilevax.data import shared
from bilevax.problem import Problem
from bilevax.problems.labelled import LOSSES, checked_labels, rows_of


def identity(x: Array) -> Array:
    """The weight x_j itself, as the paper writes it."""
    return x


WEIGHTS = {"sigmoid": jax.nn.sigmoid, "raw": identity}


@dataclass(frozen=True)
class TrustedLoss:
    """The upper loss mean_j ℓ(a_jᵀy/σ_i, b_ji) as a function of (x, y, task, batch); x plays no part."""

    loss: Callable[[Any, Any], Any]

    def __call__(self, x: Array, y: Array, task: Any, batch: Any) -> Array:
        return jnp.mean(losses(self.loss, y, task, batch))


def _tasks(temperatures: Any, columns: int) -> dict[str, Array]:
    """Temperature and column of labels of each task."""
    sigma = np.ones(columns) if temperatures is None else arguments.floats("temperatures", temperatures, "numbers > 0")
    if sigma.ndim != 1 or len(sigma) == 0 or not (np.isfinite(sigma).all() and (sigma > 0).all()):
        raise ValueError(f"temperatures must be a vector of numbers > 0, one for each task; got {temperatures!r}.")
    if columns not in (1, len(sigma)):
        raise ValueError(
            f"temperatures must have one entry for each of the {columns} columns of labels; got {len(sigma)}."
        )
    own = np.arange(columns) if columns > 1 else np.zeros(len(sigma))
    return {"temperature": jnp.asarray(sigma), "column": jnp.asarray(own, jnp.int32)}


@arguments.known_keywords
def reweighting(
    *,
    train_features: Float[Any, "n p"],
    train_labels: Float[Any, "n m"],
    trusted_features: Float[Any, "k p"],
    trusted_labels: Float[Any, "k m"],
    loss: str = "logistic",
    temperatures: Float[Any, " m"] | None = None,
    ridge: float = 1e-2,
    weights: str = "sigmoid",
    rows: str | None = None,
    bounds: Bounds | None = None,
) -> Problem:
    """Sample weights for m linear models that share them; x_j belongs to training sample j.

    - features: (samples, features), an array or a scipy.sparse matrix; a constant is added.
    - labels: −1 or +1 (any number for the squared loss); (samples,), or a column for each task.
    - `loss`: "logistic" log(1 + exp(−b s)), "squared" ½(s − b)² or "squared_hinge" ½ max(0, 1 − b s)², of the score
      s = a_jᵀy/σ_i.
    - `temperatures`: σ_i, one for each task; by default 1. The paper's many lower problems share one column of
      labels and differ in σ_i.
    - `weights`: "sigmoid" makes the weight of sample j s(x_j) = 1/(1 + exp(−x_j)), "raw" makes it x_j itself, as the
      paper writes it (the lower problem then need not be convex, and methods that keep its curvature from below
      are wrong where weights are negative). Every weight starts at one half ("sigmoid") or one ("raw").
    - `rows`: how features are held, "dense" (mostly faster, `python -m benchmarks.step` measures both) or "sparse"
      (each row padded to the longest). By default "dense", but for scipy.sparse features that would take more
      than 1 GB as an array.

    The lower loss is a `bilevax.curvature.LinearModel`, so methods keep vectors instead of matrices of ∇²g.
    """
    arguments.positive("ridge", ridge)
    arguments.one_of("weights", weights, tuple(WEIGHTS))
    arguments.one_of("loss", loss, tuple(LOSSES))
    if rows is not None:
        arguments.one_of("rows", rows, ("dense", "sparse"))
    labels = checked_labels("train", train_features, train_labels, loss)
    trusted_b = checked_labels("trusted", trusted_features, trusted_labels, loss)
    (n, p), trusted_p = np.shape(train_features), np.shape(trusted_features)[1]
    if (p, labels.shape[1]) != (trusted_p, trusted_b.shape[1]):
        raise ValueError(
            "training and trusted data must agree on the number of features and tasks; got "
            f"{p} and {trusted_p} features, {labels.shape[1]} and {trusted_b.shape[1]} tasks."
        )
    A, trusted = rows_of("train_features", train_features, rows), rows_of("trusted_features", trusted_features, rows)
    return Problem(
        upper=TrustedLoss(LOSSES[loss]),
        lower=LinearModel(LOSSES[loss], WEIGHTS[weights], float(ridge)),
        x0=jnp.full(n, 0.0 if weights == "sigmoid" else 1.0, labels.dtype),
        y0=jnp.zeros(p + 1, labels.dtype),
        y0_per_task=False,
        tasks=_tasks(temperatures, labels.shape[1]),
        upper_data=shared({"features": trusted, "labels": trusted_b}),
        lower_data=shared({"features": A, "labels": labels, "row": jnp.arange(n, dtype=jnp.int32)}),
        strong_convexity=ridge,
        ridge=True,
        bounds=bounds,
    )
