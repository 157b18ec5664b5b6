"""The paper's figures as data: which problems, which methods, how long, how often."""

from dataclasses import dataclass, replace

from bilevax import arguments
from bilevax.experiments.cases import Case
from bilevax.experiments.methods import METHODS

BASELINES = ("stable", "ttsa", "stocbio", "bsa")
SEEDS = 3
QUICK_SECONDS = 1.0
RECORDS, QUICK_RECORDS = 24, 5


@dataclass(frozen=True)
class Experiment:
    """A comparison: every method on every case, with each seed, for so many seconds of steps.

    F is recorded about `records` times in a run; L-BFGS on the exact F may take `reference` seconds to find F*.
    """

    name: str
    cases: tuple[Case, ...]
    methods: tuple[str, ...]
    seconds: float = 5.0
    seeds: int = SEEDS
    records: int = RECORDS
    reference: float = 40.0

    def __post_init__(self) -> None:
        arguments.positive("seconds", self.seconds)
        arguments.count("seeds", self.seeds)
        for name in self.methods:
            arguments.one_of("algorithms", name, tuple(METHODS))
        for case in self.cases:
            if case.tasks > 1 and "svrb" in self.methods:
                raise ValueError(f"svrb is for one lower problem, {case.name} has {case.tasks}; use rsvrb or re_rsvrb.")

    def tuned_on(self, case: Case) -> Case:
        """The case on whose settings this one runs: that of the same data with the fewest tasks.

        Options are relative to n and to the share of tasks, so they serve more tasks as well.
        """
        return min((other for other in self.cases if other.data == case.data), key=lambda other: other.tasks)

    def quick(self) -> "Experiment":
        """The same, coarser: to be done within minutes."""
        return replace(self, seconds=QUICK_SECONDS, records=QUICK_RECORDS, reference=3.0)


FIGURE1 = Experiment("figure1", tuple(map(Case, ("a1a", "a8a", "w1a", "w8a"))), ("svrb", *BASELINES), seconds=5.0)
FIGURE2 = Experiment(
    "figure2",
    tuple(Case(data, tasks) for tasks in (200, 500) for data in ("a1a", "w1a")),
    ("re_rsvrb", *BASELINES),
    seconds=10.0,
)
FIGURES = {experiment.name: experiment for experiment in (FIGURE1, FIGURE2)}
