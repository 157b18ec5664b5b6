"""The report as one HTML page that needs nothing but itself."""

from bilevax.report.document import document, held
from bilevax.report.markup import Html, data_script, element, joined
from bilevax.report.palette import Style
from bilevax.report.panels import panels
from bilevax.report.runs import RATES, Experiment
from bilevax.report.sections import HEADING, controls, footer, header, section


def page(experiments: list[Experiment], looks: dict[str, Style]) -> str:
    """The whole page; it runs its own two scripts and nothing else, and may ask no server for anything."""
    from plotly.offline import get_plotlyjs

    data = data_script("data", panels(experiments, looks))
    return document(HEADING, _body(experiments, looks), (get_plotlyjs(), held("page.js")), data)


def _body(experiments: list[Experiment], looks: dict[str, Style]) -> Html:
    switches = [controls()] if any(experiment.name != RATES for experiment in experiments) else []
    sections = (section(k, experiment, looks) for k, experiment in enumerate(experiments))
    return joined([header(experiments), *switches, element("main", *sections, footer(experiments))])
