"""The report as one HTML page that needs nothing but itself: what the template `report.html.j2` is filled with."""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from bilevax.lab.claims import GAPS, Reach, best_values, reaches
from bilevax.lab.record import Record
from bilevax.lab.report.curves import MOST_POINTS, Styles, panels
from bilevax.lab.report.readable import percent, plain, quantity, setting
from bilevax.lab.report.verdicts import Verdict, claim_sentence, claim_verdict, rate_verdict
from bilevax.lab.results import MEASURES, RATES, AlgorithmRuns, ExperimentRuns, ProblemRuns
from bilevax.pages import Cell, Row, Table, make_table, read_part, render

HEADING = "bilevax: the runs and what they say"
TITLES = {
    "figure1": "Figure 1: one lower-level problem",
    "figure2": "Figure 2: many lower-level problems",
    "compare": "Comparison",
    RATES: "Table 1: samples against accuracy",
}
SWATCHES = {"solid": "none", "dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3"}
CONTROLS = {  # the name of a choice, its words, its values, and the value to begin with
    "against": ("Against", ("samples", "seconds", "both"), "both"),
    "y": ("Axis of F", ("linear", "log"), "linear"),
    "x": ("Axis below", ("linear", "log"), "linear"),
}


class Section(NamedTuple):
    """All that is known of one experiment."""

    name: str
    title: str
    caption: str
    quick: str
    measures: tuple[str, ...]
    problems: list[str]
    looks: Styles
    divergence: str
    verdict: Verdict | None
    gap_tables: list[Table]
    facts: Table | None
    remarks: list[tuple[str, str]]
    efforts: list[str]
    settings: list[Table]


def make_page(experiments: list[ExperimentRuns], looks: Styles) -> str:
    """The whole page; it runs its own two scripts and nothing else, and may ask no server for anything."""
    from plotly.offline import get_plotlyjs

    return render(
        "lab/report/report.html.j2",
        HEADING,
        (get_plotlyjs(), read_part("lab/report/report.js")),
        count=_count(experiments),
        claims=[sentence for each in experiments if (sentence := claim_sentence(each))],
        controls=CONTROLS if any(each.name != RATES for each in experiments) else {},
        sections=[_section(each, looks) for each in experiments],
        swatches=SWATCHES,
        most_points=MOST_POINTS,
        origins=_origins([run for each in experiments for run in (*each.competitors, *each.references)]),
        data=panels(experiments, looks),
    )


def _count(experiments: list[ExperimentRuns]) -> str:
    """How many runs there are; references do not compete, and are counted apart."""
    runs = sum(len(experiment.competitors) for experiment in experiments)
    references = sum(len(experiment.references) for experiment in experiments)
    return f"{runs:,} run{'s' if runs > 1 else ''}" + (f" and {references:,} of the reference" if references else "")


def _section(experiment: ExperimentRuns, looks: Styles) -> Section:
    is_rates = experiment.name == RATES
    return Section(
        name=experiment.name,
        title=TITLES.get(experiment.name, experiment.name),
        caption=_caption(experiment),
        quick=_quick(experiment),
        measures=("rate",) if is_rates else MEASURES,
        problems=[problem.name for problem in experiment.problems],
        looks={label: looks[label] for label in experiment.labels},
        divergence="" if is_rates else _divergence(experiment),
        verdict=rate_verdict(experiment) if is_rates else claim_verdict(experiment),
        gap_tables=[] if is_rates else [_gap_table(p, measure) for p in experiment.problems for measure in MEASURES],
        facts=_facts(experiment),
        remarks=[(p.name, remark) for p in experiment.problems for remark in _distinct(p.competitors, "remark")],
        efforts=_distinct(experiment.competitors, "effort"),
        settings=[_settings(problem) for problem in experiment.problems],
    )


def _caption(experiment: ExperimentRuns) -> str:
    if experiment.name == RATES:
        return f"Samples to reach accuracy ε{_over_seeds(experiment)}. A curve ends where ε was not reached."
    return f"The exact objective F(x){_over_seeds(experiment) or ', one seed'}."


def _over_seeds(experiment: ExperimentRuns) -> str:
    """What mean and band are over; nothing where each algorithm has a single run."""
    seeds = sorted({len(one.runs) for problem in experiment.problems for one in problem.algorithms})
    if seeds == [1]:
        return ""
    over = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return f", mean over {over} seeds; the band goes from the smallest seed to the largest"


