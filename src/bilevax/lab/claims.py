"""The paper's claims against the runs: who is first to close a given share of the way from F(x_0) to F*."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from bilevax.lab.record import Record
from bilevax.lab.results import MEASURES, PROBLEMS, RATES, AlgorithmRuns, ExperimentRuns, ProblemRuns, columns

GAPS = (0.5, 0.2, 0.1, 0.05, 0.02)
DECIDING_GAP = 0.1
OWN = {"svrb", "rsvrb", "re_rsvrb"}  # the paper's own methods are no baselines


@dataclass(frozen=True)
class Reach:
    """When runs came within a gap: the median over seeds (infinite if fewer than half came), and how many did."""

    value: float
    arrivals: int
    seeds: int


def first_at(run: Record, measure: str, level: float) -> float:
    """Samples or seconds at the first evaluation with F at or below `level`; infinite if there is none."""
    x, objective = columns(run, measure, "objective")
    below = np.flatnonzero(objective <= level)
    return float(x[below[0]]) if below.size else math.inf


def reach(problem: ProblemRuns, algorithm: AlgorithmRuns, measure: str, gap: float) -> Reach:
    """When F − F* fell to `gap` times F(x_0) − F*; of an even number of seeds the lower middle one counts."""
    start, best = problem.start, problem.best
    if not start > best:  # nobody got anywhere, so nobody has won anything
        return Reach(math.inf, 0, len(algorithm.runs))
    times = [first_at(run, measure, best + gap * (start - best)) for run in algorithm.runs]
    return Reach(statistics.median_low(times), sum(map(math.isfinite, times)), len(times))


def reaches(problem: ProblemRuns, measure: str) -> dict[str, list[Reach]]:
    """For each algorithm, when it reached each of the gaps."""
    return {a.label: [reach(problem, a, measure, gap) for gap in GAPS] for a in problem.algorithms}


def best_values(table: dict[str, list[Reach]]) -> list[float]:
    """The smallest value of each gap's column."""
    return [min(row[k].value for row in table.values()) for k in range(len(GAPS))]


@dataclass(frozen=True)
class Claim:
    """What the paper says of a figure: its champion is first everywhere, or in most places."""

    champion: str
    name: str
    everywhere: bool
    words: str


CLAIMS = {
    "figure1": Claim("svrb", "SVRB", True, "SVRB is fastest in samples and in running time on a1a, a8a, w1a and w8a"),
    "figure2": Claim(
        "re_rsvrb",
        "RE-RSVRB",
        False,
        "RE-RSVRB outperforms the baselines in most of a1a-200, w1a-200, a1a-500 and w1a-500",
    ),
}


@dataclass(frozen=True)
class Comparison:
    """The champion against the best baseline on one problem; infinite values were not reached."""

    problem: str
    measure: str
    gap: float
    champion: float
    baseline: float
    rival: str

    @property
    def holds(self) -> bool:
        """Whether the champion is first, and alone."""
        return self.champion < self.baseline

    @property
    def factor(self) -> float:
        """How many times the slower one takes what the faster one takes."""
        fast, slow = sorted((self.champion, self.baseline))
        return slow / fast if fast else math.inf


@dataclass(frozen=True)
class Judgement:
    """A claim with all comparisons that the runs allow, and the problems it names that cannot be compared."""

    claim: Claim
    comparisons: list[Comparison]
    missing: list[str]

    @property
    def wins(self) -> int:
        """In how many comparisons the claim holds."""
        return sum(comparison.holds for comparison in self.comparisons)

    @property
    def verdict(self) -> str:
        """In plain words, what the runs say."""
        of = len(self.comparisons)
        if not of:
            return "cannot be judged here"
        if self.wins == of or (not self.claim.everywhere and 2 * self.wins > of):
            return "holds here"
        return "holds here only in part" if self.claim.everywhere and self.wins else "does not hold here"


def judge(experiment: ExperimentRuns) -> Judgement | None:
    """Hold the paper's claim on this experiment against its runs; None where it makes none."""
    claim = CLAIMS.get(experiment.name)
    if claim is None:
        return None
    pairs = [(problem, measure) for problem in experiment.problems for measure in MEASURES]
    comparisons = [one for problem, measure in pairs if (one := compare(claim, problem, measure))]
    names = {comparison.problem for comparison in comparisons}
    return Judgement(claim, comparisons, [name for name in PROBLEMS[experiment.name] if name not in names])


def compare(claim: Claim, problem: ProblemRuns, measure: str) -> Comparison | None:
    """Who reaches the deciding gap first, or else the tightest gap that anybody reached."""
    champions = [one for one in problem.algorithms if one.algorithm == claim.champion]
    baselines = [one for one in problem.algorithms if one.algorithm not in OWN]
    if not champions or not baselines:
        return None
    for gap in sorted(gap for gap in GAPS if gap >= DECIDING_GAP):
        champion, _ = _fastest(problem, champions, measure, gap)
        baseline, rival = _fastest(problem, baselines, measure, gap)
        if math.isfinite(min(champion, baseline)):
            return Comparison(problem.name, measure, gap, champion, baseline, rival)
    return None


def _fastest(problem: ProblemRuns, rivals: list[AlgorithmRuns], measure: str, gap: float) -> tuple[float, str]:
    """When the first of the rivals got there, and which it was; nobody where none did."""
    value, label = min((reach(problem, one, measure, gap).value, one.label) for one in rivals)
    return value, label if math.isfinite(value) else ""


@dataclass(frozen=True)
class Rate:
    """The exponent p in samples ~ ε^−p: the paper's bound, and the mean of those fitted to the runs."""

    problem: str
    label: str
    theory: float
    fit: float

    @property
    def holds(self) -> bool | None:
        """Whether samples grow no faster than the bound; None where one of the two is not known."""
        finite = math.isfinite(self.theory) and math.isfinite(self.fit)
        return self.fit <= self.theory if finite else None


def rates(experiment: ExperimentRuns) -> list[Rate]:
    """The exponents of Table 1, fitted beside those of the paper; empty for all other experiments."""
    if experiment.name != RATES:
        return []
    return [
        Rate(problem.name, one.label, _mean(run.theory for run in one.runs), _mean(run.exponent for run in one.runs))
        for problem in experiment.problems
        for one in problem.algorithms
    ]


def _mean(values: Iterable[float | None]) -> float:
    """The mean of those that are known."""
    finite = [float(value) for value in values if value is not None and math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan
