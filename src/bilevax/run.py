"""solve(): the only loop. Compiled chunks of steps; between them the clock stands still."""

import functools
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
from bilevax.plan import CHUNK, RUN_COLUMNS, Budget, Metrics, Plan, checked_metrics, record_interval
from bilevax.problem import Problem
from bilevax.trace import Trace

CHUNK_SECONDS = 0.25  # how long one call should take, so that Ctrl-C and the clock are heard


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
    pace: float = math.nan  # seconds per step, of the last chunk

    def record(self, metrics: Metrics | None) -> None:
        values = {} if metrics is None else metrics(self.problem, self.variables(self.problem, self.state))
        own = (self.steps, *self.cost, self.seconds)
        self.trace.add({**dict(zip(RUN_COLUMNS, own, strict=True)), **checked_metrics(values)})

    def chunk_size(self, plan: Plan) -> int:
        until_record = plan.record_every - self.steps % plan.record_every
        limit = CHUNK_SECONDS
        if plan.budget.seconds is not None:
            limit = min(limit, plan.budget.seconds - self.seconds)
        by_time = 8 if math.isnan(self.pace) else int(limit / max(self.pace, 1e-9))
        return max(1, min(plan.budget.steps_left(self), until_record, by_time))

    def compile(self, loop: Callable) -> None:
        """Take no step: what is left is compilation, which is not timed."""
        none = jnp.int32(0)
        compiled = loop(self.problem, self.state, self.key, none, none, jnp.asarray(0, float))
        self.state = jax.block_until_ready(compiled)[0]

    def advance(self, loop: Callable, n: int, samples: float) -> bool:
        """Up to n steps, timed and counted, until so many samples are used; whether they were finite."""
        limits = jnp.int32(self.steps + 1), jnp.int32(n), jnp.asarray(samples, float)
        begun = time.perf_counter()
        state, costs, taken, finite = jax.block_until_ready(loop(self.problem, self.state, self.key, *limits))
        spent = time.perf_counter() - begun
        done = np.asarray(costs, float)[: int(taken)]
        self.state = state
        self.steps += len(done)
        self.seconds += spent
        self.pace = spent / n
        if len(done):
            self.cost = Cost(*(a + b for a, b in zip(self.cost, _as_cost(done.sum(0)), strict=True)))
        return bool(finite)


def _as_cost(counts: Any) -> Cost:
    return Cost(*(round(float(count)) for count in counts))


def _check_resume(problem: Problem, algorithm: Algorithm, resume: Any) -> None:
    """Refuse a result that another algorithm or another kind of problem left behind."""
    if not isinstance(resume, Result):
        raise TypeError(f"resume must be a bilevax.Result; got {type(resume).__name__}.")
    described = lambda tree: str(jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree))
    wanted = jax.eval_shape(algorithm.init, problem, jax.random.key(0))
    left_by = resume.trace.settings.get("algorithm")
    if left_by != algorithm.name or described(wanted) != described(resume.state):
        raise ValueError(
            f"resume must come from a run of {algorithm.name} on a problem of the same shapes; it comes from "
            f"{left_by}, or its state has other shapes."
        )


def _begin(problem: Problem, algorithm: Algorithm, seed: int, resume: Result | None) -> _Run:
    """A fresh run, or the resumed one on copies: a compiled loop takes its state's memory over."""
    init_key, step_key = jax.random.split(jax.random.key(seed))
    variables = _compiled(algorithm.variables)
    if resume is not None:
        state = jax.tree.map(jnp.copy, resume.state)
        trace = Trace([dict(row) for row in resume.trace.rows], dict(resume.trace.settings))
        return _Run(problem, step_key, variables, state, resume.steps, resume.cost, resume.seconds, trace)
    leaves, structure = jax.tree.flatten((problem, init_key))
    init = _start_of(algorithm.init, structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves))
    begun = time.perf_counter()
    state = jax.block_until_ready(init(problem, init_key))
    seconds = time.perf_counter() - begun
    settings = {name: str(value) for name, value in algorithm.settings.items()}
    trace = Trace(settings={"algorithm": algorithm.name, "seed": seed, **settings})
    return _Run(problem, step_key, variables, state, 0, _as_cost(state.initial_cost), seconds, trace)


@functools.lru_cache(maxsize=16)
def _compiled(function: Callable) -> Callable:
    """One compiled function for all runs of an algorithm."""
    return jax.jit(function)


