"""The contract of all algorithms: `init` and `step`, what is carried and what is reported, and its checks.

`bilevax.solve` makes the checks while it traces an algorithm, so they cost a run nothing. `bilevax.testing` has those
that need a run.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from bilevax.algorithms.registry.parameters import document
from bilevax.algorithms.registry.tuning import Tuning
from bilevax.problem import Problem
from bilevax.shards import COMMON, ROWS, spread


class Cost(NamedTuple):
    """Work done. A sample drawn once and evaluated at two iterates is one sample and two gradients.

    - `samples`: data points drawn, counted for each task that drew them.
    - `gradients`: gradients of one sample's loss, ∇f or ∇g.
    - `products`: products of one sample's ∇²yy g or ∇²xy g with a vector; a full matrix is d' of them.
    """

    samples: Any
    gradients: Any
    products: Any

    def __add__(self, other: "Cost") -> "Cost":  # type: ignore[override]  # costs add up, they are not put in a row
        return Cost(self.samples + other.samples, self.gradients + other.gradients, self.products + other.products)


class Info(NamedTuple):
    """What a step reports. A step that would leave the finite numbers is not taken: `finite` is False.

    `converged` says that no further step will change x, as far as the method can tell; most methods never can.
    """

    cost: Cost
    finite: Bool[Array, ""]
    converged: Any = False


class Variables(NamedTuple):
    """What has been reached: flat x (d,), and y (m, d') with every task up to date."""

    x: Float[Array, " d"]
    y: Float[Array, "m dy"]

    def y_of(self, problem: Problem, some: Int[Array, " k"] | None) -> Float[Array, "n dy"]:
        """y of tasks of these numbers, on shards of the same numbers in each; of all where that is None."""
        if some is None:
            return self.y
        return spread(lambda problem, y, some: y[some], (ROWS, COMMON), ROWS)(problem, self.y, some)

    def y_at_hand(self, problem: Problem, which: Callable[[], Int[Array, " k"]]) -> Float[Array, "n dy"]:
        """y of all tasks; where that is yet to be made, y of these alone. `bilevax.tasks.pick` takes both."""
        return self.y


@runtime_checkable
class AlgorithmState(Protocol):
    """What a state must have; all else that it carries is the algorithm's own. Most are NamedTuples of arrays.

    A step must keep the structure of a state, and the shape and the type of each of its leaves.
    """

    @property
    def initial_cost(self) -> Cost:
        """What `init` took; it stays the same in every step."""


class Facts(NamedTuple):
    """What is known of an algorithm; `samples` are those to an ε-stationary point, E‖∇F‖ ≤ ε, for one lower problem.

    `tasks` is how many lower problems a step looks at, `memory` what is kept for each of them beside y, `curvature` how
    ∇²yy g is inverted, `accepts` which problems, and what it has to be told.
    """

    name: str
    paper: str
    loops: str
    batch: str
    samples: str
    tasks: str
    memory: str
    curvature: str
    accepts: str


ONE_LOWER = "one lower problem"  # the fact `tasks` of an algorithm that takes no more


class Description(NamedTuple):
    """An algorithm as it is registered: what is known of it, its factory, and how it is tuned, where that is said."""

    facts: Facts
    factory: Callable[..., Any]
    tuning: Tuning | None


DESCRIPTIONS: dict[str, Description] = {}
Factory = TypeVar("Factory", bound=Callable[..., Any])


def described(*, tuning: Tuning | None = None, **facts: str) -> Callable[[Factory], Factory]:
    """Register a factory under its name, with the facts that `bilevax.list_algorithms()` tells of it.

    With a `tuning` the algorithm can be tuned and compared with others by `bilevax compare`. A name that another
    factory has taken is refused.
    """

    def register(factory: Factory) -> Factory:
        _refuse_other(factory)
        document(factory)
        DESCRIPTIONS[factory.__name__] = Description(_as_facts(factory.__name__, facts), factory, tuning)
        return factory

    return register


def _as_facts(name: str, words: Mapping[str, str]) -> Facts:
    """The facts, if all of them are said."""
    names = [field for field in Facts._fields if field != "name"]
    missing, odd = [field for field in names if field not in words], [field for field in words if field not in names]
    if missing or odd:
        wrong = [f"missing: {', '.join(missing)}"] * bool(missing) + [f"not known: {', '.join(odd)}"] * bool(odd)
        raise TypeError(f"described() of {name} must be told {', '.join(names)}; {'; '.join(wrong)}.")
    return Facts(name=name, **words)


def _refuse_other(factory: Callable[..., Any]) -> None:
    """Refuse a name that is taken; the same factory may come again, when its module is read anew."""
    there = DESCRIPTIONS.get(factory.__name__)
    if there is not None and there.factory.__module__ != factory.__module__:
        raise ValueError(
            f"there is an algorithm {factory.__name__!r} already, in {there.factory.__module__}; give that of "
            f"{factory.__module__} another name."
        )


class Listing(list[Facts]):
    """The facts of all algorithms; prints as a table, `pandas.DataFrame(bilevax.list_algorithms())` makes one."""

    def __repr__(self) -> str:
        rows = [Facts._fields, *self]
        widths = [max(len(row[k]) for row in rows) for k in range(len(Facts._fields))]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def list_algorithms() -> Listing:
    """All algorithms of bilevax and those that others have described, and what is known of each."""
    return Listing(description.facts for description in DESCRIPTIONS.values())


class Algorithm(NamedTuple):
    """A bilevel method. All three functions work inside `jit`, `scan` and `vmap`.

    - `init(problem, key) -> State`; an `AlgorithmState`, whose `initial_cost` says what it took.
    - `step(problem, state, key) -> (State, Info)`; for methods that look at a few tasks a step, at a cost that does not
      depend on the number of tasks (see `bilevax.tasks` for the one exception, tasks that lean on the ball Y_i).
    - `variables(problem, state) -> Variables`, for evaluation; this one is O(m). One that takes `some` as a third
      argument, numbers of tasks or None, gives y of those alone: looks at a few of very many tasks then cost little.
    - `settings`: what the user chose, for the record.
    - `on_shards`: whether it runs on a problem whose tasks are split (`bilevax.shard`). There `init` and `step` see the
      tasks of one shard, and take `problem.shards.mean` of the directions, so that x is the same on all shards. What
      `assemble` makes does.

    `bilevax.testing.check_algorithm` runs this contract on a factory.
    """

    name: str
    init: Callable[[Problem, Key[Array, ""]], AlgorithmState]
    step: Callable[[Problem, Any, Key[Array, ""]], tuple[AlgorithmState, Info]]
    variables: Callable[[Problem, Any], Variables]
    settings: Mapping[str, Any]
    on_shards: bool = False

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.settings.items())})"


