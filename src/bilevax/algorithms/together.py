"""Methods that look at every lower problem in every step: what they carry, how they start, how a step ends.

Many lower problems are one: y = (y_1, ..., y_m) with a Hessian of m blocks. So a method for one lower problem takes
fresh samples of every task in every step. None of these methods projects y; of the bounds only those are used that
its own docstring names.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from bilevax import arguments, memory
from bilevax.algorithms.base import Algorithm, Cost, Info, Variables
from bilevax.algorithms.cost import total, work
from bilevax.algorithms.first import as_beginning, first_point, solving_cost
from bilevax.algorithms.move import all_finite, check_optimizer, move, start_optimizer, unless_diverged
from bilevax.problem import Problem
from bilevax.schedule import Rates, Step, as_rates


class Together(NamedTuple):
    """x_t, y_t of all tasks, and what a method keeps beside them.

    `tables` are large: they are written in place, a few rows in a step.
    """

    step: Step
    x: Float[Array, " d"]
    y: Float[Array, "m dy"]
    kept: PyTree
    tables: PyTree
    optimizer: PyTree
    initial_cost: Cost


class Begun(NamedTuple):
    """What a method keeps from the start on, and what it took."""

    kept: PyTree = ()
    tables: PyTree = ()
    cost: Cost | None = None


class Stepped(NamedTuple):
    """All that a step changes, and what it took. `write(keep)` are the tables, as they were where `keep`."""

    x: Float[Array, " d"]
    optimizer: PyTree
    y: Float[Array, "m dy"]
    kept: PyTree
    cost: Cost
    write: Callable[[Bool[Array, ""]], PyTree] = lambda keep: ()


Move = Callable[[Float[Array, " d"]], tuple[Float[Array, " d"], PyTree]]


class Box(NamedTuple):
    """A method as its paper states it.

    - `start(problem, x, y, key) -> Begun`.
    - `step(problem, rates, state, key, move) -> Stepped`; `move(direction)` gives the next x and what its optimizer
      carries on.
    - `check(problem)` refuses what the method cannot take.
    """

    step: Callable[[Problem, Rates, Together, Key[Array, ""], Move], Stepped]
    start: Callable[[Problem, Array, Array, Key[Array, ""]], Begun] = lambda *given: Begun()
    check: Callable[[Problem], None] = lambda problem: None


def all_tasks(problem: Problem) -> Int[Array, " m"]:
    """0, ..., m − 1."""
    return jnp.arange(problem.num_tasks, dtype=jnp.int32)


def assemble(name: str, box: Box, chosen: Mapping[str, Any]) -> Algorithm:
    """The algorithm of a box, with what the user chose for what all of them have in common."""
    check_optimizer(optimizer := chosen["upper_optimizer"])
    if chosen["batch_size"] is not None:
        arguments.count("batch_size", chosen["batch_size"])
    rates = as_rates(chosen["upper_step"], chosen["lower_step"], 1.0, chosen.get("mixing", 1.0))
    beginning = as_beginning(chosen["initialization"], chosen["initial_batch_size"], chosen["batch_size"])

    def init(problem: Problem, key: Key[Array, ""]) -> Together:
        box.check(problem)
        point_key, own_key = jax.random.split(key)

        def first(i: Int[Array, ""]) -> tuple[Array, Array]:
            point = first_point(problem, beginning, None, point_key, i)
            return point.y, point.solves

        y, solves = memory.for_all(first, problem.num_tasks, problem.work)
        begun = box.start(problem, problem.x0, y, own_key)
        solved = float(beginning.initialization == "theorem")
        size = beginning.sizes(problem).lower
        costs = [
            solving_cost(problem, beginning, solves),
            work(problem.lower_data, all_tasks(problem), size, times=solved),
            *([] if begun.cost is None else [begun.cost]),
        ]
        carried = start_optimizer(problem, optimizer)
        return Together(jnp.int32(1), problem.x0, y, begun.kept, begun.tables, carried, total(*costs))

    def step(problem: Problem, state: Together, key: Key[Array, ""]) -> tuple[Together, Info]:
        now = rates.at(state.step, problem.dtype)
        move_x = lambda direction: move(problem, optimizer, state.optimizer, state.x, now.upper_step, direction)
        new = box.step(problem, now, state, key, move_x)
        moved = Together(state.step + 1, new.x, new.y, new.kept, (), new.optimizer, state.initial_cost)
        finite = all_finite((new.x, new.y, new.kept, new.optimizer))
        after = unless_diverged(finite, moved, state._replace(tables=()))._replace(tables=new.write(~finite))
        return after, Info(new.cost, finite)

    return Algorithm(name, init, step, lambda problem, state: Variables(state.x, state.y), chosen)
