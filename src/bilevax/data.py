"""Data for sampling, from what a user gives: shared by all tasks, one block per task, ragged per task, or made."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, Integer, PyTree

from bilevax import arguments, device, identity
from bilevax.samples import DRAWS, MadeBy, PerTask, Ragged, Sampler, Shared, Stored
from bilevax.stored import Reader, check_sources, is_stored

LARGEST_INDEX = 2**31 - 1  # samples are found by whole numbers of 32 bits
MANY = 4096  # samples of a task that are looked at where all are asked for and they are not in memory
ADVICE = "Hold fewer samples or numbers of fewer bits, or leave them on disk: numpy.load(path, mmap_mode='r')."


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


def _stored(name: str, arrays: PyTree) -> list[Any] | None:
    """The leaves, with their places, of data that are not in memory; None where they are. Some of each are refused."""
    leaves = jax.tree_util.tree_leaves_with_path(arrays, is_leaf=is_stored)
    kinds = {is_stored(leaf) for _, leaf in leaves}
    if kinds == {True, False}:
        listed = ", ".join(f"{jax.tree_util.keystr(path)} {'on disk' if is_stored(leaf) else 'in memory'}"
                           for path, leaf in leaves)  # fmt: skip
        raise ValueError(f"{name} must be in memory as a whole, or not at all; got {listed}.")
    return leaves if kinds == {True} else None


def _shuffle(arrays: PyTree, offsets: np.ndarray) -> PyTree:
    """Rows in a random order within each stretch; copies, made on the host."""
    rng = np.random.default_rng(0)
    if len(offsets) == 2:
        order = rng.permutation(int(offsets[-1]))
    else:
        order = np.lexsort([rng.random(offsets[-1]), np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))])
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[order]), arrays)


def shared(arrays: PyTree, *, draw: str = "independent", many: int = MANY) -> Shared | Stored:
    """Samples that all tasks draw from: a pytree of arrays (N, ...).

    Arrays may be in memory, or stay where they are: memory-mapped files (`numpy.load(path, mmap_mode="r")`), arrays of
    Zarr or h5py, columns of Arrow, or any object with a length and rows by number. Then the host reads what steps draw,
    and whoever asks for all samples (recorded values of F, starts, `batch_size=None`) gets `many` of them at equal
    distances, all where there are no more. They are not looked at beforehand: numbers that are not finite end a run.

    `draw`: "independent", as the methods are analysed: each sample of a batch is drawn for itself. Or "blocks": a batch
    is a block of rows that follow one another, from a random one on, and after the last row comes the first. Every row
    is drawn as often as before, and small steps take a third less time or so. The rows are shuffled once, so that
    neighbours are strangers; those on a disk stay as they are, and must be in random order there.

    >>> bx.shared({"features": A, "label": b})
    >>> bx.shared({"features": np.load("features.npy", mmap_mode="r"), "label": np.load("label.npy", mmap_mode="r")})
    """
    _check_options(many, draw)
    leaves = _stored("shared(arrays)", arrays)
    if leaves is not None:
        total = _total("shared(arrays)", leaves)
        return Stored(None, Reader(arrays), None, total, int(many), draw)
    length = _length("shared(arrays)", arrays, "one sample")
    held = _arrays("shared(arrays)", arrays)
    return Shared(_shuffle(held, np.array([0, length])) if draw == "blocks" else held, length, draw=draw)


def _check_options(many: Any, draw: Any) -> None:
    arguments.count("many", many, most=LARGEST_INDEX)
    arguments.one_of("draw", draw, DRAWS)


def _total(name: str, leaves: list[Any]) -> int:
    """The number of rows of data that are not in memory, once it is known to be small enough to be drawn from."""
    total = check_sources(name, leaves)
    if total > LARGEST_INDEX:
        raise ValueError(f"{name} must have at most {LARGEST_INDEX} samples to draw from; got {total}.")
    return total


def per_task(arrays: PyTree, *, draw: str = "independent", many: int = MANY) -> PerTask | Stored:
    """The same number of samples for each task: a pytree of arrays (m, N, ...).

    Memory-mapped files may be larger than memory, and `draw` says how batches are drawn, as in `bilevax.shared`.
    """
    _check_options(many, draw)
    leaves = _stored("per_task(arrays)", arrays)
    if leaves is not None:
        return _stored_per_task(arrays, leaves, int(many), draw)
    tasks = _length("per_task(arrays)", arrays, "one task")
    length = _length("per_task(arrays)", arrays, "one sample for each task", axis=1)
    held = _arrays("per_task(arrays)", arrays)
    if draw == "blocks":
        flat = jax.tree.map(lambda leaf: leaf.reshape(tasks * length, *leaf.shape[2:]), held)
        mixed = _shuffle(flat, np.arange(tasks + 1) * length)
        held = jax.tree.map(lambda leaf, like: leaf.reshape(like.shape), mixed, held)
    return PerTask(held, tasks, length, draw)


def _stored_per_task(arrays: PyTree, leaves: list[Any], many: int, draw: str) -> Stored:
    for path, leaf in leaves:
        if not isinstance(leaf, np.memmap) or leaf.ndim < 2 or not leaf.flags.c_contiguous:
            where = "per_task(arrays)" + jax.tree_util.keystr(path)
            raise TypeError(f"{where} must be a memory-mapped array (m, N, ...); bilevax.ragged takes other objects.")
    m, n = {leaf.shape[:2] for _, leaf in leaves}.pop()
    if {leaf.shape[:2] for _, leaf in leaves} != {(m, n)} or not m * n:
        shapes = ", ".join(str(leaf.shape) for _, leaf in leaves)
        raise ValueError(
            f"per_task(arrays) must have arrays (m, N, ...) with the same m and N, none zero; got {shapes}."
        )
    flat = jax.tree.map(lambda leaf: leaf.reshape(m * n, *leaf.shape[2:]), arrays)
    return Stored(None, Reader(flat, n * np.arange(m, dtype=np.int64)), m, n, many, draw)


def ragged(
    arrays: PyTree, offsets: Int[Any, " m+1"], *, draw: str = "independent", many: int = MANY
) -> Ragged | Stored:
    """Samples of all tasks one behind the other, (total, ...); `offsets` (m + 1) says where each starts.

    Task i owns rows `offsets[i]` to `offsets[i + 1] - 1`. Arrays may stay on disk, and `draw` says how batches are
    drawn, as in `bilevax.shared`.
    """
    _check_options(many, draw)
    leaves = _stored("ragged(arrays)", arrays)
    stored = leaves is not None
    total = check_sources("ragged(arrays)", leaves) if leaves else _length("ragged(arrays)", arrays, "one sample")
    bounds = _whole("ragged(offsets)", offsets)
    if bounds[0] != 0 or bounds[-1] != total:
        raise ValueError(
            f"ragged(offsets) must run from 0 to the number of rows, {total}; got {bounds[0]} to {bounds[-1]}."
        )
    lengths = np.diff(bounds.astype(np.int64))
    if lengths.min() < 1:
        empty = int(np.argmin(lengths))
        raise ValueError(f"every task needs at least one sample; ragged(offsets) gives task {empty} {lengths[empty]}.")
    if stored:
        own = jnp.asarray(lengths, jnp.int32)
        first = bounds[:-1].astype(np.int64)
        return Stored(own, Reader(arrays, first), len(lengths), int(lengths.max()), int(many), draw)
    held = _arrays("ragged(arrays)", arrays)
    held = _shuffle(held, bounds) if draw == "blocks" else held
    return Ragged(held, jnp.asarray(bounds, jnp.int32), len(lengths), int(lengths.max()), draw)


def sampler(function: Callable[..., PyTree], tasks: PyTree = None, *, many: int = 1024, seed: int = 0) -> Sampler:
    """Samples that are not stored, for expectations, simulators, endless streams: a function makes each that is drawn.

        f_i(x, y) = E over keys of the loss on function(key, task_i)

    - `function`: a JAX function of a key that returns one sample, a pytree of arrays; with `tasks` of (key, task).
    - `tasks`: a pytree with leading axis m, whose i-th slice is `task` for task i; or the number m, then it is the
      number i. Without it all tasks draw from the same samples.
    - `many`: who asks for all samples gets so many, always the same: exact values of F, starts, `batch_size=None`.
      So recorded values of F are those of this excerpt, and get closer to F with more of them.
    - `seed`: of the samples; another one for the upper than for the lower data.

    Sample number k follows from k and the seed, so a run has the same bits each time, and after an interruption.

    >>> noise = bx.sampler(lambda key: {"push": jax.random.normal(key, (3,))})
    >>> rounds = bx.sampler(lambda key, skill: jax.random.bernoulli(key, skill), tasks=skills, seed=1)
    """
    if not callable(function):
        raise TypeError(f"sampler(function) must be a JAX function of a key; got {function!r}.")
    arguments.count("many", many, most=LARGEST_INDEX)
    arguments.count("seed", seed, least=0, most=LARGEST_INDEX)
    count = held = None
    if isinstance(tasks, (int, np.integer)) and not isinstance(tasks, bool):
        arguments.count("tasks", tasks, most=LARGEST_INDEX)
        count = int(tasks)
    elif tasks is not None:
        count = _length("sampler(tasks)", tasks, "one task")
        held = _arrays("sampler(tasks)", tasks)
    numbers = None if count is None else jnp.arange(count, dtype=jnp.int32)
    first = () if numbers is None else (numbers[0] if held is None else jax.tree.map(lambda leaf: leaf[0], held),)
    made_by = MadeBy(function, _program_of(function, *first))
    return Sampler(numbers, held, made_by, int(seed), int(many), count)


def _program_of(function: Callable[..., PyTree], *task: PyTree) -> str:
    """The digest of what makes a sample, once it is known to make arrays."""
    given = jax.random.key(0), *task
    try:
        sample = jax.eval_shape(function, *given)
        program = identity.digest_of_program(function, *given)
    except Exception as error:
        told = "a key" if len(given) == 1 else "a key and a task"
        error.add_note(f"raised by the function of bilevax.sampler, called with {told}")
        raise
    if not jax.tree.leaves(sample):
        raise TypeError(f"sampler(function) must return a sample, a pytree of arrays; it returned {sample!r}.")
    return program


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
