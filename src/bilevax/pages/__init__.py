"""HTML pages that need nothing but themselves and may ask nobody for anything; whatever is put into them is escaped.

A page is a template (jinja2, in the extras `plots` and `tables`) that fills the blocks of `document.html.j2`.
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, its class, and small print after it."""

    text: str
    kind: str = ""
    small: str = ""


Row = list[str | Cell]


class Table(NamedTuple):
    """A table for the macro `table` of `tables.html.j2`; the first cell of a row is its heading."""

    head: list[Cell]
    rows: list[list[Cell]]
    caption: str = ""


def make_table(head: Row | list[str], rows: Sequence[Row | list[str]], caption: str = "") -> Table:
    """A table of texts and cells."""
    return Table(_as_cells(head), [_as_cells(row) for row in rows], caption)


def _as_cells(row: Row | list[str]) -> list[Cell]:
    return [Cell(cell) if isinstance(cell, str) else cell for cell in row]


def render(template: str, title: str, scripts: tuple[str, ...] = (), **content: Any) -> str:
    """The page of a template, by its path in the package; it runs the given scripts and nothing else."""
    from markupsafe import Markup

    own = {"style": Markup(read_part("pages/page.css")), "policy": Markup(_policy(scripts))}  # no text of a user's
    scripts = tuple(Markup(script) for script in scripts)
    return _environment().get_template(template).render(title=title, scripts=scripts, **own, **content)


def read_part(path: str) -> str:
    """A file that comes with the package."""
    return (files("bilevax") / path).read_text(encoding="utf-8")


@cache
def _environment() -> Any:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(read_part), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def _policy(scripts: tuple[str, ...]) -> str:
    """Only these scripts run, even if a name in some file found a way out of its escaping."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    sources = " ".join(f"'sha256-{digest}'" for digest in hashes) or "'none'"
    return f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; img-src data:"
