"""What `bilevax clean` found, as one HTML page that needs nothing but itself."""

import base64
import io
from typing import Any

import numpy as np

from bilevax.report.document import document
from bilevax.report.markup import Html, element, joined, table
from bilevax.trace import Trace

SHOWN_ROWS, SHOWN_COLUMNS = 50, 8
LOW = 0.1  # a weight below which a row hardly counts


def page(cleaned: Any, label: str, fitted: np.ndarray, trace: Trace) -> str:
    """The page: figures in words, curve and weights, the most suspicious rows."""
    weights = cleaned["weight"].to_numpy()
    title = "Suspicious labels"
    low, other = int((weights < LOW).sum()), int((cleaned[label].astype(str).to_numpy() != fitted).sum())
    first, last = trace["objective"][0], trace["objective"][-1]
    summary = (
        f"{len(weights):,} rows. {low:,} have a weight below {LOW:g}; the model, trained with the weights, gives "
        f"{other:,} rows another label than they have. F, the loss on trusted rows, went from {first:.4g} to "
        f"{last:.4g}."
    )
    body = joined([
        element("header", element("h1", title), element("p", summary)),
        element(
            "main",
            element("h2", "Loss and weights"), _picture(trace, weights),
            element("h2", f"The {min(SHOWN_ROWS, len(weights))} most suspicious rows"),
            element("p", "Row numbers count from 1, without the header.", class_="note"),
            _suspects(cleaned, label, fitted),
        ),
    ])  # fmt: skip
    return document(title, body)


def _suspects(cleaned: Any, label: str, fitted: np.ndarray) -> Html:
    order = np.argsort(cleaned["suspicion_rank"].to_numpy())[:SHOWN_ROWS]
    others = [name for name in cleaned.columns if name not in (label, "weight", "suspicion_rank")][:SHOWN_COLUMNS]
    head = ["rank", "row", "weight", f"{label}, as given", f"{label}, by the model", *map(str, others)]
    rows = (
        [
            str(cleaned["suspicion_rank"].iloc[k]), str(k + 1), f"{cleaned['weight'].iloc[k]:.3f}",
            str(cleaned[label].iloc[k]), str(fitted[k]), *(_shown(cleaned[name].iloc[k]) for name in others),
        ]
        for k in order
    )  # fmt: skip
    return table(head, rows)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _picture(trace: Trace, weights: np.ndarray) -> Html:
    """F against samples, and how the weights lie."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    curve, histogram = figure.subplots(1, 2)
    curve.plot(trace["samples"], trace["objective"], marker="o", markersize=3)
    curve.set(xlabel="samples drawn", ylabel="F, loss on trusted rows")
    histogram.hist(weights, np.linspace(0, 1, 41))
    histogram.set(xlabel="weight", ylabel="rows", yscale="log")
    held = io.BytesIO()
    figure.savefig(held, format="svg")
    source = base64.b64encode(held.getvalue()).decode()
    text = "Left: the loss on trusted rows against samples drawn. Right: a histogram of the weights of the rows."
    return Html(f'<img alt="{text}" src="data:image/svg+xml;base64,{source}">')
