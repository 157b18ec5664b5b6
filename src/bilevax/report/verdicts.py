"""The paper's claims beside the runs, in words and tables."""

import math

from bilevax.report.claims import DECIDING_GAP, Comparison, Judgement, Rate, judge, rates
from bilevax.report.markup import Html, element, joined, table
from bilevax.report.readable import listed, measured, percent, plain
from bilevax.report.runs import Experiment

WITHIN = {True: "no larger than the bound", False: "larger than the bound", None: "cannot be judged here"}


def claim_sentence(experiment: Experiment) -> Html | None:
    """What became of the paper's claim on this experiment, as one entry of a list; None where it makes none."""
    judgement = judge(experiment)
    if judgement:
        tone = {"holds here": "yes", "cannot be judged here": ""}.get(judgement.verdict, "no")
        verdict = element("span", f"It {judgement.verdict}", class_="verdict")
        return element("li", f"The paper says: {judgement.claim.words}. ", verdict, _details(judgement), class_=tone)
    return _rate_sentence(rates(experiment))


def _rate_sentence(found: list[Rate]) -> Html | None:
    judged = [rate for rate in found if rate.holds is not None]
    if not judged:
        return None
    steep = [rate for rate in judged if not rate.holds]
    bound = "The paper’s Table 1 bounds the samples to accuracy ε by ε to the power −p. "
    count = f"Here {len(judged) - len(steep)} of {len(judged)} measured exponents are no larger than p."
    larger = [f"{rate.label} at {rate.problem} ({plain(rate.measured)}, p = {plain(rate.theory)})" for rate in steep]
    named = f" Larger: {listed(larger)}." if larger else ""
    return element("li", bound, element("span", count, class_="verdict"), named, class_="no" if steep else "yes")


def _details(judgement: Judgement) -> str:
    missing = f" Not compared here: {listed(judgement.missing)}." if judgement.missing else ""
    if not judgement.comparisons:
        return "." + missing
    first = f": {judgement.claim.name} is first in {judgement.held} of {len(judgement.comparisons)} comparisons"
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


def comparisons(experiment: Experiment) -> Html:
    """The champion against the best baseline, problem by problem."""
    judgement = judge(experiment)
    if not judgement or not judgement.comparisons:
        return Html("")
    name = judgement.claim.name
    head = ["Problem", _words("th", "in"), "gap", name, "best baseline", _words("th", f"Is {name} first?")]
    rows = [_comparison_row(comparison, name) for comparison in judgement.comparisons]
    note = (
        f"Who is first to leave no more than {percent(DECIDING_GAP)} of F(x₀) − F*, in the median over seeds; "
        "where nobody gets there, the tightest gap that anybody reached decides."
    )
    heading = element("h3", f"The paper’s claim: it {judgement.verdict}")
    return joined([heading, element("p", note, class_="note"), table(head, rows)])


def _comparison_row(comparison: Comparison, champion: str) -> list[str]:
    tone = "words yes" if comparison.holds else "words no"
    answer = ("yes: " if comparison.holds else "no: ") + _outcome(comparison, champion)
    return [
        comparison.problem,
        _words("td", comparison.measure),
        percent(comparison.gap),
        measured(comparison.champion, comparison.measure),
        measured(comparison.baseline, comparison.measure) + (f" ({comparison.rival})" if comparison.rival else ""),
        element("td", answer, class_=tone),
    ]


def rate_table(experiment: Experiment) -> Html:
    """The exponents of Table 1, measured beside those of the paper."""
    note = "The exponent p in samples ~ ε⁻ᵖ: the bound of the paper’s Table 1, and the fit to these runs."
    head = ["Problem", _words("th", "method"), "bound", "measured", _words("th", "")]
    rows = [
        [
            rate.problem,
            _words("td", rate.label),
            plain(rate.theory),
            plain(rate.measured),
            _words("td", WITHIN[rate.holds]),
        ]
        for rate in rates(experiment)
    ]
    heading = element("h3", "Exponents, measured beside the paper’s")
    return joined([heading, element("p", note, class_="note"), table(head, rows)])


def _words(tag: str, text: str) -> Html:
    return element(tag, text, class_="words")
