"""What the columns of a table are, as a person would see it, and how each becomes numbers."""

import re
import warnings
from typing import Any, NamedTuple

import numpy as np

MOST_LEVELS = 100  # of a category that are told apart; the rest count as one
LOOKED_AT = 2000  # values by which a column of text is judged
MOSTLY = 0.9  # of the values that have to be numbers, or dates, for a column to be of that kind
MANY_VALUES, SHARE_OF_VALUES = 50, 0.5  # different texts, beyond which they are no categories
NAMED_IDENTIFIER = re.compile(r"(^|[_\W])(id|uuid|guid|key|index)$|[a-z]I[dD]$", re.IGNORECASE)
LIKE_A_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}")

NUMBER, DATE, CATEGORY, LEFT_OUT = "number", "date", "category", "left out"


class Column(NamedTuple):
    """A column, what it is taken for, and a word about it where that is not plain."""

    name: Any
    kind: str
    note: str = ""


def is_number(column: Any) -> bool:
    """Whether a column holds numbers as it was read; truth values are categories."""
    import pandas as pd

    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def recognise(frame: Any) -> list[Column]:
    """What each column of a table is."""
    return [_recognise(frame[name], name) for name in frame.columns]


def _recognise(column: Any, name: Any) -> Column:
    import pandas as pd

    values = column.dropna()
    different = values.nunique()
    if different < 2:
        missing = 0 < len(values) < len(column)
        return Column(name, CATEGORY, "one value, or none") if missing else Column(name, LEFT_OUT, "always the same")
    if pd.api.types.is_datetime64_any_dtype(column):
        return Column(name, DATE)
    if is_number(column):
        return _number(values, name, different)
    return _text(values.astype(str), name, different)


def _number(values: Any, name: Any, different: int) -> Column:
    numbers = values.to_numpy(float)
    rows = len(numbers)
    is_whole = rows >= MANY_VALUES and different == rows and bool((numbers == np.round(numbers)).all())
    if is_whole:
        expected = rows**2 / (2 * (np.ptp(numbers) + 1))  # pairs of equal values, were they drawn at random
        if expected > 10 or NAMED_IDENTIFIER.search(str(name)):
            return Column(name, LEFT_OUT, "an identifier: every row has a number of its own")
    return Column(name, NUMBER)


def _text(values: Any, name: Any, different: int) -> Column:
    some = values.iloc[np.linspace(0, len(values) - 1, min(len(values), LOOKED_AT)).astype(int)]
    numbers = np.isfinite(as_number(some)).mean()
    if numbers >= MOSTLY and different > 2:
        return Column(name, NUMBER, "text that is mostly numbers: the rest counts as missing")
    if some.str.contains(LIKE_A_DATE).mean() >= MOSTLY and np.isfinite(as_days(some)).mean() >= MOSTLY:
        return Column(name, DATE)
    if different > MANY_VALUES and different > SHARE_OF_VALUES * len(values):
        own = different > 0.99 * len(values)
        return Column(name, LEFT_OUT, "an identifier: every row has a text of its own" if own else "free text")
    return Column(name, CATEGORY)


def counts_as_number(column: Any) -> bool | None:
    """Whether a column holds numbers, as text too; None where it holds nothing."""
    values = column.dropna()
    if not len(values):
        return None
    return is_number(column) or _text(values.astype(str), "", values.nunique()).kind == NUMBER


def as_number(column: Any) -> np.ndarray:
    """Numbers, and gaps where there is none."""
    import pandas as pd

    return pd.to_numeric(column, errors="coerce").to_numpy(float, na_value=np.nan)


def as_days(column: Any) -> np.ndarray:
    """Days since 1970, and gaps where there is no date."""
    import pandas as pd

    if not pd.api.types.is_datetime64_any_dtype(column):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = pd.to_datetime(column, errors="coerce", format="ISO8601", utc=True)
            if found.isna().mean() > 1 - MOSTLY:
                found = pd.to_datetime(column, errors="coerce", format="mixed", utc=True)
    else:
        found = pd.to_datetime(column, utc=True)
    return (found - pd.Timestamp(0, tz="UTC")).dt.total_seconds().to_numpy(float, na_value=np.nan) / 86_400


def numbers_of(frame: Any) -> np.ndarray:
    """All columns as numbers."""
    return np.column_stack([as_number(frame[name]) for name in frame.columns])


def days_of(frame: Any) -> np.ndarray:
    """All columns as days since 1970."""
    return np.column_stack([as_days(frame[name]) for name in frame.columns])


def texts_of(frame: Any) -> Any:
    """Every value as text, a missing one as an empty one."""
    return frame.astype(object).where(frame.notna(), "").astype(str)


def make_encoder(columns: list[Column], features: Any) -> Any:
    """A transformer of tables with these columns, fitted: gaps filled by the median and marked, categories as codes.

    Codes come last, one column for each category. Rare levels share one, and levels that are new have one, too.
    """
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, OrdinalEncoder

    fill = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
    levels = OrdinalEncoder(
        max_categories=MOST_LEVELS, handle_unknown="use_encoded_value", unknown_value=MOST_LEVELS + 1
    )
    steps = {
        NUMBER: make_pipeline(FunctionTransformer(numbers_of), fill),
        DATE: make_pipeline(FunctionTransformer(days_of), fill),
        CATEGORY: make_pipeline(FunctionTransformer(texts_of), levels),
    }
    names = {kind: [column.name for column in columns if column.kind == kind] for kind in steps}
    return ColumnTransformer([(kind, steps[kind], names[kind]) for kind in steps if names[kind]]).fit(features)
