"""Who takes part in a comparison: every algorithm whose `@described` block says how it is tuned."""

import hashlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bilevax import arguments
from bilevax.algorithms.contract import DESCRIPTIONS, Algorithm
from bilevax.algorithms.registry.tuning import Scale, Tuning
from bilevax.problem import Problem


@dataclass(frozen=True)
class Contender:
    """An algorithm by its name, with its factory and what is said of its tuning."""

    name: str
    factory: Callable[..., Algorithm]
    tuning: Tuning

    @property
    def label(self) -> str:
        """Its name in figures."""
        return self.tuning.label

    def algorithm(self, problem: Problem, options: Mapping[str, Any]) -> Algorithm:
        """The algorithm with these options, for a problem of this size."""
        scale = Scale(problem.dim_x, problem.num_tasks)
        return self.factory(**self.tuning.arguments(scale, **options))

    def origin(self) -> str | None:
        """What tells an algorithm from outside the package from an older one of its name: a digest of its file."""
        module = self.factory.__module__
        if module.split(".")[0] == __name__.split(".")[0]:
            return None
        path = getattr(sys.modules.get(module), "__file__", None)
        content = Path(path).read_bytes() if path else module.encode()
        return f"{module.split('.')[-1]} {hashlib.sha256(content).hexdigest()[:12]}"


def find_contender(name: str) -> Contender:
    """An algorithm that can be compared; refused where there is none, or where nothing is said of its tuning."""
    arguments.one_of("algorithms", name, tuple(DESCRIPTIONS))
    description = DESCRIPTIONS[name]
    if description.tuning is None:
        raise ValueError(
            f"{name} cannot be compared, for nothing says how it is tuned: add tuning=Tuning(label, ranges, arguments) "
            f"to the @described block of {description.factory.__module__} (see bilevax.algorithms.registry.tuning)."
        )
    return Contender(name, description.factory, description.tuning)


def require_contenders(names: tuple[str, ...]) -> None:
    """Refuse names that cannot be compared, one that comes twice, and two that a figure could not tell apart."""
    labels: dict[str, str] = {}
    for name in names:
        label = find_contender(name).label
        if names.count(name) > 1:
            raise ValueError(f"algorithms must be named once each; {name} comes {names.count(name)} times.")
        if label in labels:
            raise ValueError(f"{labels[label]} and {name} have the same label {label!r}; give one of them another.")
        labels[label] = name
