"""A run whose rates were found, steered by F: longer steps where it falls steadily, smaller ones where it rises.

F of some tasks on some of their samples (`bilevax.scales.excerpt_look`) is looked at after 16, 32, 64, ... steps,
counted anew from where the steps grew or the run went back, and at the end.

- Where it has risen by half of what it had fallen, or a step left the finite numbers, or y has run away from y* (f is
  off by ten times |F(x_0)|, |F| and what it was at the start), the run goes back to the best point so far, with a step
  on x that is four times smaller and one on y that is twice smaller.
- After 256, 512, 1024, ... steps its pace is judged. Where it falls steadily (in a straight line along the way that
  the steps allow: with constant ones nearly half of all of its fall came in the second half of them) the step on x is
  four times as long from then on: it was found at x_0, along one direction, and for few tasks a step it may be far too
  careful. Where F then is no longer at its best, the step is shortened again, down to what was found. Where F rises as
  above, the run goes back with a step that was good for long. Where F is a tenth of its fall above its best, the run
  goes back, too, with a step on x that is four times smaller: it would not get there by itself. After a run went back
  its pace is counted from there, and judged after as many steps again as it had taken.
- An estimate that went wrong stays wrong for long where it is corrected by small changes only. So a run that goes back
  starts anew at the best x, all estimates included, where its rates do not depend on t and all starts together cost no
  more gradients than its steps.
- A point where f is off by a tenth of that, because y falls behind, is never the best: smaller steps would not mend it.
- At the end x and y are those of the best look, if F has risen since by a tenth of its fall. The state is the last one:
  a run that goes on from there is the one that would have gone on.
"""

import math
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from bilevax import device
from bilevax.algorithms.contract import Cost
from bilevax.problem import Problem
from bilevax.scales import excerpt_look, tasks_of_excerpt
from bilevax.schedule import RateRule, Scales

FIRST_LOOK, MOST_RETREATS = 16, 20
UPPER_SHRINK, LOWER_SHRINK = 0.25, 0.5
UPPER_GROWTH, STEADY, FIRST_PACE = 4.0, 0.9, 256  # of the step on x; of a straight fall; steps
FAR = 0.1  # of what F had fallen: with less the last point is as good as the best one
RUNAWAY = 10.0  # times |F(x_0)|, |F| or what f was off by at the start, the largest of them
TOLERANCE = 0.05  # of |F(x_0)|: at the first look a rise by less is taken for a start that swings; later less and less


class GuardedRun(Protocol):
    """What a guard needs of a run."""

    problem: Problem
    algorithm: Any
    state: Any
    steps: int
    cost: Cost
    seconds: float
    key: Any

    def start_at(self, x: Any) -> Any:
        """The state of a start of the algorithm at x; what that took counts."""

    def variables(self, problem: Problem, state: Any) -> Any:
        """x and y."""

    def spend(self, begun: float) -> float:
        """Count the seconds since then."""


