"""What runs say of themselves in their settings, each thing once."""

from collections.abc import Iterable
from typing import Any

from bilevax.report.readable import anything
from bilevax.report.runs import Run


def merged(dictionaries: Iterable[Any]) -> dict[str, str]:
    """Each name with its value; where runs differ, with all values."""
    values: dict[str, dict[str, None]] = {}
    for dictionary in dictionaries:
        for name, value in dict(dictionary or {}).items():
            values.setdefault(str(name), {})[anything(value)] = None
    return {name: " / ".join(different) for name, different in values.items()}


def said(runs: Iterable[Run], setting: str) -> list[str]:
    """The different things that runs say in one of their settings."""
    return list(dict.fromkeys(str(run.settings[setting]) for run in runs if run.settings.get(setting)))
