"""The contract of all algorithms: `init` and `step`, what is carried and what is reported."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from jaxtyping import Array, Bool, Float, Key

from bilevax.problem import Problem


class Cost(NamedTuple):
    """Work done. A sample drawn once and evaluated at two iterates is one sample and two gradients.

    - `samples`: data points drawn, counted for each task that drew them.
    - `gradients`: gradients of one sample's loss, ∇f or ∇g.
    - `products`: products of one sample's ∇²yy g or ∇²xy g with a vector; a full matrix is d' of them.
    """

    samples: Any
    gradients: Any
    products: Any


class Info(NamedTuple):
    """What a step reports. A step that would leave the finite numbers is not taken: `finite` is False."""

    cost: Cost
    finite: Bool[Array, ""]


class Variables(NamedTuple):
    """What has been reached: flat x (d,), and y (m, d') with every task up to date."""

    x: Float[Array, " d"]
    y: Float[Array, "m dy"]


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


FACTS: dict[str, Facts] = {}
Factory = TypeVar("Factory", bound=Callable[..., Any])


def described(**facts: str) -> Callable[[Factory], Factory]:
    """Register a factory under its name, with the facts that `bilevax.algorithms()` tells of it."""

    def register(factory: Factory) -> Factory:
        FACTS[factory.__name__] = Facts(name=factory.__name__, **facts)
        return factory

    return register


class Listing(list[Facts]):
    """The facts of all algorithms; prints as a table, `pandas.DataFrame(bilevax.algorithms())` makes one."""

    def __repr__(self) -> str:
        rows = [Facts._fields, *self]
        widths = [max(len(row[k]) for row in rows) for k in range(len(Facts._fields))]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def algorithms() -> Listing:
    """All algorithms of bilevax, and what is known of each."""
    return Listing(FACTS.values())


class Algorithm(NamedTuple):
    """A bilevel method. All three functions work inside `jit`, `scan` and `vmap`.

    - `init(problem, key) -> State`; `state.initial_cost` says what it took.
    - `step(problem, state, key) -> (State, Info)`; for methods that look at a few tasks a step, at a cost that does not
      depend on the number of tasks (see `bilevax.delay` for the one exception, tasks that lean on the ball Y_i).
    - `variables(problem, state) -> Variables`, for evaluation; this one is O(m).
    - `settings`: what the user chose, for the record.
    """

    name: str
    init: Callable[[Problem, Key[Array, ""]], Any]
    step: Callable[[Problem, Any, Key[Array, ""]], tuple[Any, Info]]
    variables: Callable[[Problem, Any], Variables]
    settings: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.settings.items())})"
