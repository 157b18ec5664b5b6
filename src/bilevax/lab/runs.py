"""An experiment carried out: every run stored as soon as it ends, none made twice."""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from bilevax.algorithms.contract import Algorithm, Variables
from bilevax.exact import evaluation
from bilevax.lab import tuning
from bilevax.lab.cases import EXCERPT, Case
from bilevax.lab.contenders import find_contender
from bilevax.lab.record import REFERENCE, Record
from bilevax.lab.reference import run_lbfgs
from bilevax.lab.specification import Experiment
from bilevax.lab.store import (
    add_tuning,
    find_run,
    keep_folder,
    key_of,
    make_once,
    read_tuning,
    run_key,
    store_run,
    unfinished_path,
)  # fmt: skip
from bilevax.problem import Problem
from bilevax.run.plan import Metrics
from bilevax.run.result import Result
from bilevax.run.solve import solve
from bilevax.run.trace import Trace

PACKAGE_TUNING = "tuned.json"
TRIAL_STEPS = 20
Tell = Callable[[str], None]
Tunings = dict[str, Any]


class Interruption(Exception):  # noqa: N818  # no error: the user asked for it
    """Ctrl-C: what has ended is stored, the same command goes on from there."""


def read_package_tuning() -> Tunings:
    """The settings that come with the package, by experiment, problem and algorithm."""
    return json.loads((files("bilevax.lab") / PACKAGE_TUNING).read_text())


def tune_all(experiment: Experiment, folder: Path, tell: Tell) -> Tunings:
    """Settings of every method for every data set, each written to a file of DIR/tuned as soon as it is known."""
    tunings: Tunings = {}
    with prepare(Work(experiment, tunings, folder, tell)):
        cases = list(dict.fromkeys(map(experiment.tuning_case, experiment.cases)))
        for wait in (False, True):  # first what nobody is at
            for case in cases:
                entries = tunings.setdefault(experiment.name, {}).setdefault(case.name, {})
                problems = cache(lambda case=case: (case.problem(), case.excerpt()))
                for name in experiment.algorithms:
                    entries[name] = entries.get(name) or _tune_once(
                        experiment, case, name, problems, folder, tell, wait
                    )
    return tunings


def prepare(work: "Work") -> AbstractContextManager[None]:
    """Before anything long starts: all data are read, the folder can be written to, others keep off its runs."""
    pairs = [(case, name) for case in work.experiment.cases for name in work.experiment.algorithms]
    aims = [("settings", work.aim(case, name)) for case, name in pairs]
    runs = [("runs", work.request(case, name, 0)) for case, name in pairs] if work.tunings else []
    return keep_folder(work.folder, [*aims, *runs])


def _tune_once(
    experiment: Experiment, case: Case, name: str, problems: Callable[[], tuple[Problem, Problem]], folder: Path,
    tell: Tell, wait: bool,
) -> dict[str, Any] | None:  # fmt: skip
    """The settings of a method for a data set: those of the folder, or tuned now, by this process or another.

    None where another is at it and this one does not wait.
    """
    place, contender = (experiment.name, case.name, name), find_contender(name)
    origin = {} if contender.origin() is None else {"origin": contender.origin()}
    wish = {**experiment.budget, "effort": tuning.EFFORT, **origin}

    def find() -> dict[str, Any] | None:
        there = read_tuning(folder, place)
        return there if there.get("asked") == wish else None

    def make() -> dict[str, Any]:
        start, words = time.perf_counter(), f"{contender.label} on {case.name}"
        best = tuning.tune(*problems(), contender, experiment.budget, lambda line: tell(f"tuning {words}: {line}"))
        entry = {"options": best.options, "score": best.score, "steps": best.steps, "asked": wish}
        add_tuning(folder, place, entry)
        tell(f"tuned {words} in {time.perf_counter() - start:.0f} s: {best.options}")
        return entry

    return make_once(folder, key_of(place, "tuning", wish), find, make, tell, wait)


def objective_metric(judge: Problem) -> Metrics:
    """What is recorded: F(x) of a problem, every lower problem solved."""

    def record(problem: Problem, variables: Variables) -> dict[str, Any]:
        near = variables.y if judge.num_tasks == problem.num_tasks else None
        return {"objective": evaluation.objective(judge, variables.x, near)}

    return record


def interval(problem: Problem, algorithm: Algorithm, budget: Mapping[str, float], records: int) -> int:
    """Steps between two records, so that a run of this budget has about so many."""
    ((measure, amount),) = budget.items()
    if measure == "steps":
        return max(1, int(amount / records))
    trial = solve(problem, algorithm, steps=TRIAL_STEPS, metrics=None, progress=False, record_every=TRIAL_STEPS)
    first, last = trial.trace[measure]
    return max(1, int(amount / max((last - first) / TRIAL_STEPS, 1e-7) / records))


def solve_for(
    problem: Problem, algorithm: Algorithm, budget: Mapping[str, Any], every: int, seed: int,
    judge: Problem | None = None, checkpoint: Path | None = None,
) -> Result:  # fmt: skip
    """One run of this budget, with F of `judge`, by default the problem, recorded every so many steps."""
    F = objective_metric(problem if judge is None else judge)
    return solve(
        problem, algorithm, **budget, record_every=every, seed=seed, metrics=F, progress=False, checkpoint=checkpoint
    )


