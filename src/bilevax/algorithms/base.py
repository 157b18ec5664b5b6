"""The contract of all algorithms: `init` and `step`, what is carried and what is reported."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

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


class Algorithm(NamedTuple):
    """A bilevel method. All three functions work inside `jit`, `scan` and `vmap`.

    - `init(problem, key) -> State`; `state.initial_cost` says what it took.
    - `step(problem, state, key) -> (State, Info)`, at a cost that does not depend on the number of tasks (see
      `bilevax.delay` for the one exception, tasks that lean on the ball Y_i).
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
