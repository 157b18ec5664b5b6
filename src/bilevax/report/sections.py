"""The page's sections: claims, panels, gaps, settings, problems, and how it was all made."""

from collections import Counter
from typing import Any

from bilevax.report.curves import MOST_POINTS
from bilevax.report.markup import Html, element, joined
from bilevax.report.palette import Style
from bilevax.report.runs import MEASURES, RATES, Experiment, Method, Problem, Run
from bilevax.report.said import merged
from bilevax.report.tables import facts, gap_tables, settings
from bilevax.report.verdicts import claim_sentence, comparisons, rate_table

HEADING = "bilevax: the runs and what they say"
TITLES = {
    "figure1": "Figure 1: one lower-level problem",
    "figure2": "Figure 2: many lower-level problems",
    "compare": "Comparison",
    RATES: "Table 1: samples against accuracy",
}
SWATCHES = {"solid": "none", "dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3"}
CONTROLS = {
    "against": ("Against", {"samples": "samples", "seconds": "seconds", "both": "both"}, "both"),
    "y": ("F", {"linear": "linear", "log": "log"}, "linear"),
    "x": ("x", {"linear": "linear", "log": "log"}, "linear"),
}
MADE = (
    "Each curve is the mean over the seeds of a method, at points where any seed was evaluated "
    f"(at most {MOST_POINTS} of them), up to the last point that all seeds reached; between two evaluations values are "
    "interpolated. The band goes from the smallest seed to the largest.",
    "F(x) is exact: the lower-level problems are solved to high accuracy at every evaluation. F* is the smallest F "
    "that any run of the problem found, the exact reference (L-BFGS) included where there is one; the reference "
    "does not compete. The axis of F ends a little above F(x₀), and on a log scale it shows F(x) − F*.",
    "Seconds are those of the start and the steps. Neither evaluation nor compilation is timed. Samples are all that "
    "a method drew.",
)


def header(experiments: list[Experiment]) -> Html:
    """The title, what there is, and what became of the paper's claims."""
    runs = sum(len(experiment.runs) for experiment in experiments)
    links = [element("a", title(e), href=f"#experiment-{k}") for k, e in enumerate(experiments)]
    shown = joined(part for link in links for part in (" · ", link))
    claims = [sentence for e in experiments if (sentence := claim_sentence(e))]
    return element(
        "header",
        element("h1", HEADING),
        element("p", f"{runs:,} runs", shown, class_="soft"),
        *([element("ul", *claims, class_="claims")] if claims else []),
    )


def title(experiment: Experiment) -> str:
    """What an experiment is called."""
    return TITLES.get(experiment.name, experiment.name)


def controls() -> Html:
    """The switches for all panels of the page."""
    groups = (_choices(name, *choice) for name, choice in CONTROLS.items())
    return element("div", element("form", *groups, autocomplete="off"), class_="controls")


def _choices(name: str, legend: str, options: dict[str, str], chosen: str) -> Html:
    labels = []
    for value, words in options.items():
        checked = {"checked": ""} if value == chosen else {}
        radio = element("input", type="radio", name=name, value=value, **checked)
        labels.append(element("label", radio, words))
    return element("fieldset", element("legend", legend), element("div", *labels, class_="choices"))


def section(k: int, experiment: Experiment, looks: dict[str, Style]) -> Html:
    """All that is known of one experiment."""
    if experiment.name == RATES:
        parts = [_panel_row(k, experiment, "rate"), rate_table(experiment)]
    else:
        parts = [_panel_row(k, experiment, measure) for measure in MEASURES]
        parts += [_divergence(experiment), comparisons(experiment), gap_tables(experiment)]
    return element(
        "section",
        element("h2", title(experiment), id=f"experiment-{k}"),
        _caption(experiment),
        _legend(k, experiment, looks),
        *parts,
        facts(experiment),
        settings(experiment),
    )


def _caption(experiment: Experiment) -> Html:
    if experiment.name == RATES:
        words = f"Samples to reach accuracy ε{_over_seeds(experiment)}. A curve ends where ε was not reached."
    else:
        words = f"The exact objective F(x){_over_seeds(experiment) or ', one seed'}."
    png, svg = (element("a", kind.upper(), href=f"{experiment.name}.{kind}") for kind in ("png", "svg"))
    return element("p", f"{words} As a picture: ", png, ", ", svg, ".", class_="soft")


def _over_seeds(experiment: Experiment) -> str:
    """What mean and band are over; nothing where each method has a single run."""
    seeds = sorted({len(method.runs) for problem in experiment.problems for method in problem.methods})
    if seeds == [1]:
        return ""
    over = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return f", mean over {over} seeds; the band goes from the smallest seed to the largest"


def _legend(k: int, experiment: Experiment, looks: dict[str, Style]) -> Html:
    buttons = (
        element(
            "button",
            _swatch(looks[label]),
            label,
            type="button",
            aria_pressed="true",
            data_experiment=k,
            data_method=at,
        )
        for at, label in enumerate(experiment.labels)
    )
    return element("div", *buttons, class_="legend", role="group", aria_label="Methods shown")


def _swatch(look: Style) -> Html:
    mark = element(
        "line", x1=0, x2=26, y1=4, y2=4, stroke=look.color, stroke_width=3, stroke_dasharray=SWATCHES[look.dash]
    )
    return element("svg", mark, viewBox="0 0 26 8", aria_hidden="true")


def _panel_row(k: int, experiment: Experiment, measure: str) -> Html:
    against = "" if measure == "rate" else f", against {measure}"
    figures = (
        element(
            "figure",
            element("figcaption", element("strong", problem.name), against),
            element("div", class_="plot"),
            class_="panel",
            data_experiment=k,
            data_problem=at,
            data_measure=measure,
        )
        for at, problem in enumerate(experiment.problems)
    )
    return element("div", *figures, class_="panels", data_measure=measure)


def _divergence(experiment: Experiment) -> Html:
    lines = [
        _diverged(problem, method) for problem in experiment.problems for method in problem.methods if method.diverged
    ]
    if not lines:
        return Html("")
    note = "Diverged, marked × where the curve ends: " + "; ".join(lines) + "."
    return element("p", note, class_="note")


def _diverged(problem: Problem, method: Method) -> str:
    messages = dict.fromkeys(str(run.settings.get("message", "")) for run in method.runs if run.diverged)
    said = ", ".join(message.rstrip(".") for message in messages if message)
    count = f"{method.diverged} of {len(method.runs)} seeds"
    return f"{method.label} on {problem.name}, {count}" + (f" ({said})" if said else "")


def footer(experiments: list[Experiment]) -> Html:
    """How the curves are made, and on what."""
    runs = [run for experiment in experiments for run in experiment.runs]
    return element(
        "footer",
        element("h3", "How the curves are made"),
        *(element("p", paragraph, class_="note") for paragraph in MADE),
        element("h3", "Versions and machine"),
        *(element("p", line, class_="note") for line in _origins(runs)),
    )


def _origins(runs: list[Run]) -> list[str]:
    counted = Counter(_origin(run.settings) for run in runs)
    many = len(counted) > 1
    return [f"{count:,} runs: {origin}" if many else origin for origin, count in counted.items()]


def _origin(settings: dict[str, Any]) -> str:
    versions = merged([settings.get("versions")])
    machine = merged([settings.get("machine")])
    made = [" ".join(pair) for pair in versions.items()]
    on = [f"{name} {value}" for name, value in machine.items()]
    return "; ".join(", ".join(part) for part in (made, on) if part) or "not recorded"
