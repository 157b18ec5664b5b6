"""Rows of features with labels, as linear models take them, and the losses of their scores."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Array, Bool, Float

from bilevax import arguments, device
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


def real_numbers(name: str, given: Any) -> np.ndarray:
    """An array of real numbers, neither masked nor complex nor text, as floats."""
    wanted = "an array of real numbers"
    if np.ma.isMaskedArray(given):
        raise TypeError(f"{name} must be {wanted}, without masked ones: fill them, or drop their rows.")
    try:
        held = np.asarray(given)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be {wanted}, all rows of one length; got {given!r}.") from None
    if held.dtype != object and not any(jnp.issubdtype(held.dtype, kind) for kind in (np.integer, np.floating, bool)):
        raise TypeError(f"{name} must be {wanted}; got {held.dtype}, {given!r}.")
    try:
        return arguments.floats(name, held, wanted)
    except OverflowError:
        raise ValueError(f"{name} must be {wanted}; one of them is too large for a float.") from None


def finite_rows(name: str, given: Any) -> Any:
    """Features, an array or a scipy.sparse matrix in rows, once all are known to be finite in JAX's floating type."""
    if sp.issparse(given) and given.dtype.kind not in "iufb":
        raise TypeError(f"{name} must hold real numbers; got a sparse matrix of {given.dtype}.")
    A: Any = given.tocsr() if sp.issparse(given) else real_numbers(name, given)
    dtype = jnp.result_type(float)
    with np.errstate(over="ignore"):
        finite = np.isfinite(np.asarray(A.data if sp.issparse(A) else A, dtype))
    if not finite.all():
        raise ValueError(f"{name} must be finite; {int((~finite).sum())} of its values are not, as {dtype}.")
    return A


def rows_of(name: str, given: Any, form: str | None) -> Float[Array, "n p"] | SparseRows:
    """Features with a constant column added, as an array or as sparse rows."""
    dtype, A = jnp.result_type(float), finite_rows(name, given)
    size = A.shape[0] * (A.shape[1] + 1) * dtype.itemsize
    if form == "sparse" or (form is None and sp.issparse(A) and size > LARGEST_ARRAY):
        return sparse_rows(sp.hstack([sp.csr_array(A), np.ones((A.shape[0], 1))], format="csr"), dtype)
    device.require(name, {"the array": size}, "Hold them as rows='sparse', or give fewer.")
    array = A.toarray() if sp.issparse(A) else A
    return jnp.asarray(np.column_stack([array, np.ones(len(array))]), dtype)


def checked_labels(prefix: str, features: Any, labels: Any, loss: str = "logistic") -> Float[np.ndarray, "n m"]:
    """The labels as (samples, columns), once they and the features are known to fit; names begin with the prefix."""
    b = real_numbers(f"{prefix}labels", labels)
    b = b[:, None] if b.ndim == 1 else b
    shape = features.shape if hasattr(features, "shape") else real_numbers(f"{prefix}features", features).shape
    if len(shape) != 2 or b.ndim != 2 or shape[0] != len(b) or len(b) == 0:
        raise ValueError(
            f"{prefix}features must be (samples, features) and {prefix}labels (samples,) or (samples, tasks), "
            f"with samples > 0 the same; got shapes {shape} and {np.shape(labels)}."
        )
    right = np.isfinite(b) if loss == "squared" else np.isin(b, (-1, 1))
    if not right.all():
        wanted = "finite" if loss == "squared" else "-1 or +1"
        raise ValueError(f"{prefix}labels must be {wanted}; got {b[~right][0]}.")
    return b


def both_classes(labels: Float[np.ndarray, "n m"]) -> Bool[np.ndarray, "n m"]:
    """Which samples are positive, once every column is known to hold some that are and some that are not."""
    positive = labels == 1
    lonely = np.flatnonzero(positive.all(0) | ~positive.any(0))
    if len(lonely):
        raise ValueError(f"labels must hold both -1 and +1 in every column; column {lonely[0]} does not.")
    return positive


class LabelledSamples(NamedTuple):
    """Rows with a constant column, and a column of labels for each task."""

    features: Float[Array, "n p"] | SparseRows
    labels: Float[Array, "n m"]

    @property
    def data(self) -> dict[str, Any]:
        """As losses take them."""
        return {"features": self.features, "labels": self.labels}


def two_parts(loss: str, rows: str | None, **given: tuple[Any, Any]) -> tuple[LabelledSamples, LabelledSamples]:
    """Two data sets of features and labels, by the names of their arguments, that have to agree."""
    arguments.one_of("loss", loss, tuple(LOSSES))
    if rows is not None:
        arguments.one_of("rows", rows, ("dense", "sparse"))
    labels = [checked_labels(f"{name}_", *part, loss) for name, part in given.items()]
    widths = [features.shape[1] if hasattr(features, "shape") else len(features[0]) for features, _ in given.values()]
    tasks = [b.shape[1] for b in labels]
    if len(set(widths)) > 1 or len(set(tasks)) > 1:
        raise ValueError(
            f"{' and '.join(given)} data must agree on the number of features and tasks; got {widths[0]} and "
            f"{widths[1]} features, {tasks[0]} and {tasks[1]} tasks."
        )
    features = [rows_of(f"{name}_features", part[0], rows) for name, part in given.items()]
    first, second = (LabelledSamples(A, jnp.asarray(b)) for A, b in zip(features, labels, strict=True))
    return first, second
