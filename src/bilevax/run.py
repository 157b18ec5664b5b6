"""solve(): the only loop. Compiled chunks of steps; between them the clock stands still."""

import contextlib
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from bilevax import arguments
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

    def steps_left(self, run: "_Run") -> int:
        """Steps that surely fit into what is left of the steps and samples."""
        left = math.inf if self.steps is None else self.steps - run.steps
        if self.samples is not None:  # one step first, to learn what a step takes
            per_step = run.samples_per_step
            left = min(left, (self.samples - run.cost.samples) // per_step if per_step else 1)
        return int(min(max(left, 0), CHUNK))

    def used_up(self, run: "_Run") -> str | None:
        if self.seconds is not None and run.seconds >= self.seconds:
            return f"{self.seconds:g} seconds are used up"
        if self.steps is not None and run.steps >= self.steps:
            return f"{self.steps} steps are done"
        if self.samples is not None and run.cost.samples + run.samples_per_step > self.samples:
            return f"another step would exceed {self.samples} samples"
        return None


@dataclass
class _Run:
    """The moving parts of a run."""

    state: Any
    steps: int
    cost: Cost
    seconds: float
    samples_per_step: float
    pace: float = math.nan  # seconds per step, of the last chunk

    def chunk_size(self, budget: _Budget, until_record: int) -> int:
        size = min(budget.steps_left(self), until_record)
        limit = CHUNK_SECONDS
        if budget.seconds is not None:
            limit = min(limit, budget.seconds - self.seconds)
        by_time = 8 if math.isnan(self.pace) else max(1, int(limit / max(self.pace, 1e-9)))
        return max(1, min(size, by_time))


def _compile_loop(algorithm: Algorithm, problem: Problem, state: Any, key: Array) -> Callable:
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

    step = jnp.int32(1)
    return jax.jit(loop, donate_argnums=1).lower(problem, state, key, step, step).compile()


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C sets a flag, so that no state is lost in the middle of a chunk; a second one raises."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    caught: list[int] = []

    def note(number: int, frame: Any) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(caught)
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _progress(asked: bool | None, budget: _Budget) -> Iterator[Callable[[_Run, Mapping[str, Any]], None]]:
    """A bar on a terminal, nothing elsewhere unless asked for."""
    if not (sys.stderr.isatty() if asked is None else asked):
        yield lambda run, row: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[row]}"),
    )
    with Progress(*columns, console=Console(stderr=True, force_terminal=asked), transient=True) as bar:
        task = bar.add_task("compiling", total=1.0, row="")

        def update(run: _Run, row: Mapping[str, Any]) -> None:
            parts = [
                run.steps / budget.steps if budget.steps else 0,
                float(run.cost.samples) / budget.samples if budget.samples else 0,
                run.seconds / budget.seconds if budget.seconds else 0,
            ]
            shown = "  ".join(f"{name} {row[name]:.4g}" for name in ("objective", "grad_norm") if name in row)
            bar.update(task, description=f"step {run.steps}", completed=max(parts), row=shown)

        yield update


def _check_target(target: Mapping[str, float], names: list[str]) -> None:
    for name, value in target.items():
        if name not in names:
            raise ValueError(f"target names {name!r}, which is not recorded; the metrics are {', '.join(names)}.")
        arguments.number(f"target[{name!r}]", value, "a number", lambda v: not math.isnan(v))


def _as_cost(counts: Any) -> Cost:
    return Cost(*(round(float(count)) for count in counts))


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
    every = _record_every(record_every, budget)
    seed = seed if resume is None else resume.seed
    if iterate == "random":
        if steps is None:
            raise ValueError("iterate='random' draws t̃ from 0..steps: give steps=.")
        budget.steps = int(np.random.default_rng(seed).integers(0, steps + 1))
    with _interruptible() as interrupted, _progress(progress, budget) as report:
        return _run(problem, algorithm, budget, seed, target or {}, every, metrics, resume, interrupted, report)


