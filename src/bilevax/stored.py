"""Samples that stay where they are, on a disk or behind an object: the host reads the rows that a step has drawn."""

import hashlib
import mmap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

ROWS_OF_DIGEST = 256
READERS, FEW = 32, 16  # threads that read from a mapped file at once, and rows for which one more does not pay
SHORT = 2**15  # bytes of a row, up to which the system reads far more around it than the row itself
LIBRARIES = ("h5py", "pyarrow", "zarr")  # whose arrays are not in memory, or need not be


def is_stored(leaf: Any) -> bool:
    """Whether an array is not in memory: a memory-mapped file, or an object with rows that is no array itself."""
    if isinstance(leaf, np.memmap) or type(leaf).__module__.partition(".")[0] in LIBRARIES:
        return True
    has_rows = hasattr(leaf, "__getitem__") and hasattr(leaf, "__len__")
    return has_rows and not hasattr(leaf, "__array__") and not isinstance(leaf, (list, tuple, dict, str, bytes))


@cache
def _readers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(READERS, "bilevax-rows")


def expect_single_rows(source: Any) -> None:
    """Tell the system that rows of a mapped file are read at random: else it reads 128 kB around each of them."""
    mapped = getattr(source, "_mmap", None)
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_RANDOM") and source[:1].nbytes <= SHORT:
        mapped.madvise(mmap.MADV_RANDOM)


def _read_mapped(source: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows of a mapped file, by several threads: a disk takes as long for many requests at once as for one."""
    parts = np.array_split(rows, min(READERS, max(1, len(rows) // FEW)))
    return np.concatenate(list(_readers().map(source.__getitem__, parts))) if len(parts) > 1 else source[rows]


def read_rows(source: Any, rows: np.ndarray) -> np.ndarray:
    """Rows of a source, by their numbers, which rise."""
    if isinstance(source, np.memmap):
        return np.asarray(_read_mapped(source, rows))
    if hasattr(source, "oindex"):  # Zarr
        return np.asarray(source.oindex[rows])
    if hasattr(source, "to_numpy") and hasattr(source, "take"):  # a column of Arrow
        return np.asarray(source.take(rows).to_numpy(zero_copy_only=False))
    try:
        return np.asarray(source[rows])
    except (TypeError, IndexError, KeyError):  # knows single rows only
        return np.stack([np.asarray(source[int(row)]) for row in rows])


class Reader:
    """Reads batches from sources (total, ...), each a leaf of a pytree; task i owns rows from `first[i]` on.

    Compiled programs know it by itself, and other processes by its digest, of some of its rows.
    """

    def __init__(self, sources: PyTree, first: np.ndarray | None = None):
        self.sources, self.structure = jax.tree.flatten(sources, is_leaf=is_stored)
        self.first = first
        self.total = len(self.sources[0])
        for source in self.sources:
            expect_single_rows(source)
        some = np.unique(np.linspace(0, self.total - 1, ROWS_OF_DIGEST).astype(np.int64))
        samples = [read_rows(source, some) for source in self.sources]
        self.kinds = [
            jax.ShapeDtypeStruct(sample.shape[1:], jax.dtypes.canonicalize_dtype(sample.dtype)) for sample in samples
        ]
        digest = hashlib.blake2b(str((self.structure, self.total, None if first is None else first.tobytes())).encode())
        for sample in samples:
            digest.update(f"{sample.dtype}{sample.shape}".encode() + np.ascontiguousarray(sample).tobytes())
        self.digest = digest.hexdigest()[:24]

    def __repr__(self) -> str:
        return f"Reader({self.digest})"

    def read(self, task: Any, indices: Any) -> list[np.ndarray]:
        """The samples of tasks (...,) at indices (..., batch), counted from the first of each; every row read once."""
        rows = np.asarray(indices, np.int64)
        if self.first is not None:
            rows = rows + self.first[np.asarray(task)][..., None]
        needed, where = np.unique(rows, return_inverse=True)
        take = lambda source, kind: read_rows(source, needed).astype(kind.dtype, copy=False)[where.reshape(rows.shape)]
        return [take(source, kind) for source, kind in zip(self.sources, self.kinds, strict=True)]

    def take(self, task: Any, indices: Any) -> PyTree:
        """The same inside a compiled program, which waits for the host."""
        shapes = [jax.ShapeDtypeStruct((*indices.shape, *kind.shape), kind.dtype) for kind in self.kinds]
        found = jax.pure_callback(self.read, shapes, task, indices, vmap_method="broadcast_all")
        return jax.tree.unflatten(self.structure, found)


def check_sources(name: str, leaves: Sequence[tuple[Any, Any]]) -> int:
    """The number of rows that all sources have; refused where they differ or hold no numbers."""
    lengths = {name + jax.tree_util.keystr(path): len(leaf) for path, leaf in leaves}
    if len(set(lengths.values())) != 1:
        listed = ", ".join(f"{where} has {length}" for where, length in lengths.items())
        raise ValueError(f"{name} must have arrays of one length; {listed}.")
    if not next(iter(lengths.values())):
        raise ValueError(f"{name} must hold at least one sample; its arrays have length 0.")
    for path, leaf in leaves:
        kind = read_rows(leaf, np.zeros(1, np.int64)).dtype
        if not (jnp.issubdtype(kind, jnp.number) or jnp.issubdtype(kind, jnp.bool_)):
            raise TypeError(f"{name}{jax.tree_util.keystr(path)} must hold numbers; its rows are of {kind}.")
    return next(iter(lengths.values()))
