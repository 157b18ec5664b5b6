"""The look of each method's curves: the same in every panel, on the page and in the pictures."""

from dataclasses import dataclass

# Seven of the colours of Okabe and Ito, which colour-blind readers can tell apart; their yellow is lost on white
# paper, and their black, lost on a dark page, is a grey that both show. Vermilion and orange are the nearest pair: they
# go to SVRB and RE-RSVRB, which the paper never draws together.
COLORS = ("#D55E00", "#E69F00", "#0072B2", "#009E73", "#CC79A7", "#808080", "#56B4E9")
DASHES = ("solid", "dash", "dot", "dashdot")  # from the eighth method on, colours come back with another dash


@dataclass(frozen=True)
class Style:
    """Colour and dash of a line."""

    color: str
    dash: str


def styles(labels: list[str]) -> dict[str, Style]:
    """A look for each of the methods."""
    return {
        label: Style(COLORS[k % len(COLORS)], DASHES[k // len(COLORS) % len(DASHES)]) for k, label in enumerate(labels)
    }
