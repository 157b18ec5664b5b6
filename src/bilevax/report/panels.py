"""What the page's script draws: every curve, thinned and rounded."""

import dataclasses
from typing import Any

import numpy as np

from bilevax.report.curves import Curve, ceiling, mean_curve, rate_curve
from bilevax.report.palette import Style
from bilevax.report.runs import MEASURES, RATES, Experiment, Method, Problem

DIGITS = 5
DUST = 1e-14


def panels(experiments: list[Experiment], looks: dict[str, Style]) -> dict[str, Any]:
    """The data of all panels, ready for JSON."""
    return {"experiments": [_experiment(experiment, looks) for experiment in experiments]}


def _experiment(experiment: Experiment, looks: dict[str, Style]) -> dict[str, Any]:
    draw = _rates if experiment.name == RATES else _objectives
    return {
        "methods": [{"label": label, **dataclasses.asdict(looks[label])} for label in experiment.labels],
        "problems": [draw(problem, experiment.labels) for problem in experiment.problems],
    }


def _objectives(problem: Problem, labels: list[str]) -> dict[str, Any]:
    """Heights are above F*, which keeps their digits where curves are close to it."""
    curves = {measure: [mean_curve(method, measure) for method in problem.methods] for measure in MEASURES}
    top = max(ceiling(problem, found) for found in curves.values())
    shown = [
        _about(method, labels) | {measure: _points(curves[measure][k], problem.best) for measure in MEASURES}
        for k, method in enumerate(problem.methods)
    ]
    return {"best": problem.best, "top": top - problem.best, "curves": shown}


def _rates(problem: Problem, labels: list[str]) -> dict[str, Any]:
    return {"curves": [_about(method, labels) | {"rate": _points(rate_curve(method))} for method in problem.methods]}


def _about(method: Method, labels: list[str]) -> dict[str, Any]:
    return {"method": labels.index(method.label), "seeds": len(method.runs), "diverged": method.diverged > 0}


def _points(curve: Curve, floor: float = 0.0) -> dict[str, list[float]]:
    heights = {"mean": curve.mean, "low": curve.low, "high": curve.high}
    return {"x": _rounded(curve.x)} | {name: _rounded(_above(floor, values)) for name, values in heights.items()}


def _above(floor: float, values: np.ndarray) -> np.ndarray:
    """Heights above `floor`; dust left by taking means would stretch a logarithmic axis down to itself."""
    heights = values - floor
    return np.where(np.abs(heights) <= DUST * abs(floor), 0.0, heights)


def _rounded(values: np.ndarray) -> list[float]:
    rounded = (float(f"{value:.{DIGITS}g}") for value in values)
    return [int(value) if value.is_integer() else value for value in rounded]
