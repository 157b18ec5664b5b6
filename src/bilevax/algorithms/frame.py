"""One frame for all algorithms: what a step does that is not in its paper.

    rates of step t → [the method's own lines, which draw, visit tasks and find a direction] → the step on x
    → is all finite? → write in place → count the work

A method is one file with a subclass of `Method`. Its `start` and `step` follow the box of its paper; `assemble` makes
an `Algorithm` of it. A step that would leave the finite numbers is not taken.
"""

import abc
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from bilevax import draw
from bilevax.algorithms.contract import Algorithm, Cost, Info, Variables
from bilevax.problem import Problem
from bilevax.samples import Data
from bilevax.scales import measure_scales
from bilevax.schedule import RateRule, Rates, Step

Optimizer: TypeAlias = optax.GradientTransformation | None
RatesAt = Callable[[Step], Rates]
Some: TypeAlias = Int[Array, " k"] | None  # numbers of tasks; None: of all


class State(NamedTuple):
    """x_t and what a method carries on beside it.

    `own` is small, or replaced as a whole; `tables` are large: a step writes a few of their rows in place.
    """

    step: Step
    x: Float[Array, " d"]
    own: Any
    tables: Any
    optimizer: PyTree
    initial_cost: Cost
    scales: Any = ()  # what rates are made of that were not given; nothing where all were
    unsaid: Any = ()  # failures and costs since shards last agreed; nothing where they do in every step


class Start(NamedTuple):
    """What a method carries from the start on, and what that took."""

    own: Any
    tables: Any
    cost: Cost


class Move(NamedTuple):
    """The next x, what the optimizer carries on, and whether x and the direction are finite."""

    x: Float[Array, " d"]
    optimizer: PyTree
    finite: Bool[Array, ""]


class Change(NamedTuple):
    """All that a step changes, and what it took.

    `watch` holds what must be finite beside x and its direction. `write(keep)` gives the tables after the step, as they
    were where `keep`. `converged` says that further steps will not change x.
    """

    move: Move
    own: Any
    cost: Cost
    watch: PyTree
    write: Callable[[Bool[Array, ""]], Any] = lambda keep: ()
    converged: Any = False


class Method(abc.ABC):
    """A bilevel method with its settings, as its paper states it.

    `rates` are its schedules, `optimizer` makes a step of the direction, or none does.
    """

    rates: Rates
    optimizer: Optimizer

    def check(self, problem: Problem) -> None:
        """Refuse what the method cannot take."""
        return

    @abc.abstractmethod
    def start(self, problem: Problem, key: Key[Array, ""]) -> Start:
        """The first point and the first estimates."""

    @abc.abstractmethod
    def step(
        self,
        problem: Problem,
        rates_at: RatesAt,
        state: State,
        key: Key[Array, ""],
        move: Callable[[Float[Array, " d"]], Move],
    ) -> Change:
        """One step from `state`; `move(direction)` is the step on x."""

    def variables(self, problem: Problem, rates_at: RatesAt, state: State, some: Some) -> Variables:
        """x, and y of all or some tasks, up to date."""
        return Variables(state.x, rows_of(state.own.y, some))

    def rates_at(self, problem: Problem, state: Any, t: Step) -> Rates:
        """The rates of step t, from numbers, schedules and what was found, in the floating type of the problem."""
        return jax.tree.map(partial(rate_at, problem.x0.dtype, state.scales, t), self.rates)

    def portion(self, problem: Problem) -> tuple[int | None, float]:
        """Samples of a task, `None` for all, and the share of the tasks, that a step looks at."""
        return None, 1.0

    def find_scales(self, problem: Problem, key: Key[Array, ""]) -> tuple[Any, Cost]:
        """What rates that were not given are made of, and what finding it took; nothing where all were given."""
        if not any(isinstance(rate, RateRule) for rate in jax.tree.leaves(self.rates)):
            return (), Cost(0.0, 0.0, 0.0)
        scales, samples, gradients = measure_scales(problem, key, *self.portion(problem))
        return scales, Cost(samples, gradients, gradients)


def rows_of(table: PyTree, some: Some) -> PyTree:
    """The rows of these tasks, or all of them."""
    return table if some is None else jax.tree.map(lambda leaf: leaf[some], table)


