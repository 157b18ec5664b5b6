"""A stored run: one typed record, which whoever makes runs writes and whoever reports on them reads.

On disk it is a trace (`bilevax.Trace`): {"settings": every other field, "rows": one for each evaluation}.
"""

import re
import reprlib
import unicodedata
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from bilevax.run.trace import LARGEST, Trace

REFERENCE = "reference"  # exact L-BFGS: it makes F* known and does not compete
LONGEST_NAME = 300
UNPRINTABLE = ("Cc", "Cs")  # control characters, and halves of characters
KINDS: dict[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "text"),
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    dict: ((dict,), "a dictionary"),
}


def _asks(kind: type, default: Any = None) -> Any:
    """A field that decides on a run: another value is another run."""
    return field(default=default, metadata={"kind": kind, "asks": True})


def _tells(kind: type) -> Any:
    """A field that says how a run went, on what, and where."""
    return field(default=None, metadata={"kind": kind})


@dataclass(frozen=True)
class Record:
    """A run of an algorithm on a problem, or of the reference; what does not apply is None, and not on disk.

    What was asked for: `seed`; `options` of the algorithm, tuned with some `effort`; `seconds`, `steps` or
    `samples` and `records` of the run; the `content` (a digest) and `weights` of the problem, its `precision`,
    whether F is that of an `excerpt` of the tasks; the `origin` of an algorithm from outside the package. Of Table
    1: `tasks`, `seeds`, the `share` of the samples and the exponent of the `theory`.

    What is told: how it ended, `facts` and a `remark` on the problem, the `exponent` that was found, `versions` and
    `machine`.
    """

    experiment: str = _asks(str, MISSING)
    problem: str = _asks(str, MISSING)
    algorithm: str = _asks(str, MISSING)
    label: str = _asks(str, MISSING)
    seed: int = _asks(int, 0)
    options: Mapping[str, Any] | None = _asks(dict)
    effort: str | None = _asks(str)
    seconds: float | None = _asks(float)
    records: int | None = _asks(int)
    content: str | None = _asks(str)
    weights: str | None = _asks(str)
    precision: str | None = _asks(str)
    excerpt: bool | None = _asks(bool)
    origin: str | None = _asks(str)
    tasks: int | None = _asks(int)
    seeds: int | None = _asks(int)
    share: float | None = _asks(float)
    theory: float | None = _asks(float)
    steps: int | None = _asks(int)
    samples: int | None = _asks(int)
    status: str | None = _tells(str)
    message: str | None = _tells(str)
    exponent: float | None = _tells(float)
    facts: Mapping[str, Any] | None = _tells(dict)
    remark: str | None = _tells(str)
    versions: Mapping[str, Any] | None = _tells(dict)
    machine: Mapping[str, Any] | None = _tells(dict)
    rows: tuple[Mapping[str, float], ...] = ()

    def request(self) -> dict[str, Any]:
        """What was asked for."""
        return self._collect(ASKS)

    def to_json(self) -> dict[str, Any]:
        """What a file holds."""
        return {"settings": self._collect(SETTINGS), "rows": [dict(row) for row in self.rows]}

    def _collect(self, names: tuple[str, ...]) -> dict[str, Any]:
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], path: Path) -> "Record":
        """The record that a file holds; a file with anything else in a field is refused, by its name and the field's.

        Settings that are not known are left out.
        """
        settings = content["settings"]
        wrong = _find_wrong_field(settings) or _find_wrong_value(settings)
        if wrong:
            raise ValueError(f"{path} is not a stored run: {wrong}.")
        values = {name: settings[name] for name in SETTINGS if settings.get(name) is not None}
        return cls(**{"label": values["algorithm"], **values}, rows=tuple(content["rows"]))

    def save(self, path: Path) -> None:
        """Write the file; it appears whole or not at all."""
        Trace(**self.to_json()).save(path)

    @classmethod
    def load(cls, path: Path) -> "Record":
        """Read a file that `save` wrote, also an older one."""
        trace = Trace.load(path)
        return cls.from_json({"settings": trace.settings, "rows": trace.rows}, path)

    @property
    def is_reference(self) -> bool:
        """Whether it makes F* known and does not compete."""
        return self.algorithm == REFERENCE

    @property
    def has_diverged(self) -> bool:
        """Whether it left the finite numbers."""
        return self.status == "diverged"

    @property
    def is_quick(self) -> bool:
        """Whether it is one of the short runs that --quick asks for."""
        return bool(self.excerpt) or (self.share or 1) < 1


FIELDS = {one.name: one.metadata for one in fields(Record) if "kind" in one.metadata}
SETTINGS, ASKS = tuple(FIELDS), tuple(name for name, about in FIELDS.items() if "asks" in about)


def _find_wrong_field(settings: Mapping[str, Any]) -> str | None:
    """The first field that is missing or of another kind, in words."""
    for name in ("experiment", "problem", "algorithm"):
        if not isinstance(settings.get(name), str):
            return f"its settings must name the {name}; got {reprlib.repr(settings.get(name))}"
    for field_name, about in FIELDS.items():
        value, (types, words) = settings.get(field_name), KINDS[about["kind"]]
        if value is not None and (not isinstance(value, types) or isinstance(value, bool) != (bool in types)):
            return f"its {field_name} must be {words}; got {reprlib.repr(value)}"
    for name in ("problem", "algorithm", "label"):
        if len(settings.get(name) or "") > LONGEST_NAME:
            return f"its {name} must have at most {LONGEST_NAME} letters; got {reprlib.repr(settings[name])}"
    if not re.fullmatch(r"[\w-]{1,100}", settings["experiment"]):  # files are named after it
        got = reprlib.repr(settings["experiment"])
        return f"its experiment must be a word of at most 100 letters, digits, _ and -; got {got}"
    return None


def _find_wrong_value(value: Any) -> str | None:
    """What of the settings, at any depth, could not be shown on a page."""
    if isinstance(value, dict):
        return next(filter(None, map(_find_wrong_value, (*value, *value.values()))), None)
    if isinstance(value, list):
        return next(filter(None, map(_find_wrong_value, value)), None)
    if isinstance(value, str) and any(
        unicodedata.category(letter) in UNPRINTABLE for letter in value if letter not in "\t\n\r"
    ):
        return f"its settings must hold text that can be shown; got {reprlib.repr(value)}"
    if isinstance(value, int) and abs(value) > LARGEST:
        return "its settings must hold numbers that a float can hold; one is too large"
    return None
