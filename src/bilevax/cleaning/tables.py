"""CSV and parquet files as tables, their columns as features, and what can be wrong with them."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bilevax.files import require_file

MOST_CLASSES = 100
MOST_LEVELS = 100  # of a category that get a feature of their own; the rest share one
HUGE = 1e100  # beyond, squares and sums overflow
NEW_COLUMNS = ("weight", "suspicion_rank")


class Tables(NamedTuple):
    """Features and labels of the table to be cleaned and of the trusted one; `whole` is the former as it was read."""

    whole: Any
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


def read_tables(path: Path, trusted: Path, label: str) -> Tables:
    """Both tables, once they are known to fit together."""
    dirty, sure = read_table(path), read_table(trusted)
    for frame, where in [(dirty, path), (sure, trusted)]:
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
    for name in names:
        if _is_number(dirty[name]) != _is_number(sure[name]):
            kinds = ["numbers" if _is_number(frame[name]) else "text" for frame in (dirty, sure)]
            raise ValueError(f"column {name!r} holds {kinds[0]} in {path}, but {kinds[1]} in {trusted}.")
        _refuse_huge(dirty[name], name, path)
        _refuse_huge(sure[name], name, trusted)
    labels, trusted_labels = (frame[label].astype(str).to_numpy(dtype=object) for frame in (dirty, sure))
    _check_labels(labels, trusted_labels, label, path, trusted)
    return Tables(dirty, dirty[names], labels, sure[names], trusted_labels)


def _refuse_huge(column: Any, name: str, path: Path) -> None:
    """Refuse numbers that have no mean or variance."""
    if _is_number(column):
        huge = np.flatnonzero(np.abs(column.to_numpy(float, na_value=np.nan)) > HUGE)
        if len(huge):
            raise ValueError(
                f"{path}: column {name!r} must hold numbers of at most {HUGE:g}; row {huge[0] + 1} has "
                f"{column.iloc[huge[0]]:g}."
            )


def _check_labels(labels: np.ndarray, trusted: np.ndarray, label: str, path: Path, trusted_path: Path) -> None:
    classes, sure = set(labels), set(trusted)
    if not 2 <= len(classes) <= MOST_CLASSES:
        raise ValueError(
            f"{path}: column {label!r} must hold between 2 and {MOST_CLASSES} classes; it holds {len(classes)}."
        )
    if sure - classes:
        raise ValueError(f"{trusted_path} holds labels that {path} does not: {_join_names(sorted(sure - classes))}.")
    if classes - sure:
        raise ValueError(
            f"{trusted_path} has no rows of {_join_names(sorted(classes - sure))}: every class needs trusted rows."
        )


def _is_number(column: Any) -> bool:
    import pandas as pd

    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _join_names(names: Any) -> str:
    names = list(names)
    return ", ".join(repr(str(name)) for name in names[:8]) + (", ..." if len(names) > 8 else "")


def encoder(features: Any) -> Any:
    """Numbers with their gaps filled by the median, categories as one feature for each level; fitted."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

    numbers = [name for name in features.columns if _is_number(features[name])]
    others = [name for name in features.columns if name not in numbers]
    levels = OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=MOST_LEVELS)
    imputer = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
    parts = [("numbers", imputer, numbers)] if numbers else []
    parts += [("categories", make_pipeline(FunctionTransformer(as_text), levels), others)] if others else []
    return ColumnTransformer(parts).fit(features)


def as_text(frame: Any) -> Any:
    """Every value as text, a missing one as an empty one."""
    return frame.astype(object).where(frame.notna(), "").astype(str)
