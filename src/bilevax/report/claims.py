"""The paper's claims, held against the runs."""

import math
from dataclasses import dataclass

from bilevax.report.gaps import GAPS, reach
from bilevax.report.runs import MEASURES, PROBLEMS, RATES, Experiment, Method, Problem

DECIDING_GAP = 0.1
OWN = {"svrb", "rsvrb", "re_rsvrb"}  # the paper's own methods are no baselines


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
    def held(self) -> int:
        """In how many comparisons the claim holds."""
        return sum(comparison.holds for comparison in self.comparisons)

    @property
    def verdict(self) -> str:
        """In plain words, what the runs say."""
        of = len(self.comparisons)
        if not of:
            return "cannot be judged here"
        if self.held == of or (not self.claim.everywhere and 2 * self.held > of):
            return "holds here"
        return "holds here only in part" if self.claim.everywhere and self.held else "does not hold here"


def judge(experiment: Experiment) -> Judgement | None:
    """Hold the paper's claim on this experiment against its runs; None where it makes none."""
    claim = CLAIMS.get(experiment.name)
    if claim is None:
        return None
    pairs = [(problem, measure) for problem in experiment.problems for measure in MEASURES]
    found = [compared for problem, measure in pairs if (compared := compare(claim, problem, measure))]
    judged = {comparison.problem for comparison in found}
    return Judgement(claim, found, [name for name in PROBLEMS[experiment.name] if name not in judged])


def compare(claim: Claim, problem: Problem, measure: str) -> Comparison | None:
    """Who reaches the deciding gap first, or else the tightest gap that anybody reached."""
    champions = [method for method in problem.methods if method.algorithm == claim.champion]
    baselines = [method for method in problem.methods if method.algorithm not in OWN]
    if not champions or not baselines:
        return None
    for gap in sorted(gap for gap in GAPS if gap >= DECIDING_GAP):
        champion, _ = _fastest(problem, champions, measure, gap)
        baseline, rival = _fastest(problem, baselines, measure, gap)
        if math.isfinite(min(champion, baseline)):
            return Comparison(problem.name, measure, gap, champion, baseline, rival)
    return None


def _fastest(problem: Problem, methods: list[Method], measure: str, gap: float) -> tuple[float, str]:
    """When the first of the methods got there, and which it was; nobody where none did."""
    value, label = min((reach(problem, method, measure, gap).value, method.label) for method in methods)
    return value, label if math.isfinite(value) else ""


@dataclass(frozen=True)
class Rate:
    """The exponent p in samples ~ ε^−p: the paper's bound, and the mean of those fitted to the runs."""

    problem: str
    label: str
    theory: float
    measured: float

    @property
    def holds(self) -> bool | None:
        """Whether samples grow no faster than the bound; None where one of the two is not known."""
        known = math.isfinite(self.theory) and math.isfinite(self.measured)
        return self.measured <= self.theory if known else None


def rates(experiment: Experiment) -> list[Rate]:
    """The exponents of Table 1, measured beside those of the paper; empty for all other experiments."""
    if experiment.name != RATES:
        return []
    return [
        Rate(problem.name, method.label, _mean_setting(method, "theory"), _mean_setting(method, "exponent"))
        for problem in experiment.problems
        for method in problem.methods
    ]


def _mean_setting(method: Method, name: str) -> float:
    values = [run.settings.get(name) for run in method.runs]
    known = [float(value) for value in values if isinstance(value, (int, float)) and math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan
