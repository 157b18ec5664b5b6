"""Tasks in equal parts, one on each device of a mesh: what the parts of a run say to one another.

A run on S shards is S runs on m/S tasks each, which share x. Every shard draws its own tasks, keeps their estimates and
finds a direction from them; x moves by the mean of all directions. Each direction here is a mean over tasks of what
their samples say, and so is its estimate: the mean over the shards is the direction of all tasks, from draws that take
as many of every shard. With m and the tasks of a step in equal parts, a task is drawn as often as before.

The number of shards belongs to the run, the number of processes does not: who has which devices changes neither draws
nor the order of sums, so 1, 2 and 4 processes with four devices in all give the same bits.

A word between hosts takes milliseconds, a step microseconds. With `sync_every` = k each shard moves its own x by its
own directions, and only in every k-th step x becomes the mean of theirs (local SGD: Stich, 2019). That is another
method: where tasks of shards differ, x of a shard drifts towards its own solution in between.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Key, PyTree

from bilevax.words import key_of

AXIS = "shards"
WHOLE, SPLIT = PartitionSpec(), PartitionSpec(AXIS)
COMMON: Any = "common"  # the same for all shards
ROWS: Any = "rows"  # a row for each task
OWN: Any = "own"  # a tree for each shard


@dataclass(frozen=True)
class Alone:
    """All tasks in one part: nobody to agree with."""

    count: int = 1
    sync_every: int = 1
    is_spread: bool = False  # whether several processes have a part
    is_first: bool = True  # whether this process writes what is written once
    own_numbers: tuple[int, ...] = (0,)  # of the parts that this process has

    def own_key(self, key: Key[Array, ""]) -> Key[Array, ""]:
        """The key that this part draws with."""
        return key

    def own_row(self, table: Any) -> Array:
        """The row of this part, of a table with one for each."""
        return jnp.asarray(table[0])

    def mean(self, tree: PyTree) -> PyTree:
        """The mean over all parts."""
        return tree

    total = largest = smallest = first = mean

    def sometimes(self, step: Any, act: Callable[[PyTree], PyTree], tree: PyTree) -> PyTree:
        """What `act` makes of a tree in steps in which all parts agree, the tree as it is in others."""
        return act(tree)

    def on_host(self, tree: PyTree) -> PyTree:
        """What is the same in all parts, of a tree with one for each."""
        return tree

    def agree(self, value: float) -> float:
        """What the first process says; between two compiled programs."""
        return value

    def any(self, flag: bool) -> bool:
        """Whether a process says yes; between two compiled programs."""
        return flag

    def gather(self, words: dict[int, str]) -> list[str]:
        """A word of each part, in their order, from those of the parts that this process has; all of one length."""
        return [words[0]]

    def take_apart(self, tree: PyTree) -> dict[int, list[np.ndarray]]:
        """The leaves of each part that this process has, by their numbers."""
        return {0: [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]}

    def put_together(self, parts: dict[int, Any], like: PyTree) -> PyTree:
        """The tree of all parts, in the structure of `like`."""
        return jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(leaf) for leaf in parts[0]])


ALONE = Alone()


@dataclass(frozen=True)
class Shards:
    """One part on each device of a mesh with one axis; all functions of a tree are called inside `spread`."""

    mesh: Mesh
    sync_every: int = 1

    @property
    def count(self) -> int:
        """S."""
        return self.mesh.size

    @property
    def is_spread(self) -> bool:
        """Whether several processes have a part of them."""
        return len({device.process_index for device in self.mesh.devices.flat}) > 1

    @property
    def is_first(self) -> bool:
        """Whether this process has the first shard: it writes what is written once."""
        return 0 in self.own_numbers

    @property
    def own_numbers(self) -> tuple[int, ...]:
        """The shards that this process has."""
        own = jax.process_index()
        return tuple(k for k, device in enumerate(self.mesh.devices.flat) if device.process_index == own)

    @property
    def split(self) -> NamedSharding:
        """Leading axis in equal parts."""
        return NamedSharding(self.mesh, SPLIT)

    @property
    def whole(self) -> NamedSharding:
        """The same on all devices."""
        return NamedSharding(self.mesh, WHOLE)

    def own_key(self, key: Key[Array, ""]) -> Key[Array, ""]:
        """The key that this shard draws with."""
        return key_of(key, jax.lax.axis_index(AXIS))

    def own_row(self, table: Any) -> Array:
        """The row of this shard, of a table with one for each."""
        return jnp.asarray(table)[jax.lax.axis_index(AXIS)]

    def total(self, tree: PyTree) -> PyTree:
        """The sum over all shards, in the order of their numbers: `psum` adds up as the network likes."""
        return jax.tree.map(lambda leaf: jnp.sum(jax.lax.all_gather(leaf, AXIS), axis=0, dtype=leaf.dtype), tree)

    def mean(self, tree: PyTree) -> PyTree:
        """The mean over all shards."""
        return jax.tree.map(lambda leaf: leaf / self.count, self.total(tree))

    def largest(self, tree: PyTree) -> PyTree:
        """The largest of each number over all shards."""
        return jax.lax.pmax(tree, AXIS)

    def smallest(self, tree: PyTree) -> PyTree:
        """The smallest of each number over all shards."""
        return jax.lax.pmin(tree, AXIS)

    def first(self, tree: PyTree) -> PyTree:
        """What the first shard has, for all."""
        return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, AXIS)[0], tree)

    def sometimes(self, step: Any, act: Callable[[PyTree], PyTree], tree: PyTree) -> PyTree:
        """What `act` makes of a tree in every `sync_every`-th step, the tree as it is in others."""
        if self.sync_every == 1:
            return act(tree)
        return jax.lax.cond(step % self.sync_every == 0, act, lambda tree: tree, tree)

    def on_host(self, tree: PyTree) -> PyTree:
        """What is the same in all shards, of a tree with a leading axis of them."""
        return jax.tree.map(lambda leaf: leaf.addressable_data(0)[0], tree)

    def agree(self, value: float) -> float:
        """What the first process says: clocks differ, and who takes another number of steps meets the wrong sums."""
        return float(multihost_utils.broadcast_one_to_all(np.float64(value))) if self.is_spread else value

    def any(self, flag: bool) -> bool:
        """Whether a process says yes."""
        return bool(np.any(multihost_utils.process_allgather(np.asarray(flag)))) if self.is_spread else flag

    def gather(self, words: dict[int, str]) -> list[str]:
        """A word of each shard, in their order, from those of the shards that this process has; all of one length."""
        if not self.is_spread:
            return [words[k] for k in sorted(words)]
        own = np.array([[k, *words[k].encode()] for k in sorted(words)], np.int32)
        rows = np.asarray(multihost_utils.process_allgather(own)).reshape(self.count, -1)
        return [bytes(row[1:].astype(np.uint8)).decode() for row in sorted(rows, key=lambda row: row[0])]

    def take_apart(self, tree: PyTree) -> dict[int, list[np.ndarray]]:
        """The leaves of each shard that this process has, by their numbers."""
        parts: dict[int, list[np.ndarray]] = {}
        for leaf in jax.tree.leaves(tree):
            for part in leaf.addressable_shards:
                parts.setdefault(part.index[0].start or 0, []).append(np.asarray(part.data)[0])
        return parts

    def put_together(self, parts: dict[int, Any], like: PyTree) -> PyTree:
        """The tree of all shards, in the structure of `like`, from those that this process has."""
        leaves, structure = jax.tree.flatten(like)
        of = lambda k: lambda index: parts[index[0].start or 0][k][None]
        made = [jax.make_array_from_callback(leaf.shape, self.split, of(k)) for k, leaf in enumerate(leaves)]
        return jax.tree.unflatten(structure, made)


def spread(function: Callable[..., Any], takes: tuple[str, ...], gives: PyTree) -> Callable[..., Any]:
    """`function(problem, *given)`, carried out by every shard on its own tasks; as it is where there is but one part.

    `takes` has for each argument, and `gives` for (a prefix of) the result, whether it is `COMMON`, has `ROWS` for the
    tasks, or is an `OWN` tree of every shard, which has a leading axis of shards outside.
    """
    parts = lambda kinds: jax.tree.map(lambda kind: WHOLE if kind == COMMON else SPLIT, kinds)

    def carry_out(problem: Any, *given: Any) -> Any:
        if isinstance(problem.shards, Alone):
            return function(problem, *given)

        def on_shard(problem: Any, *given: Any) -> Any:
            within = [
                jax.tree.map(lambda leaf: leaf[0], tree) if kind == OWN else tree
                for kind, tree in zip(takes, given, strict=True)
            ]
            found = function(problem.of_shard(), *within)
            outside = lambda kind, tree: jax.tree.map(lambda leaf: leaf[None], tree) if kind == OWN else tree
            return jax.tree.map(outside, gives, found)

        # check_vma would take the gradient of an x that is the same everywhere for that of a sum over the shards.
        return jax.shard_map(
            on_shard, mesh=problem.shards.mesh, in_specs=(problem.parts(WHOLE, SPLIT), *parts(takes)),
            out_specs=parts(gives), check_vma=False,
        )(problem, *given)  # fmt: skip

    return carry_out
