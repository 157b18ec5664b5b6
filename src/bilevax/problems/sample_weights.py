"""Weights on training samples, learned so that models trained with them do well on trusted data.

    min_x (1/m) Σ_i mean_j ℓ(a_jᵀy_i*(x)/σ_i; trusted),
    y_i*(x) = argmin_y mean_j s(x_j) ℓ(a_jᵀy/σ_i, b_ji) + λ/2 ‖y‖²

with a smooth convex loss ℓ and s(x_j) the weight of sample j: the problem of the paper's experiments. Tasks differ
in their labels, in their temperature σ_i, or in both.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bilevax import arguments
from bilevax.bounds import Bounds
from bilevax.data import shared
from bilevax.linear_model import LinearModel, losses
from bilevax.problem import Problem
from bilevax.problems.labelled import LOSSES, real_numbers, two_parts
from bilevax.problems.words import rename_in_errors
from bilevax.samples import DRAWS


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
    sigma = np.ones(columns) if temperatures is None else real_numbers("temperatures", temperatures)
    if sigma.ndim != 1 or len(sigma) == 0 or not (np.isfinite(sigma).all() and (sigma > 0).all()):
        raise ValueError(f"temperatures must be a vector of numbers > 0, one for each task; got {temperatures!r}.")
    if columns not in (1, len(sigma)):
        raise ValueError(
            f"temperatures must have one entry for each of the {columns} columns of labels; got {len(sigma)}."
        )
    own = np.arange(columns) if columns > 1 else np.zeros(len(sigma))
    return {"temperature": jnp.asarray(sigma), "column": jnp.asarray(own, jnp.int32)}


def _refuse_order(labels: Float[Any, "n m"]) -> None:
    """Refuse labels that change from row to row far less often than they would in random order (runs test)."""
    above = labels > labels.mean(axis=0)
    n, share = len(labels), above.mean(axis=0)
    changes, expected = (above[1:] != above[:-1]).sum(axis=0), 2 * n * share * (1 - share)
    for k in np.flatnonzero(changes < expected - 6 * expected / np.sqrt(n)):
        raise ValueError(
            f"train_labels must be in random order for draw='blocks'; column {k} changes {changes[k]} times "
            f"from row to row, {expected[k]:.0f} would be usual. Shuffle the rows, or leave draw out."
        )


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
    draw: str = "independent",
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
    - `draw`: "independent" or "blocks", as for `bilevax.shared`. Training rows stay in their order, since x_j is the
      weight of row j: for blocks they must be in random order, and are refused where labels show that they are not.

    The lower loss is a `bilevax.curvature.LinearModel`, so methods keep vectors instead of matrices of ∇²g.
    """
    arguments.positive("ridge", ridge)
    arguments.one_of("draw", draw, DRAWS)
    arguments.one_of("weights", weights, tuple(WEIGHTS))
    train, trusted = two_parts(
        loss, rows, train=(train_features, train_labels), trusted=(trusted_features, trusted_labels)
    )
    n, width = train.features.shape
    dtype, columns = train.labels.dtype, train.labels.shape[1]
    if draw == "blocks":
        _refuse_order(np.asarray(train.labels))
    with rename_in_errors(strong_convexity="ridge"):
        return Problem(
            upper=TrustedLoss(LOSSES[loss]),
            lower=LinearModel(LOSSES[loss], WEIGHTS[weights], float(ridge)),
            x0=jnp.full(n, 0.0 if weights == "sigmoid" else 1.0, dtype),
            y0=jnp.zeros(width, dtype),
            y0_per_task=False,
            tasks=_tasks(temperatures, columns),
            upper_data=shared(trusted.data, draw=draw),
            lower_data=replace(shared({**train.data, "row": jnp.arange(n, dtype=jnp.int32)}), draw=draw),
            strong_convexity=ridge,
            ridge=True,
            bounds=bounds,
        )
