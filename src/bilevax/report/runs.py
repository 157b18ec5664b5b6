"""The runs of a folder, read and sorted: experiments, in them problems, in them methods, in them seeds."""

import json
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bilevax.trace import Trace

REFERENCE = "reference"  # exact L-BFGS: it makes F* known and does not compete
RATES = "table1"  # its rows hold samples for each epsilon, those of all other experiments samples, seconds, objective
MEASURES = ("samples", "seconds")
EXPERIMENTS = ("figure1", "figure2", "compare", RATES)
PROBLEMS = {
    "figure1": ("a1a", "a8a", "w1a", "w8a"),
    "figure2": ("a1a-200", "w1a-200", "a1a-500", "w1a-500"),
}
METHODS = ("svrb", "re_rsvrb", "stable", "ttsa", "stocbio", "bsa", "rsvrb")


@dataclass(frozen=True)
class Run:
    """One stored run."""

    path: Path
    trace: Trace

    @property
    def settings(self) -> dict[str, Any]:
        """What the run says of itself."""
        return self.trace.settings

    @property
    def label(self) -> str:
        """The name of its method as readers know it."""
        return str(self.settings.get("label", self.settings["algorithm"]))

    @property
    def diverged(self) -> bool:
        """Whether it left the finite numbers."""
        return self.settings.get("status") == "diverged"

    def columns(self, *names: str) -> tuple[np.ndarray, ...]:
        """These columns on the rows where all of them are finite."""
        held = np.array([[row.get(name, math.nan) for name in names] for row in self.trace], float)
        return tuple(held[np.isfinite(held).all(1)].T)


@dataclass(frozen=True)
class Method:
    """One algorithm on one problem: a run for each seed."""

    algorithm: str
    label: str
    runs: tuple[Run, ...]

    @property
    def diverged(self) -> int:
        """How many of the seeds diverged."""
        return sum(run.diverged for run in self.runs)


@dataclass(frozen=True)
class Problem:
    """One panel of a figure: the methods that compete, and the references that do not."""

    name: str
    methods: tuple[Method, ...]
    references: tuple[Run, ...]

    @property
    def competitors(self) -> list[Run]:
        """The runs of all methods."""
        return [run for method in self.methods for run in method.runs]

    @cached_property
    def start(self) -> float:
        """F(x_0), from which all runs leave."""
        return float(np.median([run.columns("objective")[0][0] for run in self.competitors]))

    @cached_property
    def best(self) -> float:
        """F*, the smallest objective that any run or reference found."""
        return float(self.best_run.columns("objective")[0].min())

    @cached_property
    def best_run(self) -> Run:
        """Who found F*."""
        return min([*self.references, *self.competitors], key=lambda run: float(run.columns("objective")[0].min()))


@dataclass(frozen=True)
class Experiment:
    """One figure or table."""

    name: str
    problems: tuple[Problem, ...]

    @property
    def runs(self) -> list[Run]:
        """All runs, references too."""
        return [run for problem in self.problems for run in (*problem.competitors, *problem.references)]

    @property
    def labels(self) -> list[str]:
        """The methods of all problems, in one order."""
        return labels([self])


def labels(experiments: Iterable[Experiment]) -> list[str]:
    """The methods of all experiments, each once, the well-known ones first."""
    found = {m.label: m.algorithm for e in experiments for p in e.problems for m in p.methods}
    return sorted(found, key=lambda label: (_rank(found[label], METHODS), _natural(label)))


def load(folder: str | os.PathLike) -> list[Experiment]:
    """All experiments with runs in `folder`/runs; a file that is no run is refused by name."""
    held = Path(folder) / "runs"
    if not held.is_dir():
        raise FileNotFoundError(f"folder must hold a folder 'runs' with stored runs; there is no {held}.")
    found = _with_methods([_read(path) for path in sorted(held.glob("*.json"))])
    if not found:
        raise ValueError(f"folder must hold runs/*.json with at least one run of a method; {held} has none.")
    grouped = _grouped(found, "experiment", EXPERIMENTS)
    experiments = [Experiment(name, _problems(name, runs)) for name, runs in grouped.items()]
    for experiment in experiments:
        for problem in experiment.problems:
            if not problem.methods:
                raise ValueError(
                    f"{held} holds only a reference of {experiment.name} {problem.name}; run a method too."
                )
    return experiments


