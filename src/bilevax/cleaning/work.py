"""bilevax clean: from two tables to weights, ranks, a model and a page; all of it is written, or nothing."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bilevax.cleaning.page import page
from bilevax.cleaning.tables import ADDED, Tables, encoder, is_parquet, read_tables

TABLE, MODEL, PAGE = "cleaned", "model.joblib", "report.html"


def clean_table(
    table: Path, label: str, trusted: Path, out: Path, *, steps: int = 1500, seed: int = 0,
    told: Callable[[str], None] = lambda line: None,
) -> list[Path]:  # fmt: skip
    """Find the rows of a table whose labels are suspicious, given a table that is trusted.

    Writes into `out`: the table with the columns `weight` and `suspicion_rank` (1 is the row to look at first), in the
    format in which it came; the fitted model, a scikit-learn pipeline that takes rows of such tables; and a page with
    the curve of F, the weights and the most suspicious rows. Files are put in place when all of them are ready.
    """
    tables = read_tables(table, trusted, label)
    told(f"{len(tables.labels)} rows to clean, {len(tables.trusted_labels)} trusted, {len(set(tables.labels))} classes")
    model = _fit(tables, steps, seed)
    if model.named_steps["model"].n_iter_ < steps:
        told(f"stopped after {model.named_steps['model'].n_iter_} of {steps} steps; what was reached is written")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".part-") as folder:
        ready = _write(tables, model, label, Path(folder), is_parquet(table))
        return [Path(shutil.move(path, out / path.name)) for path in ready]


def _fit(tables: Tables, steps: int, seed: int) -> Any:
    """Encoder and classifier, as one pipeline."""
    from sklearn.pipeline import Pipeline

    from bilevax.models import TrustedReweighter

    encode = encoder(tables.features)
    model = TrustedReweighter(steps=steps, random_state=seed)
    model.fit(encode.transform(tables.features), tables.labels, encode.transform(tables.trusted), tables.trusted_labels)
    return Pipeline([("encode", encode), ("model", model)])


def _write(tables: Tables, pipeline: Any, label: str, folder: Path, parquet: bool) -> list[Path]:
    import joblib

    model = pipeline.named_steps["model"]
    cleaned = tables.whole.assign(**dict(zip(ADDED, (model.weights_, model.suspicion_rank_), strict=True)))
    paths = [folder / f"{TABLE}{'.parquet' if parquet else '.csv'}", folder / MODEL, folder / PAGE]
    if parquet:
        cleaned.to_parquet(paths[0], index=False)
    else:
        cleaned.to_csv(paths[0], index=False)
    joblib.dump(pipeline, paths[1])
    fitted = np.asarray(pipeline.predict(tables.features))
    paths[2].write_text(page(cleaned, label, fitted, model.trace_), encoding="utf-8")
    return paths
