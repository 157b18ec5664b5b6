"""Per-task state: read a few tasks, write a few, at a cost that does not depend on their number."""

import os
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree


def read(memory: PyTree, tasks: Int[Array, " B"]) -> PyTree:
    """The rows of the given tasks."""
    return jax.tree.map(lambda leaf: leaf[tasks], memory)


def write(memory: PyTree, tasks: Int[Array, " B"], rows: PyTree, keep: Bool[Array, ""]) -> PyTree:
    """The memory with the rows of the given tasks replaced; where `keep`, it stays as it is.

    One `dynamic_update_slice` a row, in a loop: a scatter makes XLA copy whole arrays in every step of a
    compiled loop (see `benchmarks.flat`), this does not.
    """

    def write_row(k: Array, memory: PyTree) -> PyTree:
        def put(leaf: Array, new: Array) -> Array:
            old = jax.lax.dynamic_index_in_dim(leaf, tasks[k], 0, keepdims=False)
            row = jax.lax.select(jax.numpy.broadcast_to(keep, old.shape), old, new[k])
            return jax.lax.dynamic_update_index_in_dim(leaf, row, tasks[k], 0)

        return jax.tree.map(put, memory, rows)

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
            f"the largest parts are {listed}. Choose fewer variables in x or y (they multiply), fewer tasks, "
            "or float32 instead of float64 (half as much)."
        )
    return needed


def start(build: Any, num_tasks: int, chunk: int = 64) -> PyTree:
    """Rows build(i) of all tasks, computed `chunk` at a time; checked to fit before any of it exists."""
    require(jax.eval_shape(build, jax.ShapeDtypeStruct((), np.int32)), num_tasks)
    return jax.lax.map(build, jax.numpy.arange(num_tasks, dtype=np.int32), batch_size=min(chunk, num_tasks))
