"""Parquet files whose rows can be asked for by number: their columns, unpacked once into files of plain numbers."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bilevax import arguments
from bilevax.files import path_of, require_file, together

BATCH = 65_536  # rows that are in memory at a time
PAGE = "columns.json"
BEGINNING = 2**20  # bytes at both ends of a file, by which it is known again


def open_parquet(
    path: str | os.PathLike, columns: Sequence[str] | None = None, *, folder: str | os.PathLike | None = None
) -> dict[str, np.ndarray]:
    """Columns of a Parquet file, by name, as arrays that stay on disk: for `bx.shared` and `bx.ragged`.

    Parquet packs rows in groups, so a single row cannot be read from it. The columns are unpacked once, some rows at a
    time, into one file of plain numbers each; the next call finds them there. Extra `bilevax[tables]`.

    - `columns`: the names of those that are wanted; by default all. They must hold numbers, truth values, or lists of
      one length of them, which become rows of a matrix. A missing value becomes NaN in a column of real numbers, and
      is refused in others.
    - `folder`: where the unpacked columns lie; by default `path` with the ending `.columns`.

    >>> table = bx.datasets.open_parquet("events.parquet", ["age", "income", "target"])
    >>> data = bx.shared({"A": table["age"], "b": table["target"]})
    """
    source = require_file(path_of("path", path))
    if columns is not None and (isinstance(columns, str) or not all(isinstance(name, str) for name in columns)):
        raise TypeError(f"columns must be names of columns, or left out; got {columns!r}.")
    home = source.with_name(source.name + ".columns") if folder is None else path_of("folder", folder)
    table = _open(source)
    held = table.schema_arrow.names
    names = list(dict.fromkeys(held if columns is None else columns))
    for name in names:
        arguments.one_of("columns", name, tuple(held))
    if not names or not table.metadata.num_rows:
        raise ValueError(f"{source} must hold rows and columns; it has {table.metadata.num_rows} and {len(names)}.")
    page = {"file": _digest(source), "columns": names}
    if _read_page(home) != page:
        files = {name: f"{k:04d}.npy" for k, name in enumerate(names)}
        with together(home, [PAGE, *files.values()]) as new:
            _unpack(source, table, {name: new / file for name, file in files.items()})
            (new / PAGE).write_text(json.dumps(page))
    return {name: np.load(home / f"{k:04d}.npy", mmap_mode="r") for k, name in enumerate(names)}


def _open(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ImportError("Parquet files need an extra that is not installed: pip install 'bilevax[tables]'") from None
    try:
        return pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} is not a Parquet file: {error}") from None


def _digest(path: Path) -> str:
    """Of the size and of both ends of a file; the end of a Parquet file says where everything lies."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        first = stream.read(BEGINNING)
        stream.seek(max(0, size - BEGINNING))
        return hashlib.sha256(str((size, path.stat().st_mtime_ns)).encode() + first + stream.read()).hexdigest()


def _read_page(home: Path) -> Any:
    try:
        return json.loads((home / PAGE).read_text())
    except (OSError, ValueError):
        return None


def _unpack(source: Path, table: Any, paths: dict[str, Path]) -> None:
    """Write the columns, some rows at a time."""
    made: dict[str, np.ndarray] = {}
    begin = 0
    for batch in table.iter_batches(BATCH, columns=list(paths)):
        for name, path in paths.items():
            values = _numbers(source, name, batch.column(name))
            if name not in made:
                shape = (table.metadata.num_rows, *values.shape[1:])
                made[name] = np.lib.format.open_memmap(path, "w+", values.dtype, shape)
            if values.shape[1:] != made[name].shape[1:]:
                raise ValueError(
                    f"{source}: the column {name!r} must hold lists of one length; they have {made[name].shape[1]}, "
                    f"and {values.shape[1]} from row {begin} on."
                )
            made[name][begin : begin + len(values)] = values
        begin += len(batch)
    for array in made.values():
        array.flush()  # type: ignore[attr-defined]


def _numbers(source: Path, name: str, column: Any) -> np.ndarray:
    """The values of a column, of its lists as rows."""
    import pyarrow

    kind, where = column.type, f"{source}: the column {name!r}"
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind):
        lengths = set(column.value_lengths().to_pylist()) if column.null_count == 0 else {None}
        if len(lengths) != 1 or None in lengths:
            raise ValueError(f"{where} must hold lists of one length; their lengths are {sorted(map(str, lengths))}.")
        return _numbers(source, name, column.flatten()).reshape(len(column), -1)
    if not (pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind) or pyarrow.types.is_boolean(kind)):
        raise TypeError(f"{where} must hold numbers, or columns= must leave it out; it holds {kind}.")
    if column.null_count and not pyarrow.types.is_floating(kind):
        raise ValueError(f"{where} must not have missing values, for NaN is no {kind}; it has {column.null_count}.")
    return column.to_numpy(zero_copy_only=False)
