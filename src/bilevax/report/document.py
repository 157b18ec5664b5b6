"""A whole HTML page that needs nothing but itself, and may ask nobody for anything."""

import base64
import hashlib
from importlib.resources import files
from string import Template

from bilevax.report.markup import Html


def document(title: str, body: Html, scripts: tuple[str, ...] = (), data: str = "") -> str:
    """The page with the style of all pages; it runs the given scripts and nothing else."""
    return Template(held("page.html")).substitute(
        policy=_policy(scripts),
        title=title,
        style=held("page.css"),
        body=body,
        data=data,
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def held(name: str) -> str:
    """A file that comes with the package."""
    return (files("bilevax.report") / name).read_text(encoding="utf-8")


def _policy(scripts: tuple[str, ...]) -> str:
    """Only these scripts run, even if a name in some file found a way out of its escaping."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{known}'" for known in hashes) or "'none'"
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:"
