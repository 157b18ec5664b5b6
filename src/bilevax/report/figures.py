"""The figures as pictures: the paper's arrangement, one column for each problem."""

import io
import math
from typing import Any

from bilevax.report.curves import Curve, ceiling, mean_curve, rate_curve
from bilevax.report.palette import Style
from bilevax.report.readable import amount
from bilevax.report.runs import MEASURES, RATES, Experiment, Problem

LINE, LETTER, SAMPLE = 0.2, 0.075, 0.6  # inches: a line of the legend, a letter, the piece of curve with its space
DASHES: dict[str, Any] = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
LOOK: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "bilevax",  # the same runs give the same bytes
}


def pictures(experiment: Experiment, looks: dict[str, Style]) -> dict[str, bytes]:
    """The figure of one experiment as PNG and SVG, by the ending of the file's name."""
    import matplotlib

    with matplotlib.rc_context(LOOK):
        figure = _rates(experiment, looks) if experiment.name == RATES else _objectives(experiment, looks)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # it is laid out now, and need not be again for each file
        return {
            "png": _saved(figure, format="png", dpi=150),
            "svg": _saved(figure, format="svg", metadata={"Date": None}),
        }


def _saved(figure: Any, **how: Any) -> bytes:
    held = io.BytesIO()
    figure.savefig(held, **how)
    return held.getvalue()


def _objectives(experiment: Experiment, looks: dict[str, Style]) -> Any:
    figure, axes = _panels(experiment, rows=len(MEASURES))
    for column, problem in enumerate(experiment.problems):
        for row, measure in enumerate(MEASURES):
            _objective(axes[row, column], problem, measure, looks)
        axes[0, column].set_title(_literal(problem.name))
    for row in range(len(MEASURES)):
        axes[row, 0].set_ylabel("F(x)")
    _legend(figure, experiment, looks)
    return figure


def _objective(axis: Any, problem: Problem, measure: str, looks: dict[str, Style]) -> None:
    from matplotlib.ticker import FuncFormatter

    curves = [mean_curve(method, measure) for method in problem.methods]
    top, bottom = ceiling(problem, curves), problem.best
    for method, curve in zip(problem.methods, curves, strict=True):
        _line(axis, curve, looks[method.label])
        if method.diverged:
            axis.plot(curve.x[-1], min(curve.mean[-1], top), "x", color=looks[method.label].color, clip_on=False)
    margin = 0.05 * (top - bottom)
    if margin > 0:
        axis.set_ylim(bottom - margin, top + margin)
    axis.set_xlabel(measure)
    axis.locator_params(axis="x", nbins=4)
    if measure == "samples":
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: amount(value)))


def _rates(experiment: Experiment, looks: dict[str, Style]) -> Any:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure, axes = _panels(experiment, rows=1)
    for axis, problem in zip(axes[0], experiment.problems, strict=True):
        axis.set(xscale="log", yscale="log", xlabel="1/ε", title=_literal(problem.name))
        axis.xaxis.set_major_locator(LogLocator(2))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        for method in problem.methods:
            _line(axis, rate_curve(method), looks[method.label], marker="o", markersize=3.5)
    axes[0, 0].set_ylabel("samples")
    _legend(figure, experiment, looks)
    return figure


def _line(axis: Any, curve: Curve, look: Style, **more: Any) -> None:
    axis.plot(curve.x, curve.mean, color=look.color, linestyle=DASHES[look.dash], linewidth=1.4, **more)
    if curve.seeds > 1:
        axis.fill_between(curve.x, curve.low, curve.high, color=look.color, alpha=0.18, linewidth=0)


def _panels(experiment: Experiment, rows: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    columns = len(experiment.problems)
    width, below = _width(experiment), LINE * math.ceil(len(experiment.labels) / _legend_columns(experiment))
    figure = Figure(figsize=(width, 2.35 * rows + 0.4 + below), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _width(experiment: Experiment) -> float:
    return max(2.9 * len(experiment.problems), 5.0)


def _legend_columns(experiment: Experiment) -> int:
    """As many entries side by side as the figure is wide enough for."""
    longest = max(map(len, experiment.labels))
    return max(1, min(len(experiment.labels), int(_width(experiment) / (SAMPLE + LETTER * longest))))


def _legend(figure: Any, experiment: Experiment, looks: dict[str, Style]) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=looks[n].color, linestyle=DASHES[looks[n].dash]) for n in experiment.labels]
    names = [_literal(name) for name in experiment.labels]
    figure.legend(lines, names, loc="outside lower center", ncols=_legend_columns(experiment))


def _literal(text: str) -> str:
    """A name as it stands: between dollar signs matplotlib would read mathematics."""
    return text.replace("$", r"\$")
