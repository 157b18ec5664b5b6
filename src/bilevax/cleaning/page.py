"""What `bilevax clean` found, as one HTML page that needs nothing but itself."""

import base64
import io
from typing import Any

import numpy as np

from bilevax.pages import Table, make_table, render
from bilevax.run.trace import Trace

MOST_ROWS, MOST_COLUMNS = 50, 8
LOW = 0.1  # a weight below which a row hardly counts


def make_page(table: Any, label: str, predictions: np.ndarray, trace: Trace) -> str:
    """The page: figures in words, curve and weights, the most suspicious rows."""
    weights = table["weight"].to_numpy()
    low, other = int((weights < LOW).sum()), int((table[label].astype(str).to_numpy() != predictions).sum())
    first, last = trace["objective"][0], trace["objective"][-1]
    summary = (
        f"{len(weights):,} rows. {low:,} have a weight below {LOW:g}; the model, trained with the weights, gives "
        f"{other:,} rows another label than they have. F, the loss on trusted rows, went from {first:.4g} to "
        f"{last:.4g}."
    )
    return render(
        "cleaning/page.html.j2", "Suspicious labels", summary=summary, picture=_draw(trace, weights),
        suspects=_suspects(table, label, predictions),
    )  # fmt: skip


def _suspects(table: Any, label: str, predictions: np.ndarray) -> Table:
    order = np.argsort(table["suspicion_rank"].to_numpy())[:MOST_ROWS]
    others = [name for name in table.columns if name not in (label, "weight", "suspicion_rank")][:MOST_COLUMNS]
    head = ["rank", "row", "weight", f"{label}, as given", f"{label}, by the model", *map(str, others)]
    rows = [
        [
            str(table["suspicion_rank"].iloc[k]), str(k + 1), f"{table['weight'].iloc[k]:.3f}",
            str(table[label].iloc[k]), str(predictions[k]), *(_text(table[name].iloc[k]) for name in others),
        ]
        for k in order
    ]  # fmt: skip
    return make_table(head, rows)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _draw(trace: Trace, weights: np.ndarray) -> str:
    """F against samples, and how the weights lie: an SVG in base64."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    curve, histogram = figure.subplots(1, 2)
    curve.plot(trace["samples"], trace["objective"], marker="o", markersize=3)
    curve.set(xlabel="samples drawn", ylabel="F, loss on trusted rows")
    histogram.hist(weights, np.linspace(0, 1, 41))
    histogram.set(xlabel="weight", ylabel="rows", yscale="log")
    content = io.BytesIO()
    figure.savefig(content, format="svg")
    return base64.b64encode(content.getvalue()).decode()
