"""A run whose rates were found, kept from running away: it goes back, with smaller steps, instead of diverging.

F of some tasks on some of their samples (`bilevax.scales.excerpt_objective`) is looked at after 16, 32, 64, ... steps
and at the end. Where it has risen by half of what it had fallen, or a step left the finite numbers, the run goes back
to the best point so far, with a step on x that is four times smaller and one on y that is twice smaller.
"""

import math
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from bilevax import device
from bilevax.problem import Problem
from bilevax.scales import excerpt_objective
from bilevax.schedule import Scales

FIRST_LOOK, MOST_RETREATS = 16, 20
UPPER_SHRINK, LOWER_SHRINK = 0.25, 0.5
TOLERANCE = 0.05  # of |F(x_0)|: at the first look a rise by less is taken for a start that swings; later less and less


class GuardedRun(Protocol):
    """What a guard needs of a run."""

    problem: Problem
    state: Any
    steps: int
    seconds: float
    key: Any

    def variables(self, problem: Problem, state: Any) -> Any:
        """x and y."""


@dataclass
class Guard:
    """The best state of a run that was looked at and F there, and when to look next."""

    start: float
    best: float
    good: Any
    next_look: int
    retreats: int = 0
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, run: GuardedRun) -> "Guard | None":
        """A guard for a run whose rates were found, where F can be told at its start; the first look is compiled.

        None where a second copy of the state may not fit in memory.
        """
        if not isinstance(getattr(run.state, "scales", None), Scales) or not device.has_room_for_copy(run.state):
            return None
        F = _look(run)
        return cls(F, F, _copy(run.state), max(FIRST_LOOK, 2 * run.steps)) if math.isfinite(F) else None

    def steps_left(self, run: GuardedRun) -> int:
        """Until the next look."""
        return self.next_look - run.steps

    def look(self, run: GuardedRun) -> None:
        """Go back where F has risen too far."""
        begun = time.perf_counter()
        F = _look(run)
        run.seconds += time.perf_counter() - begun
        self.next_look = max(2 * self.next_look, run.steps + 1)
        least_rise = TOLERANCE * abs(self.start) * FIRST_LOOK / max(run.steps, FIRST_LOOK)
        if self.best > F:
            self.best, self.good = F, _copy(run.state)
        elif math.isnan(F) or self.best + max(0.5 * (self.start - self.best), least_rise) < F:
            self.retreat(run, f"F rose to {F:.4g}" if math.isfinite(F) else "F was no longer finite")

    def finish(self, run: GuardedRun) -> None:
        """At the end: back to the best state where F has risen too far since."""
        best, good, looks = self.best, self.good, self.next_look
        retreats = self.retreats
        self.look(run)
        if self.retreats == retreats:
            self.best, self.good, self.next_look = best, good, looks

    def retreat(self, run: GuardedRun, reason: str) -> bool:
        """Back to the best state with smaller steps; whether that was possible."""
        if self.retreats == MOST_RETREATS:
            return False
        self.retreats += 1
        old = self.good.scales
        scales = old._replace(step=UPPER_SHRINK * old.step, smoothness=old.smoothness / LOWER_SHRINK)
        self.good = self.good._replace(scales=scales)
        run.state = _copy(self.good)
        self.next_look = run.steps + FIRST_LOOK
        self.notes.append(
            f"After {run.steps} steps {reason}: the run went back to its best point, with a step on x four times and a "
            "step on y two times smaller."
        )
        return True


def _copy(state: Any) -> Any:
    return jax.tree.map(jnp.copy, state)


def _look(run: GuardedRun) -> float:
    """F of an excerpt, always the same in a run."""
    x = run.variables(run.problem, run.state).x
    return float(excerpt_objective(run.problem, x, run.key))
