"""Tables of an experiment: samples and seconds to fixed gaps, its problems, its settings."""

import math
from collections import Counter

from bilevax.report.gaps import GAPS, Reach, reaches, winning
from bilevax.report.markup import Html, element, joined, table
from bilevax.report.readable import measured, percent, plain
from bilevax.report.runs import MEASURES, RATES, Experiment, Method, Problem
from bilevax.report.said import merged, said


def gap_tables(experiment: Experiment) -> Html:
    """Two tables for each problem: samples and seconds to each gap."""
    note = (
        "Median over seeds of the samples, or seconds, at the first evaluation with F − F* at or below so much of "
        "F(x₀) − F*. A dash: fewer than half of the seeds got there; small figures: how many did. The best of each "
        "column is bold."
    )
    tables = (_gap_table(problem, measure) for problem in experiment.problems for measure in MEASURES)
    heading = element("h3", "Samples and seconds to fixed gaps")
    return joined([heading, element("p", note, class_="note"), element("div", *tables, class_="pairs")])


def _gap_table(problem: Problem, measure: str) -> Html:
    found = reaches(problem, measure)
    best = winning(found)
    rows = (
        [label, *(_gap_cell(reach, winner, measure) for reach, winner in zip(row, best, strict=True))]
        for label, row in found.items()
    )
    return table(["Gap", *map(percent, GAPS)], rows, f"{problem.name}: {measure}")


def _gap_cell(reach: Reach, winner: float, measure: str) -> Html:
    count = [] if reach.reached in (0, reach.seeds) else [element("small", f"{reach.reached}/{reach.seeds}")]
    if math.isinf(reach.value):
        return element("td", "–", *count, class_="none")
    how = {"class_": "best"} if reach.value == winner else {}
    return element("td", measured(reach.value, measure), *count, **how)


def facts(experiment: Experiment) -> Html:
    """What the problems are, and what must be known of them."""
    facts_of = {problem.name: _known(problem, experiment.name) for problem in experiment.problems}
    names = list(dict.fromkeys(name for known in facts_of.values() for name in known))
    remarks = [
        element("p", element("strong", problem.name), ": ", remark, class_="note")
        for problem in experiment.problems
        for remark in said(problem.competitors, "remark")
    ]
    if not names and not remarks:
        return Html("")
    rows = ([problem, *(known.get(name, "") for name in names)] for problem, known in facts_of.items())
    return joined([element("h3", "Problems"), *([table(["Problem", *names], rows)] if names else []), *remarks])


def _known(problem: Problem, experiment: str) -> dict[str, str]:
    known = merged(run.settings.get("facts") for run in problem.competitors)
    if experiment == RATES:
        return known
    finder = problem.best_run.label
    return known | {"F(x₀)": plain(problem.start, 5), "F*": plain(problem.best, 5), "F* found by": finder}


def settings(experiment: Experiment) -> Html:
    """With what settings each algorithm ran on each problem, and how they were found."""
    tables = (_settings_table(problem) for problem in experiment.problems)
    effort = [element("p", "Tuning: ", effort, class_="note") for effort in said(experiment.runs, "effort")]
    return element("details", element("summary", "Settings of every algorithm"), *effort, *tables)


def _settings_table(problem: Problem) -> Html:
    options = {method.label: merged(run.settings.get("options") for run in method.runs) for method in problem.methods}
    names = list(dict.fromkeys(name for chosen in options.values() for name in chosen))
    rows = (
        [method.label, *_way(method), *(options[method.label].get(name, "") for name in names)]
        for method in problem.methods
    )
    return table(
        ["Method", "seeds", "ended", "precision", *(name.replace("_", " ") for name in names)], rows, problem.name
    )


def _way(method: Method) -> list[str]:
    """How many seeds, how their runs ended, in what precision."""
    ended = Counter(str(run.settings.get("status", "unknown")) for run in method.runs)
    precision = ", ".join(said(method.runs, "precision"))
    return [str(len(method.runs)), ", ".join(f"{count} {status}" for status, count in ended.items()), precision]