def rate_at(dtype: Any, scales: Any, t: Any, rate: Any) -> Array:
    """The value of a rate in step t: a number, a schedule of t, or what is found from the scales of the problem."""
    if isinstance(rate, RateRule):
        unit = {"step": scales.step, "1/smoothness": 1 / scales.smoothness, "1": scales.one}[rate.unit]
        value = rate.factor * unit * scales.share**rate.share_power * scales.condition**rate.condition_power
        if rate.exponent:
            value = value * (rate.offset / (rate.offset + jnp.asarray(t, dtype))) ** rate.exponent
        return jnp.asarray(jnp.minimum(value, 1) if rate.unit == "1" else value, dtype)  # shares are at most one
    return jnp.asarray(rate(t) if callable(rate) else rate, dtype)


def check_optimizer(optimizer: Any) -> None:
    """Refuse anything but an optax transformation, or none."""
    if optimizer is not None and not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(
            f"upper_optimizer must be an optax transformation, for example optax.adam(1e-2); got {optimizer!r}."
        )


def start_optimizer(problem: Problem, optimizer: Optimizer) -> PyTree:
    """What the optimizer carries; nothing without one. Refuses one whose updates are not like x."""
    if optimizer is None:
        return ()
    x = problem.unravel_x(problem.x0)
    kinds = lambda tree: jax.tree.map(lambda leaf: (jnp.shape(leaf), jnp.result_type(leaf)), tree)
    try:
        with jax.numpy_dtype_promotion("standard"):
            first = optimizer.init(x)
            updates, after = jax.eval_shape(optimizer.update, x, first, x)
            right, wrong = kinds((x, first)), kinds((updates, after))
    except Exception as error:
        error.add_note("raised by upper_optimizer, called with x0 as gradient and as parameters")
        raise
    if right != wrong:
        raise ValueError(
            "upper_optimizer must give updates like x0 and carry on what it carries, of the same shapes and types, "
            f"{right}; it gives {wrong}."
        )
    return first


def move_x(problem: Problem, optimizer: Optimizer, state: State, step: Any, direction: Float[Array, " d"]) -> Move:
    """x_{t+1} = x_t − η d, or x_t plus η times what the optimizer makes of d; of shards, d is the mean of theirs.

    Where shards agree in some steps only, each has an x of its own, which becomes the mean of all in those steps.
    x − η d is finite where η²‖d‖² is, which saves a look at x.
    """
    shards = problem.shards
    if shards.sync_every > 1:
        own = _move_alone(problem, optimizer, state, step, direction)
        return own._replace(x=shards.sometimes(state.step, shards.mean, own.x))
    return _move_alone(problem, optimizer, state, step, shards.mean(direction))


def _move_alone(problem: Problem, optimizer: Optimizer, state: State, step: Any, direction: Float[Array, " d"]) -> Move:
    """The step on x along this direction."""
    square = direction @ direction
    if optimizer is None:
        finite = jnp.isfinite(square) & jnp.isfinite(step * step * square)
        return Move(state.x - step * direction, state.optimizer, finite)
    with jax.numpy_dtype_promotion("standard"):  # what optimizers of optax are written for
        updates, after = optimizer.update(problem.unravel_x(direction), state.optimizer, problem.unravel_x(state.x))
    x = state.x + step * jax.flatten_util.ravel_pytree(updates)[0]
    return Move(x, after, jnp.isfinite(square) & jnp.isfinite(x @ x))


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether all numbers are so far from overflow that the sums of their squares are finite."""
    squares = []
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            squares.append(leaf.ravel() @ leaf.ravel())
    return jnp.all(jnp.isfinite(jnp.stack(squares))) if squares else jnp.asarray(True)


class Agreement(NamedTuple):
    """What shards say to one another after a step: is all finite, is this one's step taken, and what all took."""

    finite: Bool[Array, ""]
    is_taken: Bool[Array, ""]
    cost: Cost
    unsaid: Any  # words that wait for the next agreement


