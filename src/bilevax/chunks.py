"""All tasks, one chunk after the other: what a start and an exact evaluation do, checked to fit before it exists."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from bilevax.device import available_bytes, format_bytes

LONG = 4096  # chunks, from which on it is told how many are done
_listeners: list[Callable[[float], None]] = []


@contextlib.contextmanager
def heard(listener: Callable[[float], None]) -> Iterator[None]:
    """Within it the listener is told which share of very many tasks is done, by programs that are traced here."""
    _listeners.append(listener)
    try:
        yield
        jax.effects_barrier()
    finally:
        _listeners.remove(listener)


def _tell(done: Any, chunks: Any) -> None:
    for listener in _listeners:
        listener(float(done) / float(chunks))


def _tell_sometimes(done: Array, chunks: int) -> None:
    """After each hundredth of the chunks, where they are many and somebody listens."""
    if _listeners and chunks >= LONG:
        tell = lambda: jax.debug.callback(_tell, done, np.int32(chunks))
        jax.lax.cond(done % (chunks // 100) == 0, tell, lambda: None)


def require(row: PyTree, num_tasks: int) -> int:
    """The bytes that `num_tasks` rows take; an error before allocation where they do not fit.

    `row` holds the shapes of one task (`jax.eval_shape`).
    """
    sizes = {
        jax.tree_util.keystr(path, simple=True, separator="."): int(np.prod(leaf.shape)) * leaf.dtype.itemsize
        for path, leaf in jax.tree_util.tree_leaves_with_path(row)
    }
    needed, available = num_tasks * sum(sizes.values()), available_bytes()
    if available is not None and needed > available:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        listed = ", ".join(f"{name} {format_bytes(num_tasks * sizes[name])}" for name in largest)
        raise MemoryError(
            f"the state of {num_tasks} tasks needs {format_bytes(needed)} and {format_bytes(available)} are available; "
            f"the largest parts are {listed}. Choose what keeps vectors instead of matrices "
            "(bilevax.curvature.tracked, or linear_model where the lower problem is one; bilevax.bsvrb_v2), fewer "
            "variables, fewer tasks, or float32 instead of float64 (half as much)."
        )
    return needed


def start(build: Callable[[Any], PyTree], num_tasks: int, each: int = 1) -> PyTree:
    """Rows build(i) of all tasks; checked to fit before any of it exists."""
    require(jax.eval_shape(build, jax.ShapeDtypeStruct((), np.int32)), num_tasks)
    return for_all(build, num_tasks, each)


def _chunks(num_tasks: int, each: int) -> Int[Array, "chunks chunk"]:
    """All tasks in chunks of some 2**23 numbers if a task takes `each`; the last one is filled up with the last task.

    Larger chunks no longer fit in a processor's cache: the start of RE-RSVRB on w1a-200 took twice as long with 2**26.

    `lax.map(..., batch_size)` would compute what is left over side by side with the chunks (see `bilevax.lapack`).
    """
    chunk = int(np.clip(2**23 // each, 1, min(64, num_tasks)))
    chunks = -(-num_tasks // chunk)
    return jnp.minimum(jnp.arange(chunks * chunk, dtype=np.int32), num_tasks - 1).reshape(chunks, chunk)


def mean_and_all(build: Callable[[Any], tuple[PyTree, PyTree]], num_tasks: int, each: int = 1) -> tuple[PyTree, PyTree]:
    """build(i) = (a, b) for all tasks, one chunk after the other: the mean of a, and b with a leading axis m.

    No more than a chunk of the a_i exists at a time.
    """
    chunks = _chunks(num_tasks, each)
    repeated = jnp.arange(chunks.size).reshape(chunks.shape) >= num_tasks

    def add(total: PyTree, given: tuple[Array, Array, Array]) -> tuple[PyTree, PyTree]:
        done, tasks, repeated = given
        _tell_sometimes(done, len(chunks))
        terms, rows = jax.vmap(build)(tasks)
        plus = lambda a, b: a + jnp.tensordot((~repeated).astype(b.dtype), b, axes=1)
        return jax.tree.map(plus, total, terms), rows

    shapes, _ = jax.eval_shape(build, jax.ShapeDtypeStruct((), np.int32))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    numbers = jnp.arange(len(chunks), dtype=jnp.int32)
    total, rows = jax.lax.scan(add, zeros, (numbers, chunks, repeated))
    flat = lambda leaf: leaf.reshape(chunks.size, *leaf.shape[2:])[:num_tasks]
    return jax.tree.map(lambda leaf: leaf / num_tasks, total), jax.tree.map(flat, rows)


def chunk_of(num_tasks: int, each: int = 1) -> int:
    """How many tasks are looked at side by side, if each takes so many numbers."""
    return _chunks(num_tasks, each).shape[1]


def mean_of_first(
    build: Callable[[Any, PyTree], tuple[PyTree, PyTree]], rows: PyTree, count: Any, chunk: int
) -> tuple[PyTree, PyTree]:
    """build(k, row k) = (a, b) for the first rows, `count` chunks of them: the mean of a, and all rows with b in place.

    `count` may be traced. The last chunk is moved up to the end of the rows where they do not fill it, and counts only
    what is new in it.
    """
    num_rows = jax.tree.leaves(rows)[0].shape[0]

    def add(c: Array, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        total, rows = carry
        begin = jnp.minimum(c * chunk, num_rows - chunk)
        places = begin + jnp.arange(chunk, dtype=jnp.int32)
        own = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, begin, chunk), rows)
        terms, after = jax.vmap(build)(places, own)
        plus = lambda a, b: a + jnp.tensordot((places >= c * chunk).astype(b.dtype), b, axes=1)
        put = lambda leaf, new: jax.lax.dynamic_update_slice_in_dim(leaf, new, begin, 0)
        return jax.tree.map(plus, total, terms), jax.tree.map(put, rows, after)

    first = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows)
    shapes, _ = jax.eval_shape(build, jax.ShapeDtypeStruct((), np.int32), first)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    total, rows = jax.lax.fori_loop(0, count, add, (zeros, rows))
    looked_at = jnp.minimum(count * chunk, num_rows)
    return jax.tree.map(lambda leaf: leaf / looked_at.astype(leaf.dtype), total), rows


def for_all(build: Callable[[Any], PyTree], num_tasks: int, each: int = 1) -> PyTree:
    """build(i) of all tasks with a leading axis m, one chunk of tasks after the other."""
    return mean_and_all(lambda i: ((), build(i)), num_tasks, each)[1]


def mean_of_all(build: Callable[[Any], PyTree], num_tasks: int, each: int = 1) -> PyTree:
    """The mean of build(i) over all tasks; no more than a chunk of them exists at a time."""
    return mean_and_all(lambda i: (build(i), ()), num_tasks, each)[0]
