"""How samples are held: in memory, on a disk, or made when they are drawn.

A loss sees a batch: the same pytree as the data, its leaves cut to (batch, ...). All kinds of data offer the same
three things: `length(i)` samples of task i, `take(i, indices)` a batch, and `mean(loss, i)` the mean of a loss over
every sample of task i, or over some where not all can be looked at (`is_partly_seen`). `bilevax.data` makes them from
what a user gives.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from bilevax.stored import Reader
from bilevax.words import key_of

Loss = Callable[[Any], Float[Array, ""]]
DRAWS = ("independent", "blocks")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NoData:
    """A loss without samples: it is handed `None` as its batch."""

    max_length: int = field(default=1, metadata={"static": True})
    num_tasks: int | None = field(default=None, metadata={"static": True})
    is_partly_seen: ClassVar[bool] = False
    draw: ClassVar[str] = "independent"

    def length(self, i: Any) -> int:
        """One: the loss itself is the only sample."""
        return 1

    def take(self, i: Any, indices: Int[Array, " batch"]) -> None:
        """Nothing to take."""

    def mean(self, loss: Loss, i: Any) -> Float[Array, ""]:
        """The loss itself."""
        return loss(None)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Shared:
    """Samples that every task draws from; leaves (N, ...)."""

    arrays: PyTree
    max_length: int = field(metadata={"static": True})
    num_tasks: int | None = field(default=None, metadata={"static": True})
    draw: str = field(default="independent", metadata={"static": True})
    is_partly_seen: ClassVar[bool] = False

    def length(self, i: Any) -> int:
        """N, for every task."""
        return self.max_length

    def take(self, i: Any, indices: Int[Array, " batch"]) -> PyTree:
        """The samples at `indices`."""
        return jax.tree.map(itemgetter(indices), self.arrays)

    def mean(self, loss: Loss, i: Any) -> Float[Array, ""]:
        """The loss on all N samples as one batch."""
        return loss(self.arrays)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PerTask:
    """N samples of its own for each of the m tasks; leaves (m, N, ...)."""

    arrays: PyTree
    num_tasks: int = field(metadata={"static": True})
    max_length: int = field(metadata={"static": True})
    draw: str = field(default="independent", metadata={"static": True})
    is_partly_seen: ClassVar[bool] = False

    def length(self, i: Any) -> int:
        """N, for every task."""
        return self.max_length

    def take(self, i: Any, indices: Int[Array, " batch"]) -> PyTree:
        """The samples of task i at `indices`."""
        return jax.tree.map(itemgetter((i, indices)), self.arrays)

    def mean(self, loss: Loss, i: Any) -> Float[Array, ""]:
        """The loss on all N samples of task i as one batch."""
        return loss(jax.tree.map(itemgetter(i), self.arrays))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ragged:
    """Task i owns the samples from `offsets[i]` up to `offsets[i + 1]`; leaves (total, ...)."""

    arrays: PyTree
    offsets: Int[Array, " m+1"]
    num_tasks: int = field(metadata={"static": True})
    max_length: int = field(metadata={"static": True})
    draw: str = field(default="independent", metadata={"static": True})
    is_partly_seen: ClassVar[bool] = False

    def length(self, i: Any) -> Int[Array, "..."]:
        """The number of samples of task i."""
        return self.offsets[i + 1] - self.offsets[i]

    def take(self, i: Any, indices: Int[Array, "..."]) -> PyTree:
        """The samples of task i at `indices`, counted from its first."""
        return jax.tree.map(itemgetter(self.offsets[i] + indices), self.arrays)

    def mean(self, loss: Loss, i: Any) -> Float[Array, ""]:
        """The mean of the losses of single samples: tasks differ in length, a compiled batch cannot."""
        positions = jnp.arange(self.max_length, dtype=jnp.int32)
        inside = positions < self.length(i)
        # A position beyond the task's end re-reads its first sample, so that a masked value is finite.
        singles = self.take(i, jnp.where(inside, positions, 0)[:, None])
        losses = jax.vmap(loss)(singles)
        return jnp.sum(jnp.where(inside, losses, 0)) / self.length(i).astype(losses.dtype)


@dataclass(frozen=True)
class MadeBy:
    """A function that makes a sample, and the digest of the program that it traces to, by which it is known."""

    function: Callable[..., PyTree]
    program: str

    def __repr__(self) -> str:
        return f"MadeBy({self.program})"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Sampler:
    """Samples that are made when they are drawn. The one with number k is always the same: its key follows from k.

    A step can look at it at two points, as variance reduction has to, and a resumed run meets it again. Who asks for
    all samples gets the first `max_length` of them.
    """

    numbers: Int[Array, " m"] | None  # of the tasks; None where all draw from the same samples
    tasks: PyTree
    made_by: MadeBy = field(metadata={"static": True})
    seed: int = field(metadata={"static": True})
    max_length: int = field(metadata={"static": True})
    num_tasks: int | None = field(metadata={"static": True})
    is_partly_seen: ClassVar[bool] = True
    draw: ClassVar[str] = "independent"

    def length(self, i: Any) -> int:
        """Samples that a look at all of them has."""
        return self.max_length

    def take(self, i: Any, indices: Int[Array, " batch"]) -> PyTree:
        """The samples of these numbers."""
        key = jax.random.key(self.seed)
        if self.numbers is None:
            make = self.made_by.function
        else:
            key = jax.random.fold_in(key, self.numbers[i])
            task = self.numbers[i] if self.tasks is None else jax.tree.map(itemgetter(i), self.tasks)
            make = lambda key: self.made_by.function(key, task)
        return jax.vmap(lambda k: make(key_of(key, k)))(indices)

    def mean(self, loss: Loss, i: Any) -> Float[Array, ""]:
        """The loss on the first samples of task i as one batch."""
        return loss(self.take(i, jnp.arange(self.max_length, dtype=jnp.int32)))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Stored:
    """Samples that are not in memory: the host reads those that were drawn. Shared by all tasks, or each its own.

    Who asks for all samples of a task gets them, or, where they are more than `many`, so many at equal distances.
    """

    lengths: Int[Array, " m"] | None  # of the tasks; None where all have as many
    reader: Reader = field(metadata={"static": True})
    num_tasks: int | None = field(metadata={"static": True})
    longest: int = field(metadata={"static": True})
    many: int = field(metadata={"static": True})
    draw: str = field(default="independent", metadata={"static": True})

    @property
    def max_length(self) -> int:
        """Samples that a look at all of them has, at most."""
        return min(self.longest, self.many)

    @property
    def is_partly_seen(self) -> bool:
        """Whether a look at all samples has some of them only."""
        return self.longest > self.many

    def span(self, i: Any) -> Any:
        """The number of samples of task i."""
        return self.longest if self.lengths is None else self.lengths[i]

    def length(self, i: Any) -> Any:
        """Samples that a look at all of them has."""
        return jnp.minimum(self.span(i), self.many)

    def take(self, i: Any, indices: Int[Array, "..."]) -> PyTree:
        """The samples of task i at `indices`, counted from its first."""
        return self.reader.take(jnp.broadcast_to(jnp.asarray(i, jnp.int32), indices.shape[:-1]), indices)

    def mean(self, loss: Loss, i: Any) -> Float[Array, ""]:
        """The loss on all samples of task i as one batch; sample by sample where tasks differ in length."""
        positions = jnp.arange(self.max_length, dtype=jnp.int32)
        spread_out = lambda k, total: (k.astype(float) * (total / self.many)).astype(jnp.int32)
        if self.lengths is None:
            return loss(self.take(i, positions if self.longest <= self.many else spread_out(positions, self.longest)))
        total = self.span(i)
        inside = positions < self.length(i)
        where = jnp.where(total > self.many, spread_out(positions, total.astype(float)), positions)
        rows = self.take(i, jnp.where(inside, where, 0))
        losses = jax.vmap(lambda row: loss(jax.tree.map(lambda leaf: leaf[None], row)))(rows)
        return jnp.sum(jnp.where(inside, losses, 0)) / self.length(i).astype(losses.dtype)


class Fetched(NamedTuple):
    """A batch that is there already, in the place of the numbers of its samples."""

    batch: PyTree


class NotAheadError(Exception):
    """A step draws samples in a way that cannot be known before the step is taken."""


class DrawnAhead:
    """Stored samples inside a step whose draws are known before it is taken; see `bilevax.run.ahead`.

    `hand_out` sees the draws of the step in their order, and returns what stands for them.
    """

    is_partly_seen = True

    def __init__(self, data: Stored, hand_out: Callable[[Int[Array, " B"], Int[Array, "B batch"]], Any]):
        self.data, self.hand_out, self.draw = data, hand_out, data.draw
        self.num_tasks, self.max_length, self.length, self.span = (
            data.num_tasks,
            data.max_length,
            data.length,
            data.span,
        )

    def take(self, i: Any, indices: Any) -> PyTree:
        """Draws are only handed out as a whole."""
        raise NotAheadError

    mean = take


Data = NoData | Shared | PerTask | Ragged | Sampler | Stored | DrawnAhead
KINDS = (NoData, Shared, PerTask, Ragged, Sampler, Stored)
MAKERS = "bilevax.shared, per_task, ragged or sampler"
ENDLESS = 2**31 - 1  # numbers of samples that are made


def span(data: Data, i: Any) -> Any:
    """Among how many samples of task i a draw chooses."""
    if isinstance(data, Sampler):
        return ENDLESS
    return data.span(i) if isinstance(data, (Stored, DrawnAhead)) else data.length(i)


class UnevenBlock(NamedTuple):
    """Fixed samples of which the last counts with a weight of its own: (1 − share)·mean of `indices` + share·`last`.

    So blocks of n and of n + 1 samples have one shape.
    """

    indices: Int[Array, " n"]
    last: Int[Array, " 1"]
    share: Float[Array, ""]


Indices = Int[Array, " batch"] | Fetched | None  # None: every sample there is
Samples = Indices | UnevenBlock
Batches = Int[Array, "B batch"] | Fetched | None  # the same for several tasks


def numbers_of(samples: Indices | Batches) -> Int[Array, "..."] | None:
    """The numbers of samples; `None` where there are none, or nobody needs them any more."""
    return None if isinstance(samples, Fetched) else samples
