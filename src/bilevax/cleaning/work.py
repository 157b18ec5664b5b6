"""bilevax clean: from tables to labels that were judged, a model and a page; all of it is written, or nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bilevax.cleaning.columns import CATEGORY, LEFT_OUT, make_encoder
from bilevax.cleaning.page import make_page
from bilevax.cleaning.tables import NEW_COLUMNS, Tables, is_parquet, read_tables
from bilevax.files import path_of, work_and_write

CSV, PARQUET, MODEL, PAGE = NAMES = "cleaned.csv", "cleaned.parquet", "model.joblib", "report.html"


def clean_table(
    table: Path, label: str, trusted: Path | None, out: Path, *, seed: int = 0,
    tell: Callable[[str], None] = lambda line: None,
) -> list[Path]:  # fmt: skip
    """Find the rows of a table whose labels are suspicious, and say which labels would be right.

    A table that is trusted makes it far better; without one (`None`) rows are ranked by how improbable their label is
    to a model that has not seen them. Columns that tell nothing of new rows (identifiers, free text, constants) are
    left out, and `tell` is told; dates become days, text that is mostly numbers becomes numbers.

    Writes into `out`: the table with the columns `weight` (the probability that the label is right), `suspicion_rank`
    (1 is the row to look at first), `suggested_label` and `suggestion_probability`, in the format in which it came; the
    fitted model, a scikit-learn pipeline that takes rows of such tables; and a page with what was found. All files are
    replaced together, also when the process is killed or the disk is full: `bilevax.files.together` says how. That
    `out` can be written to is seen first; where it no longer can when the model is fitted, the files lie in a temporary
    folder, and the error says where.
    """
    table, out = path_of("table", table), path_of("out", out)
    tables = read_tables(table, None if trusted is None else path_of("trusted", trusted), label)
    parquet = is_parquet(table)

    def fit() -> Any:
        for line in _describe(tables):
            tell(line)
        return _fit(tables, seed, tell)

    def write(model: Any, folder: Path) -> None:
        _write(tables, model, label, folder, parquet)

    model = work_and_write(out, NAMES, fit, write).named_steps["model"]
    tell(model.evidence_)
    tell(count_wrong(model))
    return [out / name for name in (PARQUET if parquet else CSV, MODEL, PAGE)]


def count_wrong(model: Any) -> str:
    """How many labels are wrong, in words; without trusted rows nobody can tell."""
    rows = len(model.weights_)
    if np.isnan(model.wrong_labels_):
        other = int(np.sum(model.suggestion_probabilities_ > model.weights_))
        return f"another class is more probable than the given one in {other:,} of {rows:,} rows; how many of these " \
               "labels are wrong only trusted rows could tell"  # fmt: skip
    return f"about {model.wrong_labels_:,.0f} of {rows:,} labels are wrong, as far as can be told"


def _describe(tables: Tables) -> list[str]:
    """What is about to be cleaned, and what is left out."""
    classes, checked = set(tables.labels), int(np.sum(tables.checked >= 0))
    lines = [f"{len(tables.labels)} rows to clean, {len(tables.trusted_labels)} trusted, {len(classes)} classes"]
    if checked:
        lines.append(f"{checked} of the trusted rows stand in the table too: their labels are known, and not judged")
    for column in tables.columns:
        if column.note:
            how = "left out" if column.kind == LEFT_OUT else f"taken as a {column.kind}"
            lines.append(f"column {str(column.name)!r} is {how}: {column.note}")
    absent = sorted(classes - set(tables.trusted_labels))
    if absent and len(tables.trusted_labels):
        lines.append(f"no trusted rows of {', '.join(map(repr, absent[:8]))}: such labels are judged less surely")
    return lines


def _fit(tables: Tables, seed: int, tell: Callable[[str], None]) -> Any:
    """Encoder and classifier, as one pipeline."""
    from sklearn.pipeline import Pipeline

    from bilevax.models import TrustedReweighter

    encode = make_encoder(tables.columns, tables.features)
    rows, open_rows = encode.transform(tables.features), tables.checked < 0
    codes = sum(column.kind == CATEGORY for column in tables.columns)  # they come last
    places = list(range(rows.shape[1] - codes, rows.shape[1]))
    model = TrustedReweighter(categorical_features=places, random_state=seed, verbose=tell)
    trusted = [encode.transform(tables.trusted), tables.trusted_labels] if len(tables.trusted_labels) else []
    model.fit(rows[open_rows], tables.labels[open_rows], *trusted)
    model.set_params(verbose=False)  # what is written need not know whom to tell
    return Pipeline([("encode", encode), ("model", model)])


def _write(tables: Tables, pipeline: Any, label: str, folder: Path, parquet: bool) -> None:
    import joblib

    model = pipeline.named_steps["model"]
    output = tables.whole.assign(**dict(zip(NEW_COLUMNS, _say_of_all(tables, model), strict=True)))
    if parquet:
        output.to_parquet(folder / PARQUET, index=False)
    else:
        output.to_csv(folder / CSV, index=False)
    joblib.dump(pipeline, folder / MODEL)
    page = make_page(
        output, label, tables.columns, model.evidence_, count_wrong(model), not np.isnan(model.wrong_labels_)
    )
    (folder / PAGE).write_text(page, encoding="utf-8")


def _say_of_all(tables: Tables, model: Any) -> tuple[np.ndarray, ...]:
    """The new columns: what the model found, and what is known of rows that were checked."""
    is_open = tables.checked < 0
    suggested, sure = np.array(tables.labels, dtype=object), np.ones(len(is_open))
    suggested[~is_open] = tables.trusted_labels[tables.checked[~is_open]]
    weights = (suggested == tables.labels).astype(float)
    weights[is_open], sure[is_open] = model.weights_, model.suggestion_probabilities_
    suggested[is_open] = model.suggested_labels_
    rank = 1 + np.argsort(np.argsort(weights, kind="stable"), kind="stable")
    return weights, rank, suggested, sure
