"""Comma separated tables of numbers, with a header."""

import csv
import io
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from bilevax.datasets import quick
from bilevax.datasets.archive import read_unpacked, without_suffix
from bilevax.datasets.dataset import Dataset
from bilevax.datasets.numbers import Labels, finite
from bilevax.files import path_of

MOST_NAMES = 20  # columns in a message


def read_csv(path: str | os.PathLike, label: str | None = None, columns: Sequence[str] | None = None) -> Dataset:
    """Read a comma separated table in UTF-8, plain or packed with xz, bzip2 or gzip; its first line names the columns.

    - `label`: the column that holds the labels; by default the last one. They are of exactly two classes;
      the larger one becomes +1.0, the other -1.0.
    - All other columns are features. Every cell is a finite number; blank lines are passed over.
    - `columns`: the names of the features in the order in which they are wanted, such as `columns` of a data set that
      was read before; by default all, as they stand. A column that is missing or left over is refused.

    Whatever is wrong in the file raises ValueError with the line and the column.
    """
    path = path_of("path", path)
    if label is not None and not isinstance(label, str):
        raise TypeError(f"label must be the name of a column; got {label!r}.")
    text = io.StringIO(_text(path), newline="")
    lines = csv.reader(text, strict=True)
    try:
        header = _header(next(lines, []))
        place = _label_place(header, label)
        order = _order([*header[:place], *header[place + 1 :]], columns)
        labels, values = _numbers(text, lines, header, place)
    except (csv.Error, ValueError) as error:
        raise ValueError(f"{path}, line {max(lines.line_num, 1)}: {error}.") from None
    signs = labels.signs(path)
    features = values.reshape(len(signs), -1)[:, list(order.values())]
    name = without_suffix(path).removesuffix(".csv")
    return Dataset(name, sp.csr_array(features), signs, labels.both, tuple(order), header[place])


def _numbers(text: io.StringIO, lines: Iterator[list[str]], header: list[str], place: int) -> tuple[Labels, np.ndarray]:
    """Labels and features of all lines; cell by cell where these are not plain numbers, which tells what is wrong."""
    first = text.tell()
    table = quick.read_table(text.read().encode(), len(header))
    if table is not None and len(np.unique(table[:, place])) == 2:
        return Labels.of(table[:, place]), np.delete(table, place, axis=1)
    text.seek(first)
    labels, values = Labels(), array("d")
    for cells in filter(None, lines):
        _add_row(header, cells, place, labels, values)
    return labels, np.asarray(values)


def _text(path: Path) -> str:
    content = read_unpacked(path)
    try:
        return content.decode("utf-8-sig")  # spreadsheets write a byte order mark
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8 text.") from error


def _header(cells: list[str]) -> list[str]:
    """The names of the columns; refuse what cannot be a header."""
    names = [cell.strip() for cell in cells]
    if not names:
        raise ValueError("a header with the names of the columns is missing")
    if len(names) == 1:
        raise ValueError(f"the only column is {names[0]!r}, but a label and features are needed; are there commas?")
    if "" in names:
        raise ValueError(f"column {names.index('') + 1} has no name; if it numbers the rows, leave it out")
    if all(map(_is_number, names)):
        raise ValueError(f"the first line must name the columns; got the numbers {_join_names(names)}")
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise ValueError(f"more than one column is named {_join_names(twice)}")
    return names


def _label_place(header: list[str], label: str | None) -> int:
    if label is None:
        return len(header) - 1
    if label not in header:
        raise ValueError(f"label must be the name of a column; got {label!r}, the columns are {_join_names(header)}")
    return header.index(label)


def _order(features: list[str], columns: Sequence[str] | None) -> dict[str, int]:
    """The wanted columns, each with its place among the features."""
    if columns is None:
        return {name: k for k, name in enumerate(features)}
    missing = [name for name in columns if name not in features]
    extra = [name for name in features if name not in columns]
    if missing or extra:
        wrong = [f"{what} {_join_names(some)}" for what, some in (("missing:", missing), ("left over:", extra)) if some]
        raise ValueError(f"the columns must be {_join_names(columns)} and the label; {'; '.join(wrong)}")
    return {name: features.index(name) for name in columns}


def _add_row(header: list[str], cells: list[str], place: int, labels: Labels, values: array) -> None:
    if len(cells) != len(header):
        raise ValueError(f"{len(cells)} cells, but the header names {len(header)} columns")
    for k, (name, cell) in enumerate(zip(header, cells, strict=True)):
        try:
            labels.add(cell) if k == place else values.append(finite("value", cell))
        except ValueError as error:
            raise ValueError(f"column {name!r}: {error}") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _join_names(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(map(repr, names[:MOST_NAMES])) + (", ..." if len(names) > MOST_NAMES else "")
