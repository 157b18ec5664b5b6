"""Data for sampling, from what a user gives: shared by all tasks, one block per task, ragged per task, or made."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, Integer, PyTree

from bilevax import arguments, device, identity
from bilevax.draw import MadeBy, PerTask, Ragged, Sampler, Shared

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
