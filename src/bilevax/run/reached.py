"""What a run has reached, for those who ask: with very many tasks y is made only for the tasks that they ask for.

Where updates are delayed, or states kept otherwise than as y, y of all tasks is work for every one of them, and a step
is not. A metric of x alone, and one of some tasks, then cost what they look at.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bilevax.algorithms.contract import Variables, check_variables
from bilevax.problem import Problem
from bilevax.shards import COMMON, OWN, ROWS, spread

MANY = 20_000  # tasks, from which on y is made when it is asked for


class Programs(NamedTuple):
    """x and y of a state, x alone, and y of some tasks; compiled when first called."""

    both: Callable[..., Variables]
    x: Callable[..., Array]
    some: Callable[..., Array]


class Reached(Variables):
    """Variables whose y is made when it is asked for; while the run stands where it stood."""

    ask: Callable[[Int[Array, " k"] | None], Array]

    @property
    def y(self) -> Float[Array, "m dy"]:
        """y of all tasks."""
        return self.ask(None)

    def y_of(self, problem: Problem, some: Int[Array, " k"] | None) -> Float[Array, "n dy"]:
        """y of tasks of these numbers."""
        return self.ask(some)

    def y_at_hand(self, problem: Problem, which: Callable[[], Int[Array, " k"]]) -> Float[Array, "n dy"]:
        """y of these tasks."""
        return self.ask(which())

    def __iter__(self) -> Iterator[Array]:
        return iter((self.x, self.y))

    def __getitem__(self, k: Any) -> Any:
        return self.x if k == 0 else (self.x, self.y)[k]


def _come_back(_: None, both: Any) -> Any:
    return Variables(*both)


jax.tree_util.register_pytree_node(Reached, lambda reached: (tuple(reached), None), _come_back)


@functools.lru_cache(maxsize=16)
def programs_of(name: str, variables: Callable[..., Any]) -> Programs:
    """`variables` of the named algorithm, looked at while it is traced; one set of programs for all of its runs."""
    takes_some = "some" in inspect.signature(variables).parameters
    both = lambda problem, state: check_variables(name, problem, variables(problem, state))

    def of_some(problem: Problem, state: Any, some: Array) -> Array:
        if takes_some:
            return check_variables(name, problem, variables(problem, state, some), len(some)).y
        return both(problem, state).y[some]

    return Programs(
        jax.jit(spread(both, (OWN,), Variables(COMMON, ROWS))),
        jax.jit(spread(lambda problem, state: both(problem, state).x, (OWN,), COMMON)),
        jax.jit(spread(of_some, (OWN, COMMON), ROWS)),
    )


def reach(programs: Programs, problem: Problem, state: Any) -> Variables:
    """x and y of a state."""
    if problem.num_tasks <= MANY:
        return programs.both(problem, state)

    @functools.lru_cache(maxsize=1)
    def make_all() -> Array:
        return programs.both(problem, state).y

    def ask(some: Array | None) -> Array:
        if any(leaf.is_deleted() for leaf in jax.tree.leaves(state)):
            raise RuntimeError("y of variables must be read inside metrics: the run has gone on, its state is no more.")
        return make_all() if some is None else programs.some(problem, state, some)

    reached = Reached(programs.x(problem, state), jnp.zeros((0, problem.dim_y)))
    reached.ask = ask
    return reached
