"""The runs of a folder, read and sorted: by experiment, in it by problem, in it by algorithm, in it by seed."""

import itertools
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from bilevax.lab.record import Record
from bilevax.lab.specification import FIGURES
from bilevax.lab.store import RUNS
from bilevax.lab.table1 import TABLE as RATES  # its rows hold samples for each epsilon, all others samples and F

MEASURES = ("samples", "seconds")
EXPERIMENTS = (*FIGURES, "compare", RATES)
PROBLEMS = {name: tuple(case.name for case in figure.cases) for name, figure in FIGURES.items()}
ALGORITHMS = ("svrb", "re_rsvrb", "stable", "ttsa", "stocbio", "bsa", "rsvrb")
HUGE = 1e150  # a diverging run may come near the largest float; a mean of such numbers would be none


def columns(run: Record, *names: str) -> tuple[np.ndarray, ...]:
    """These columns of a run, on the rows where all of them are finite, and sums and ratios of them are too."""
    values = np.array([[row.get(name, math.nan) for name in names] for row in run.rows], float)
    return tuple(values[(np.abs(values) < HUGE).all(1)].T)


@dataclass(frozen=True)
class AlgorithmRuns:
    """One algorithm on one problem: a run for each seed."""

    algorithm: str
    label: str
    runs: tuple[Record, ...]

    @property
    def divergences(self) -> int:
        """How many of the seeds diverged."""
        return sum(run.has_diverged for run in self.runs)


@dataclass(frozen=True)
class ProblemRuns:
    """One panel of a figure: the algorithms that compete, and the references that do not."""

    name: str
    algorithms: tuple[AlgorithmRuns, ...]
    references: tuple[Record, ...]

    @property
    def competitors(self) -> list[Record]:
        """The runs of all algorithms."""
        return [run for algorithm in self.algorithms for run in algorithm.runs]

    @cached_property
    def start(self) -> float:
        """F(x_0), from which all runs leave."""
        return float(np.median([columns(run, "objective")[0][0] for run in self.competitors]))

    @cached_property
    def best(self) -> float:
        """F*, the smallest objective that any run or reference found."""
        return float(columns(self.best_run, "objective")[0].min())

    @cached_property
    def best_run(self) -> Record:
        """Who found F*."""
        return min([*self.references, *self.competitors], key=lambda run: float(columns(run, "objective")[0].min()))


@dataclass(frozen=True)
class ExperimentRuns:
    """One figure or table."""

    name: str
    problems: tuple[ProblemRuns, ...]

    @property
    def competitors(self) -> list[Record]:
        """The runs of all algorithms on all problems."""
        return [run for problem in self.problems for run in problem.competitors]

    @property
    def references(self) -> list[Record]:
        """The runs that make F* known."""
        return [run for problem in self.problems for run in problem.references]

    @property
    def labels(self) -> list[str]:
        """The algorithms of all problems, in one order."""
        return labels([self])


def labels(experiments: Iterable[ExperimentRuns]) -> list[str]:
    """The algorithms of all experiments, each once, the well-known ones first."""
    algorithms = {a.label: a.algorithm for e in experiments for p in e.problems for a in p.algorithms}
    return sorted(algorithms, key=lambda label: (_rank(algorithms[label], ALGORITHMS), _natural(label)))


def load(folder: str | os.PathLike) -> list[ExperimentRuns]:
    """All experiments with runs in `folder`/runs; a file that is no run is refused by name."""
    place = Path(folder) / RUNS
    if not place.is_dir():
        raise FileNotFoundError(f"folder must hold a folder '{RUNS}' with stored runs; there is no {place}.")
    runs = {path: run for path in sorted(place.glob("*.json")) if (run := _read(path))}
    rivals = _drop_lone_references(runs)
    if not rivals:
        raise ValueError(f"folder must hold {RUNS}/*.json with at least one run of a method; {place} has none.")
    return [ExperimentRuns(name, _problems(name, inside)) for name, inside in _group(rivals, "experiment", EXPERIMENTS)]


Runs = dict[Path, Record]


def _drop_lone_references(runs: Runs) -> Runs:
    """Without references of problems on which no algorithm ran yet, as when a series of runs was interrupted."""
    places = {(run.experiment, run.problem) for run in runs.values() if not run.is_reference}
    return {path: run for path, run in runs.items() if (run.experiment, run.problem) in places}


def _problems(experiment: str, runs: Runs) -> tuple[ProblemRuns, ...]:
    groups = _group(runs, "problem", PROBLEMS.get(experiment, ()))
    return tuple(_problem(name, inside) for name, inside in groups)


def _problem(name: str, runs: Runs) -> ProblemRuns:
    groups: dict[tuple[int, str, str], Runs] = {}
    for path, run in runs.items():
        if not run.is_reference:
            groups.setdefault((_rank(run.algorithm, ALGORITHMS), run.label, run.algorithm), {})[path] = run
    for one, other in itertools.combinations(sorted(groups), 2):
        if one[1] == other[1]:
            raise ValueError(
                f"each label must belong to one algorithm; on {name} {one[2]!r} ({next(iter(groups[one]))}) and "
                f"{other[2]!r} ({next(iter(groups[other]))}) share {one[1]!r}."
            )
    algorithms = tuple(AlgorithmRuns(key[2], key[1], tuple(groups[key].values())) for key in sorted(groups))
    return ProblemRuns(name, algorithms, tuple(run for run in runs.values() if run.is_reference))


def _group(runs: Runs, field: str, first: tuple[str, ...]) -> list[tuple[str, Runs]]:
    """The runs by one of their fields, those with well-known values first."""
    names = {getattr(run, field) for run in runs.values()}
    order = sorted(names, key=lambda name: (_rank(name, first), _natural(name)))
    return [(name, {path: run for path, run in runs.items() if getattr(run, field) == name}) for name in order]


def _rank(name: str, first: tuple[str, ...]) -> int:
    return first.index(name) if name in first else len(first)


def _natural(name: str) -> list[tuple[int, str]]:
    """A key by which 'm = 10' comes before 'm = 100' and after 'm = 2'."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _read(path: Path) -> Record | None:
    """The run in a file; none if another process has taken it away meanwhile."""
    try:
        run = Record.load(path)
    except FileNotFoundError:
        if path.is_symlink():
            raise
        return None
    wrong = _find_wrong_rows(run)
    if wrong:
        raise ValueError(f"{path} is not a stored run: {wrong}.")
    return run


def _find_wrong_rows(run: Record) -> str | None:
    """What is missing in the rows, in words."""
    names = ("epsilon",) if run.experiment == RATES else (*MEASURES, "objective")
    if not run.rows or not columns(run, *names)[0].size:
        return f"it must have a row with finite {', '.join(names)}"
    if "epsilon" in names and columns(run, "epsilon")[0].min() < 1 / HUGE:
        return f"its epsilon must be above zero; got {columns(run, 'epsilon')[0].min():g}"
    return None