def _quick(experiment: ExperimentRuns) -> str:
    """What a reader of quick runs must know."""
    if not any(run.is_quick for run in experiment.competitors):
        return ""
    if experiment.name == RATES:
        return "These are quick measurements (--quick), with fewer samples, tasks and seeds."
    return (
        "These are quick runs (--quick): shorter, with F of a few of many tasks, and little time for the reference to "
        "find F*. What is said here of the paper’s claims is a first look."
    )


def _divergence(experiment: ExperimentRuns) -> str:
    lines = [
        _name_divergence(problem, one)
        for problem in experiment.problems
        for one in problem.algorithms
        if one.divergences
    ]
    return "Diverged, marked × where the curve ends: " + "; ".join(lines) + "." if lines else ""


def _name_divergence(problem: ProblemRuns, algorithm: AlgorithmRuns) -> str:
    messages = _distinct([run for run in algorithm.runs if run.has_diverged], "message")
    reasons = ", ".join(message.rstrip(".") for message in messages)
    count = f"{algorithm.divergences} of {len(algorithm.runs)} seeds"
    return f"{algorithm.label} on {problem.name}, {count}" + (f" ({reasons})" if reasons else "")


def _gap_table(problem: ProblemRuns, measure: str) -> Table:
    """Samples or seconds to each gap."""
    times = reaches(problem, measure)
    best = best_values(times)
    rows: list[Row] = [
        [label, *(_gap_cell(reach, value, measure) for reach, value in zip(row, best, strict=True))]
        for label, row in times.items()
    ]
    return make_table(["Gap", *map(percent, GAPS)], rows, f"{problem.name}: {measure}")


def _gap_cell(reach: Reach, best: float, measure: str) -> Cell:
    small = "" if reach.arrivals in (0, reach.seeds) else f"{reach.arrivals}/{reach.seeds}"
    if math.isinf(reach.value):
        return Cell("–", "none", small)
    return Cell(quantity(reach.value, measure), "best" if reach.value == best else "", small)


def _facts(experiment: ExperimentRuns) -> Table | None:
    """What the problems are."""
    facts = {problem.name: _facts_of(problem, experiment.name) for problem in experiment.problems}
    names = _union(facts.values())
    rows = [[problem, *(values.get(name, "") for name in names)] for problem, values in facts.items()]
    return make_table(["Problem", *names], rows) if names else None


def _facts_of(problem: ProblemRuns, experiment: str) -> dict[str, str]:
    values = _merge(run.facts for run in problem.competitors)
    if experiment == RATES:
        return values
    finder = problem.best_run.label
    return values | {"F(x₀)": plain(problem.start, 5), "F*": plain(problem.best, 5), "F* found by": finder}


def _settings(problem: ProblemRuns) -> Table:
    """With what settings each algorithm ran on a problem."""
    options = {one.label: _merge(run.options for run in one.runs) for one in problem.algorithms}
    names = _union(options.values())
    rows = [
        [one.label, *_way(one), *(options[one.label].get(name, "") for name in names)] for one in problem.algorithms
    ]
    head = ["Method", "seeds", "ended", "precision", *(name.replace("_", " ") for name in names)]
    return make_table(head, rows, problem.name)


def _way(algorithm: AlgorithmRuns) -> list[str]:
    """How many seeds, how their runs ended, in what precision."""
    ends = Counter(run.status or "unknown" for run in algorithm.runs)
    precision = ", ".join(_distinct(algorithm.runs, "precision"))
    return [str(len(algorithm.runs)), ", ".join(f"{count} {status}" for status, count in ends.items()), precision]


def _origins(runs: list[Record]) -> list[str]:
    """Versions and machines, with the number of runs where there are several."""
    counts = Counter(_origin(run) for run in runs)
    return [f"{count:,} runs: {origin}" if len(counts) > 1 else origin for origin, count in counts.items()]


def _origin(run: Record) -> str:
    parts = [[f"{name} {value}" for name, value in _merge([each]).items()] for each in (run.versions, run.machine)]
    return "; ".join(", ".join(part) for part in parts if part) or "not recorded"


def _merge(dictionaries: Iterable[Any]) -> dict[str, str]:
    """Each name with its value; where runs differ, with all values."""
    values: dict[str, dict[str, None]] = {}
    for dictionary in dictionaries:
        for name, value in (dictionary or {}).items():
            values.setdefault(str(name), {})[setting(value)] = None
    return {name: " / ".join(different) for name, different in values.items()}


def _union(dictionaries: Iterable[dict[str, str]]) -> list[str]:
    """All names, each once."""
    return list(dict.fromkeys(name for dictionary in dictionaries for name in dictionary))


def _distinct(runs: Iterable[Record], field: str) -> list[str]:
    """The different things that runs say in one of their fields."""
    return list(dict.fromkeys(str(value) for run in runs if (value := getattr(run, field))))