class ContractError(TypeError):
    """An algorithm, or what one of its functions returned, is not what the contract asks for."""


def check_parts(algorithm: Algorithm) -> None:
    """Refuse an algorithm without a name, without its functions or without settings."""
    if not isinstance(algorithm.name, str):
        raise ContractError(f"the name of an algorithm must be text; got {algorithm.name!r}.")
    for part in ("init", "step", "variables"):
        if not callable(getattr(algorithm, part)):
            raise ContractError(f"{part} of {algorithm.name} must be a function; got {getattr(algorithm, part)!r}.")
    if not isinstance(algorithm.settings, Mapping):
        raise ContractError(
            f"settings of {algorithm.name} must be a mapping from names to values, {{}} where there are none; got "
            f"{algorithm.settings!r}."
        )


def check_state(name: str, state: Any) -> AlgorithmState:
    """The state that `init` of the named algorithm returned, if it is one."""
    if not isinstance(state, AlgorithmState):
        raise ContractError(
            f"init of {name} must return a state with the attribute initial_cost, a bilevax.Cost: a NamedTuple of "
            f"arrays, for example; got {type(state).__name__}, which has none."
        )
    for path, leaf in _leaves(state).items():
        if _kind(leaf) is None:
            raise ContractError(
                f"init of {name} must return a pytree of arrays, such as a NamedTuple; state{path} is of type "
                f"{type(leaf).__name__}."
            )
    _check_cost(f"initial_cost in the state of {name}", state.initial_cost)
    return state


