"""The paper's figures as data: which problems, which methods, how long, how often."""

from dataclasses import dataclass, replace
from typing import Any

from bilevax import arguments
from bilevax.algorithms.contract import DESCRIPTIONS, ONE_LOWER
from bilevax.lab.cases import EXCERPT, Case
from bilevax.lab.contenders import require_contenders
from bilevax.problem import Problem

BASELINES = ("stable", "ttsa", "stocbio", "bsa")
SEEDS = 3
QUICK = 6  # how many times shorter a quick run is
RECORDS, QUICK_RECORDS = 24, 5


@dataclass(frozen=True)
class Experiment:
    """A comparison: every method on every case, with each seed, for so many seconds of steps, or steps, or samples.

    A budget of steps or samples does not depend on the machine, nor on what else it does. F is recorded about
    `records` times in a run; L-BFGS on the exact F may take `reference` seconds to find F*. With `excerpt` F is
    that of a few evenly spread tasks, for what is recorded and for F*; the runs have all tasks.
    """

    name: str
    cases: tuple[Case, ...]
    algorithms: tuple[str, ...]
    seconds: float | None = 5.0
    seeds: int = SEEDS
    records: int = RECORDS
    reference: float = 40.0
    excerpt: bool = False
    steps: int | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        if len(self.budget) != 1:
            got = ", ".join(f"{name}={value}" for name, value in self.budget.items()) or "none"
            raise ValueError(f"a budget must be one of seconds, steps and samples; got {got}.")
        for name, value in self.budget.items():
            arguments.positive(name, value) if name == "seconds" else arguments.count(name, value)
        arguments.count("seeds", self.seeds)
        require_contenders(self.algorithms)
        for case in self.cases:
            for name in self.algorithms:
                if case.tasks > 1 and DESCRIPTIONS[name].facts.tasks == ONE_LOWER:
                    raise ValueError(f"{name} is for {ONE_LOWER}, {case.name} has {case.tasks}; use rsvrb or re_rsvrb.")

    @property
    def budget(self) -> dict[str, Any]:
        """Of every run: seconds, steps or samples, by name."""
        given = {"seconds": self.seconds, "steps": self.steps, "samples": self.samples}
        return {name: value for name, value in given.items() if value is not None}

    def tuning_case(self, case: Case) -> Case:
        """The case on whose settings this one runs: that of the same data with the fewest tasks.

        Options are relative to n and to the share of tasks, so they serve more tasks as well.
        """
        return min((other for other in self.cases if other.data == case.data), key=lambda other: other.tasks)

    def judge(self, case: Case, problem: Problem) -> Problem:
        """The problem whose F is recorded: that of the case, or an excerpt of it."""
        return case.excerpt() if self.excerpt and case.tasks > EXCERPT else problem

    def quick(self) -> "Experiment":
        """The same, coarser: to be done within minutes."""
        seconds = None if self.seconds is None else self.seconds / QUICK
        return replace(self, seconds=seconds, records=QUICK_RECORDS, reference=3.0, excerpt=True)


FIGURE1 = Experiment("figure1", tuple(map(Case, ("a1a", "a8a", "w1a", "w8a"))), ("svrb", *BASELINES), seconds=5.0)
FIGURE2 = Experiment(
    "figure2",
    tuple(Case(data, tasks) for tasks in (200, 500) for data in ("a1a", "w1a")),
    ("re_rsvrb", *BASELINES),
    seconds=10.0,
)
FIGURES = {experiment.name: experiment for experiment in (FIGURE1, FIGURE2)}
