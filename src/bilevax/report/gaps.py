"""Samples and seconds until a run has closed a given share of the way from F(x_0) to F*."""

import math
import statistics
from dataclasses import dataclass

import numpy as np

from bilevax.report.runs import Method, Problem, Run

GAPS = (0.5, 0.2, 0.1, 0.05, 0.02)


@dataclass(frozen=True)
class Reach:
    """When a method came within a gap: the median over seeds (infinite if fewer than half came), and how many did."""

    value: float
    reached: int
    seeds: int


def first_at(run: Run, measure: str, level: float) -> float:
    """Samples or seconds at the first evaluation with F at or below `level`; infinite if there is none."""
    x, objective = run.columns(measure, "objective")
    below = np.flatnonzero(objective <= level)
    return float(x[below[0]]) if below.size else math.inf


def reach(problem: Problem, method: Method, measure: str, gap: float) -> Reach:
    """When F − F* fell to `gap` times F(x_0) − F*; of an even number of seeds the lower middle one counts."""
    start, best = problem.start, problem.best
    if not start > best:  # nobody got anywhere, so nobody has won anything
        return Reach(math.inf, 0, len(method.runs))
    times = [first_at(run, measure, best + gap * (start - best)) for run in method.runs]
    return Reach(statistics.median_low(times), sum(map(math.isfinite, times)), len(times))


def reaches(problem: Problem, measure: str) -> dict[str, list[Reach]]:
    """For each method, when it reached each of the gaps."""
    return {m.label: [reach(problem, m, measure, gap) for gap in GAPS] for m in problem.methods}


def winning(table: dict[str, list[Reach]]) -> list[float]:
    """The smallest value of each gap's column."""
    return [min(row[k].value for row in table.values()) for k in range(len(GAPS))]
