"""CSV and parquet files as tables, and what can be wrong with them."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bilevax.cleaning.columns import LEFT_OUT, Column, counts_as_number, is_number, recognise, texts_of
from bilevax.files import require_file

MOST_CLASSES = 100
HUGE = 1e100  # beyond, squares and sums overflow
NEW_COLUMNS = ("weight", "suspicion_rank", "suggested_label", "suggestion_probability")


class Tables(NamedTuple):
    """Features and labels of the table to be cleaned and of the trusted one (of no rows where there is none).

    `whole` is the former as it was read; `columns` says what each of its columns is; `checked` has for each of its rows
    the place among the trusted rows, −1 for the others.
    """

    whole: Any
    columns: list[Column]
    features: Any
    labels: np.ndarray
    trusted: Any
    trusted_labels: np.ndarray
    checked: np.ndarray


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
    checked = _find_again(dirty[names], sure[names])
    if len(set(labels[checked < 0])) < len(set(labels)):  # a class of checked rows alone
        checked[:] = -1
    return Tables(dirty, columns, dirty[used], labels, sure[used], trusted_labels, checked)


def _find_again(dirty: Any, sure: Any) -> np.ndarray:
    """For each row the place of the trusted row that has the same columns, if no other row has them; else −1.

    People check some rows of the table itself. Of these the right label is known, and a model must not learn the other.
    """
    import pandas as pd

    places = np.full(len(dirty), -1)
    if not len(sure):
        return places
    rows, known = (pd.Series(_keys(frame)) for frame in (dirty, sure))
    single, once = ~rows.duplicated(keep=False).to_numpy(), known.drop_duplicates()
    found = pd.Series(once.index, index=once.to_numpy()).reindex(rows[single]).to_numpy(float)
    places[single] = np.where(np.isnan(found), -1, found)
    return places


def _keys(frame: Any) -> list[str]:
    """A text for each row; equal where all columns are."""
    shown = [texts_of(frame[[name]])[name].to_numpy(str) if not is_number(frame[name]) else
             frame[name].to_numpy(float, na_value=np.nan).astype(str) for name in frame.columns]  # fmt: skip
    return ["\x1f".join(row) for row in zip(*shown, strict=True)]


def _check_column(column: Column, files: list[tuple[Any, Any]]) -> None:
    """Refuse numbers that are text in the other table, and numbers that have no mean."""
    are_numbers = [counts_as_number(frame[column.name]) for frame, _ in files]
    if {True, False} <= set(are_numbers) and column.kind != LEFT_OUT and not column.note:
        (_, path), (_, trusted) = files
        kinds = ["numbers" if number else "text" for number in are_numbers]
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
