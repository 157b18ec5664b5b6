"""A problem whose tasks are split over the devices of a mesh."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from jaxtyping import PyTree

from bilevax import arguments, identity
from bilevax.problem import Problem
from bilevax.samples import NoData, PerTask, Ragged, Sampler, Shared, Stored
from bilevax.shards import AXIS, Alone, Shards

SPLIT_FIELDS = ("y0", "tasks", "upper_data", "lower_data", "bounds")


def shard(problem: Problem, mesh: Mesh | None = None, *, sync_every: int = 1) -> Problem:
    """The problem with its tasks, their data and their state in equal parts, one on each device of a mesh.

        x ← x − η · mean over the shards of their directions

    - `mesh`: a `jax.sharding.Mesh`; by default all devices. m must be a multiple of its size.
    - With several processes (after `jax.distributed.initialize()`) `problem` holds the tasks of this process alone, as
      many as those of each other; x0, y0 and shared data are the same everywhere. No process ever holds the others'.

    - `sync_every`: shards move x by the mean of their directions in every step; or, with k, each its own x by its own
      directions, and x becomes the mean of theirs in every k-th step. Between hosts a word takes milliseconds, so this
      can be a hundred times faster. But it is another method: a shard whose tasks are unlike the others' drifts towards
      their own solution in between, and where steps are long x ends beside the solution of all. Costs are counted in
      those k-th steps.

    x and shared data are copied to every device. A step draws `tasks_per_step` tasks, as many of each shard, so
    each task is drawn as often as before, and all shards add up one direction. The result depends on the number of
    shards, not on that of processes: 1, 2 and 4 processes with four devices in all give the same bits.

    >>> jax.config.update("jax_num_cpu_devices", 4)  # before anything runs; a GPU machine has devices of its own
    >>> result = bx.solve(bx.shard(problem), bx.rsvrb(), steps=10_000)

    Where tasks are few or steps are small one device is quicker: the devices wait for one another twice in every step.
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a bilevax.Problem; got {type(problem).__name__}.")
    if not isinstance(problem.shards, Alone):
        raise ValueError(f"problem must not be split yet; its tasks are on {problem.shards.count} shards.")
    arguments.count("sync_every", sync_every)
    for name in ("upper_data", "lower_data"):
        if isinstance(getattr(problem, name), Stored):
            raise TypeError(f"{name} must be in memory where tasks are on several shards; it is on disk.")
    if mesh is not None and not isinstance(mesh, Mesh):
        raise TypeError(f"mesh must be a jax.sharding.Mesh, or left out for all devices; got {type(mesh).__name__}.")
    devices = np.array(jax.devices()) if mesh is None else mesh.devices.reshape(-1)
    if len(devices) == 1:
        return problem
    shards = Shards(Mesh(devices, (AXIS,)), int(sync_every))
    own = [device for device in devices if device.process_index == jax.process_index()]
    if not own:
        raise ValueError("mesh must have a device of every process; it has none of this one.")
    if problem.num_tasks % len(own):
        raise ValueError(
            f"the number of tasks must be a multiple of the {len(own)} devices of this process, each has as many; got "
            f"{problem.num_tasks}. Leave {problem.num_tasks % len(own)} of them out, or give a smaller mesh."
        )
    return _place(problem, shards, own)


def _place(problem: Problem, shards: Shards, own: Sequence[Any]) -> Problem:
    """The problem on all devices, of which this process has some."""
    each = problem.num_tasks // len(own)
    problem = _number_tasks(problem, shards)
    longest = max(problem.upper_data.max_length, problem.lower_data.max_length)
    rows = [_most_rows(data, each) for data in (problem.upper_data, problem.lower_data)]
    facts = _everyone(shards, each, longest, *rows)
    if len(set(facts[:, 0])) > 1:
        raise ValueError(f"every shard must have as many tasks; the processes have {sorted(set(facts[:, 0]))} on each.")
    pieces = [_piece(problem, k * each, each, *facts[:, 2:].max(axis=0)) for k in range(len(own))]
    described = _describe(problem, pieces, shards)
    split = problem.parts(False, True)
    leaves = [jax.tree.leaves(piece) for piece in pieces]
    placed = []
    for k, has_rows in enumerate(jax.tree.leaves(split)):
        parts = [jax.device_put(leaf[k], device) for leaf, device in zip(leaves, own, strict=True)]
        shape = (shards.count * parts[0].shape[0], *parts[0].shape[1:]) if has_rows else parts[0].shape
        sharding = shards.split if has_rows else shards.whole
        placed.append(jax.make_array_from_single_device_arrays(shape, sharding, parts))
    whole = jax.tree.unflatten(jax.tree.structure(pieces[0]), placed)
    count = each * shards.count
    data = {name: _longest(getattr(whole, name), count, facts[:, 1].max()) for name in ("upper_data", "lower_data")}
    whole = whole.replace(num_tasks=count, shards=shards, **data)
    whole._identity = described
    return whole


