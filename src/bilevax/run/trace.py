"""What a run recorded: one row for each evaluation; to pandas, to disk and back."""

import json
import math
import os
import reprlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bilevax import files

LARGEST = int(sys.float_info.max)
COSTS = ("step", "samples", "gradients", "products", "seconds")


@dataclass
class Trace:
    """Rows of step, samples, gradients, products, seconds and the metrics; `settings` says of what run.

    `trace["objective"]` is a column. Seconds are those of the start and the steps: neither compilation
    nor evaluation counts.
    """

    rows: list[dict[str, float]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def add(self, row: Mapping[str, Any]) -> None:
        """Record one evaluation."""
        self.rows.append({name: value if isinstance(value, int) else float(value) for name, value in row.items()})

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in the order they appeared."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def __getitem__(self, column: str) -> np.ndarray:
        if column not in self.columns:
            raise KeyError(f"the trace has no column {column!r}; it has {', '.join(self.columns)}")
        return np.array([row.get(column, math.nan) for row in self.rows])

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, float]]:
        return iter(self.rows)

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame (extra `bilevax[pandas]`)."""
        import pandas

        return pandas.DataFrame(self.rows, columns=self.columns)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """A matplotlib figure: what was recorded, against seconds and samples; also as a file where a path is given.

        Needs the extra `bilevax[plots]`.
        """
        from matplotlib.figure import Figure

        shown = [name for name in self.columns if name in ("objective", "grad_norm")]
        shown = shown or [name for name in self.columns if name not in COSTS]
        if not shown:
            raise ValueError("the trace has no metric to plot: solve(..., metrics=None) records costs alone.")
        figure = Figure(figsize=(9, 3 * len(shown)), layout="constrained")
        axes = figure.subplots(len(shown), 2, squeeze=False)
        for row, name in zip(axes, shown, strict=True):
            for axis, cost in zip(row, ("seconds", "samples"), strict=True):
                axis.plot(self[cost], self[name], marker=".")
                axis.set(xlabel=cost, ylabel=name)
                axis.grid(alpha=0.3)
                if (self[name] > 0).all():
                    axis.set_yscale("log")
        if path is not None:
            files.write_figure(path, figure)
        return figure

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as JSON; the file appears whole or not at all."""
        text = json.dumps({"settings": self.settings, "rows": self.rows}, indent=1, default=str)
        files.write_whole(files.path_of("path", path), text.encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Trace":
        """Read what `save` wrote; refuse any other file by its name."""
        path = files.path_of("path", path)
        content = files.read_whole(path)
        try:
            held = json.loads(content)
        except RecursionError:
            raise ValueError(f"{path} is not a trace that bilevax saved: it is nested too deeply.") from None
        except ValueError as error:  # no JSON, no text, or a number of too many digits
            raise ValueError(f"{path} is not a trace that bilevax saved: it is no JSON ({error}).") from None
        wrong = _wrong(held)
        if wrong:
            raise ValueError(f"{path} is not a trace that bilevax saved: {wrong}.")
        return cls(held["rows"], held["settings"])


def _wrong(held: Any) -> str | None:
    """Why what a file holds cannot be a trace."""
    if not isinstance(held, dict) or not {"rows", "settings"} <= held.keys():
        return "it must hold 'settings' and 'rows'"
    settings, rows = held["settings"], held["rows"]
    if not isinstance(settings, dict):
        return f"its settings must be a dictionary; got {reprlib.repr(settings)}"
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return "its rows must be a list of dictionaries"
    for number, row in enumerate(rows, 1):
        for name, value in row.items():
            if not isinstance(value, (int, float)):
                return f"its rows must hold numbers; {name!r} of row {number} is {reprlib.repr(value)}"
            if isinstance(value, int) and abs(value) > LARGEST:
                return f"its rows must hold numbers that a float can hold; {name!r} of row {number} is too large"
    return None
