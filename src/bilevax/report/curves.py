"""The mean over seeds with its band, on points that all seeds reached."""

from dataclasses import dataclass

import numpy as np

from bilevax.report.runs import Method, Problem

MOST_POINTS = 200
HEADROOM = 0.25  # of F(x_0) − F*


@dataclass(frozen=True)
class Curve:
    """The mean over seeds at each x; the band goes from the smallest seed to the largest."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: int


def mean_curve(method: Method, measure: str) -> Curve:
    """F against samples or seconds, wherever any seed was evaluated, up to the last point that all seeds reached."""
    seeds = [run.columns(measure, "objective") for run in method.runs]
    last = min(x[-1] for x, _ in seeds)
    first = min(max(x[0] for x, _ in seeds), last)
    points = np.unique(np.concatenate([[first, last], *(x for x, _ in seeds)]))
    grid = _thinned(points[(points >= first) & (points <= last)])
    return _summary(grid, np.array([np.interp(grid, x, objective) for x, objective in seeds]))


def rate_curve(method: Method) -> Curve:
    """Samples against 1/ε, for each ε that all seeds reached."""
    seeds = [dict(zip(*run.columns("epsilon", "samples"), strict=True)) for run in method.runs]
    reached = sorted(set.intersection(*(set(seed) for seed in seeds)), reverse=True)
    values = np.array([[seed[epsilon] for epsilon in reached] for seed in seeds])
    return _summary(1 / np.array(reached, float), values)


def _summary(x: np.ndarray, values: np.ndarray) -> Curve:
    return Curve(x, values.mean(0), values.min(0), values.max(0), len(values))


def _thinned(points: np.ndarray) -> np.ndarray:
    """At most `MOST_POINTS` of the points, the first and the last among them."""
    kept = np.unique(np.linspace(0, len(points) - 1, min(MOST_POINTS, len(points))).round().astype(int))
    return points[kept]


def ceiling(problem: Problem, curves: list[Curve]) -> float:
    """Where the axis of F ends: a little above the start, lest a diverging run press all others flat."""
    highest = max(float(curve.high.max()) for curve in curves)
    return min(highest, problem.start + HEADROOM * (problem.start - problem.best))
