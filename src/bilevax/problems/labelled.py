"""Rows of features with labels, as linear models take them, and the losses of their scores."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Array, Float

from bilevax import arguments
from bilevax.rows import SparseRows, sparse_rows

LARGEST_ARRAY = 2**30  # bytes up to which sparse features are held as an array


def logistic(score: Array, label: Array) -> Array:
    """log(1 + exp(−label·score))."""
    return jax.nn.softplus(-label * score)


def squared(score: Array, label: Array) -> Array:
    """½(score − label)²."""
    return 0.5 * (score - label) ** 2


def squared_hinge(score: Array, label: Array) -> Array:
    """½ max(0, 1 − label·score)²."""
    return 0.5 * jnp.maximum(0, 1 - label * score) ** 2


LOSSES = {"logistic": logistic, "squared": squared, "squared_hinge": squared_hinge}


def rows_of(name: str, given: Any, form: str | None) -> Float[Array, "n p"] | SparseRows:
    """Features with a constant column added, as an array or as sparse rows."""
    dtype = jnp.result_type(float)
    A: Any = given if sp.issparse(given) else arguments.floats(name, given, "an array of numbers")
    values = A.tocsr().data if sp.issparse(A) else A
    if not np.isfinite(values).all():
        raise ValueError(f"{name} must be finite; {int((~np.isfinite(values)).sum())} of its values are not.")
    fits = not sp.issparse(A) or A.shape[0] * (A.shape[1] + 1) * dtype.itemsize <= LARGEST_ARRAY
    if form == "sparse" or (form is None and not fits):
        return sparse_rows(sp.hstack([sp.csr_array(A), np.ones((A.shape[0], 1))], format="csr"), dtype)
    array = A.toarray() if sp.issparse(A) else A
    return jnp.asarray(np.column_stack([array, np.ones(len(array))]), dtype)


def checked_labels(name: str, features: Any, labels: Any, loss: str) -> Float[Array, "n m"]:
    """The labels as (samples, columns), once they and the features are known to fit."""
    b = arguments.floats(f"{name}_labels", labels, "numbers")
    b = b[:, None] if b.ndim == 1 else b
    shape = np.shape(features)
    if len(shape) != 2 or b.ndim != 2 or shape[0] != len(b) or len(b) == 0:
        raise ValueError(
            f"{name}_features must be (samples, features) and {name}_labels (samples,) or (samples, tasks), "
            f"with samples > 0 the same; got shapes {shape} and {np.shape(labels)}."
        )
    right = np.isfinite(b) if loss == "squared" else np.isin(b, (-1, 1))
    if not right.all():
        wanted = "finite" if loss == "squared" else "-1 or +1"
        raise ValueError(f"{name}_labels must be {wanted}; got {b[~right][0]}.")
    return jnp.asarray(b)
