"""solve(): the only loop. Compiled chunks of steps; between them the clock stands still."""

import functools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array

from bilevax import arguments, device, identity, schedule
from bilevax.algorithms.contract import (
    Algorithm,
    Cost,
    check_parts,
    check_state,
    check_step,
)
from bilevax.algorithms.frame import rate_at
from bilevax.problem import Problem
from bilevax.run import terminal
from bilevax.run.ahead import at_step, read_ahead
from bilevax.run.checkpoint import Checkpoints, NoCheckpoints, in_folder
from bilevax.run.choice import METHODS, Choice, choose_method, method_of
from bilevax.run.guard import Guard
from bilevax.run.metrics import exact_metrics, words_on_metrics
from bilevax.run.plan import CHUNK, Budget, Metrics, Plan, record_interval
from bilevax.run.reached import programs_of, reach
from bilevax.run.result import Result
from bilevax.run.run import Run, as_cost
from bilevax.run.saved import SavedState, restore
from bilevax.run.trace import Trace
from bilevax.schedule import RateRule, Scales
from bilevax.shards import COMMON, OWN, Alone, Shards, spread
from bilevax.words import key_of


def _origin_of(problem: Problem, algorithm: Algorithm) -> dict[str, str]:
    """What decides on every step of a run but for its seed."""
    x = problem.unravel_x(problem.x0)
    settings = {name: identity.describe(value, x) for name, value in algorithm.settings.items()}
    return {"algorithm": algorithm.name, **settings, **problem.identify(), "default type": str(jnp.result_type(float))}


def _check_resume(name: str, resume: Any, origin: dict[str, str], seed: int | None) -> None:
    """Refuse a result that another algorithm, other settings, another problem or another seed left behind."""
    if not isinstance(resume, Result):
        raise TypeError(f"{name} must be a bilevax.Result; got {type(resume).__name__}.")
    other = identity.differences(resume.origin, origin)
    if other:
        left_by = resume.origin.get("algorithm", "an unknown algorithm")
        raise ValueError(
            f"{name} must come from a run of {origin['algorithm']} on the same problem with the same settings; it "
            f"comes from {left_by}, and not the same are {', '.join(other)}."
        )
    if seed is not None and seed != resume.seed:
        raise ValueError(f"{name} comes from a run with seed {resume.seed}, which it keeps; got seed={seed}.")


def _begin(
    problem: Problem, algorithm: Algorithm, seed: int, origin: dict[str, str], resume: Result | None, plan: Plan
) -> Run:
    """A fresh run, or the resumed one on copies: a compiled loop takes its state's memory over."""
    init_key, step_key = jax.random.split(jax.random.key(seed))
    variables = functools.partial(reach, programs_of(algorithm.name, algorithm.variables))
    of_all: dict[str, Any] = {
        "problem": problem, "algorithm": algorithm, "key": step_key, "variables": variables, "seed": seed,
        "origin": origin, "compiled_start": functools.partial(_start_for, algorithm, _compiled_start),
    }  # fmt: skip
    if resume is not None:
        state, guard = _resumed_state(problem, algorithm, resume)
        trace = Trace([dict(row) for row in resume.trace.rows], dict(resume.trace.settings))
        own = resume.notes[: len(resume.notes) - (len(guard.notes) if guard else 0)]  # a guard has its own
        of_all |= {"steps": resume.steps, "cost": resume.cost, "seconds": resume.seconds, "guard": guard, "notes": own}
        run = Run(**of_all, state=state, trace=trace, ahead=read_ahead(problem, algorithm, step_key, state))
        _rehearse(run, plan)
        return run
    like = _start_for(algorithm, _traced_start, problem, init_key).out_info
    settings = {name: str(value) for name, value in algorithm.settings.items()}
    trace = Trace(settings={"algorithm": algorithm.name, "seed": seed, **settings})
    ahead = read_ahead(problem, algorithm, step_key, like)
    run = Run(**of_all, state=like, trace=trace, steps=0, cost=Cost(0, 0, 0), seconds=0.0, ahead=ahead)
    _rehearse(run, plan)
    init = run.compiled_start(problem, init_key)
    begun = time.perf_counter()
    run.state = jax.block_until_ready(init(problem, init_key))
    run.spend(begun)
    run.cost = as_cost(problem.shards.on_host(run.state.initial_cost))
    return run


