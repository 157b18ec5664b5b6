"""Curves: the mean over seeds with its band, the look of each algorithm, and both as data for the page's script."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from bilevax.lab.results import MEASURES, RATES, AlgorithmRuns, ExperimentRuns, ProblemRuns, columns

MOST_POINTS = 200
HEADROOM = 0.25  # of F(x_0) − F*
DIGITS = 5
DUST = 1e-14

# Seven of the colours of Okabe and Ito, which colour-blind readers can tell apart; their yellow is lost on white
# paper, and their black, lost on a dark page, is a grey that both show. Vermilion and orange are the nearest pair: they
# go to SVRB and RE-RSVRB, which the paper never draws together.
COLORS = ("#D55E00", "#E69F00", "#0072B2", "#009E73", "#CC79A7", "#808080", "#56B4E9")
DASHES = ("solid", "dash", "dot", "dashdot")  # from the eighth algorithm on, colours come back with another dash


@dataclass(frozen=True)
class Style:
    """Colour and dash of a line."""

    color: str
    dash: str


Styles = dict[str, Style]


def styles(labels: list[str]) -> Styles:
    """A look for each of the algorithms: the same in every panel, on the page and in the pictures."""
    return {
        label: Style(COLORS[k % len(COLORS)], DASHES[k // len(COLORS) % len(DASHES)]) for k, label in enumerate(labels)
    }


@dataclass(frozen=True)
class Curve:
    """The mean over seeds at each x; the band goes from the smallest seed to the largest."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: int


def mean_curve(algorithm: AlgorithmRuns, measure: str) -> Curve:
    """F against samples or seconds, wherever any seed was evaluated, up to the last point that all seeds reached."""
    seeds = [columns(run, measure, "objective") for run in algorithm.runs]
    last = min(x[-1] for x, _ in seeds)
    first = min(max(x[0] for x, _ in seeds), last)
    points = np.unique(np.concatenate([[first, last], *(x for x, _ in seeds)]))
    grid = _thin(points[(points >= first) & (points <= last)])
    return _summary(grid, np.array([np.interp(grid, x, objective) for x, objective in seeds]))


def rate_curve(algorithm: AlgorithmRuns) -> Curve:
    """Samples against 1/ε, for each ε that all seeds reached."""
    seeds = [dict(zip(*columns(run, "epsilon", "samples"), strict=True)) for run in algorithm.runs]
    epsilons = sorted(set.intersection(*(set(seed) for seed in seeds)), reverse=True)
    values = np.array([[seed[epsilon] for epsilon in epsilons] for seed in seeds])
    return _summary(1 / np.array(epsilons, float), values)


def _summary(x: np.ndarray, values: np.ndarray) -> Curve:
    return Curve(x, values.mean(0), values.min(0), values.max(0), len(values))


def _thin(points: np.ndarray) -> np.ndarray:
    """At most `MOST_POINTS` of the points, the first and the last among them."""
    places = np.unique(np.linspace(0, len(points) - 1, min(MOST_POINTS, len(points))).round().astype(int))
    return points[places]


def ceiling(problem: ProblemRuns, curves: list[Curve]) -> float:
    """Where the axis of F ends: a little above the start, lest a diverging run press all others flat."""
    highest = max(float(curve.high.max()) for curve in curves)
    return min(highest, problem.start + HEADROOM * (problem.start - problem.best))


def panels(experiments: list[ExperimentRuns], looks: Styles) -> dict[str, Any]:
    """What the page's script draws: every curve, thinned and rounded, ready for JSON."""
    return {"experiments": [_experiment(experiment, looks) for experiment in experiments]}


def _experiment(experiment: ExperimentRuns, looks: Styles) -> dict[str, Any]:
    draw = _rates if experiment.name == RATES else _objectives
    return {
        "methods": [{"label": label, **dataclasses.asdict(looks[label])} for label in experiment.labels],
        "problems": [draw(problem, experiment.labels) for problem in experiment.problems],
    }


def _objectives(problem: ProblemRuns, labels: list[str]) -> dict[str, Any]:
    """Heights are above F*, which keeps their digits where curves are close to it."""
    curves = {measure: [mean_curve(one, measure) for one in problem.algorithms] for measure in MEASURES}
    top = max(ceiling(problem, each) for each in curves.values())
    lines = [
        _about(one, labels) | {measure: _points(curves[measure][k], problem.best) for measure in MEASURES}
        for k, one in enumerate(problem.algorithms)
    ]
    return {"best": problem.best, "top": top - problem.best, "curves": lines}


def _rates(problem: ProblemRuns, labels: list[str]) -> dict[str, Any]:
    return {"curves": [_about(one, labels) | {"rate": _points(rate_curve(one))} for one in problem.algorithms]}


def _about(algorithm: AlgorithmRuns, labels: list[str]) -> dict[str, Any]:
    runs, is_lost = len(algorithm.runs), algorithm.divergences > 0
    return {"method": labels.index(algorithm.label), "seeds": runs, "diverged": is_lost}


def _points(curve: Curve, floor: float = 0.0) -> dict[str, list[float]]:
    heights = {"mean": curve.mean, "low": curve.low, "high": curve.high}
    return {"x": _round(curve.x)} | {name: _round(_above(floor, values)) for name, values in heights.items()}


def _above(floor: float, values: np.ndarray) -> np.ndarray:
    """Heights above `floor`; dust left by taking means would stretch a logarithmic axis down to itself."""
    heights = values - floor
    return np.where(np.abs(heights) <= DUST * abs(floor), 0.0, heights)


def _round(values: np.ndarray) -> list[float]:
    numbers = (float(f"{value:.{DIGITS}g}") for value in values)
    return [int(number) if number.is_integer() else number for number in numbers]
