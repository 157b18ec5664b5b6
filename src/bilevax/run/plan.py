"""What a run was asked for: budgets, a target, what to record and how often."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from bilevax import arguments
from bilevax.algorithms.contract import Cost, Variables
from bilevax.problem import Problem
from bilevax.run.metrics import exact_metrics
from bilevax.run.trace import Trace
from bilevax.samples import NoData

CHUNK = 2048  # most steps in one call of the compiled loop
RUN_COLUMNS = ("step", *Cost._fields, "seconds")  # what a run records itself

Metrics = Callable[[Problem, Variables], Mapping[str, Any]]


class Usage(Protocol):
    """What a run has used up so far."""

    steps: int
    cost: Cost
    seconds: float
    trace: Trace
    converged: bool


@dataclass
class Budget:
    """What a run may use up; `None` is no limit."""

    steps: int | None
    samples: int | None
    seconds: float | None

    def check(self) -> None:
        """Refuse no budget at all, and numbers that are none."""
        if self.steps is None and self.samples is None and self.seconds is None:
            raise ValueError("solve needs a budget: give steps=, samples= or seconds=.")
        for name in ("steps", "samples"):
            if getattr(self, name) is not None:
                arguments.count(name, getattr(self, name), least=0)
        if self.seconds is not None:
            arguments.positive("seconds", self.seconds)

    def check_for(self, problem: Problem) -> None:
        """Refuse a budget that this problem would never use up."""
        drawn = not (isinstance(problem.upper_data, NoData) and isinstance(problem.lower_data, NoData))
        if self.steps is None and self.seconds is None and not drawn:
            raise ValueError("samples cannot be the only budget, this problem draws none; give steps= or seconds=.")

    def share(self, run: Usage) -> float:
        """How much of the budget is used."""
        used = [(run.steps, self.steps), (run.cost.samples, self.samples), (run.seconds, self.seconds)]
        return max(float(spent) / limit for spent, limit in used if limit)

    def steps_left(self, run: Usage) -> int:
        """Steps that are left for the next chunk."""
        return CHUNK if self.steps is None else min(self.steps - run.steps, CHUNK)

    def samples_left(self, run: Usage) -> float:
        """Samples that are left; the compiled loop ends with the step that uses them up."""
        return math.inf if self.samples is None else self.samples - run.cost.samples

    def used_up(self, run: Usage) -> str | None:
        """Why the run is over, if it is."""
        if self.seconds is not None and run.seconds >= self.seconds:
            return f"{self.seconds:g} seconds are used up"
        if self.steps is not None and run.steps >= self.steps:
            return f"{self.steps} steps are done"
        if self.samples is not None and run.cost.samples >= self.samples:
            return f"{self.samples} samples are used up"
        return None


@dataclass
class Plan:
    """What the user asked for."""

    budget: Budget
    target: Mapping[str, float]
    record_every: int | None  # steps between two records; None: each time so many that there are half as many again
    metrics: Metrics | None

    def steps_to_record(self, steps: int) -> int:
        """How many steps after these the next record is due."""
        if self.record_every is not None:
            return self.record_every - steps % self.record_every
        due = 1
        while due <= steps:
            due += max(1, due // 2)
        return due - steps

    def lacks_record(self, run: Usage) -> bool:
        """Whether a run that starts or goes on has to record first: it never did, or not here, or not the target."""
        if not run.trace.rows:
            return True
        last, is_due = run.trace.rows[-1], run.steps > 0 and self.steps_to_record(run.steps - 1) == 1
        return not self.target.keys() <= last.keys() or (is_due and last["step"] != run.steps)

    def check(self) -> None:
        """Refuse what is no target or no metric, before anything is computed."""
        if not isinstance(self.target, Mapping):
            raise TypeError(f"target must be a mapping such as {{'objective': 0.3}}; got {self.target!r}.")
        for name, value in self.target.items():
            arguments.number(f"target[{name!r}]", value, "a number", lambda v: not math.isnan(v))
        if self.metrics is not None and not callable(self.metrics):
            raise TypeError(f"metrics must be a function of (problem, variables), or None; got {self.metrics!r}.")

    def try_metrics(self, problem: Problem) -> Mapping[str, Any] | None:
        """What the user's metrics return at x0 and y0; `None` without any, or with our own, which need no trial."""
        if self.metrics is None or self.metrics is exact_metrics:
            return None
        return evaluate(self.metrics, problem, start_of(problem), "at x0 and y0 before the run starts")

    def check_target(self, row: Mapping[str, float]) -> None:
        """Refuse a target that is not among the recorded metrics."""
        metrics = [name for name in row if name not in RUN_COLUMNS]
        for name in self.target:
            if name not in metrics:
                shown = ", ".join(metrics) or "none"
                raise ValueError(f"target names {name!r}, which is no recorded metric; the metrics are {shown}.")

    def verdict(self, run: Usage, interrupted: str | None) -> tuple[str, str] | None:
        """Status and reason, if the run is over."""
        row = run.trace.rows[-1]
        for name, value in self.target.items():
            if row[name] <= value:
                return "target", f"{name} reached {row[name]:.6g}"
        if interrupted:
            return "interrupted", f"stopped by {interrupted} after {run.steps} steps"
        if run.converged:
            return "done", f"after {run.steps} steps no further step changes x"
        used_up = self.budget.used_up(run)
        return None if used_up is None else ("done", used_up)


def start_of(problem: Problem) -> Variables:
    """x0, and y0 of every task."""
    return Variables(problem.x0, jnp.broadcast_to(problem.y0, (problem.num_tasks, problem.dim_y)))


def evaluate(metrics: Metrics, problem: Problem, reached: Variables, when: str) -> Mapping[str, Any]:
    """What `metrics` returns, if it is numbers by name; an error of it says where it comes from."""
    try:
        values = metrics(problem, reached)
    except Exception as error:
        error.add_note(f"raised by metrics(problem, variables), called by solve {when}")
        raise
    return checked_metrics(values)


def checked_metrics(values: Any) -> Mapping[str, Any]:
    """What `metrics` returned, if it is numbers by name."""
    if not isinstance(values, Mapping):
        raise TypeError(f"metrics must return numbers by name, a mapping; it returned {type(values).__name__}.")
    for name, value in values.items():
        if not isinstance(name, str):
            raise TypeError(f"metrics must return numbers by name; it returned one under {name!r}, which is no text.")
        if name in RUN_COLUMNS:
            raise ValueError(f"metrics must not name a metric {name!r}, the run records that itself.")
        if isinstance(value, (np.ndarray, jax.Array)) and np.size(value) != 1:
            raise ValueError(f"metrics must return single numbers; {name!r} has shape {np.shape(value)}.")
        arguments.number(f"metrics: {name!r}", value, "a real number", lambda v: True)
    return values


def record_interval(given: int | None, budget: Budget) -> int | None:
    """Steps between two records: as given, else so that there are twenty; None where nobody knows how many come."""
    if given is None:
        return max(1, budget.steps // 20) if budget.steps else None
    arguments.count("record_every", given)
    return given
