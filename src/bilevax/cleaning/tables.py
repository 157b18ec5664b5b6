"""CSV and parquet files as tables, and what can be wrong with them."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bilevax.cleaning.columns import LEFT_OUT, Column, is_number, recognise
from bilevax.files import require_file

MOST_CLASSES = 100
HUGE = 1e100  # beyond, squares and sums overflow
NEW_COLUMNS = ("weight", "suspicion_rank", "suggested_label", "suggestion_probability")


class Tables(NamedTuple):
    """Features and labels of the table to be cleaned and of the trusted one (of no rows where there is none).

    `whole` is the former as it was read; `columns` says what each of its columns is.
    """

    whole: Any
    columns: list[Column]
    features: Any
    labels: np.ndarray
    trusted: Any
    trusted_labels: np.ndarray


def read_table(path: Path) -> Any:
    """A data frame from a CSV file, or a parquet file by its name."""
    import pandas as pd

    require_file(path)
    try:
        frame = pd.read_parquet(path) if is_parquet(path) else pd.read_csv(path)
    except ImportError as error:
        raise ValueError(f"reading {path} needs pyarrow: pip install 'bilevax[tables]'.") from error
    except Exception as error:  # a damaged file can make the parsers raise anything
        raise ValueError(f"{path} cannot be read as {'parquet' if is_parquet(path) else 'CSV'}: {error}") from error
    if not len(frame) or not len(frame.columns):
        raise ValueError(f"{path} holds no rows.")
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise ValueError(f"{path}: more than one column is named {twice[0]!r}.")
    return frame


def is_parquet(path: Path) -> bool:
    """Whether the name says so."""
    return path.suffix.lower() in (".parquet", ".pq")


def read_tables(path: Path, trusted: Path | None, label: str) -> Tables:
    """Both tables, once they are known to fit together."""
    dirty = read_table(path)
    sure = read_table(trusted) if trusted is not None else dirty.iloc[:0]
    files = [(dirty, path)] + [(sure, trusted)] * (trusted is not None)
    for frame, where in files:
        if label not in frame.columns:
            raise ValueError(f"{where} has no column {label!r}; its columns are {_join_names(frame.columns)}.")
        missing = int(frame[label].isna().sum())
        if missing:
            raise ValueError(f"{where}: {missing} of {len(frame)} rows have no label in column {label!r}.")
    clashes = [name for name in NEW_COLUMNS if name in dirty.columns]
    if clashes:
        raise ValueError(f"{path} has a column {clashes[0]!r} already, and one of that name is to be added: rename it.")
    names = [name for name in dirty.columns if name != label]
    if not names:
        raise ValueError(f"{path} has no columns beside the label.")
    absent = [name for name in names if name not in sure.columns]
    if absent:
        raise ValueError(f"{trusted} lacks columns of {path}: {_join_names(absent)}.")
    columns = recognise(dirty[names])
    for column in columns:
        _check_column(column, files)
    used = [column.name for column in columns if column.kind != LEFT_OUT]
    if not used:
        told = ", ".join(f"{str(column.name)!r} ({column.note})" for column in columns[:8])
        raise ValueError(f"{path} has no column that tells anything of the label: {told}.")
    labels, trusted_labels = (frame[label].astype(str).to_numpy(dtype=object) for frame in (dirty, sure))
    _check_labels(labels, trusted_labels, label, path, trusted)
    return Tables(dirty, columns, dirty[used], labels, sure[used], trusted_labels)


def _check_column(column: Column, files: list[tuple[Any, Any]]) -> None:
    """Refuse numbers that are text in the other table, and numbers that have no mean."""
    kinds = ["numbers" if is_number(frame[column.name]) else "text" for frame, _ in files]
    if len(set(kinds)) > 1 and column.kind != LEFT_OUT and not column.note:
        (_, path), (_, trusted) = files
        raise ValueError(f"column {column.name!r} holds {kinds[0]} in {path}, but {kinds[1]} in {trusted}.")
    for frame, where in files:
        _refuse_huge(frame[column.name], column.name, where)


def _refuse_huge(column: Any, name: str, path: Path) -> None:
    """Refuse numbers that have no mean or variance."""
    if is_number(column):
        huge = np.flatnonzero(np.abs(column.to_numpy(float, na_value=np.nan)) > HUGE)
        if len(huge):
            raise ValueError(
                f"{path}: column {name!r} must hold numbers of at most {HUGE:g}; row {huge[0] + 1} has "
                f"{column.iloc[huge[0]]:g}."
            )


def _check_labels(labels: np.ndarray, trusted: np.ndarray, label: str, path: Path, trusted_path: Path | None) -> None:
    classes, sure = set(labels), set(trusted)
    if not 2 <= len(classes) <= MOST_CLASSES:
        raise ValueError(
            f"{path}: column {label!r} must hold between 2 and {MOST_CLASSES} classes; it holds {len(classes)}."
        )
    if sure - classes:
        raise ValueError(f"{trusted_path} holds labels that {path} does not: {_join_names(sorted(sure - classes))}.")


def _join_names(names: Any) -> str:
    names = list(names)
    return ", ".join(repr(str(name)) for name in names[:8]) + (", ..." if len(names) > 8 else "")
