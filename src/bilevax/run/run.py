"""A run so far: its state, what it has used up, what it has recorded."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bilevax import device
from bilevax.algorithms.contract import Algorithm, Cost, Variables
from bilevax.problem import Problem
from bilevax.run import watch
from bilevax.run.ahead import ReadAhead
from bilevax.run.guard import Guard
from bilevax.run.plan import RUN_COLUMNS, Metrics, Plan, evaluate, start_of
from bilevax.run.reached import MANY
from bilevax.run.result import Result
from bilevax.run.trace import Trace

SMALL_STATE = 2**22  # bytes that are copied at every record
COPY_SHARE = 0.05  # of the time, that copies of larger ones may take
CHUNK_SECONDS = 0.25  # how long one call should take, so that Ctrl-C and the clock are heard


@dataclass
class Run:
    """A run so far, and what it has compiled."""

    problem: Problem
    algorithm: Algorithm
    key: Array
    variables: Callable[[Problem, Any], Variables]
    state: Any
    steps: int
    cost: Cost
    seconds: float
    trace: Trace
    seed: int
    origin: dict[str, str]
    compiled_start: Callable[[Problem, Array], Callable[..., Any]]
    pace: float = math.nan  # seconds per step, of the last chunk
    converged: bool = False
    guard: Guard | None = None
    notes: tuple[str, ...] = ()
    trial: Mapping[str, Any] | None = None  # what the metrics returned at x0 and y0, until the first record
    ahead: ReadAhead | None = None  # where samples are on a disk
    saved: "Run | None" = None  # as it was at a record: a chunk that raises takes its state with it
    copy_seconds: float = 0.0  # what a copy of the state takes

    def record(self, metrics: Metrics | None) -> None:
        trial, self.trial = self.trial, None
        self._save()
        values = {} if metrics is None else self._measure(metrics, trial)
        own = (self.steps, *self.cost, self.seconds)
        self.trace.add({**dict(zip(RUN_COLUMNS, own, strict=True)), **values})

    def _measure(self, metrics: Metrics, trial: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """What `metrics` returns: what it did in the trial, if the run still is at x0 and y0."""
        reached = self.variables(self.problem, self.state)
        if (
            trial is not None
            and self.problem.shards.count == 1
            and self.problem.num_tasks <= MANY
            and all(map(jnp.array_equal, reached, start_of(self.problem)))
        ):
            return trial
        return evaluate(metrics, self.problem, reached, f"after {self.steps} steps")

    def _save(self) -> None:
        """Keep a copy of the state, unless copies take long or two of them may not fit."""
        since = math.inf if self.saved is None else self.seconds - self.saved.seconds
        is_small = sum(leaf.nbytes for leaf in jax.tree.leaves(self.state)) <= SMALL_STATE
        if (is_small or since >= self.copy_seconds / COPY_SHARE) and device.has_room_for_copy(self.state):
            begun = time.perf_counter()
            self.saved = replace(self, state=jax.block_until_ready(jax.tree.map(jnp.copy, self.state)), saved=None)
            self.copy_seconds = time.perf_counter() - begun

    def look(self) -> None:
        """Whether the lower problems are as curved as was said: at the start, and after 1, 2, 4, 8, ... records."""
        records = len(self.trace.rows)
        if records & (records - 1) == 0:
            reached = self.variables(self.problem, self.state)
            watch.look_at(self.problem, reached, self.steps, self.algorithm.settings.get("neumann_step"))

    def result(self, status: str, message: str, end: Any = None) -> Result:
        """x and y of the state `end`, by default of the last one; to go on from the last one."""
        reached = self.variables(self.problem, self.state if end is None else end)
        return Result(
            x=self.problem.give_back_x(reached.x), y=self.problem.give_back_y(reached.y), status=status,
            message=message, steps=self.steps, cost=self.cost, seconds=self.seconds, trace=self.trace,
            state=self.state, seed=self.seed, origin=self.origin, guard=self.guard,
            notes=(*self.notes, *(self.guard.notes if self.guard else ())),
        )  # fmt: skip

    def rescue(self, error: BaseException) -> None:
        """Attach to an error what was reached before it, as `error.result`."""
        lost = any(leaf.is_deleted() for leaf in jax.tree.leaves(self.state))
        kept = self.saved if lost else self
        if kept is not None and kept.steps > 0:
            error.result = kept.result("interrupted", f"{type(error).__name__} after {self.steps} steps")  # type: ignore[attr-defined]
            error.add_note(
                f"What was reached after {kept.steps} steps is the attribute `result` of this error; "
                "bilevax.solve(..., resume=error.result) goes on from there."
            )

    def start_at(self, x: Array) -> Any:
        """The state of a start of the algorithm at x, with all estimates anew; its cost and its seconds count."""
        problem, key = self.problem.replace(x0=x), jax.random.fold_in(jax.random.fold_in(self.key, 0), self.steps)
        init = self.compiled_start(problem, key)
        begun = time.perf_counter()
        state = jax.block_until_ready(init(problem, key))
        self.spend(begun)
        started = as_cost(problem.shards.on_host(state.initial_cost))
        self.cost = Cost(*(a + b for a, b in zip(self.cost, started, strict=True)))
        return state

    def spend(self, begun: float) -> float:
        """Count the seconds since then, by the clock of the first process."""
        spent = self.problem.shards.agree(time.perf_counter() - begun)
        self.seconds += spent
        return spent

    def close(self) -> None:
        """Nothing is read ahead any more."""
        if self.ahead is not None:
            self.ahead.close()

    def chunk_size(self, plan: Plan) -> int:
        until_record = plan.steps_to_record(self.steps)
        limit = CHUNK_SECONDS
        if plan.budget.seconds is not None:
            limit = min(limit, plan.budget.seconds - self.seconds)
        by_time = 8 if math.isnan(self.pace) else int(limit / max(self.pace, 1e-9))
        until_look = math.inf if self.guard is None else self.guard.steps_left(self)
        in_window = math.inf if self.ahead is None else self.ahead.steps_left(self.steps)
        return max(1, int(min(plan.budget.steps_left(self), until_record, by_time, until_look, in_window)))

    def _problem_of_loop(self) -> Problem:
        """The problem, with the samples of the next steps where they are read ahead."""
        return self.problem if self.ahead is None else self.ahead.problem_at(self.steps + 1)

    def _no_steps(self) -> tuple[Any, ...]:
        """What the loop is called with to take no step."""
        none = jnp.int32(0)
        return self._problem_of_loop(), self.state, self.key, none, none, jnp.asarray(0, float)

    def inspect(self, loop: Any) -> None:
        """Trace a step, so that one that breaks the contract is refused before anything long; JAX keeps the trace."""
        loop.trace(*self._no_steps())

    def compile(self, loop: Callable[..., Any]) -> None:
        """Take no step: what is left is compilation, which is not timed."""
        self.state = jax.block_until_ready(loop(*self._no_steps()))[0]

    def advance(self, loop: Callable[..., Any], n: int, samples: float) -> bool:
        """Up to n steps, timed and counted, until so many samples are used; whether they were finite."""
        limits = jnp.int32(self.steps + 1), jnp.int32(n), jnp.asarray(samples, float)
        begun = time.perf_counter()
        state, costs, taken, finite, converged = jax.block_until_ready(
            loop(self._problem_of_loop(), self.state, self.key, *limits)
        )
        spent = self.spend(begun)
        done = np.asarray(costs, float)[: int(taken)]
        self.state, self.converged = state, bool(converged)
        self.steps += len(done)
        self.pace = spent / max(1, len(done))
        if len(done):
            self.cost = Cost(*(a + b for a, b in zip(self.cost, as_cost(done.sum(0)), strict=True)))
        return bool(finite)


def as_cost(counts: Any) -> Cost:
    """Whole numbers of what a compiled loop has counted."""
    return Cost(*(round(float(count)) for count in counts))