def _number_tasks(problem: Problem, shards: Shards) -> Problem:
    """The problem with the numbers of its tasks among all: a loss is told its own, and samples are made by it."""
    before = int(_everyone(shards, problem.num_tasks)[: jax.process_index()].sum()) if shards.is_spread else 0
    numbers = jnp.arange(before, before + problem.num_tasks, dtype=jnp.int32)
    fields: dict[str, Any] = {"tasks": numbers} if problem.tasks is None else {}
    for name in ("upper_data", "lower_data"):
        data = getattr(problem, name)
        if isinstance(data, Sampler) and data.numbers is not None:
            fields[name] = replace(data, numbers=numbers)
    return problem.replace(**fields)


def _everyone(shards: Shards, *numbers: Any) -> np.ndarray:
    """What each process says, a row each."""
    own = np.asarray(numbers, np.int64)
    return np.asarray(multihost_utils.process_allgather(own)) if shards.is_spread else own[None]


def _most_rows(data: Any, each: int) -> int:
    """The most rows that a shard of ragged data has; others have as many as tasks."""
    if not isinstance(data, Ragged):
        return 0
    offsets = np.asarray(data.offsets)
    return int(np.diff(offsets[::each]).max())


def _piece(problem: Problem, first: int, each: int, *rows: int) -> Problem:
    """The problem of some tasks, ragged data filled up to so many rows."""
    cut = lambda leaf: leaf[first : first + each]
    part = problem.parts(False, True)
    choose = lambda leaf, has_rows: cut(leaf) if has_rows else leaf
    fields = {name: jax.tree.map(choose, getattr(problem, name), getattr(part, name)) for name in SPLIT_FIELDS[:2]}
    fields["bounds"] = jax.tree.map(choose, problem.bounds, part.bounds)
    data = zip(("upper_data", "lower_data"), rows, strict=True)
    fields |= {name: _cut_data(getattr(problem, name), first, each, most) for name, most in data}
    return problem.replace(num_tasks=each, **fields)


def _cut_data(data: Any, first: int, each: int, rows: int) -> Any:
    if isinstance(data, (NoData, Shared)):
        return data
    cut = lambda tree: jax.tree.map(lambda leaf: leaf[first : first + each], tree)
    if isinstance(data, Sampler):
        count = None if data.num_tasks is None else each
        return replace(data, numbers=cut(data.numbers), tasks=cut(data.tasks), num_tasks=count)
    if isinstance(data, PerTask):
        return replace(data, arrays=cut(data.arrays), num_tasks=each)
    offsets = np.asarray(data.offsets)[first : first + each + 1]

    def fill(leaf: Any) -> Any:
        own = leaf[offsets[0] : offsets[-1]]
        return jnp.concatenate([own, jnp.broadcast_to(own[:1], (rows - len(own), *own.shape[1:]))])

    own = jnp.asarray(offsets - offsets[0], jnp.int32)
    return replace(data, arrays=jax.tree.map(fill, data.arrays), offsets=own, num_tasks=each)


def _longest(data: Any, count: int, longest: int) -> Any:
    """Data of all tasks, of which the longest may be another process's."""
    if isinstance(data, (NoData, Shared)):
        return data
    if isinstance(data, Sampler):
        return replace(data, num_tasks=None if data.num_tasks is None else count)
    if isinstance(data, PerTask):
        return replace(data, num_tasks=count)
    return replace(data, num_tasks=count, max_length=int(longest))


def _describe(problem: Problem, pieces: Sequence[Problem], shards: Shards) -> dict[str, str]:
    """What makes this problem the one it is: the same for any number of processes."""
    own = problem.identify()
    common = {name: text for name, text in own.items() if name not in (*SPLIT_FIELDS, "number of tasks")}
    short: Callable[[PyTree], list[int]] = lambda tree: list(hashlib.sha256(str(tree).encode()).digest())
    if len({tuple(row) for row in _everyone(shards, *short(sorted(common.items())))}) > 1:
        raise ValueError("losses, x0 and shared settings must be the same in all processes; they are not.")
    digests = [short([identity.digest_of(getattr(piece, name)) for name in SPLIT_FIELDS]) for piece in pieces]
    everyone = _everyone(shards, *digests).reshape(shards.count, -1)
    count = shards.count * pieces[0].num_tasks
    rows = hashlib.sha256(everyone.tobytes()).hexdigest()[:24]
    layout = {"shards": str(shards.count), "sync_every": str(shards.sync_every)}
    return {**common, "rows of the tasks": rows, "number of tasks": str(count), **layout}