@functools.lru_cache(maxsize=16)
def _start_of(init: Callable, structure: Any, kinds: tuple) -> Callable:
    """`init`, compiled ahead for a problem of this structure, shapes and dtypes: its first run is timed like any."""
    leaves = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in kinds]
    return jax.jit(init).lower(*jax.tree.unflatten(structure, leaves)).compile()


@functools.lru_cache(maxsize=16)
def _loop_of(step: Callable) -> Callable:
    """n steps from step t on, fewer where the samples end or the run diverges: the state, the cost of each.

    One function for an algorithm, so that its next run on such a problem need not be compiled again.
    """

    def loop(problem: Problem, state: Any, key: Array, t: Array, n: Array, samples: Array) -> tuple:
        def unfinished(carry: tuple) -> Array:
            _, _, used, k, finite = carry
            return finite & (k < n) & (used < samples)

        def body(carry: tuple) -> tuple:
            state, costs, used, k, _ = carry
            state, info = step(problem, state, jax.random.fold_in(key, t + k))
            costs = costs.at[k].set(jnp.stack(info.cost))
            return state, costs, used + info.cost.samples, k + info.finite.astype(jnp.int32), info.finite

        costs = jnp.zeros((CHUNK, len(Cost._fields)))
        first = (state, costs, jnp.asarray(0, float), jnp.int32(0), jnp.asarray(True))
        state, costs, _, taken, finite = jax.lax.while_loop(unfinished, body, first)
        return state, costs, taken, finite

    return jax.jit(loop, donate_argnums=1)


def _carry_out(
    run: _Run, algorithm: Algorithm, plan: Plan, interrupted: Callable[[], bool], report: terminal.Report
) -> tuple[str, str]:
    """Run until the plan says that it is over; status and reason."""
    if not run.trace.rows or not plan.target.keys() <= run.trace.rows[-1].keys():
        run.record(plan.metrics)
    plan.check_target(run.trace.rows[-1])
    ended = plan.verdict(run, interrupted())
    loop = _loop_of(algorithm.step)
    if ended is None:
        run.compile(loop)
    while ended is None:
        if not run.advance(loop, run.chunk_size(plan), plan.budget.samples_left(run)):
            if run.steps == 0:
                return "diverged", "step 1 left the finite numbers: the losses do at x0, y0, or a step is far too large"
            return "diverged", f"step {run.steps + 1} left the finite numbers, the state before it is returned"
        if run.steps % plan.record_every == 0:
            run.record(plan.metrics)
        report(run.steps, plan.budget.share(run), run.trace.rows[-1])
        ended = plan.verdict(run, interrupted())
    return ended


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

    - `steps`, `samples`, `seconds`: budgets for the whole run, its start included; the first one used up ends
      it, with the step that uses it up. Neither compilation nor evaluation counts as seconds.
    - `target`: {"objective": 0.3} ends the run as soon as a recorded metric is that small.
    - `metrics`: a function of (problem, Variables) that returns numbers by name, recorded every
      `record_every` steps (20 times in all by default); `None` records the costs alone. The default solves all
      lower problems exactly: F(x), ‖∇F(x)‖ and the mean ‖y_i − y_i*‖².
    - `iterate`: "last", or "random" as in the theorems: x_t̃ with t̃ uniform on 0..steps. Nothing after t̃
      matters to x_t̃, so t̃ is drawn first and the run ends there.
    - `resume`: a Result of the same problem and algorithm to go on from; its steps, samples and seconds
      count towards the budgets, its seed is kept, and the outcome has the same bits as one uninterrupted run.
    - `progress`: a bar on stderr; by default where stderr is a terminal.

    Ctrl-C ends the run after the current chunk of steps and returns what was reached.
    """
    for name, value, kind in [("problem", problem, Problem), ("algorithm", algorithm, Algorithm)]:
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be a bilevax.{kind.__name__}; got {type(value).__name__}.")
    arguments.one_of("iterate", iterate, ("last", "random"))
    arguments.count("seed", seed, least=0)
    budget = Budget(steps, samples, seconds)
    budget.check()
    budget.check_for(problem)
    plan = Plan(budget, {} if target is None else target, record_interval(record_every, budget), metrics)
    plan.check()
    if resume is not None:
        _check_resume(problem, algorithm, resume)
        seed = resume.seed
    if iterate == "random":
        if steps is None:
            raise ValueError("iterate='random' draws t̃ from 0..steps: give steps=.")
        budget.steps = int(np.random.default_rng(seed).integers(0, steps + 1))
        if resume is not None and resume.steps > budget.steps:
            raise ValueError(
                f"resume is at step {resume.steps}, past the random iterate t̃ = {budget.steps} of this seed."
            )
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