def _with_methods(runs: list[Run]) -> list[Run]:
    """Without references of problems on which no method ran yet, as when a series of runs was interrupted."""
    ran = {_place(run) for run in runs if run.settings["algorithm"] != REFERENCE}
    return [run for run in runs if _place(run) in ran]


def _place(run: Run) -> tuple[str, str]:
    return run.settings["experiment"], run.settings["problem"]


def _problems(experiment: str, runs: list[Run]) -> tuple[Problem, ...]:
    grouped = _grouped(runs, "problem", PROBLEMS.get(experiment, ()))
    return tuple(_problem(name, inside) for name, inside in grouped.items())


def _problem(name: str, runs: list[Run]) -> Problem:
    methods = _methods([run for run in runs if run.settings["algorithm"] != REFERENCE])
    known = [method.label for method in methods]
    if not methods:
        raise ValueError(
            f"{runs[0].path} is a reference of {name}, on which no method ran: run one, or remove the file."
        )
    if len(set(known)) < len(known):
        raise ValueError(f"each label must belong to one algorithm; on {name} two share one: {', '.join(known)}.")
    return Problem(name, methods, tuple(run for run in runs if run.settings["algorithm"] == REFERENCE))


def _methods(runs: list[Run]) -> tuple[Method, ...]:
    methods: dict[tuple[int, str, str], list[Run]] = {}
    for run in runs:
        algorithm = run.settings["algorithm"]
        methods.setdefault((_rank(algorithm, METHODS), run.label, algorithm), []).append(run)
    return tuple(Method(key[2], key[1], tuple(methods[key])) for key in sorted(methods))


def _grouped(runs: list[Run], setting: str, first: tuple[str, ...]) -> dict[str, list[Run]]:
    names = {run.settings[setting] for run in runs}
    ordered = sorted(names, key=lambda name: (_rank(name, first), _natural(name)))
    return {name: [run for run in runs if run.settings[setting] == name] for name in ordered}


def _rank(name: str, first: tuple[str, ...]) -> int:
    return first.index(name) if name in first else len(first)


def _natural(name: str) -> list[tuple[int, str]]:
    """A key by which 'm = 10' comes before 'm = 100' and after 'm = 2'."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _read(path: Path) -> Run:
    try:
        run = Run(path, Trace.load(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not a trace that bilevax saved: it is no JSON ({error}).") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a trace that bilevax saved: it is no text.") from None
    wrong = _wrong_settings(run.settings) or _wrong_rows(run)
    if wrong:
        raise ValueError(f"{path} is not a stored run: {wrong}.")
    return run


def _wrong_settings(settings: Any) -> str | None:
    if not isinstance(settings, dict):
        return f"its settings must be a dictionary; got {settings!r}"
    for name in ("experiment", "problem", "algorithm"):
        if not isinstance(settings.get(name), str):
            return f"its settings must name the {name}; got {settings.get(name)!r}"
    for name in ("options", "facts", "versions", "machine"):
        if not isinstance(settings.get(name, {}), dict):
            return f"its {name} must be a dictionary; got {settings[name]!r}"
    if not re.fullmatch(r"[\w-]+", settings["experiment"]):  # files are named after it
        return f"its experiment must be a word of letters, digits, _ and -; got {settings['experiment']!r}"
    return None


def _wrong_rows(run: Run) -> str | None:
    rows = run.trace.rows
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return "its rows must be a list of dictionaries"
    if not all(isinstance(value, (int, float)) for row in rows for value in row.values()):
        return "its rows must hold numbers"
    needed = ("epsilon",) if run.settings["experiment"] == RATES else (*MEASURES, "objective")
    if not rows or not run.columns(*needed)[0].size:
        return f"it must have a row with finite {', '.join(needed)}"
    return None
