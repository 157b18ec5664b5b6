"""The LIBSVM text format: one sample for each line, `label index:value index:value ...`, indices from 1 upwards."""

import os
import reprlib
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from bilevax import arguments
from bilevax.datasets import quick
from bilevax.datasets.archive import read_unpacked, without_suffix
from bilevax.datasets.dataset import Dataset
from bilevax.datasets.numbers import Labels, finite
from bilevax.files import path_of

LARGEST_INDEX = 2**31 - 1  # LIBSVM's own tools hold an index in 32 bits


def read_libsvm(path: str | os.PathLike, n_features: int | None = None) -> Dataset:
    """Read a LIBSVM file, plain or packed with xz, bzip2 or gzip.

    - `n_features`: how many columns there are; by default the largest index in the file.
    - Labels are of exactly two classes; the larger one becomes +1.0, the other -1.0.
    - A line with a label alone is a row without features. Blank lines are none, and `#` begins a comment
      that ends with its line. A `qid:` is refused: that is ranking data.
    - Zeros that are written out are not stored.

    Whatever else is wrong in the file raises ValueError with the number of the first bad line and what is wrong there.
    """
    if n_features is not None:
        arguments.count("n_features", n_features)
    path = path_of("path", path)
    content = read_unpacked(path)
    rows = quick.read_rows(content, min(n_features or LARGEST_INDEX, LARGEST_INDEX))
    if rows is not None and len(np.unique(rows.labels)) == 2:
        return _data_set(path, Labels.of(rows.labels), rows.columns, rows.values, rows.ends, n_features)
    return _read_slowly(path, content, n_features)


def _read_slowly(path: Path, content: bytes, n_features: int | None) -> Dataset:
    """Token by token; what is wrong is named with its line."""
    labels, columns, values, ends = Labels(), array("i"), array("d"), array("q", [0])
    for number, line in enumerate(content.splitlines(), 1):
        try:
            fields = _fields(line)
            if not fields:
                continue
            labels.add(fields[0])
            for index, value in _pairs(fields[1:], n_features):
                columns.append(index - 1)
                values.append(value)
            ends.append(len(values))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}.") from None
    return _data_set(path, labels, np.asarray(columns), np.asarray(values), np.asarray(ends), n_features)


def _data_set(
    path: Path, labels: Labels, columns: np.ndarray, values: np.ndarray, ends: np.ndarray, n_features: int | None
) -> Dataset:
    """Sparse rows, without zeros that are written out, and their labels."""
    signs = labels.signs(path)
    shape = (len(signs), n_features or int(columns.max(initial=-1)) + 1)
    short = np.int32 if len(values) <= LARGEST_INDEX else np.int64  # scikit-learn's solvers refuse 64 bits
    features = sp.csr_array((values, columns, ends.astype(short)), shape)
    features.eliminate_zeros()
    return Dataset(without_suffix(path), features, signs, labels.both)


def _fields(line: bytes) -> list[str]:
    """What stands before a comment, cut at its blanks."""
    text = line.partition(b"#")[0]
    if not text.isascii():
        raise ValueError(f"{reprlib.repr(text)} holds bytes that are not ASCII")
    return text.decode("ascii").split()


def _pairs(fields: list[str], n_features: int | None) -> Iterator[tuple[int, float]]:
    """Index and value of every pair of one line."""
    last, largest = 0, min(n_features or LARGEST_INDEX, LARGEST_INDEX)
    for field in fields:
        index, colon, value = field.partition(":")
        if not (colon and index.isdigit() and last < int(index) <= largest):
            raise ValueError(_wrong_index(field, last, n_features))
        last = int(index)
        yield last, finite("value", value)


def _wrong_index(field: str, last: int, n_features: int | None) -> str:
    """Why the field cannot follow the index `last`."""
    index, colon, _ = field.partition(":")
    words = reprlib.repr(field)
    if not colon:
        return f"{words} is not a pair index:value"
    if index == "qid":
        return f"{words} marks ranking data, which has no two classes"
    if not index.removeprefix("-").isdigit():
        return f"the index of {words} is not a whole number"
    if int(index) < 1:
        return f"the index of {words} is below 1: indices are counted from 1 here; is the file 0-based?"
    if int(index) <= last:
        return f"the index of {words} comes after index {last}: indices must increase"
    if n_features is not None and int(index) > n_features:
        return f"the index of {words} is beyond n_features = {n_features}"
    return f"the index of {words} is above {LARGEST_INDEX}, the largest of the format"
