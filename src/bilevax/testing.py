"""check_algorithm(factory): whether an algorithm keeps the contract that `solve`, `compare` and all others rely on.

For tests of your own: it is silent where all holds, and says in words what does not.
"""

import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

import bilevax as bx
from bilevax import draw
from bilevax.algorithms.contract import (
    DESCRIPTIONS,
    ONE_LOWER,
    AlgorithmState,
    ContractError,
    Description,
    check_parts,
    check_state,
    check_step,
    check_variables,
)
from bilevax.algorithms.registry.tuning import Scale, Tuning

STEPS = 6
MOST_STEPS = 50  # in which a step that cannot be finite must have come
Factory = Callable[..., bx.Algorithm]


class Outcome(NamedTuple):
    """Some steps of an algorithm: its first and last state, what each step reported, and what was reached."""

    first: AlgorithmState
    last: AlgorithmState
    infos: bx.Info
    variables: bx.Variables


def check_algorithm(factory: Factory, problem: bx.Problem | None = None, **settings: Any) -> None:
    """Run the contract on an algorithm; an `AssertionError` or a `TypeError` says what does not hold.

    - `factory` is described by `@bilevax.described`, takes keyword arguments only and returns a `bilevax.Algorithm` of
      its name. If it has a tuning, that gives arguments that the factory takes.
    - `init`, `step` and `variables` return what `bilevax.Algorithm` says, in float32 and in float64, and work inside
      `jax.jit`, `jax.lax.scan` and `jax.vmap`. All steps are one compiled program.
    - The same key gives the same bits. Another key gives other ones, unless a step looks at every sample there is.
    - x moves. Costs are finite, not negative and not all zero.
    - A step that cannot be finite is reported as such, and leaves the state as it was.
    - `bilevax.solve` runs it, and `resume=` goes on with the same bits.

    `settings` are handed to the factory. The problem is a small quadratic one with three tasks, or with one for an
    algorithm that takes no more; another one can be given. Some seconds, mostly of compilation.
    """
    description = _check_description(factory)
    _check_signature(factory)
    problem = _small_problem(description) if problem is None else problem
    algorithm = _make(factory, settings)
    for dtype in (np.float32, np.float64):
        _check_types(factory, settings, problem, dtype)
    key = jax.random.key(0)
    outcome = _check_runs(algorithm, problem, key)
    _check_costs(algorithm.name, outcome)
    _check_steps(algorithm, problem, key, outcome)
    _check_solve(algorithm, problem)
    if description.tuning is not None:
        _check_tuning(factory, description.tuning, problem)


def _hold(truth: Any, sentence: str) -> None:
    """Say what should hold and does not."""
    if not truth:
        raise AssertionError(sentence)


def _attempt(sentence: str, call: Callable[..., Any], *given: Any) -> Any:
    """What a call returns; an error of it is told with what should hold."""
    try:
        return call(*given)
    except (ContractError, AssertionError):
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise AssertionError(f"{sentence}; it raised {type(error).__name__}: {reason}") from error


def _check_description(factory: Factory) -> Description:
    """Its @described block, if it has one in which everything is said."""
    _hold(callable(factory) and hasattr(factory, "__name__"), f"factory must be a function; got {factory!r}.")
    description = DESCRIPTIONS.get(factory.__name__)
    if description is None or inspect.unwrap(description.factory) is not inspect.unwrap(factory):
        raise AssertionError(
            f"{factory.__name__} must be described: put @bilevax.described(paper=..., loops=..., ...) before its def."
        )
    silent = [field for field, words in description.facts._asdict().items() if not str(words).strip()]
    _hold(not silent, f"the @described block of {factory.__name__} must say something on {', '.join(silent)}.")
    return description


def _check_signature(factory: Factory) -> None:
    """Refuse arguments that can be given by their place."""
    by_keyword = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD
    parameters = inspect.signature(factory).parameters.items()
    by_place = [name for name, parameter in parameters if parameter.kind not in by_keyword]
    _hold(
        not by_place,
        f"{factory.__name__} must take keyword arguments only, def {factory.__name__}(*, ...); {', '.join(by_place)} "
        "can be given by place.",
    )


def _small_problem(description: Description) -> bx.Problem:
    """A quadratic problem in which no two dimensions are the same."""
    tasks = 1 if description.facts.tasks == ONE_LOWER else 3
    return bx.problems.quadratic(num_tasks=tasks, dim_x=4, dim_y=2, noise=0.05, num_samples=8).problem


def _make(factory: Factory, settings: Mapping[str, Any]) -> bx.Algorithm:
    """What the factory makes, if it is an algorithm of its name."""
    name = factory.__name__
    algorithm = factory(**settings)
    if not isinstance(algorithm, bx.Algorithm):
        raise AssertionError(f"{name} must return a bilevax.Algorithm; it returned {type(algorithm).__name__}.")
    check_parts(algorithm)
    _hold(algorithm.name == name, f"{name} must return an algorithm of its name; it is named {algorithm.name!r}.")
    return algorithm


