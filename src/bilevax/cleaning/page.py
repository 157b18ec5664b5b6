"""What `bilevax clean` found, as one HTML page that needs nothing but itself."""

import base64
import io
from typing import Any

import numpy as np

from bilevax.cleaning.columns import Column
from bilevax.pages import Cell, Row, Table, make_table, render

MOST_ROWS, MOST_COLUMNS, MOST_TO_DOWNLOAD = 50, 8, 1000
GREY, BLUE = "#7d8590", "#0072b2"  # to be read on light and on dark paper


def make_page(table: Any, label: str, columns: list[Column], evidence: str, count: str, is_judged: bool) -> str:
    """The page: what was found and how sure it is, class by class, the rows to look at first, how columns were used.

    `count` says in words how many labels are wrong; `is_judged` that weights are probabilities that labels are right.
    """
    weights = table["weight"].to_numpy(float)
    likely = f"; {int((weights < 0.5).sum()):,} are more likely wrong than right" if is_judged else ""
    sentence = lambda text: f"{text[:1].upper()}{text[1:]}"
    summary = f"{len(weights):,} rows. {sentence(count)}{likely}. {sentence(evidence)}"
    return render(
        "cleaning/page.html.j2", "Suspicious labels", summary=summary, picture=_draw(weights, is_judged),
        classes=_classes(table, label, is_judged), suspects=_suspects(table, label), columns=_columns(columns),
        download=_download(table, label), most=min(MOST_TO_DOWNLOAD, len(weights)),
    )  # fmt: skip


def _classes(table: Any, label: str, is_judged: bool) -> Table:
    """For each class: how many labels are wrong, or improbable where they were not judged, and what they should be."""
    given, weights = table[label].astype(str).to_numpy(), table["weight"].to_numpy(float)
    suggested = table["suggested_label"].astype(str).to_numpy()
    rows: list[Row] = []
    for name in sorted(set(given)):
        here = given == name
        others = suggested[here & (suggested != name)]
        kinds, counts = np.unique(others, return_counts=True)
        usual = f"{kinds[counts.argmax()]} ({counts.max():,})" if len(kinds) else "–"
        wrong = np.sum(1 - weights[here]) if is_judged else len(others)
        rows.append([name, f"{here.sum():,}", f"{wrong:,.0f}", f"{wrong / here.sum():.1%}", usual])
    wrong = "wrong, about" if is_judged else "another class is more probable"
    return make_table([label, "rows", wrong, "share", "should most often be"], rows)


def _suspects(table: Any, label: str) -> Table:
    order = np.argsort(table["suspicion_rank"].to_numpy())[:MOST_ROWS]
    known = (label, "weight", "suspicion_rank", "suggested_label", "suggestion_probability")
    others = [name for name in table.columns if name not in known][:MOST_COLUMNS]
    head = ["rank", "row", f"{label}, as given", "rather", "how sure", *map(str, others)]
    rows: list[Row] = []
    for k in order:
        row = table.iloc[k]
        is_other = str(row["suggested_label"]) != str(row[label])
        rather = Cell(str(row["suggested_label"]), "best" if is_other else "")
        sure = f"{row['suggestion_probability']:.0%}"
        rows.append(
            [str(row["suspicion_rank"]), str(k + 1), str(row[label]), rather, sure, *(_text(row[n]) for n in others)]
        )
    return make_table(head, rows)


def _columns(columns: list[Column]) -> Table:
    return make_table(["column", "taken for", ""], [[str(each.name), each.kind, each.note] for each in columns])


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _download(table: Any, label: str) -> str:
    """The most suspicious rows as CSV in base64, rows counted from 1."""
    order = np.argsort(table["suspicion_rank"].to_numpy())[:MOST_TO_DOWNLOAD]
    some = table.iloc[order]
    some = some.assign(row=order + 1)[["row", *table.columns]] if "row" not in table.columns else some
    return base64.b64encode(some.to_csv(index=False).encode()).decode()


def _draw(weights: np.ndarray, is_judged: bool) -> str:
    """How the weights lie: an SVG in base64, on whatever paper."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.8), layout="constrained")
    figure.patch.set_alpha(0)
    axis = figure.subplots()
    axis.patch.set_alpha(0)
    axis.hist(weights, np.linspace(0, 1, 41).tolist(), color=BLUE)
    axis.set(ylabel="rows", yscale="log")
    axis.set_xlabel(
        "probability that the label is right" if is_judged else "probability of the given label, out of fold"
    )
    axis.tick_params(colors=GREY, which="both")
    for part in (axis.xaxis.label, axis.yaxis.label):
        part.set_color(GREY)
    for side in axis.spines.values():
        side.set_color(GREY)
    content = io.BytesIO()
    figure.savefig(content, format="svg")
    return base64.b64encode(content.getvalue()).decode()
