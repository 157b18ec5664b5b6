"""An experiment carried out: every run stored as soon as it ends, none made twice."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from bilevax import metrics
from bilevax.algorithms.base import Algorithm, Variables
from bilevax.experiments import tuning
from bilevax.experiments.cases import EXCERPT, Case
from bilevax.experiments.methods import METHODS
from bilevax.experiments.reference import descend
from bilevax.experiments.specification import Experiment
from bilevax.experiments.store import store, stored
from bilevax.plan import Metrics
from bilevax.problem import Problem
from bilevax.run import Result, solve
from bilevax.trace import Trace

TUNED = "tuned.json"
TRIAL_STEPS = 20
Told = Callable[[str], None]


class Interrupted(Exception):  # noqa: N818  # no error: the user asked for it
    """Ctrl-C: what has ended is stored, the same command goes on from there."""


def shipped() -> dict[str, Any]:
    """The tuned settings that come with the package, by experiment, problem and algorithm."""
    return json.loads((files("bilevax.experiments") / TUNED).read_text())


def tuned_here(folder: Path) -> dict[str, Any]:
    """What has been tuned in a folder so far."""
    path = folder / TUNED
    return json.loads(path.read_text()) if path.exists() else {}


def _write_tuned(folder: Path, known: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{TUNED}.part"
    part.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    part.replace(folder / TUNED)


def tune_all(experiment: Experiment, folder: Path, told: Told) -> dict[str, Any]:
    """Settings of every method for every data set, each written to the folder's tuned.json as soon as it is known."""
    asked = {"seconds": experiment.seconds, "effort": tuning.EFFORT}
    known = tuned_here(folder)
    for case in dict.fromkeys(map(experiment.tuned_on, experiment.cases)):
        found = known.setdefault(experiment.name, {}).setdefault(case.name, {})
        missing = [name for name in experiment.methods if found.get(name, {}).get("asked") != asked]
        if missing:
            problem, excerpt = case.problem(), case.excerpt()
        for name in missing:
            begun, method = time.perf_counter(), METHODS[name]
            progress = lambda line, where=f"tuning {method.label} on {case.name}": told(f"{where}: {line}")
            best = tuning.tune(problem, excerpt, method, experiment.seconds, progress)
            found[name] = {"options": best.options, "score": best.score, "steps": best.steps, "asked": asked}
            _write_tuned(folder, known)
            told(f"tuned {method.label} on {case.name} in {time.perf_counter() - begun:.0f} s: {best.options}")
    return known


def objective(shown: Problem) -> Metrics:
    """What is recorded: F(x) of a problem, every lower problem solved."""

    def recorded(problem: Problem, variables: Variables) -> dict[str, Any]:
        near = variables.y if shown.num_tasks == problem.num_tasks else None
        return {"objective": metrics.objective(shown, variables.x, near)}

    return recorded


def interval(problem: Problem, algorithm: Algorithm, seconds: float, records: int) -> int:
    """Steps between two records, so that a run of so many seconds has about so many."""
    trial = solve(problem, algorithm, steps=TRIAL_STEPS, metrics=None, progress=False, record_every=TRIAL_STEPS)
    first, last = trial.trace["seconds"]
    return max(1, int(seconds / max((last - first) / TRIAL_STEPS, 1e-7) / records))


def solve_for(
    problem: Problem, algorithm: Algorithm, seconds: float, every: int, seed: int, shown: Problem | None = None
) -> Result:
    """One run of so many seconds, with F of `shown`, by default the problem, recorded every so many steps."""
    recorded = objective(problem if shown is None else shown)
    return solve(problem, algorithm, seconds=seconds, record_every=every, seed=seed, metrics=recorded, progress=False)