def _run(
    problem: Problem,
    algorithm: Algorithm,
    budget: _Budget,
    seed: int,
    target: Mapping[str, float],
    every: int,
    metrics: Metrics | None,
    resume: Result | None,
    interrupted: Callable[[], bool],
    report: Callable[[_Run, Mapping[str, Any]], None],
) -> Result:
    init_key, step_key = jax.random.split(jax.random.key(seed))
    run, trace = _begin(problem, algorithm, init_key, resume)
    trace.settings.update(
        {"algorithm": algorithm.name, "seed": seed, **{k: str(v) for k, v in algorithm.settings.items()}}
    )
    variables = jax.jit(algorithm.variables)

    def record() -> dict[str, Any]:
        values = {} if metrics is None else metrics(problem, variables(problem, run.state))
        row = {"step": run.steps, **run.cost._asdict(), "seconds": run.seconds, **values}
        trace.add(row)
        report(run, trace.rows[-1])
        return trace.rows[-1]

    row = trace.rows[-1] if resume is not None and trace.rows else record()
    _check_target(target, list(row))
    loop = _compile_loop(algorithm, problem, run.state, step_key)
    while True:
        ended = _verdict(run, budget, target, row, interrupted)
        if ended is not None:
            break
        n = run.chunk_size(budget, every - run.steps % every)
        taken = _advance(loop, problem, run, step_key, n)
        report(run, row)
        if taken < n:
            ended = (
                "diverged",
                f"step {run.steps + 1} left the finite numbers, the state before it is returned",
            )
            break
        if run.steps % every == 0:
            row = record()
    if trace.rows[-1]["step"] != run.steps:
        record()
    reached = variables(problem, run.state)
    y = jax.vmap(problem.unravel_y)(reached.y) if problem.num_tasks > 1 else problem.unravel_y(reached.y[0])
    status, message = ended
    return Result(
        problem.unravel_x(reached.x),
        y,
        status,
        message,
        run.steps,
        run.cost,
        run.seconds,
        trace,
        run.state,
        seed,
    )


def _begin(problem: Problem, algorithm: Algorithm, key: Array, resume: Result | None) -> tuple[_Run, Trace]:
    """A fresh run, or the resumed one on copies: a compiled loop takes its state's memory over."""
    if resume is not None:
        state = jax.tree.map(jnp.copy, resume.state)
        trace = Trace([dict(row) for row in resume.trace.rows], dict(resume.trace.settings))
        return _Run(state, resume.steps, resume.cost, resume.seconds, 0), trace
    compiled = jax.jit(algorithm.init).lower(problem, key).compile()
    begun = time.perf_counter()
    state = jax.block_until_ready(compiled(problem, key))
    seconds = time.perf_counter() - begun
    return _Run(state, 0, _as_cost(state.initial_cost), seconds, 0), Trace()


def _verdict(
    run: _Run,
    budget: _Budget,
    target: Mapping[str, float],
    row: Mapping[str, float],
    interrupted: Callable[[], bool],
) -> tuple[str, str] | None:
    """Status and reason, if the run is over."""
    for name, value in target.items():
        if row[name] <= value:
            return "target", f"{name} reached {row[name]:.6g}"
    if interrupted():
        return "interrupted", f"stopped by Ctrl-C after {run.steps} steps"
    used_up = budget.used_up(run)
    return None if used_up is None else ("done", used_up)


def _advance(loop: Callable, problem: Problem, run: _Run, key: Array, n: int) -> int:
    """Up to n steps, timed and counted; fewer where the run diverges."""
    begun = time.perf_counter()
    state, costs, taken = jax.block_until_ready(loop(problem, run.state, key, jnp.int32(run.steps + 1), jnp.int32(n)))
    spent = time.perf_counter() - begun
    taken = int(taken)
    done = np.asarray(costs, float)[:taken]
    run.state = state
    run.steps += taken
    run.seconds += spent
    run.pace = spent / n
    if taken:
        run.cost = Cost(*(a + b for a, b in zip(run.cost, _as_cost(done.sum(0)), strict=True)))
        run.samples_per_step = float(done[-1][0])
    return taken
