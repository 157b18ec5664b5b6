"""Where a run ended, and all that is needed to go on."""

import html
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bilevax import files
from bilevax.algorithms.contract import Cost
from bilevax.problem import Problem
from bilevax.run import saved
from bilevax.run.guard import Guard
from bilevax.run.trace import Trace

GUARD_FIELDS = tuple(name for name in Guard.__dataclass_fields__ if name != "good")


@dataclass
class Result:
    """Where a run ended.

    - `x`, `y`: the iterate; x as the user's pytree, y with a leading axis m (none where m = 1).
    - `status`: "done" (a budget is used up), "target", "diverged" or "interrupted".
    - `steps`, `cost`, `seconds`: what it took; `message` says in words why it ended.
    - `trace`: what was recorded; `state`: all that is needed to go on (`solve(..., resume=result)`).
    - `notes`: what was chosen and found, in words; `explain()` puts them together.
    - `origin`: what problem, algorithm and settings it comes from, as digests: another one does not resume it.
    """

    x: PyTree
    y: PyTree
    status: str
    message: str
    steps: int
    cost: Cost
    seconds: float
    trace: Trace
    state: Any
    seed: int
    origin: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    guard: Guard | None = None

    def explain(self) -> str:
        """What was chosen and found for this run, and why, in words."""
        last = f"It ended as {self.status!r}: {self.message}. That took {self.seconds:.3g} s of steps, "
        last += (
            f"{self.cost.samples:,} samples and {self.cost.gradients:,} gradients; what was measured to choose counts."
        )
        return "\n".join([*(self.notes or ("All steps and settings were given.",)), last])

    def __repr__(self) -> str:
        last = self.trace.rows[-1] if self.trace.rows else {}
        shown = "".join(f", {name}={last[name]:.6g}" for name in ("objective", "grad_norm") if name in last)
        return f"Result({self.status}: {self.message}; steps={self.steps}, seconds={self.seconds:.3g}{shown})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        last = self.trace.rows[-1] if self.trace.rows else {}
        rows = [("status", f"{self.status}: {self.message}"), ("steps", f"{self.steps:,}")]
        rows += [("seconds", f"{self.seconds:.3g}"), ("samples", f"{self.cost.samples:,}")]
        rows += [(name, f"{last[name]:.6g}") for name in last if name in ("objective", "grad_norm", "lower_gap")]
        cells = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in rows)
        return f"<table>{cells}</table>"

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """A matplotlib figure of what was recorded, see `Trace.plot`."""
        return self.trace.plot(path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one file, without pickle; it appears whole or not at all.

        >>> result.save("run.npz")
        >>> result = bx.solve(problem, algorithm, steps=20_000, resume=bx.Result.load("run.npz"))
        """
        if not all(leaf.is_fully_addressable for leaf in jax.tree.leaves(self.state) if isinstance(leaf, jax.Array)):
            raise ValueError("save writes one file, and this run is in several processes: give solve a checkpoint=.")
        states = {"state": self.state} if self.guard is None else {"state": self.state, "good": self.guard.good}
        leaves = {name: [np.asarray(leaf) for leaf in jax.tree.leaves(state)] for name, state in states.items()}
        files.write_whole(files.path_of("path", path), self.pack(leaves, {"x": self.x, "y": self.y}))

    def pack(self, states: dict[str, list[np.ndarray]], trees: dict[str, PyTree]) -> memoryview:
        """The content of a file, with the leaves of the states as given."""
        fields = {
            "status": self.status, "message": self.message, "steps": self.steps, "cost": list(self.cost),
            "seconds": self.seconds, "seed": self.seed, "origin": self.origin, "notes": list(self.notes),
            "rows": self.trace.rows, "settings": {name: str(value) for name, value in self.trace.settings.items()},
        }  # fmt: skip
        if self.guard is not None:
            fields["guard"] = {name: getattr(self.guard, name) for name in GUARD_FIELDS}
        return saved.pack(fields, trees, states)

    @classmethod
    def load(cls, path: str | os.PathLike[str], problem: Problem | None = None) -> "Result":
        """Read what `save` wrote.

        x and y come back as dictionaries, lists, tuples and arrays; a module or another container as a dictionary of
        its arrays by their places. With the `problem` they are as its user gave them.
        """
        if problem is not None and not isinstance(problem, Problem):
            raise TypeError(f"problem must be a bilevax.Problem, or left out; got {type(problem).__name__}.")
        path = files.path_of("path", path)
        result = cls.unpack(files.read_whole(path), path)
        if problem is not None:
            _check_sizes(path, problem, result.x, result.y)
            result.x = problem.give_back_x(_flat(result.x))
            result.y = problem.give_back_y(_flat(result.y, problem.num_tasks))
        return result

    @classmethod
    def unpack(cls, content: bytes, path: Path) -> "Result":
        """What `pack` made, the content of the file `path`."""
        fields, trees, states = saved.unpack(content, path)
        trace = Trace(fields.pop("rows"), fields.pop("settings"))
        guard = fields.pop("guard", None)
        kept = None if guard is None else Guard(good=states["good"], **guard)
        cost, notes = Cost(*fields.pop("cost")), tuple(fields.pop("notes"))
        return cls(
            **{"x": None, "y": None, **trees},
            cost=cost,
            notes=notes,
            trace=trace,
            state=states["state"],
            guard=kept,
            **fields,
        )


def _check_sizes(path: str | os.PathLike[str], problem: Problem, x: PyTree, y: PyTree) -> None:
    """Refuse a problem that has other variables than the file."""
    count = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))
    given, right = (count(x), count(y)), (problem.dim_x, problem.num_tasks * problem.dim_y)
    if given != right:
        raise ValueError(
            f"problem must be the one that {os.fspath(path)} was solved for: it has {right[0]} numbers in x and "
            f"{right[1]} in y, the file has {given[0]} and {given[1]}."
        )


def _flat(tree: PyTree, *axes: int) -> Any:
    """All leaves in a row, behind the given axes."""
    return jnp.concatenate([jnp.reshape(leaf, (*axes, -1)) for leaf in jax.tree.leaves(tree)], axis=-1)
