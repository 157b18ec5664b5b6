"""What a run recorded: one row for each evaluation; to pandas, to disk and back."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


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

    def save(self, path: str | os.PathLike) -> None:
        """Write as JSON; the file appears whole or not at all."""
        path = Path(path)
        text = json.dumps({"settings": self.settings, "rows": self.rows}, indent=1, default=str)
        part = path.with_name(path.name + ".part")
        part.write_text(text)
        part.replace(path)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Trace":
        """Read what `save` wrote."""
        held = json.loads(Path(path).read_text())
        if not isinstance(held, dict) or not {"rows", "settings"} <= held.keys():
            raise ValueError(f"{path} is not a trace that bilevax saved: it must hold 'settings' and 'rows'.")
        return cls(held["rows"], held["settings"])
