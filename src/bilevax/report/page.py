"""The report as one HTML page that needs nothing but itself."""

import base64
import hashlib
from importlib.resources import files
from string import Template

from bilevax.report.markup import Html, data_script, element, joined
from bilevax.report.palette import Style
from bilevax.report.panels import panels
from bilevax.report.runs import RATES, Experiment
from bilevax.report.sections import HEADING, controls, footer, header, section


def page(experiments: list[Experiment], looks: dict[str, Style]) -> str:
    """The whole page; it runs its own two scripts and nothing else, and may ask no server for anything."""
    from plotly.offline import get_plotlyjs

    plotly, script = get_plotlyjs(), _held("page.js")
    return Template(_held("page.html")).substitute(
        policy=_policy(plotly, script),
        title=HEADING,
        style=_held("page.css"),
        body=_body(experiments, looks),
        data=data_script("data", panels(experiments, looks)),
        plotly=plotly,
        script=script,
    )


def _body(experiments: list[Experiment], looks: dict[str, Style]) -> Html:
    switches = [controls()] if any(experiment.name != RATES for experiment in experiments) else []
    sections = (section(k, experiment, looks) for k, experiment in enumerate(experiments))
    return joined([header(experiments), *switches, element("main", *sections, footer(experiments))])


def _policy(*scripts: str) -> str:
    """Only these scripts run, even if a name in some file found a way out of its escaping."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{known}'" for known in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:"


def _held(name: str) -> str:
    return (files("bilevax.report") / name).read_text(encoding="utf-8")