@dataclass(frozen=True)
class Work:
    """An experiment with its tuned settings, and the folder that holds its runs."""

    experiment: Experiment
    known: Mapping[str, Any]
    folder: Path
    told: Told

    def options(self, case: Case, name: str) -> dict[str, Any]:
        """The options of a method on a case; an error that says how to find them where they are not known."""
        where = self.experiment.tuned_on(case).name
        try:
            return self.known[self.experiment.name][where][name]["options"]
        except KeyError:
            raise ValueError(
                f"there are no tuned settings of {name} for {where} in {self.experiment.name}; find them with --tune."
            ) from None

    def asked(self, case: Case, name: str, seed: int) -> dict[str, Any]:
        """What decides on a run: another of these is another run."""
        method = METHODS[name]
        return {
            **self._identity(case), "algorithm": name, "label": method.label, "seed": seed,
            "options": {**self.options(case, name), "rule": method.rule}, "effort": tuning.EFFORT,
            "seconds": self.experiment.seconds, "records": self.experiment.records,
        }  # fmt: skip

    def asked_reference(self, case: Case) -> dict[str, Any]:
        """What decides on the run that finds F*."""
        return {
            **self._identity(case), "algorithm": "reference", "label": "L-BFGS on the exact F", "seed": 0,
            "seconds": self.experiment.reference,
        }  # fmt: skip

    def _identity(self, case: Case) -> dict[str, Any]:
        return {
            "experiment": self.experiment.name, "problem": case.name, "content": case.content(),
            "weights": case.weights, "precision": str(jnp.result_type(float)), "excerpt": self.experiment.excerpt,
        }  # fmt: skip

    def _described(self, case: Case) -> dict[str, Any]:
        facts = {**case.facts(), "tasks in F": min(case.tasks, EXCERPT) if self.experiment.excerpt else case.tasks}
        return {"facts": facts, **({"remark": case.remark()} if case.remark() else {})}

    def missing(self, case: Case) -> list[tuple[str, int]]:
        """The methods and seeds whose runs are not there yet."""
        pairs = [(name, seed) for name in self.experiment.methods for seed in range(self.experiment.seeds)]
        return [pair for pair in pairs if stored(self.folder, self.asked(case, *pair)) is None]

    def run(self, case: Case, problem: Problem) -> None:
        """Make the runs of a case that are missing, and store each as it ends."""
        ready: dict[str, tuple[Algorithm, int]] = {}
        shown = self.experiment.evaluated(case, problem)
        seconds, records = self.experiment.seconds, self.experiment.records
        for name, seed in self.missing(case):
            method = METHODS[name]
            if name not in ready:  # one object for all seeds: its loop is compiled once
                algorithm = method.algorithm(problem, self.options(case, name))
                ready[name] = algorithm, interval(problem, algorithm, seconds, records)
            algorithm, every = ready[name]
            result = solve_for(problem, algorithm, seconds, every, seed, shown)
            if result.status == "interrupted":
                raise Interrupted
            ended = {"status": result.status, "message": result.message, **self._described(case)}
            store(self.folder, self.asked(case, name, seed), Trace(result.trace.rows, ended))
            reached = result.trace["objective"][-1]
            self.told(f"{case.name}, {method.label}, seed {seed}: F = {reached:.5f}, {result.message}")

    def find_reference(self, case: Case, problem: Problem) -> None:
        """L-BFGS on the exact F, so that F* is known as well as the time allows."""
        trace = descend(self.experiment.evaluated(case, problem), self.experiment.reference)
        trace.settings = {"status": "done", "message": f"{len(trace)} exact gradients", **self._described(case)}
        store(self.folder, self.asked_reference(case), trace)
        self.told(f"{case.name}, L-BFGS on the exact F: F = {min(trace['objective']):.5f}, {len(trace)} gradients")


def conduct(experiment: Experiment, known: Mapping[str, Any], folder: Path, told: Told = lambda line: None) -> None:
    """Make all runs of an experiment that the folder does not hold yet, with the given tuned settings."""
    work = Work(experiment, known, folder, told)
    for case in experiment.cases:  # before anything long starts
        for name in experiment.methods:
            work.options(case, name)
    for case in experiment.cases:
        missing, reference = work.missing(case), stored(folder, work.asked_reference(case))
        if missing or reference is None:
            problem = case.problem()
            work.run(case, problem)
            if reference is None:
                work.find_reference(case, problem)
