"""Per-task state: read a few tasks, write a few, at a cost that does not depend on their number."""

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from bilevax.rows import ScaledRow

RESCALE_BELOW = 1e-9  # the scale of a long row below which it is multiplied in


def _is_long(leaf: PyTree) -> bool:
    return isinstance(leaf, ScaledRow)


def in_part(rows: PyTree) -> bool:
    """Whether rows that were read hold only some entries of long rows."""
    return any(map(_is_long, jax.tree.leaves(rows, is_leaf=_is_long)))


def read(memory: PyTree, tasks: Int[Array, " B"], entries: Int[Array, "B e"] | None = None) -> PyTree:
    """The rows of the given tasks; of a `ScaledRow` only the given entries, where any are given."""

    def rows(leaf: PyTree) -> PyTree:
        if not _is_long(leaf):
            return leaf[tasks]
        scale = leaf.scale[tasks]
        values = leaf.values[tasks] if entries is None else leaf.values[tasks[:, None], entries]
        return ScaledRow(scale[:, None] * values, scale)

    return jax.tree.map(rows, memory, is_leaf=_is_long)


def write(
    memory: PyTree,
    tasks: Int[Array, " B"],
    rows: PyTree,
    keep: Bool[Array, ""],
    entries: Int[Array, "B e"] | None = None,
) -> PyTree:
    """The memory with the rows of the given tasks replaced; where `keep`, it stays as it is.

    One `dynamic_update_slice` a row, in a loop: a scatter makes XLA copy whole arrays in every step of a
    compiled loop (see `benchmarks.flat`), this does not. Of a `ScaledRow` the given entries are replaced
    (twice the same entry must come with the same value) and the rest gets the new scale.
    """

    def write_row(k: Array, memory: PyTree) -> PyTree:
        def put(leaf: Array, row: Array, keep: Array) -> Array:
            old = jax.lax.dynamic_index_in_dim(leaf, tasks[k], 0, keepdims=False)
            row = jax.lax.select(jnp.broadcast_to(keep, old.shape), old, row)
            return jax.lax.dynamic_update_index_in_dim(leaf, row, tasks[k], 0)

        def put_long(leaf: ScaledRow, new: ScaledRow) -> ScaledRow:
            i = tasks[k]
            written = jnp.any((tasks == i) & (jnp.arange(len(tasks)) < k))  # drawn twice in this step
            stays = keep | written
            fades = new.scale[k] < RESCALE_BELOW
            scale = jnp.where(fades, 1, new.scale[k])
            rescale = lambda _, table: jax.lax.dynamic_update_index_in_dim(table, new.scale[k] * table[i], i, 0)
            values = jax.lax.fori_loop(0, (fades & ~stays).astype(jnp.int32), rescale, leaf.values)
            where = slice(None) if entries is None else entries[k]
            fresh = jnp.where(stays, values[i, where], new.values[k] / scale)
            return ScaledRow(values.at[i, where].set(fresh), put(leaf.scale, scale, stays))

        put_any = lambda leaf, new: put_long(leaf, new) if _is_long(leaf) else put(leaf, new[k], keep)
        return jax.tree.map(put_any, memory, rows, is_leaf=_is_long)

    return jax.lax.fori_loop(0, tasks.shape[0], write_row, memory)


def available_bytes() -> int | None:
    """Memory that the default device still has; `None` where it does not tell."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        limit = stats.get("bytes_limit")
        return None if limit is None else limit - stats.get("bytes_in_use", 0)
    try:
        with open("/proc/meminfo") as lines:
            fields = dict(line.split(":", 1) for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _shown(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


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
        listed = ", ".join(f"{name} {_shown(num_tasks * sizes[name])}" for name in largest)
        raise MemoryError(
            f"the state of {num_tasks} tasks needs {_shown(needed)} and {_shown(available)} are available; "
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

    def add(total: PyTree, given: tuple[Array, Array]) -> tuple[PyTree, PyTree]:
        tasks, repeated = given
        terms, rows = jax.vmap(build)(tasks)
        plus = lambda a, b: a + jnp.tensordot((~repeated).astype(b.dtype), b, axes=1)
        return jax.tree.map(plus, total, terms), rows

    shapes, _ = jax.eval_shape(build, jax.ShapeDtypeStruct((), np.int32))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    total, rows = jax.lax.scan(add, zeros, (chunks, repeated))
    flat = lambda leaf: leaf.reshape(chunks.size, *leaf.shape[2:])[:num_tasks]
    return jax.tree.map(lambda leaf: leaf / num_tasks, total), jax.tree.map(flat, rows)


def for_all(build: Callable[[Any], PyTree], num_tasks: int, each: int = 1) -> PyTree:
    """build(i) of all tasks with a leading axis m, one chunk of tasks after the other."""
    return mean_and_all(lambda i: ((), build(i)), num_tasks, each)[1]


def mean_of_all(build: Callable[[Any], PyTree], num_tasks: int, each: int = 1) -> PyTree:
    """The mean of build(i) over all tasks; no more than a chunk of them exists at a time."""
    return mean_and_all(lambda i: (build(i), ()), num_tasks, each)[0]