def agree(problem: Problem, state: State, finite: Bool[Array, ""], cost: Cost) -> Agreement:
    """One word between shards. Where they agree in some steps only, costs and failures of the others wait for it."""
    shards = problem.shards
    if shards.count == 1:
        return Agreement(finite, finite, cost, state.unsaid)
    words = jnp.stack([jnp.asarray(part, float) for part in (~finite, *cost)])
    if shards.sync_every == 1:
        bad, *counts = shards.total(words)
        return Agreement(bad == 0, bad == 0, Cost(*counts), state.unsaid)
    is_due, words = state.step % shards.sync_every == 0, state.unsaid + words
    bad, *counts = jnp.where(is_due, shards.sometimes(state.step, shards.total, words), 0)
    return Agreement(bad == 0, jnp.where(is_due, bad == 0, finite), Cost(*counts), jnp.where(is_due, 0, words))


def count_cost(
    data: Data, tasks: Int[Array, " B"], size: int | None, *, times: Any = 1.0, gradients: int = 0, products: int = 0
) -> Cost:
    """The cost of `times` batches of the given size for each task, and so many gradients and products for each sample.

    A loss without data is one evaluation for a task, and no samples.
    """
    samples = draw.count_samples(data, tasks, size)
    evaluations = times * jnp.maximum(samples, float(len(tasks)))
    return Cost(times * samples, evaluations * float(gradients), evaluations * float(products))


def count_both(problem: Problem, tasks: Int[Array, " B"], size: int | None, points: int, products: int) -> Cost:
    """The cost of both gradients of each task on a batch at so many points, and of products for each sample of g."""
    upper = draw.count_samples(problem.upper_data, tasks, size)
    lower = draw.count_samples(problem.lower_data, tasks, size)
    least = float(len(tasks))
    evaluations = points * jnp.maximum(lower, least)
    gradients = points * jnp.maximum(upper, least) + evaluations
    return Cost(upper + lower, gradients, evaluations * float(products))


class SpecialForm(NamedTuple):
    """A quicker way of the same steps for some problems; its states are of a type of their own."""

    serves: Callable[[Problem], bool]
    state: type
    init: Callable[..., Any]
    step: Callable[..., tuple[Any, Info]]
    variables: Callable[..., Variables]


def assemble(name: str, method: Method, settings: Mapping[str, Any], special: SpecialForm | None = None) -> Algorithm:
    """The algorithm of a method; `settings` are what the user chose, for the record."""
    check_optimizer(method.optimizer)

    def init(problem: Problem, key: Key[Array, ""]) -> Any:
        method.check(problem)
        if special is not None and special.serves(problem):
            return special.init(problem, key)
        key = problem.shards.own_key(key)
        own, tables, cost = method.start(problem, key)
        scales, more = method.find_scales(problem, key)
        first = start_optimizer(problem, method.optimizer)
        unsaid = jnp.zeros(1 + len(Cost._fields)) if problem.shards.sync_every > 1 else ()
        return State(jnp.int32(1), problem.x0, own, tables, first, problem.shards.total(cost + more), scales, unsaid)

    def step(problem: Problem, state: Any, key: Key[Array, ""]) -> tuple[Any, Info]:
        if special is not None and isinstance(state, special.state):
            return special.step(problem, state, key)
        rates_at = partial(method.rates_at, problem, state)
        move = partial(move_x, problem, method.optimizer, state, rates_at(state.step).upper_step)
        change = method.step(problem, rates_at, state, problem.shards.own_key(key), move)
        said = agree(problem, state, change.move.finite & all_finite(change.watch), change.cost)
        x, carried = change.move.x, change.move.optimizer
        after = State(state.step, x, change.own, (), carried, state.initial_cost, state.scales, ())
        reached = jax.tree.map(partial(jnp.where, said.is_taken), after, state._replace(tables=(), unsaid=()))
        step = state.step + said.finite.astype(jnp.int32)
        tables = change.write(~said.is_taken)
        return reached._replace(step=step, tables=tables, unsaid=said.unsaid), Info(
            said.cost, said.finite, change.converged
        )

    def variables(problem: Problem, state: Any, some: Some = None) -> Variables:
        if special is not None and isinstance(state, special.state):
            reached = special.variables(problem, state)
            return reached._replace(y=rows_of(reached.y, some))
        reached = method.variables(problem, partial(method.rates_at, problem, state), state, some)
        return reached._replace(x=problem.shards.mean(reached.x)) if problem.shards.sync_every > 1 else reached

    return Algorithm(name, init, step, variables, settings, on_shards=True)