def _cast(problem: bx.Problem, dtype: Any) -> bx.Problem:
    """The problem with all its floats in one type."""

    def cast(leaf: Any) -> Any:
        return jnp.asarray(leaf, dtype) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else leaf

    return jax.tree.map(cast, problem)


def _run(algorithm: bx.Algorithm, problem: bx.Problem, key: Key[Array, ""]) -> Outcome:
    """Some steps, each looked at while it is traced."""
    name = algorithm.name
    first = check_state(name, algorithm.init(problem, key))

    def step(state: Any, t: Array) -> tuple[AlgorithmState, bx.Info]:
        return check_step(name, state, algorithm.step(problem, state, jax.random.fold_in(key, t)))

    last, infos = jax.lax.scan(step, first, jnp.arange(1, STEPS + 1))
    return Outcome(first, last, infos, check_variables(name, problem, algorithm.variables(problem, last)))


def _check_types(factory: Factory, settings: Mapping[str, Any], problem: bx.Problem, dtype: Any) -> None:
    """Trace a step on numbers of this type; nothing is computed."""
    with jax.enable_x64(dtype == np.float64 or jax.config.read("jax_enable_x64")):
        algorithm = factory(**settings)
        sentence = f"{algorithm.name} must work inside jax.jit, in {np.dtype(dtype)}"
        _attempt(sentence, _trace, algorithm, _cast(problem, dtype), jax.random.key(0))


def _trace(algorithm: bx.Algorithm, problem: bx.Problem, key: Key[Array, ""]) -> None:
    """Trace a start, a step and what it reaches."""
    name = algorithm.name
    start = lambda problem, key: check_state(name, algorithm.init(problem, key))
    step = lambda problem, state, key: check_step(name, state, algorithm.step(problem, state, key))
    reach = lambda problem, state: check_variables(name, problem, algorithm.variables(problem, state))
    state = jax.eval_shape(start, problem, key)
    after, _ = jax.eval_shape(step, problem, state, key)
    jax.eval_shape(reach, problem, after)
    pairs = zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(after), strict=True)
    plain = ["state" + jax.tree_util.keystr(path) for (path, leaf), new in pairs if leaf.weak_type != new.weak_type]
    _hold(
        not plain,
        f"a step of {name} must keep the types in its state, or it is compiled twice; {', '.join(plain)} is a plain "
        "number before or after it: write jnp.asarray(1.0, problem.dtype) or jnp.int32(1).",
    )


def _check_runs(algorithm: bx.Algorithm, problem: bx.Problem, key: Key[Array, ""]) -> Outcome:
    """Some steps with two keys side by side: finite, repeated by their key, and not the same for both."""
    name, keys = algorithm.name, jnp.stack([key, jax.random.key(1)])
    both = jax.jit(jax.vmap(lambda problem, key: _run(algorithm, problem, key), in_axes=(None, 0)))
    outcomes = _attempt(f"{name} must work inside jax.lax.scan and jax.vmap", both, problem, keys)
    outcome, other = (jax.tree.map(operator.itemgetter(k), outcomes) for k in (0, 1))
    finite = np.asarray(outcome.infos.finite)
    _hold(
        finite.all(),
        f"all steps of {name} must be finite on this problem; step {1 + int(np.argmin(finite))} was not: give smaller "
        "steps as settings.",
    )
    _hold(
        _same_bits(outcomes, both(problem, keys)),
        f"{name} must give the same bits for the same key: all that is random must come from the key.",
    )
    _hold(not np.array_equal(outcome.variables.x, problem.x0), f"x must move; after {STEPS} steps of {name} it is x0.")
    _hold(
        _looks_at_all(problem, outcome) or not _same_bits(outcome.variables, other.variables),
        f"{name} must draw by its key: two keys gave the same x and y, and a step does not look at every sample.",
    )
    return outcome


def _looks_at_all(problem: bx.Problem, outcome: Outcome) -> bool:
    """Whether a step counts as many samples as there are, so that nothing has to be drawn."""
    tasks = jnp.arange(problem.num_tasks, dtype=jnp.int32)
    there = sum(float(draw.count_samples(data, tasks, None)) for data in (problem.upper_data, problem.lower_data))
    return float(np.min(outcome.infos.cost.samples)) >= there


def _check_costs(name: str, outcome: Outcome) -> None:
    """Refuse work that cannot be, and steps that take none."""
    for where, cost in [("init", outcome.first.initial_cost), ("a step", outcome.infos.cost)]:
        for field, counts in cost._asdict().items():
            right = bool(np.all(np.isfinite(counts)) and np.all(np.asarray(counts) >= 0))
            _hold(right, f"the {field} that {where} of {name} counts must be finite and not negative; got {counts}.")
    _hold(np.sum(outcome.infos.cost) > 0, f"a step of {name} must say what it took; all its costs are zero.")


