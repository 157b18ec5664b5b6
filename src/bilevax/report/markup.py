"""HTML that cannot be broken by what is put into it: whatever is not known to be HTML is escaped."""

import html
import json
from collections.abc import Iterable
from typing import Any


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: Any) -> Html:
    """One element; children that are plain text and all attributes are escaped, `class_` is written class."""
    shown = "".join(f' {name.rstrip("_").replace("_", "-")}="{_escaped(v)}"' for name, v in attributes.items())
    return Html(f"<{tag}{shown}>" if tag == "input" else f"<{tag}{shown}>{joined(children)}</{tag}>")


def joined(parts: Iterable[str]) -> Html:
    """The parts one after the other, plain text escaped."""
    return Html("".join(part if isinstance(part, Html) else html.escape(part) for part in parts))


def table(head: Iterable[str], rows: Iterable[Iterable[str]], caption: str = "") -> Html:
    """A table that scrolls inside itself; the first cell of a row is its heading."""
    header = element("tr", *(cell if isinstance(cell, Html) else element("th", cell, scope="col") for cell in head))
    title = [element("caption", caption)] if caption else []
    inside = element("table", *title, element("thead", header), element("tbody", *map(_row, rows)))
    return element("div", inside, class_="scroll", tabindex="0", role="group", aria_label=caption or "table")


def data_script(identifier: str, data: Any) -> Html:
    """Data for the page's script; no text in it can end the element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return element("script", Html(text), type="application/json", id=identifier)


def _row(cells: Iterable[str]) -> Html:
    first, *rest = cells
    data = (cell if _is_cell(cell) else element("td", cell) for cell in rest)
    return element("tr", element("th", first, scope="row"), *data)


def _is_cell(cell: str) -> bool:
    return isinstance(cell, Html) and cell.startswith("<td")


def _escaped(value: Any) -> str:
    return html.escape(str(value), quote=True)
