"""bilevax clean: from two tables to weights, ranks, a model and a page; all of it is written, or nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bilevax.cleaning.page import make_page
from bilevax.cleaning.tables import NEW_COLUMNS, Tables, encoder, is_parquet, read_tables
from bilevax.files import path_of, work_and_write

CSV, PARQUET, MODEL, PAGE = NAMES = "cleaned.csv", "cleaned.parquet", "model.joblib", "report.html"


def clean_table(
    table: Path, label: str, trusted: Path, out: Path, *, steps: int = 1500, seed: int = 0,
    tell: Callable[[str], None] = lambda line: None,
) -> list[Path]:  # fmt: skip
    """Find the rows of a table whose labels are suspicious, given a table that is trusted.

    Writes into `out`: the table with the columns `weight` and `suspicion_rank` (1 is the row to look at first), in the
    format in which it came; the fitted model, a scikit-learn pipeline that takes rows of such tables; and a page with
    the curve of F, the weights and the most suspicious rows. All files are replaced together, also when the process is
    killed or the disk is full: `bilevax.files.together` says how. That `out` can be written to is seen first; where it
    no longer can when the model is fitted, the files lie in a temporary folder, and the error says where.
    """
    table, trusted, out = path_of("table", table), path_of("trusted", trusted), path_of("out", out)
    tables = read_tables(table, trusted, label)
    parquet = is_parquet(table)

    def fit() -> Any:
        tell(
            f"{len(tables.labels)} rows to clean, {len(tables.trusted_labels)} trusted, "
            f"{len(set(tables.labels))} classes"
        )
        return _fit(tables, steps, seed)

    def write(model: Any, folder: Path) -> None:
        _write(tables, model, label, folder, parquet)

    model = work_and_write(out, NAMES, fit, write)
    if model.named_steps["model"].n_iter_ < steps:
        tell(f"stopped after {model.named_steps['model'].n_iter_} of {steps} steps; what was reached is written")
    return [out / name for name in (PARQUET if parquet else CSV, MODEL, PAGE)]


def _fit(tables: Tables, steps: int, seed: int) -> Any:
    """Encoder and classifier, as one pipeline."""
    from sklearn.pipeline import Pipeline

    from bilevax.models import TrustedReweighter

    encode = encoder(tables.features)
    model = TrustedReweighter(steps=steps, random_state=seed)
    model.fit(encode.transform(tables.features), tables.labels, encode.transform(tables.trusted), tables.trusted_labels)
    return Pipeline([("encode", encode), ("model", model)])


def _write(tables: Tables, pipeline: Any, label: str, folder: Path, parquet: bool) -> None:
    import joblib

    model = pipeline.named_steps["model"]
    output = tables.whole.assign(**dict(zip(NEW_COLUMNS, (model.weights_, model.suspicion_rank_), strict=True)))
    if parquet:
        output.to_parquet(folder / PARQUET, index=False)
    else:
        output.to_csv(folder / CSV, index=False)
    joblib.dump(pipeline, folder / MODEL)
    predictions = np.asarray(pipeline.predict(tables.features))
    (folder / PAGE).write_text(make_page(output, label, predictions, model.trace_), encoding="utf-8")