def _check_steps(algorithm: bx.Algorithm, problem: bx.Problem, key: Key[Array, ""], outcome: Outcome) -> None:
    """Steps that are called one by one: one program, which reaches what the loop did, and does not leave the finite."""
    name, traces = algorithm.name, []

    def step(problem: bx.Problem, state: Any, key: Key[Array, ""]) -> tuple[AlgorithmState, bx.Info]:
        traces.append(state)
        return algorithm.step(problem, state, key)

    compiled: Any = jax.jit(step)
    state = outcome.first
    for t in range(1, STEPS + 1):
        state, _ = compiled(problem, state, jax.random.fold_in(key, t))
    _hold(len(traces) == 1, f"all steps of {name} must be one compiled program; {STEPS} steps made {len(traces)}.")
    _hold(_close(state, outcome.last), f"{name} must reach inside jax.lax.scan and jax.vmap what single steps reach.")
    _check_not_finite(name, compiled, problem, outcome.first)


def _check_not_finite(name: str, step: Any, problem: bx.Problem, state: Any) -> None:
    """Take steps where f is not a number: one of them must be refused, and the state kept."""
    upper = problem.upper
    spoiled = problem.replace(upper=lambda x, y, task, batch: jnp.nan * upper(x, y, task, batch))
    for t in range(MOST_STEPS):
        after, info = step(spoiled, state, jax.random.key(t))
        if not info.finite:
            _hold(
                _same_bits(state, after),
                f"a step of {name} that is not finite must leave the state as it was; {_changed_leaves(state, after)} "
                "changed.",
            )
            return
        state = after
    raise AssertionError(
        f"a step of {name} that is not finite must be reported by info.finite = False; {MOST_STEPS} steps on an upper "
        "loss that is not a number were all said to be finite."
    )


def _check_solve(algorithm: bx.Algorithm, problem: bx.Problem) -> None:
    """Run it in `solve`, at once and in two parts."""
    name = algorithm.name

    def solve(steps: int, resume: bx.Result | None = None) -> bx.Result:
        sentence = f"bilevax.solve must run {name}"
        run = lambda: bx.solve(problem, algorithm, steps=steps, resume=resume, metrics=None, progress=False)
        result: bx.Result = _attempt(sentence, run)
        _hold(result.status == "done", f"{sentence} to the end of {steps} steps; it ended as {result!r}.")
        return result

    whole, parts = solve(STEPS), solve(STEPS, resume=solve(STEPS // 2))
    same = _same_bits(whole.state, parts.state)
    _hold(
        same,
        f"a run of {name} that is resumed must have the bits of one uninterrupted run: all that a step needs must be "
        "in its state.",
    )
    _hold(whole.cost == parts.cost, f"a run of {name} that is resumed must count the same; {whole.cost}, {parts.cost}.")


def _check_tuning(factory: Factory, tuning: Tuning, problem: bx.Problem) -> None:
    """Make the algorithm with options from both ends of its ranges, and with traced ones, as `compare` does."""
    scale, key = Scale(problem.dim_x, problem.num_tasks), jax.random.key(0)
    name, sentence = factory.__name__, "arguments in the tuning of {} must give what the factory takes, from {}"

    def make(options: Mapping[str, Any]) -> bx.Algorithm:
        return _make(factory, tuning.arguments(scale, **options))

    for end in (0, -1):
        options = {option: values[end] for option, values in {**tuning.ranges, **tuning.choices}.items()}
        _attempt(sentence.format(name, options), make, options)
    choices = {option: values[0] for option, values in tuning.choices.items()}
    traced = {option: jnp.asarray(ends[0]) for option, ends in tuning.ranges.items()}
    start = lambda ranges: make({**ranges, **choices}).init(problem, key)
    _attempt(sentence.format(name, "traced values of its ranges"), jax.eval_shape, start, traced)


def _numbers(leaf: Any) -> np.ndarray:
    """The numbers of an array, of a random key its words."""
    is_key = jnp.issubdtype(jax.typeof(leaf).dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def _changed_leaves(one: PyTree, other: PyTree) -> str:
    """The places at which two states of one structure do not have the same bits."""
    differ = lambda a, b: _numbers(a).tobytes() != _numbers(b).tobytes()
    flags = jax.tree_util.tree_leaves_with_path(jax.tree.map(differ, one, other))
    return ", ".join("state" + jax.tree_util.keystr(path) for path, flag in flags if flag)


def _same_bits(one: PyTree, other: PyTree) -> bool:
    return not _changed_leaves(one, other)


def _close(one: PyTree, other: PyTree) -> bool:
    """Whether two programs reached the same but for rounding."""
    close = []
    for a, b in zip(map(_numbers, jax.tree.leaves(one)), map(_numbers, jax.tree.leaves(other)), strict=True):
        room = 100 * float(np.sqrt(np.finfo(a.dtype).eps)) if a.dtype.kind == "f" else 0.0
        close.append(np.allclose(a, b, rtol=room, atol=room * (1 + float(np.max(np.abs(b), initial=0)))))
    return all(close)
