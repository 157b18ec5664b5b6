"""solve(): the only loop. Compiled chunks of steps; between them the clock stands still."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from bilevax import arguments, terminal
from bilevax.algorithms.base import Algorithm, Cost, Variables
from bilevax.metrics import exact_metrics
from bilevax.problem import Problem
from bilevax.trace import Trace

CHUNK = 2048  # most steps in one call of the compiled loop
CHUNK_SECONDS = 0.25  # how long one call should take, so that Ctrl-C and the clock are heard

Metrics = Callable[[Problem, Variables], Mapping[str, Any]]


@dataclass
class Result:
    """Where a run ended.

    - `x`, `y`: the iterate; x as the user's pytree, y with a leading axis m (none where m = 1).
    - `status`: "done" (a budget is used up), "target", "diverged" or "interrupted".
    - `steps`, `cost`, `seconds`: what it took; `message` says in words why it ended.
    - `trace`: what was recorded; `state`: all that is needed to go on (`solve(..., resume=result)`).
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

    def __repr__(self) -> str:
        last = self.trace.rows[-1] if self.trace.rows else {}
        shown = "".join(f", {name}={last[name]:.6g}" for name in ("objective", "grad_norm") if name in last)
        return f"Result({self.status}: {self.message}; steps={self.steps}, seconds={self.seconds:.3g}{shown})"