@dataclass
class Guard:
    """The best state of a run that was looked at and F there, and when to look next."""

    start: float
    best: float
    good: Any
    next_look: int
    first_lag: float = 0.0  # how far f was from f at y*, at the start
    changed: int = 0  # the step at which the rates last changed: looks are counted from there
    next_pace: int = FIRST_PACE  # the step at which the pace is judged next, and F after half of the steps to there
    half: float = math.inf
    half_at: int = 0
    since: int = 0  # the step from which the pace is counted, 0 or where the run last went back, and F then
    first: float = math.inf
    retreats: int = 0
    fresh: bool = False  # whether the best state is one of a start at its x
    starts: int = 1
    good_at: int = 0  # the step of the best state
    growth: float = 1.0  # of the step on x, now and in the best state, over what was found
    good_growth: float = 1.0
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, run: GuardedRun) -> "Guard | None":
        """A guard for a run whose rates were found, where F can be told at its start; the first look is compiled.

        None where a second copy of the state may not fit in memory.
        """
        if not isinstance(getattr(run.state, "scales", None), Scales) or not device.has_room_for_copy(run.state):
            return None
        F, lag = _look(run)
        return cls(F, F, _copy(run.state), max(FIRST_LOOK, 2 * run.steps), lag, first=F) if math.isfinite(F) else None

    def steps_left(self, run: GuardedRun) -> int:
        """Until the next look."""
        return self.next_look - run.steps

    def look(self, run: GuardedRun) -> None:
        """Go back where F has risen too far; go faster where it falls steadily."""
        begun = time.perf_counter()
        F, lag = _look(run)
        run.spend(begun)
        self.next_look = max(2 * self.next_look - self.changed, run.steps + 1)
        least_rise = TOLERANCE * abs(self.start) * FIRST_LOOK / max(run.steps, FIRST_LOOK)
        behind = self.measure_lag(F, lag)
        is_best = self.best > F and behind <= 1
        if not behind <= RUNAWAY:
            self.retreat(run, "y had run away from the lower problems' solutions")
            return
        if is_best:
            self.best, self.good, self.good_at, self.good_growth = F, _copy(run.state), run.steps, self.growth
            self.fresh = False
        elif math.isnan(F) or self.best + max(0.5 * (self.start - self.best), least_rise) < F:
            self.retreat(run, f"F rose to {F:.4g}" if math.isfinite(F) else "F was no longer finite")
            return
        if run.steps >= self.next_pace:
            self.judge_pace(run, F, is_best)
        if 2 * run.steps <= self.next_pace + self.since:
            self.half, self.half_at = F, run.steps

    def measure_lag(self, F: float, lag: float) -> float:
        """How far y is from y*, as f shows it, in units of F: far off, what F is at such an x is luck."""
        unit = max(abs(self.start), self.first_lag, abs(F))  # F(x_0) may be zero
        return lag / unit if unit > 0 else 0.0

    def judge_pace(self, run: GuardedRun, F: float, is_best: bool) -> None:
        """Longer steps on x where F falls steadily, shorter ones where it no longer falls."""
        self.next_pace = 2 * run.steps
        rule = run.algorithm.settings.get("upper_step")
        way = rule.way if isinstance(rule, RateRule) else float
        steady = STEADY * (way(run.steps) - way(self.half_at)) / (way(run.steps) - way(self.since))
        if is_best and self.half - F >= steady * (self.first - F):
            self.lengthen(run, UPPER_GROWTH)
            self.changed, self.next_look = run.steps, run.steps + FIRST_LOOK
            self.notes.append(f"After {run.steps} steps F falls steadily: the step on x becomes four times as long.")
        elif self.best + FAR * (self.start - self.best) < F:
            self.retreat(run, f"F was {F:.4g}, no longer {self.best:.4g}", lower=1.0)
        elif not is_best and self.growth > 1:
            self.lengthen(run, 1 / UPPER_GROWTH)

    def lengthen(self, run: GuardedRun, factor: float) -> None:
        """Steps on x that are so many times longer from here on."""
        scales = run.state.scales
        run.state = run.state._replace(scales=scales._replace(step=factor * scales.step))
        self.growth *= factor

    def choose_end(self, run: GuardedRun) -> tuple[Any, str]:
        """The state whose x and y a run returns, and a word on it: its last, or the best where F has risen since."""
        begun = time.perf_counter()
        F, lag = _look(run)
        run.spend(begun)
        if self.best + FAR * (self.start - self.best) >= F and self.measure_lag(F, lag) <= RUNAWAY:
            return run.state, ""
        return self.good, f"; x and y are those after {self.good_at} steps, where F was lower"

    def retreat(self, run: GuardedRun, reason: str, lower: float = LOWER_SHRINK) -> bool:
        """Back to the best state with smaller steps, those on y by the factor `lower`; whether that was possible."""
        if self.retreats == MOST_RETREATS:
            return False
        self.retreats += 1
        starts = not self.fresh and self.may_start(run)
        if starts:
            x, scales = run.variables(run.problem, self.good)[0], self.good.scales
            self.good, self.fresh, self.starts = run.start_at(x)._replace(scales=scales), True, self.starts + 1
        had_grown, old = self.growth > 1, self.good.scales
        kept = max(1.0, self.good_growth / UPPER_GROWTH)
        upper, lower = (kept / self.good_growth, 1.0) if had_grown else (UPPER_SHRINK, lower)
        self.growth = self.good_growth = kept
        self.good = self.good._replace(scales=old._replace(step=upper * old.step, smoothness=old.smoothness / lower))
        run.state = _copy(self.good)
        self.changed, self.next_look = run.steps, run.steps + FIRST_LOOK
        self.next_pace = run.steps + max(run.steps, FIRST_PACE)
        self.since, self.first, self.half_at, self.half = run.steps, self.best, run.steps, self.best
        smaller = f"a step on x four times{'' if lower == 1 else ' and a step on y two times'} smaller"
        steps = "a step on x as before it grew" if upper == 1 else smaller
        anew = "new estimates and " if starts else ""
        self.notes.append(f"After {run.steps} steps {reason}: the run went back to its best point, with {anew}{steps}.")
        return True

    def may_start(self, run: GuardedRun) -> bool:
        """Whether estimates are made anew at the best point: not where rates depend on t, or starts would cost most."""
        settings = run.algorithm.settings
        rule = settings.get("upper_step")
        if not isinstance(rule, RateRule) or rule.exponent or settings.get("upper_optimizer") is not None:
            return False
        start = run.problem.shards.on_host(self.good.initial_cost)
        cost = (self.starts + 1) * float(start.gradients)
        return settings.get("initialization") == "theorem" and 2 * cost <= run.cost.gradients


def _copy(state: Any) -> Any:
    return jax.tree.map(jnp.copy, state)


def _look(run: GuardedRun) -> tuple[float, float]:
    """F of an excerpt, always the same in a run, and how far f is from it at the run's own y."""
    reached = run.variables(run.problem, run.state)
    problem = run.problem
    y = reached.y_at_hand(problem, lambda: tasks_of_excerpt(problem, problem.num_tasks // problem.shards.count))
    F, lag = excerpt_look(problem, reached.x, y, run.key)
    return float(F), float(lag)