def _rehearse(run: Run, plan: Plan) -> None:
    """Trace a step, then try the metrics: what is wrong with them is said before anything is compiled."""
    if plan.budget.used_up(run) is None:
        run.inspect(_loop_of(run.algorithm.name, run.algorithm.step))
    run.trial = plan.try_metrics(run.problem)


def _resumed_state(problem: Problem, algorithm: Algorithm, resume: Result) -> tuple[Any, Guard | None]:
    """Copies of the state and of the guard of a result, which may come from a file."""
    state, guard = resume.state, resume.guard
    if isinstance(state, SavedState):
        like = jax.eval_shape(spread(algorithm.init, (COMMON,), OWN), problem, jax.random.key(0))
        state = restore(state, like, problem.shards)
        guard = guard and replace(guard, good=restore(guard.good, like, problem.shards))
    guard = guard and replace(guard, good=jax.tree.map(jnp.copy, guard.good), notes=list(guard.notes))
    return jax.tree.map(jnp.copy, state), guard


def _check_batches(problem: Problem, settings: Mapping[str, Any]) -> None:
    """Refuse batches that do not fit in memory."""
    available = device.available_bytes()
    rows = [jax.eval_shape(lambda: data.take(jnp.int32(0), jnp.zeros(1, jnp.int32)))  # noqa: B023
            for data in (problem.upper_data, problem.lower_data)]  # fmt: skip
    row = max(8, sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(rows)))
    tasks = min(settings.get("tasks_per_step", problem.num_tasks) or 1, problem.num_tasks)  # ten at most by default
    for name, count in (("batch_size", tasks), ("initial_batch_size", 1)):  # a first batch comes task by task
        size = settings.get(name)
        if available is None or not isinstance(size, (int, np.integer)):
            continue
        needed = int(size) * int(count) * row
        if needed > available:
            raise MemoryError(
                f"{name} must be so small that a batch fits in memory; {size} samples of {row} bytes for each of "
                f"{count} tasks take {needed / 1e9:.3g} GB, and {available / 1e9:.3g} GB are available."
            )


@functools.lru_cache(maxsize=16)
def _traced_start(name: str, init: Callable[..., Any], structure: Any, kinds: tuple[tuple[Any, ...], ...]) -> Any:
    """`init`, traced for a problem of this structure, shapes, dtypes and places, and looked at meanwhile."""
    leaves = [jax.ShapeDtypeStruct(shape, dtype, sharding=place) for shape, dtype, place in kinds]
    start = jax.jit(spread(lambda problem, key: check_state(name, init(problem, key)), (COMMON,), OWN))
    return start.trace(*jax.tree.unflatten(structure, leaves))


@functools.lru_cache(maxsize=16)
def _compiled_start(
    name: str, init: Callable[..., Any], structure: Any, kinds: tuple[tuple[Any, ...], ...]
) -> Callable[..., Any]:
    """`init`, compiled ahead for such a problem: its first run is timed like any."""
    return _traced_start(name, init, structure, kinds).lower().compile()


def _start_for(algorithm: Algorithm, program: Callable[..., Any], problem: Problem, key: Array) -> Any:
    """`init` of the algorithm, traced or compiled for such a problem."""
    leaves, structure = jax.tree.flatten((problem, key))
    place = lambda leaf: leaf.sharding if isinstance(leaf.sharding, NamedSharding) else None
    kinds = tuple((leaf.shape, leaf.dtype, place(leaf)) for leaf in leaves)
    return program(algorithm.name, algorithm.init, structure, kinds)


