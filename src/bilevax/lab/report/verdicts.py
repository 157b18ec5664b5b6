"""The paper's claims beside the runs, in words and tables."""

import math
from typing import NamedTuple

from bilevax.lab.claims import DECIDING_GAP, Comparison, Judgement, judge, rates
from bilevax.lab.report.readable import enumeration, percent, plain, quantity
from bilevax.lab.results import ExperimentRuns
from bilevax.pages import Cell, Row, Table, make_table

TONES = {"holds here": "yes", "cannot be judged here": ""}
WITHIN = {True: "no larger than the bound", False: "larger than the bound", None: "cannot be judged here"}


class Sentence(NamedTuple):
    """What became of a claim: the claim, the verdict, the details; `tone` is yes, no or neither."""

    claim: str
    verdict: str
    details: str
    tone: str


def claim_sentence(experiment: ExperimentRuns) -> Sentence | None:
    """What became of the paper's claim on this experiment; None where it makes none."""
    judgement = judge(experiment)
    if judgement is None:
        return _rate_sentence(experiment)
    tone = TONES.get(judgement.verdict, "no")
    return Sentence(f"The paper says: {judgement.claim.words}. ", f"It {judgement.verdict}", _details(judgement), tone)


def _rate_sentence(experiment: ExperimentRuns) -> Sentence | None:
    sure = [rate for rate in rates(experiment) if rate.holds is not None]
    if not sure:
        return None
    steep = [rate for rate in sure if not rate.holds]
    bound = "The paper’s Table 1 bounds the samples to accuracy ε by ε to the power −p. "
    count = f"Here {len(sure) - len(steep)} of {len(sure)} measured exponents are no larger than p."
    larger = [f"{rate.label} at {rate.problem} ({plain(rate.fit)}, p = {plain(rate.theory)})" for rate in steep]
    return Sentence(bound, count, f" Larger: {enumeration(larger)}." if larger else "", "no" if steep else "yes")


def _details(judgement: Judgement) -> str:
    missing = f" Not compared here: {enumeration(judgement.missing)}." if judgement.missing else ""
    if not judgement.comparisons:
        return "." + missing
    first = f": {judgement.claim.name} is first in {judgement.wins} of {len(judgement.comparisons)} comparisons"
    behind = [_behind(comparison, judgement) for comparison in judgement.comparisons if not comparison.holds]
    return first + (". Not first: " + "; ".join(behind) if behind else "") + "." + missing


def _behind(comparison: Comparison, judgement: Judgement) -> str:
    return f"{comparison.problem} in {comparison.measure}, {_outcome(comparison, judgement.claim.name)}"


def _outcome(comparison: Comparison, champion: str) -> str:
    fast, slow = (champion, comparison.rival) if comparison.holds else (comparison.rival, champion)
    if comparison.champion == comparison.baseline:
        return f"{champion} and {comparison.rival} are level"
    if not comparison.rival:
        return f"{champion} gets there, no baseline does"
    if math.isinf(comparison.factor):
        return f"{slow} does not get there, {fast} does"
    return f"{fast} is {plain(comparison.factor, 2)} times as fast as {slow}"


class Verdict(NamedTuple):
    """The judgement of a claim, with a note on how it was made, problem by problem."""

    title: str
    note: str
    table: Table


def claim_verdict(experiment: ExperimentRuns) -> Verdict | None:
    """The champion against the best baseline, problem by problem."""
    judgement = judge(experiment)
    if not judgement or not judgement.comparisons:
        return None
    name = judgement.claim.name
    note = (
        f"Who is first to leave no more than {percent(DECIDING_GAP)} of F(x₀) − F*, in the median over seeds; "
        "where nobody gets there, the tightest gap that anybody reached decides."
    )
    head: Row = ["Problem", _words("in"), "gap", name, "best baseline", _words(f"Is {name} first?")]
    table = make_table(head, [_comparison_row(comparison, name) for comparison in judgement.comparisons])
    return Verdict(f"The paper’s claim: it {judgement.verdict}", note, table)


def _comparison_row(comparison: Comparison, champion: str) -> Row:
    answer = ("yes: " if comparison.holds else "no: ") + _outcome(comparison, champion)
    baseline = quantity(comparison.baseline, comparison.measure)
    return [
        comparison.problem,
        _words(comparison.measure),
        percent(comparison.gap),
        quantity(comparison.champion, comparison.measure),
        baseline + (f" ({comparison.rival})" if comparison.rival else ""),
        Cell(answer, "words yes" if comparison.holds else "words no"),
    ]


def rate_verdict(experiment: ExperimentRuns) -> Verdict:
    """The exponents of Table 1, measured beside those of the paper."""
    note = "The exponent p in samples ~ ε⁻ᵖ: the bound of the paper’s Table 1, and the fit to these runs."
    head: Row = ["Problem", _words("method"), "bound", "measured", _words("")]
    rows: list[Row] = [
        [rate.problem, _words(rate.label), plain(rate.theory), plain(rate.fit), _words(WITHIN[rate.holds])]
        for rate in rates(experiment)
    ]
    return Verdict("Exponents, measured beside the paper’s", note, make_table(head, rows))


def _words(text: str) -> Cell:
    return Cell(text, "words")
