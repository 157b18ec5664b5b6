"""Data for sampling, from what a user gives: shared by all tasks, one block per task, or ragged per task."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, Integer, PyTree

from bilevax import arguments, device
from bilevax.draw import PerTask, Ragged, Shared

LARGEST_INDEX = 2**31 - 1  # samples are found by whole numbers of 32 bits
ADVICE = "Hold fewer samples, or numbers of fewer bits."


def _arrays(name: str, arrays: PyTree) -> PyTree:
    """The arrays on the device, once they are known to be whole, to fit and to be finite."""
    sizes = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        where = name + jax.tree_util.keystr(path)
        if np.ma.isMaskedArray(leaf):
            raise TypeError(
                f"{where} must not be a masked array, a loss would see what is masked: fill it or drop rows."
            )
        if isinstance(leaf, np.ndarray):  # a JAX array is there already
            sizes[jax.tree_util.keystr(path) or "the array"] = leaf.size * min(
                leaf.itemsize, jax.dtypes.canonicalize_dtype(leaf.dtype).itemsize
            )
    device.require(name, sizes, ADVICE)
    arguments.finite_leaves(name, arrays)
    return jax.tree.map(jnp.asarray, arrays)


def _length(name: str, arrays: PyTree, what: str, axis: int = 0) -> int:
    """The length of an axis, once it is known to be neither empty nor too long."""
    length = arguments.leading_axis(name, arrays, axis)
    if length == 0:
        raise ValueError(f"{name} must hold at least {what}; its axis {axis} has length 0.")
    if length > LARGEST_INDEX:
        raise ValueError(
            f"{name} must have at most {LARGEST_INDEX} entries along axis {axis}, indices have 32 bits; got {length}."
        )
    return length


def shared(arrays: PyTree) -> Shared:
    """Samples that all tasks draw from: a pytree of arrays (N, ...).

    >>> bx.shared({"features": A, "label": b})
    """
    length = _length("shared(arrays)", arrays, "one sample")
    return Shared(_arrays("shared(arrays)", arrays), length)


def per_task(arrays: PyTree) -> PerTask:
    """The same number of samples for each task: a pytree of arrays (m, N, ...)."""
    tasks = _length("per_task(arrays)", arrays, "one task")
    length = _length("per_task(arrays)", arrays, "one sample for each task", axis=1)
    return PerTask(_arrays("per_task(arrays)", arrays), tasks, length)


def ragged(arrays: PyTree, offsets: Int[Any, " m+1"]) -> Ragged:
    """Samples of all tasks one behind the other, (total, ...); `offsets` (m + 1) says where each starts.

    Task i owns rows `offsets[i]` to `offsets[i + 1] - 1`.
    """
    total = _length("ragged(arrays)", arrays, "one sample")
    bounds = _whole("ragged(offsets)", offsets)
    if bounds[0] != 0 or bounds[-1] != total:
        raise ValueError(
            f"ragged(offsets) must run from 0 to the number of rows, {total}; got {bounds[0]} to {bounds[-1]}."
        )
    lengths = np.diff(bounds.astype(np.int64))
    if lengths.min() < 1:
        empty = int(np.argmin(lengths))
        raise ValueError(f"every task needs at least one sample; ragged(offsets) gives task {empty} {lengths[empty]}.")
    return Ragged(_arrays("ragged(arrays)", arrays), jnp.asarray(bounds, jnp.int32), len(lengths), int(lengths.max()))


def _whole(name: str, offsets: Any) -> Integer[np.ndarray, " n"]:
    """The offsets, once they are known to be a vector of at least two whole numbers."""
    try:
        given = np.asarray(offsets)
    except (TypeError, ValueError):
        given = np.asarray(None)
    whole = np.issubdtype(given.dtype, np.integer) and not np.ma.isMaskedArray(offsets)
    if given.ndim != 1 or given.size < 2 or not whole:
        shown = "a masked array" if np.ma.isMaskedArray(offsets) else f"shape {given.shape} of {given.dtype}"
        raise ValueError(f"{name} must be a one-dimensional integer array of length m + 1 >= 2; got {shown}.")
    return given