@dataclass
class _Budget:
    steps: int | None
    samples: int | None
    seconds: float | None

    def check(self) -> None:
        if self.steps is None and self.samples is None and self.seconds is None:
            raise ValueError("solve needs a budget: give steps=, samples= or seconds=.")
        for name in ("steps", "samples"):
            if getattr(self, name) is not None:
                arguments.count(name, getattr(self, name), least=0)
        if self.seconds is not None:
            arguments.positive("seconds", self.seconds)

    def share(self, run: "_Run") -> float:
        """How much of the budget is used."""
        used = [(run.steps, self.steps), (run.cost.samples, self.samples), (run.seconds, self.seconds)]
        return max(float(spent) / limit for spent, limit in used if limit)

    def steps_left(self, run: "_Run") -> int:
        """Steps that surely fit into what is left of the steps and samples."""
        left = math.inf if self.steps is None else self.steps - run.steps
        if self.samples is not None:  # one step first, to learn what a step takes
            per_step = run.samples_per_step
            left = min(left, (self.samples - run.cost.samples) // per_step if per_step else 1)
        return int(min(max(left, 0), CHUNK))

    def used_up(self, run: "_Run") -> str | None:
        """Why the run is over, if it is."""
        if self.seconds is not None and run.seconds >= self.seconds:
            return f"{self.seconds:g} seconds are used up"
        if self.steps is not None and run.steps >= self.steps:
            return f"{self.steps} steps are done"
        if self.samples is not None and run.cost.samples + run.samples_per_step > self.samples:
            return f"another step would exceed {self.samples} samples"
        return None


@dataclass
class _Plan:
    """What the user asked for."""

    budget: _Budget
    target: Mapping[str, float]
    record_every: int
    metrics: Metrics | None

    def check_target(self, row: Mapping[str, float]) -> None:
        for name, value in self.target.items():
            if name not in row:
                raise ValueError(f"target names {name!r}, which is not recorded; the metrics are {', '.join(row)}.")
            arguments.number(f"target[{name!r}]", value, "a number", lambda v: not math.isnan(v))

    def verdict(self, run: "_Run", interrupted: bool) -> tuple[str, str] | None:
        """Status and reason, if the run is over."""
        row = run.trace.rows[-1]
        for name, value in self.target.items():
            if row[name] <= value:
                return "target", f"{name} reached {row[name]:.6g}"
        if interrupted:
            return "interrupted", f"stopped by Ctrl-C after {run.steps} steps"
        used_up = self.budget.used_up(run)
        return None if used_up is None else ("done", used_up)


@dataclass
class _Run:
    """A run so far, and what it has compiled."""

    problem: Problem
    key: Array
    variables: Callable[[Problem, Any], Variables]
    state: Any
    steps: int
    cost: Cost
    seconds: float
    trace: Trace
    samples_per_step: float = 0
    pace: float = math.nan  # seconds per step, of the last chunk

    def record(self, metrics: Metrics | None) -> None:
        values = {} if metrics is None else metrics(self.problem, self.variables(self.problem, self.state))
        self.trace.add({"step": self.steps, **self.cost._asdict(), "seconds": self.seconds, **values})

    def chunk_size(self, plan: _Plan) -> int:
        until_record = plan.record_every - self.steps % plan.record_every
        limit = CHUNK_SECONDS
        if plan.budget.seconds is not None:
            limit = min(limit, plan.budget.seconds - self.seconds)
        by_time = 8 if math.isnan(self.pace) else int(limit / max(self.pace, 1e-9))
        return max(1, min(plan.budget.steps_left(self), until_record, by_time))

    def advance(self, loop: Callable, n: int) -> bool:
        """Up to n steps, timed and counted; whether all were taken, which they are unless the run diverges."""
        begun = time.perf_counter()
        state, costs, taken = jax.block_until_ready(
            loop(self.problem, self.state, self.key, jnp.int32(self.steps + 1), jnp.int32(n))
        )
        spent = time.perf_counter() - begun
        done = np.asarray(costs, float)[: int(taken)]
        self.state = state
        self.steps += len(done)
        self.seconds += spent
        self.pace = spent / n
        if len(done):
            self.cost = Cost(*(a + b for a, b in zip(self.cost, _as_cost(done.sum(0)), strict=True)))
            self.samples_per_step = float(done[-1][0])
        return len(done) == n


def _as_cost(counts: Any) -> Cost:
    return Cost(*(round(float(count)) for count in counts))


def _begin(problem: Problem, algorithm: Algorithm, seed: int, resume: Result | None) -> _Run:
    """A fresh run, or the resumed one on copies: a compiled loop takes its state's memory over."""
    init_key, step_key = jax.random.split(jax.random.key(seed))
    variables = jax.jit(algorithm.variables)
    if resume is not None:
        state = jax.tree.map(jnp.copy, resume.state)
        trace = Trace([dict(row) for row in resume.trace.rows], dict(resume.trace.settings))
        return _Run(problem, step_key, variables, state, resume.steps, resume.cost, resume.seconds, trace)
    init = jax.jit(algorithm.init).lower(problem, init_key).compile()
    begun = time.perf_counter()
    state = jax.block_until_ready(init(problem, init_key))
    seconds = time.perf_counter() - begun
    settings = {name: str(value) for name, value in algorithm.settings.items()}
    trace = Trace(settings={"algorithm": algorithm.name, "seed": seed, **settings})
    return _Run(problem, step_key, variables, state, 0, _as_cost(state.initial_cost), seconds, trace)


def _compile_loop(algorithm: Algorithm, run: _Run) -> Callable:
    """n steps from step t on: the state, the cost of each, and how many were taken before divergence."""

    def loop(problem: Problem, state: Any, key: Array, t: Array, n: Array) -> tuple[Any, Array, Array]:
        def unfinished(carry: tuple) -> Array:
            _, _, k, finite = carry
            return finite & (k < n)

        def body(carry: tuple) -> tuple:
            state, costs, k, _ = carry
            state, info = algorithm.step(problem, state, jax.random.fold_in(key, t + k))
            costs = costs.at[k].set(jnp.stack(info.cost))
            return state, costs, k + info.finite.astype(jnp.int32), info.finite

        costs = jnp.zeros((CHUNK, len(Cost._fields)))
        first = (state, costs, jnp.int32(0), jnp.asarray(True))
        state, costs, taken, _ = jax.lax.while_loop(unfinished, body, first)
        return state, costs, taken

    one = jnp.int32(1)
    return jax.jit(loop, donate_argnums=1).lower(run.problem, run.state, run.key, one, one).compile()


def _carry_out(
    run: _Run, algorithm: Algorithm, plan: _Plan, interrupted: Callable[[], bool], report: terminal.Report
) -> tuple[str, str]:
    """Run until the plan says that it is over; status and reason."""
    if not run.trace.rows:
        run.record(plan.metrics)
    plan.check_target(run.trace.rows[-1])
    loop = _compile_loop(algorithm, run)
    ended = plan.verdict(run, interrupted())
    while ended is None:
        n = run.chunk_size(plan)
        if not run.advance(loop, n):
            return "diverged", f"step {run.steps + 1} left the finite numbers, the state before it is returned"
        if run.steps % plan.record_every == 0:
            run.record(plan.metrics)
        report(run.steps, plan.budget.share(run), run.trace.rows[-1])
        ended = plan.verdict(run, interrupted())
    return ended


def _record_every(given: int | None, budget: _Budget) -> int:
    if given is None:
        return max(1, budget.steps // 20) if budget.steps else 1000
    arguments.count("record_every", given)
    return given


@arguments.known_keywords
def solve(
    problem: Problem,
    algorithm: Algorithm,
    *,
    steps: int | None = None,
    samples: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    target: Mapping[str, float] | None = None,
    record_every: int | None = None,
    metrics: Metrics | None = exact_metrics,
    iterate: str = "last",
    resume: Result | None = None,
    progress: bool | None = None,
) -> Result:
    """Run an algorithm on a problem until a budget is used up, a target is met, or it diverges.

    - `steps`, `samples`, `seconds`: budgets for the whole run; the first one used up ends it. Neither
      compilation nor evaluation counts as seconds.
    - `target`: {"objective": 0.3} ends the run as soon as a recorded metric is that small.
    - `metrics`: a function of (problem, Variables) that returns numbers by name, recorded every
      `record_every` steps (20 times in all by default); `None` records the costs alone. The default solves all
      lower problems exactly: F(x), ‖∇F(x)‖ and the mean ‖y_i − y_i*‖².
    - `iterate`: "last", or "random" as in the theorems: x_t̃ with t̃ uniform on 0..steps. Nothing after t̃
      matters to x_t̃, so t̃ is drawn first and the run ends there.
    - `resume`: a Result of the same problem and algorithm to go on from; its steps, samples and seconds
      count towards the budgets, and the outcome has the same bits as one uninterrupted run.
    - `progress`: a bar on stderr; by default where stderr is a terminal.

    Ctrl-C ends the run after the current chunk of steps and returns what was reached.
    """
    for name, value, kind in [("problem", problem, Problem), ("algorithm", algorithm, Algorithm)]:
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be a bilevax.{kind.__name__}; got {type(value).__name__}.")
    arguments.one_of("iterate", iterate, ("last", "random"))
    arguments.count("seed", seed, least=0)
    budget = _Budget(steps, samples, seconds)
    budget.check()
    plan = _Plan(budget, target or {}, _record_every(record_every, budget), metrics)
    seed = seed if resume is None else resume.seed
    if iterate == "random":
        if steps is None:
            raise ValueError("iterate='random' draws t̃ from 0..steps: give steps=.")
        budget.steps = int(np.random.default_rng(seed).integers(0, steps + 1))
    with terminal.interruptible() as interrupted, terminal.progress(progress) as report:
        run = _begin(problem, algorithm, seed, resume)
        status, message = _carry_out(run, algorithm, plan, interrupted, report)
        if run.trace.rows[-1]["step"] != run.steps:
            run.record(metrics)
    reached = run.variables(problem, run.state)
    y = jax.vmap(problem.unravel_y)(reached.y) if problem.num_tasks > 1 else problem.unravel_y(reached.y[0])
    return Result(
        x=problem.unravel_x(reached.x),
        y=y,
        status=status,
        message=message,
        steps=run.steps,
        cost=run.cost,
        seconds=run.seconds,
        trace=run.trace,
        state=run.state,
        seed=seed,
    )
