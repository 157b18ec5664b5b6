"""Weights on training samples, learned so that models trained with them do well on trusted data.

    min_x (1/m) Σ_i mean_j ℓ(y_i*(x); trusted_j),   y_i*(x) = argmin_y mean_j s(x_j) ℓ(y; train_j) + λ/2 ‖y‖²

with the logistic loss ℓ of task i's own labels and s(x_j) the weight of sample j: the problem of the
paper's experiments, with one set of labels for each task.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bilevax import arguments
from bilevax.data import shared
from bilevax.problem import Bounds, Problem

WEIGHTS = {"sigmoid": jax.nn.sigmoid, "raw": lambda x: x}


def _logistic(features: Array, signs: Array, y: Array) -> Array:
    return jax.nn.softplus(-signs * (features @ y))


def _upper(x: Array, y: Array, i: Array, batch: dict[str, Array]) -> Array:
    return jnp.mean(_logistic(batch["features"], batch["signs"][:, i], y))


def _check(name: str, features: Any, labels: Any) -> tuple[Array, Array]:
    """Features with a constant column added, and labels −1/+1 as (samples, tasks)."""
    A, b = np.asarray(features, float), np.asarray(labels, float)
    b = b[:, None] if b.ndim == 1 else b
    if A.ndim != 2 or b.ndim != 2 or len(A) != len(b) or len(A) == 0:
        raise ValueError(
            f"{name}_features must be (samples, features) and {name}_labels (samples,) or (samples, tasks), "
            f"with samples > 0 the same; got shapes {np.shape(features)} and {np.shape(labels)}."
        )
    if not np.isin(b, (-1, 1)).all():
        wrong = b[~np.isin(b, (-1, 1))][0]
        raise ValueError(f"{name}_labels must be -1 or +1; got {wrong}.")
    return jnp.asarray(np.column_stack([A, np.ones(len(A))])), jnp.asarray(b)


@arguments.known_keywords
def reweighting(
    *,
    train_features: Float[Any, "n p"],
    train_labels: Float[Any, "n m"],
    trusted_features: Float[Any, "k p"],
    trusted_labels: Float[Any, "k m"],
    ridge: float = 1e-2,
    weights: str = "sigmoid",
    bounds: Bounds | None = None,
) -> Problem:
    """Sample weights for m linear logistic models that share them; x_j belongs to training sample j.

    Labels are −1 or +1, one column for each task. `weights`: "sigmoid" makes the weight of sample j
    s(x_j) = 1/(1 + exp(−x_j)), "raw" makes it x_j itself, as the paper writes it (the lower problem then
    need not be convex). Every weight starts at one half ("sigmoid") or one ("raw").
    """
    arguments.positive("ridge", ridge)
    arguments.one_of("weights", weights, tuple(WEIGHTS))
    weight = WEIGHTS[weights]
    A, signs = _check("train", train_features, train_labels)
    trusted, trusted_signs = _check("trusted", trusted_features, trusted_labels)
    if (A.shape[1], signs.shape[1]) != (trusted.shape[1], trusted_signs.shape[1]):
        raise ValueError(
            "training and trusted data must agree on the number of features and tasks; got "
            f"{A.shape[1] - 1} and {trusted.shape[1] - 1} features, "
            f"{signs.shape[1]} and {trusted_signs.shape[1]} tasks."
        )

    def lower(x: Array, y: Array, i: Array, batch: dict[str, Array]) -> Array:
        losses = _logistic(batch["features"], batch["signs"][:, i], y)
        return jnp.mean(weight(x[batch["row"]]) * losses) + ridge / 2 * (y @ y)

    start = 0.0 if weights == "sigmoid" else 1.0
    return Problem(
        upper=_upper,
        lower=lower,
        x0=jnp.full(len(A), start, A.dtype),
        y0=jnp.zeros(A.shape[1], A.dtype),
        y0_per_task=False,
        tasks=signs.shape[1],
        upper_data=shared({"features": trusted, "signs": trusted_signs}),
        lower_data=shared({"features": A, "signs": signs, "row": jnp.arange(len(A))}),
        strong_convexity=ridge,
        bounds=bounds,
    )
