"""The figures as pictures: the paper's arrangement, one column for each problem."""

import io
import math
import warnings
from typing import Any

from bilevax.lab.report.curves import Curve, Style, Styles, ceiling, mean_curve, rate_curve
from bilevax.lab.report.readable import amount
from bilevax.lab.results import MEASURES, RATES, ExperimentRuns, ProblemRuns

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


def draw_pictures(experiment: ExperimentRuns, looks: Styles) -> dict[str, bytes]:
    """The figure of one experiment as PNG and SVG, by the ending of the file's name."""
    import matplotlib

    with matplotlib.rc_context(LOOK), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a name may have letters that the font has not
        figure = _rates(experiment, looks) if experiment.name == RATES else _objectives(experiment, looks)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # it is laid out now, and need not be again for each file
        return {
            "png": _save(figure, format="png", dpi=150),
            "svg": _save(figure, format="svg", metadata={"Date": None}),
        }


def _save(figure: Any, **how: Any) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, **how)
    return content.getvalue()


def _objectives(experiment: ExperimentRuns, looks: Styles) -> Any:
    figure, axes = _panels(experiment, rows=len(MEASURES))
    for column, problem in enumerate(experiment.problems):
        for row, measure in enumerate(MEASURES):
            _objective(axes[row, column], problem, measure, looks)
        axes[0, column].set_title(_literal(problem.name))
    for row in range(len(MEASURES)):
        axes[row, 0].set_ylabel("F(x)")
    _legend(figure, experiment, looks)
    return figure


def _objective(axis: Any, problem: ProblemRuns, measure: str, looks: Styles) -> None:
    from matplotlib.ticker import FuncFormatter

    curves = [mean_curve(one, measure) for one in problem.algorithms]
    top, bottom = ceiling(problem, curves), problem.best
    for one, curve in zip(problem.algorithms, curves, strict=True):
        _line(axis, curve, looks[one.label])
        if one.divergences:
            axis.plot(curve.x[-1], min(curve.mean[-1], top), "x", color=looks[one.label].color, clip_on=False)
    margin = 0.05 * (top - bottom)
    if margin > 0:
        axis.set_ylim(bottom - margin, top + margin)
    axis.set_xlabel(measure)
    axis.locator_params(axis="x", nbins=4)
    if measure == "samples":
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: amount(value)))


def _rates(experiment: ExperimentRuns, looks: Styles) -> Any:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure, axes = _panels(experiment, rows=1)
    for axis, problem in zip(axes[0], experiment.problems, strict=True):
        axis.set(xscale="log", yscale="log", xlabel="1/ε", title=_literal(problem.name))
        axis.xaxis.set_major_locator(LogLocator(2))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        for one in problem.algorithms:
            _line(axis, rate_curve(one), looks[one.label], marker="o", markersize=3.5)
    axes[0, 0].set_ylabel("samples")
    _legend(figure, experiment, looks)
    return figure


def _line(axis: Any, curve: Curve, look: Style, **more: Any) -> None:
    axis.plot(curve.x, curve.mean, color=look.color, linestyle=DASHES[look.dash], linewidth=1.4, **more)
    if curve.seeds > 1:
        axis.fill_between(curve.x, curve.low, curve.high, color=look.color, alpha=0.18, linewidth=0)


def _panels(experiment: ExperimentRuns, rows: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    columns = len(experiment.problems)
    width, below = _width(experiment), LINE * math.ceil(len(experiment.labels) / _legend_columns(experiment))
    figure = Figure(figsize=(width, 2.35 * rows + 0.4 + below), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _width(experiment: ExperimentRuns) -> float:
    return max(2.9 * len(experiment.problems), 5.0)


def _legend_columns(experiment: ExperimentRuns) -> int:
    """As many entries side by side as the figure is wide enough for."""
    longest = max(map(len, experiment.labels))
    return max(1, min(len(experiment.labels), int(_width(experiment) / (SAMPLE + LETTER * longest))))


def _legend(figure: Any, experiment: ExperimentRuns, looks: Styles) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=looks[n].color, linestyle=DASHES[looks[n].dash]) for n in experiment.labels]
    names = [_literal(name) for name in experiment.labels]
    figure.legend(lines, names, loc="outside lower center", ncols=_legend_columns(experiment))


def _literal(text: str) -> str:
    """A name as it stands: between dollar signs matplotlib would read mathematics."""
    return text.replace("$", r"\$")