def check_step(name: str, before: Any, outcome: Any) -> tuple[AlgorithmState, Info]:
    """The state and the Info that `step` of the named algorithm returned, if the state is one like that before it."""
    if not isinstance(outcome, tuple) or len(outcome) != 2 or not isinstance(outcome[1], Info):
        raise ContractError(f"step of {name} must return (state, bilevax.Info); got {_in_words(outcome)}.")
    state, info = outcome
    _check_same_structure(name, before, state)
    _check_same_kinds(name, before, state)
    _check_cost(f"cost in the Info of {name}", info.cost)
    if _kind(info.finite) != ((), jnp.dtype(bool)):
        raise ContractError(
            f"finite in the Info of {name} must be one truth value, as jnp.isfinite(x).all() is; got "
            f"{_in_words(info.finite)}."
        )
    return state, info


def check_variables(name: str, problem: Problem, reached: Any, count: int | None = None) -> Variables:
    """What `variables` of the named algorithm returned, if it is x and all y of the problem, or so many of them."""
    if not isinstance(reached, Variables):
        raise ContractError(f"variables of {name} must return bilevax.Variables(x, y); got {_in_words(reached)}.")
    right = {"x": (problem.dim_x,), "y": (problem.num_tasks if count is None else count, problem.dim_y)}
    for field, shape in right.items():
        value = getattr(reached, field)
        if _kind(value) != (shape, problem.dtype):
            meaning = "(d,)" if field == "x" else "(m, d')"
            raise ContractError(
                f"{field} in the variables of {name} must be an array of shape {meaning} = {shape} and of "
                f"{problem.dtype}, the type of the problem; got {_in_words(value)}."
            )
    return reached


def _leaves(tree: PyTree) -> dict[str, Any]:
    """The leaves by their places, such as `.x` or `[0].y`."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _kind(value: Any) -> tuple[tuple[int, ...], Any] | None:
    """The shape and type of an array or a number; `None` for what JAX does not take for one."""
    try:
        seen = jax.typeof(value)
    except TypeError:
        return None
    return seen.shape, seen.dtype


def _in_words(value: Any) -> str:
    """What something is, for an error: the shape and type of an array, the parts of a plain tuple, else its type."""
    kind = _kind(value)
    if kind is not None:
        return f"shape {kind[0]} of {kind[1]}"
    if type(value) is tuple:
        return f"a tuple of ({', '.join(type(part).__name__ for part in value)})"
    return type(value).__name__


def _check_cost(where: str, cost: Any) -> None:
    """Refuse anything but a Cost of three real numbers."""
    right = f"{where} must be a bilevax.Cost of three numbers, samples, gradients and products"
    if not isinstance(cost, Cost):
        raise ContractError(f"{right}; got {_in_words(cost)}.")
    for field, value in cost._asdict().items():
        kind = _kind(value)
        numeric = (jnp.integer, jnp.floating)
        if kind is None or kind[0] != () or not any(jnp.issubdtype(kind[1], number) for number in numeric):
            raise ContractError(f"{right}; {field} is {_in_words(value)}.")


def _check_same_structure(name: str, before: Any, after: Any) -> None:
    """Refuse a state with other leaves than before, or with the same ones in another container."""
    structures: list[Any] = [jax.tree.structure(state) for state in (before, after)]
    if structures[0] == structures[1]:
        return
    right = f"step of {name} must return a state of the same structure as the one before"
    old, new = _leaves(before), _leaves(after)
    gone, more = [path for path in old if path not in new], [path for path in new if path not in old]
    if type(before) is not type(after) or not (gone or more):
        raise ContractError(f"{right}, {structures[0]}; got {structures[1]}.")
    wrong = [f"state{path} is gone" for path in gone] + [f"state{path} is new" for path in more]
    raise ContractError(f"{right}; {', '.join(wrong)}.")


def _check_same_kinds(name: str, before: Any, after: Any) -> None:
    """Refuse a state of which a leaf has another shape or type than before."""
    old = _leaves(before)
    for path, leaf in _leaves(after).items():
        if _kind(old[path]) != _kind(leaf):
            raise ContractError(
                f"step of {name} must keep the shape and type of all that is in its state; state{path} had "
                f"{_in_words(old[path])}, and has {_in_words(leaf)} after a step."
            )