@dataclass(frozen=True)
class Work:
    """An experiment with its tuned settings, and the folder that holds its runs."""

    experiment: Experiment
    tunings: Mapping[str, Any]
    folder: Path
    tell: Tell

    def options(self, case: Case, name: str) -> dict[str, Any]:
        """The options of a method on a case; an error that says how to find them where they are not known."""
        where = self.experiment.tuning_case(case).name
        try:
            return self.tunings[self.experiment.name][where][name]["options"]
        except KeyError:
            raise ValueError(
                f"there are no tuned settings of {name} for {where} in {self.experiment.name}; find them with --tune."
            ) from None

    def request(self, case: Case, name: str, seed: int) -> Record:
        """A run that is asked for: what decides on it is known."""
        options = {**self.options(case, name), "rule": find_contender(name).tuning.rule}
        return replace(self.aim(case, name), seed=seed, options=options)

    def aim(self, case: Case, name: str) -> Record:
        """What is known of a run before anything is tuned."""
        contender = find_contender(name)
        return replace(
            self._of(case, name, contender.label), effort=tuning.EFFORT, origin=contender.origin(),
            **self.experiment.budget, records=self.experiment.records,
        )  # fmt: skip

    def reference_request(self, case: Case) -> Record:
        """The run that finds F*."""
        return replace(self._of(case, REFERENCE, "L-BFGS on the exact F"), seconds=self.experiment.reference)

    def _of(self, case: Case, algorithm: str, label: str) -> Record:
        return Record(
            self.experiment.name, case.name, algorithm, label, content=case.content(), weights=case.weights,
            precision=str(jnp.result_type(float)), excerpt=self.experiment.excerpt,
        )  # fmt: skip

    def _conclude(self, request: Record, case: Case, trace: Trace, status: str, message: str) -> None:
        """Store a run that has ended, with what is known of its problem."""
        facts = {**case.facts(), "tasks in F": min(case.tasks, EXCERPT) if self.experiment.excerpt else case.tasks}
        rows, remark = tuple(trace.rows), case.remark()
        record = replace(request, rows=rows, status=status, message=message, facts=facts, remark=remark)
        store_run(self.folder, record)

    def missing(self, case: Case) -> list[tuple[str, int]]:
        """The methods and seeds whose runs are not there yet."""
        pairs = [(name, seed) for name in self.experiment.algorithms for seed in range(self.experiment.seeds)]
        return [pair for pair in pairs if find_run(self.folder, self.request(case, *pair)) is None]

    def run(self, case: Case, problem: Problem) -> None:
        """Make the runs of a case that are missing, and store each as it ends; wait for those that others make."""
        ready: dict[str, tuple[Algorithm, int]] = {}
        for wait in (False, True):  # first what nobody is at
            for name, seed in self.missing(case):
                request = self.request(case, name, seed)
                make = partial(self._make, case, problem, request, ready)
                self._make_once(request, make, wait)

    def _make_once(self, request: Record, make: Callable[[], None], wait: bool = True) -> None:
        make_once(self.folder, run_key(request), partial(find_run, self.folder, request), make, self.tell, wait)

    def _make(self, case: Case, problem: Problem, request: Record, ready: dict[str, tuple[Algorithm, int]]) -> None:
        name, budget = request.algorithm, self.experiment.budget
        if name not in ready:  # one object for all seeds: its loop is compiled once
            algorithm = find_contender(name).algorithm(problem, self.options(case, name))
            ready[name] = algorithm, interval(problem, algorithm, budget, self.experiment.records)
        algorithm, every = ready[name]
        judge = self.experiment.judge(case, problem)
        unfinished = unfinished_path(self.folder, request)  # a long run that was interrupted goes on from there
        result = solve_for(problem, algorithm, budget, every, request.seed, judge, unfinished)
        if result.status == "interrupted":
            raise Interruption
        self._conclude(request, case, result.trace, result.status, result.message)
        F = result.trace["objective"][-1]
        self.tell(f"{case.name}, {request.label}, seed {request.seed}: F = {F:.5f}, {result.message}")

    def find_reference(self, case: Case, problem: Problem) -> None:
        """L-BFGS on the exact F, so that F* is known as well as the time allows."""
        request = self.reference_request(case)

        def make() -> None:
            trace = run_lbfgs(self.experiment.judge(case, problem), self.experiment.reference)
            self._conclude(request, case, trace, "done", f"{len(trace)} exact gradients")
            self.tell(f"{case.name}, {request.label}: F = {min(trace['objective']):.5f}, {len(trace)} gradients")

        self._make_once(request, make)


def conduct(experiment: Experiment, tunings: Mapping[str, Any], folder: Path, tell: Tell = lambda line: None) -> None:
    """Make all runs of an experiment that the folder does not hold yet, with the given tuned settings.

    Another process that conducts the same experiment in the same folder shares the work; one with other settings for
    the same runs is refused.
    """
    work = Work(experiment, tunings, folder, tell)
    for case in experiment.cases:  # before anything long starts
        for name in experiment.algorithms:
            work.options(case, name)
    with prepare(work):
        for case in experiment.cases:
            if work.missing(case) or find_run(folder, work.reference_request(case)) is None:
                problem = case.problem()
                work.run(case, problem)
                work.find_reference(case, problem)
