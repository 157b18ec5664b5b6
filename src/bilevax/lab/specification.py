"""The paper's figures as data: which problems, which methods, how long, how often."""

from dataclasses import dataclass, replace

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
    """A comparison: every method on every case, with each seed, for so many seconds of steps.

    F is recorded about `records` times in a run; L-BFGS on the exact F may take `reference` seconds to find F*. With
    `excerpt` F is that of a few evenly spread tasks, for what is recorded and for F*; the runs have all tasks.
    """

    name: str
    cases: tuple[Case, ...]
    algorithms: tuple[str, ...]
    seconds: float = 5.0
    seeds: int = SEEDS
    records: int = RECORDS
    reference: float = 40.0
    excerpt: bool = False

    def __post_init__(self) -> None:
        arguments.positive("seconds", self.seconds)
        arguments.count("seeds", self.seeds)
        require_contenders(self.algorithms)
        for case in self.cases:
            for name in self.algorithms:
                if case.tasks > 1 and DESCRIPTIONS[name].facts.tasks == ONE_LOWER:
                    raise ValueError(f"{name} is for {ONE_LOWER}, {case.name} has {case.tasks}; use rsvrb or re_rsvrb.")

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
        return replace(self, seconds=self.seconds / QUICK, records=QUICK_RECORDS, reference=3.0, excerpt=True)


FIGURE1 = Experiment("figure1", tuple(map(Case, ("a1a", "a8a", "w1a", "w8a"))), ("svrb", *BASELINES), seconds=5.0)
FIGURE2 = Experiment(
    "figure2",
    tuple(Case(data, tasks) for tasks in (200, 500) for data in ("a1a", "w1a")),
    ("re_rsvrb", *BASELINES),
    seconds=10.0,
)
FIGURES = {experiment.name: experiment for experiment in (FIGURE1, FIGURE2)}
