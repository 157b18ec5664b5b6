"""Data held for sampling: shared by all tasks, one block per task, or ragged per task.

A loss sees a batch: the same pytree as the data, its leaves cut to (batch, ...). All kinds offer the
same three things: `length(i)` samples of task i, `take(i, indices)` a batch, and `mean(loss, i)` the
mean of a loss over every sample of task i.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from bilevax import arguments

Loss = Callable[[Any], Float[Array, ""]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NoData:
    """A loss without samples: it is handed `None` as its batch."""

    max_length: int = field(default=1, metadata={"static": True})
    num_tasks: int | None = field(default=None, metadata={"static": True})

    def length(self, i: Int[Array, ""]) -> int:
        """One: the loss itself is the only sample."""
        return 1

    def take(self, i: Int[Array, ""], indices: Int[Array, " batch"]) -> None:
        """Nothing to take."""

    def mean(self, loss: Loss, i: Int[Array, ""]) -> Float[Array, ""]:
        """The loss itself."""
        return loss(None)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Shared:
    """Samples that every task draws from; leaves (N, ...)."""

    arrays: PyTree
    num_tasks: int | None = field(default=None, metadata={"static": True})

    @property
    def max_length(self) -> int:
        """The number of samples, N."""
        return jax.tree.leaves(self.arrays)[0].shape[0]

    def length(self, i: Int[Array, ""]) -> int:
        """N, for every task."""
        return self.max_length

    def take(self, i: Int[Array, ""], indices: Int[Array, " batch"]) -> PyTree:
        """The samples at `indices`."""
        return jax.tree.map(lambda leaf: leaf[indices], self.arrays)

    def mean(self, loss: Loss, i: Int[Array, ""]) -> Float[Array, ""]:
        """The loss on all N samples as one batch."""
        return loss(self.arrays)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PerTask:
    """N samples of its own for each of the m tasks; leaves (m, N, ...)."""

    arrays: PyTree

    @property
    def num_tasks(self) -> int:
        """The number of tasks, m."""
        return jax.tree.leaves(self.arrays)[0].shape[0]

    @property
    def max_length(self) -> int:
        """The number of samples of a task, N."""
        return jax.tree.leaves(self.arrays)[0].shape[1]

    def length(self, i: Int[Array, ""]) -> int:
        """N, for every task."""
        return self.max_length

    def take(self, i: Int[Array, ""], indices: Int[Array, " batch"]) -> PyTree:
        """The samples of task i at `indices`."""
        return jax.tree.map(lambda leaf: leaf[i, indices], self.arrays)

    def mean(self, loss: Loss, i: Int[Array, ""]) -> Float[Array, ""]:
        """The loss on all N samples of task i as one batch."""
        return loss(jax.tree.map(lambda leaf: leaf[i], self.arrays))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ragged:
    """Task i owns the samples from `offsets[i]` up to `offsets[i + 1]`; leaves (total, ...)."""

    arrays: PyTree
    offsets: Int[Array, " m+1"]
    max_length: int = field(metadata={"static": True})

    @property
    def num_tasks(self) -> int:
        """The number of tasks, m."""
        return self.offsets.shape[0] - 1

    def length(self, i: Int[Array, ""]) -> Int[Array, ""]:
        """The number of samples of task i."""
        return self.offsets[i + 1] - self.offsets[i]

    def take(self, i: Int[Array, ""], indices: Int[Array, " batch"]) -> PyTree:
        """The samples of task i at `indices`, counted from its first."""
        return jax.tree.map(lambda leaf: leaf[self.offsets[i] + indices], self.arrays)

    def mean(self, loss: Loss, i: Int[Array, ""]) -> Float[Array, ""]:
        """The mean of the losses of single samples: tasks differ in length, a compiled batch cannot."""
        positions = jnp.arange(self.max_length, dtype=jnp.int32)
        inside = positions < self.length(i)
        # A position beyond the task's end re-reads its first sample, so that a masked value is finite.
        singles = self.take(i, jnp.where(inside, positions, 0)[:, None])
        losses = jax.vmap(loss)(singles)
        return jnp.sum(jnp.where(inside, losses, 0)) / self.length(i).astype(losses.dtype)


Data = NoData | Shared | PerTask | Ragged


def _arrays(name: str, arrays: PyTree) -> PyTree:
    arguments.finite_leaves(name, arrays)
    return jax.tree.map(jnp.asarray, arrays)


def shared(arrays: PyTree) -> Shared:
    """Samples that all tasks draw from: a pytree of arrays (N, ...).

    >>> bx.shared({"features": A, "label": b})
    """
    if arguments.leading_axis("shared(arrays)", arrays) == 0:
        raise ValueError("shared(arrays) must hold at least one sample; its leading axis has length 0.")
    return Shared(_arrays("shared(arrays)", arrays))


def per_task(arrays: PyTree) -> PerTask:
    """The same number of samples for each task: a pytree of arrays (m, N, ...)."""
    for axis, what in [(0, "one task"), (1, "one sample for each task")]:
        if arguments.leading_axis("per_task(arrays)", arrays, axis) == 0:
            raise ValueError(f"per_task(arrays) must hold at least {what}; its axis {axis} has length 0.")
    return PerTask(_arrays("per_task(arrays)", arrays))


def ragged(arrays: PyTree, offsets: Int[Array, " m+1"]) -> Ragged:
    """Samples of all tasks one behind the other, (total, ...); `offsets` (m + 1) says where each starts.

    Task i owns rows `offsets[i]` to `offsets[i + 1] - 1`.
    """
    total = arguments.leading_axis("ragged(arrays)", arrays)
    bounds = np.asarray(offsets)
    if bounds.ndim != 1 or bounds.size < 2 or not np.issubdtype(bounds.dtype, np.integer):
        raise ValueError(
            "ragged(offsets) must be a one-dimensional integer array of length m + 1 >= 2; "
            f"got shape {bounds.shape} of {bounds.dtype}."
        )
    if bounds[0] != 0 or bounds[-1] != total:
        raise ValueError(
            f"ragged(offsets) must run from 0 to the number of rows, {total}; got {bounds[0]} to {bounds[-1]}."
        )
    lengths = np.diff(bounds.astype(np.int64))
    if lengths.min() < 1:
        empty = int(np.argmin(lengths))
        raise ValueError(f"every task needs at least one sample; ragged(offsets) gives task {empty} {lengths[empty]}.")
    return Ragged(_arrays("ragged(arrays)", arrays), jnp.asarray(bounds, jnp.int32), int(lengths.max()))