@functools.lru_cache(maxsize=16)
def _loop_of(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
    """n steps from step t on, fewer where the samples end or the run diverges or converges: the state, their costs.

    One function for an algorithm, so that its next run on such a problem need not be compiled again.
    """

    def loop(
        problem: Problem, state: Any, key: Array, t: Array, n: Array, samples: Array
    ) -> tuple[Any, Array, Array, Array, Array]:
        def goes_on(carry: tuple[Any, ...]) -> Array:
            _, _, used, k, finite, converged = carry
            return finite & ~converged & (k < n) & (used < samples)

        def body(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            state, costs, used, k, _, _ = carry
            now = at_step(problem, t + k)
            state, info = check_step(name, state, step(now, state, key_of(key, t + k)))
            cost, finite = Cost(*(jnp.asarray(count, float) for count in info.cost)), jnp.asarray(info.finite)
            costs, taken = costs.at[k].set(jnp.stack(cost)), k + finite.astype(jnp.int32)
            return state, costs, used + cost.samples, taken, finite, jnp.asarray(info.converged)

        costs = jnp.zeros((CHUNK, len(Cost._fields)))
        first = (state, costs, jnp.asarray(0, float), jnp.int32(0), jnp.asarray(True), jnp.asarray(False))
        state, costs, _, taken, finite, converged = jax.lax.while_loop(goes_on, body, first)
        return state, costs, taken, finite, converged

    on_shards = spread(loop, (OWN, COMMON, COMMON, COMMON, COMMON), (OWN, COMMON, COMMON, COMMON, COMMON))
    return jax.jit(on_shards, donate_argnums=1)


def _carry_out(
    run: Run, plan: Plan, interrupted: Callable[[], str | None], report: terminal.Report,
    checkpoints: Checkpoints | NoCheckpoints,
) -> tuple[str, str]:  # fmt: skip
    """Run until the plan says that it is over; status and reason."""
    loop = _loop_of(run.algorithm.name, run.algorithm.step)
    if plan.lacks_record(run):
        run.record(plan.metrics)
    plan.check_target(run.trace.rows[-1])
    run.look()
    ended = plan.verdict(run, _anybody(run, interrupted()))
    if ended is None:
        run.compile(loop)
        run.guard = run.guard or Guard.of(run)
    while ended is None:
        size, record_at = run.chunk_size(plan), run.steps + plan.steps_to_record(run.steps)
        if plan.budget.steps is None:  # else all steps were looked at beforehand
            schedule.check_all(run.algorithm.settings, run.steps + 1, run.steps + size)
        if not run.advance(loop, size, plan.budget.samples_left(run)):
            if run.guard is not None and run.guard.retreat(run, "a step left the finite numbers"):
                continue
            if run.steps == 0:
                return "diverged", "step 1 left the finite numbers: the losses do at x0, y0, or a step is far too large"
            return "diverged", f"step {run.steps + 1} left the finite numbers, the state before it is returned"
        if run.guard is not None and run.guard.steps_left(run) <= 0:
            run.guard.look(run)
        if run.steps >= record_at:
            run.record(plan.metrics)
            run.look()
        report(run.steps, plan.budget.share(run), run.trace.rows[-1])
        ended = plan.verdict(run, _anybody(run, interrupted()))
        if ended is None and checkpoints.is_due():
            checkpoints.begin(run.result("interrupted", f"a checkpoint after {run.steps} steps"))
    if ended[0] == "interrupted":
        checkpoints.write(run.result(*ended))
    return ended


def _anybody(run: Run, interrupted: str | None) -> str | None:
    """What stopped this process, or another one of the run: they stop after the same step."""
    if not run.problem.shards.any(interrupted is not None):
        return None
    return interrupted or "another process"


def _words_on_rates(shards: Alone | Shards, algorithm: Algorithm, state: Any) -> tuple[str, ...]:
    """Which rates were found, and what they are in the first step."""
    scales = getattr(state, "scales", ())
    if not isinstance(scales, Scales):
        return ()
    scales = shards.on_host(scales)
    found = [(name, rate) for name, rate in algorithm.settings.items() if isinstance(rate, RateRule)]
    listed = ", ".join(f"{name} = {float(rate_at(float, scales, 1, rate)):.3g}" for name, rate in found)
    return (
        f"Found when the run started: {listed}; from L_g = {float(scales.smoothness):.3g}, F that falls along its "
        f"gradient up to a step of {float(scales.step):.3g}, and a share of {float(scales.share):.3g} of the tasks.",
    )


def _check_kinds(problem: Any, algorithm: Any, seed: Any) -> None:
    """Refuse what is no problem, no algorithm or no seed."""
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a bilevax.Problem; got {type(problem).__name__}.")
    if algorithm is not None and not isinstance(algorithm, Algorithm):
        kind = type(algorithm).__name__
        raise TypeError(f"algorithm must be a bilevax.Algorithm, or left out for one to be chosen; got {kind}.")
    if seed is not None:
        arguments.count("seed", seed, least=0, most=2**63 - 1)


@arguments.known_keywords
def solve(
    problem: Problem,
    algorithm: Algorithm | None = None,
    *,
    steps: int | None = None,
    samples: int | None = None,
    seconds: float | None = None,
    seed: int | None = None,
    target: Mapping[str, float] | None = None,
    record_every: int | None = None,
    metrics: Metrics | None = exact_metrics,
    iterate: str = "last",
    resume: Result | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: float = 60.0,
    progress: bool | None = None,
) -> Result:
    """Run an algorithm on a problem until a budget is used up, a target is met, or it ends by itself.

    Without an algorithm one is chosen, and `result.explain()` says which and why:

    >>> result = bx.solve(problem, seconds=30)
    >>> print(result.explain())

    Steps that an algorithm was not given are found when the run starts; such a run does not diverge: where F rises, it
    goes back and shrinks them. With steps of the user's own it ends as "diverged".

    - `steps`, `samples`, `seconds`: budgets for the whole run, its start included; the first one used up ends
      it, with the step that uses it up. Neither compilation nor evaluation counts as seconds.
    - `seed`: decides on all draws; 0 by default, and that of the resumed run with `resume`.
    - `target`: {"objective": 0.3} ends the run as soon as a recorded metric is that small.
    - `metrics`: a function of (problem, Variables) that returns numbers by name; `None` records the costs alone. The
      default solves lower problems exactly: F(x) and its error, ‖∇F(x)‖ and the mean ‖y_i − y_i*‖²; with more than
      20,000 tasks on 128 of them (`bx.exact_metrics`). A function
      of your own is tried at x0 and y0 before anything is compiled. What it returns there is the first record if the
      run starts from just there; else it is called once more.
    - `record_every`: steps between two records; by default there are 20 of them, or, without `steps`, one after 1, 2,
      3, 4, 6, 9, 13, ... steps, each time half as many again.
    - `iterate`: "last" (on steps that were found: the best that was looked at, where F has risen since, and the message
      says so), or "random" as in the theorems: x_t̃ with t̃ uniform on 0..steps. Nothing after t̃
      matters to x_t̃, so t̃ is drawn first and the run ends there.
    - `resume`: a Result of the same problem, algorithm and settings to go on from, others are refused; its steps,
      samples and seconds count towards the budgets, its seed is kept, and the outcome has the same bits as one
      uninterrupted run.
    - `checkpoint`: a folder in which the run is kept, `every` so many seconds (less often where writing takes long) and
      at its end. The same call again, in another process, goes on from there, and ends with the bits of a run that
      was never interrupted. SIGTERM writes one before the process ends.
    - `progress`: a bar on stderr; by default where stderr is a terminal.

    >>> result = bx.solve(problem, seconds=3600, checkpoint="run")  # killed? call it again

    Ctrl-C ends the run after the current chunk of steps and returns what was reached. An error of a metric or of a
    loss carries what was reached before it as its attribute `result`, from which `resume` goes on. Now and then the
    curvature of some lower problems is looked at, and an `AssumptionWarning` says where it is not what was claimed.
    """
    _check_kinds(problem, algorithm, seed)
    arguments.one_of("iterate", iterate, ("last", "random"))
    arguments.flag("progress", progress, none=True)
    budget = Budget(steps, samples, seconds)
    budget.check()
    budget.check_for(problem)
    if resume is not None and checkpoint is not None:
        raise ValueError("resume and checkpoint cannot be given together: a checkpoint is what a run goes on from.")
    with in_folder(checkpoint, every, problem.shards) as checkpoints:
        kept = checkpoints.newest()
        before, name = (resume, "resume") if kept is None else (kept, f"checkpoint {os.fspath(checkpoint or '')!r}")
        algorithm, notes = _decide(problem, algorithm, budget, kept)
        plan = Plan(budget, {} if target is None else target, record_interval(record_every, budget), metrics)
        plan.check()
        identity.check_losses(problem)
        origin = _origin_of(problem, algorithm)
        if before is not None:
            _check_resume(name, before, origin, seed)
        seed = (0 if seed is None else seed) if before is None else before.seed
        if iterate == "random":
            budget.steps = _random_step(steps, seed, before)
        if budget.steps:
            schedule.check_all(algorithm.settings, 1, budget.steps)
        _check_batches(problem, algorithm.settings)
        with terminal.interruptible(checkpoint is not None) as interrupted, terminal.progress(progress) as report:
            run = _begin(problem, algorithm, seed, origin, before, plan)
            told = words_on_metrics(problem) if metrics is exact_metrics else ()
            run.notes = run.notes or (*notes, *_words_on_rates(problem.shards, algorithm, run.state), *told)
            try:
                status, message = _carry_out(run, plan, interrupted, report, checkpoints)
                if run.trace.rows[-1]["step"] != run.steps:
                    run.record(metrics)
            except BaseException as error:
                run.close()
                if problem.shards.is_spread:  # what was reached is in all processes, and one of them may be gone
                    error.add_note(f"A process of this run has died or hangs, or had this error. {checkpoints.words()}")
                    raise
                run.rescue(error)
                if hasattr(error, "result"):
                    checkpoints.write(error.result)
                raise
            run.close()
            end, words = run.state, ""
            if run.guard is not None and iterate == "last" and status != "target":
                end, words = run.guard.choose_end(run)
            result = run.result(status, message + words, end)
            if status != "interrupted":
                checkpoints.write(result)
        return result


def _decide(problem: Problem, algorithm: Algorithm | None, budget: Budget, kept: Result | None) -> Choice:
    """The algorithm that was given, if it can run here, that of the checkpoint, or one that is chosen, and why."""
    if algorithm is None and kept is not None and kept.origin.get("algorithm") in METHODS:
        return Choice(method_of(kept.origin["algorithm"]), ())  # whatever is left of the budget
    if algorithm is None:
        return choose_method(problem, budget)
    check_parts(algorithm)
    if problem.shards.count > 1 and not algorithm.on_shards:
        raise TypeError(f"algorithm must run on shards, and {algorithm.name} does not: its on_shards is not set.")
    return Choice(algorithm, ())


def _random_step(steps: int | None, seed: int, before: Result | None) -> int:
    """t̃, uniform on 0..steps."""
    if steps is None:
        raise ValueError("iterate='random' draws t̃ from 0..steps: give steps=.")
    drawn = int(np.random.default_rng(seed).integers(0, steps + 1))
    if before is not None and before.steps > drawn:
        raise ValueError(f"resume is at step {before.steps}, past the random iterate t̃ = {drawn} of this seed.")
    return drawn
