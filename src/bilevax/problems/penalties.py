"""Ridge penalties of a linear model, one for each feature, learned from validation data.

    min_x mean over validation of ℓ(aᵀy*(x), b),
    y*(x) = argmin_y mean over training of ℓ(aᵀy, b) + ½ Σ_k p_k y_k²,   p_k = floor + (ceiling − floor) σ(x_k)

The classic use of a bilevel problem: thousands of hyper-parameters by gradient, where a grid search stops at three. A
feature that does not help on validation data gets a large penalty.
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
from bilevax.data import shared
from bilevax.problem import Problem
from bilevax.problems.labelled import LOSSES, two_parts
from bilevax.problems.words import rename_in_errors


def _mean_loss(loss: Callable[..., Array], y: Float[Array, " p"], column: Array, batch: Any) -> Float[Array, ""]:
    return jnp.mean(loss(batch["features"] @ y, batch["labels"][:, column]))


@dataclass(frozen=True)
class Validation:
    """mean ℓ(aᵀy, b), as a function of (x, y, task, batch)."""

    loss: Callable[[Any, Any], Any]

    def __call__(self, x: Array, y: Array, task: Array, batch: Any) -> Float[Array, ""]:
        return _mean_loss(self.loss, y, task, batch)


@dataclass(frozen=True)
class PenalisedLoss:
    """mean ℓ(aᵀy, b) + ½ Σ_k p_k y_k², as a function of (x, y, task, batch); the shift has the floor."""

    loss: Callable[[Any, Any], Any]
    floor: float
    ceiling: float

    def penalties(self, x: Float[Array, " p"]) -> Float[Array, " p"]:
        """p = floor + (ceiling − floor) σ(x), the penalty of each feature."""
        return self.floor + (self.ceiling - self.floor) * jax.nn.sigmoid(x)

    def __call__(self, x: Array, y: Array, task: Array, batch: Any) -> Float[Array, ""]:
        penalty = jnp.sum(self.penalties(x) * y[:-1] ** 2) + self.floor * y[-1] ** 2
        return _mean_loss(self.loss, y, task, batch) + 0.5 * penalty


@arguments.known_keywords
def ridge(
    *,
    train_features: Float[Any, "n p"],
    train_labels: Float[Any, "n m"],
    validation_features: Float[Any, "k p"],
    validation_labels: Float[Any, "k m"],
    loss: str = "logistic",
    start: float = 1e-2,
    floor: float = 1e-4,
    ceiling: float = 1.0,
    rows: str | None = None,
    draw: str = "independent",
    bounds: Bounds | None = None,
) -> Problem:
    """A ridge penalty p_k = floor + (ceiling − floor) σ(x_k) for each feature, shared by m linear models.

    - features: (samples, features), an array or a scipy.sparse matrix; a constant is added, with no penalty but the
      floor. labels: −1 or +1 (any number for the squared loss); (samples,), or a column for each model.
    - `loss`: "logistic", "squared" or "squared_hinge", as for `bilevax.problems.reweighting`.
    - `start`: every penalty before the first step; `floor`, `ceiling`: the least, which is the strong convexity λ, and
      the largest: ∇²yy g grows with it, and a lower step that is right at the start stays right.
    - `rows`: how features are held, "dense" or "sparse".
    - `draw`: "independent" or "blocks", as for `bilevax.shared`.

    `problem.lower.penalties(x)` are the penalties. Validation data can be fitted too closely, as training data can:
    have more of its samples than penalties. Source: the introduction's hyper-parameter optimization (Bengio 2000;
    Franceschi, Frasconi, Salzo, Grazzi, Pontil 2018).
    """
    for name, value in [("start", start), ("floor", floor), ("ceiling", ceiling)]:
        arguments.positive(name, value)
    if not floor < ceiling:
        raise ValueError(f"ceiling must be above floor, {floor}; got {ceiling}.")
    if not floor < start < ceiling:
        raise ValueError(f"start must be between floor and ceiling, {floor} and {ceiling}; got {start}.")
    train, validation = two_parts(
        loss, rows, train=(train_features, train_labels), validation=(validation_features, validation_labels)
    )
    width, dtype = train.features.shape[1], train.labels.dtype
    with rename_in_errors(strong_convexity="floor"):
        return Problem(
            upper=Validation(LOSSES[loss]),
            lower=PenalisedLoss(LOSSES[loss], float(floor), float(ceiling)),
            x0=jnp.full(width - 1, np.log((start - floor) / (ceiling - start)), dtype),
            y0=jnp.zeros(width, dtype),
            y0_per_task=False,
            tasks=train.labels.shape[1],
            upper_data=shared(validation.data, draw=draw),
            lower_data=shared(train.data, draw=draw),
            strong_convexity=floor,
            ridge=True,
            bounds=bounds,
        )
