"""How a run starts: the first batch of every task and its y_0, and what that takes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from bilevax import arguments, draw, linear_lower, lower, projection
from bilevax.algorithms.base import Cost
from bilevax.algorithms.cost import Sizes, count_cost, total
from bilevax.draw import Indices
from bilevax.problem import Problem


class Beginning(NamedTuple):
    """`initialization`: "theorem" solves every lower problem on the first batch, "cheap" leaves y at y_0."""

    initialization: str
    batch_size: int | None

    def sizes(self, problem: Problem) -> Sizes:
        """How large the first batches are; `None`, everything there is, where there is no more than asked for."""
        whole = lambda data: self.batch_size is None or data.max_length <= self.batch_size
        return Sizes(*(None if whole(data) else self.batch_size for data in (problem.upper_data, problem.lower_data)))


class FirstPoint(NamedTuple):
    """y_0 of a task, the samples of its first batch, and the lower gradients that solving it took."""

    y: Float[Array, " dy"]
    upper: Indices
    lower: Indices
    solves: Int[Array, ""]


def as_beginning(initialization: str, initial_batch_size: int | None, batch_size: int | None) -> Beginning:
    """From what a user gave: by default all samples for "theorem", an ordinary batch for "cheap"."""
    arguments.one_of("initialization", initialization, ("theorem", "cheap"))
    if initial_batch_size is not None:
        arguments.count("initial_batch_size", initial_batch_size)
    elif initialization == "cheap":
        initial_batch_size = batch_size
    return Beginning(initialization, initial_batch_size)


def first_batch(
    problem: Problem, beginning: Beginning, key: Key[Array, ""], i: Int[Array, ""]
) -> tuple[Indices, Indices]:
    """The samples of both losses that task i starts from."""
    upper_key, lower_key = jax.random.split(jax.random.fold_in(key, i))
    sizes = beginning.sizes(problem)
    xi = draw.batch_indices(upper_key, problem.upper_data, i, sizes.upper)
    return xi, draw.batch_indices(lower_key, problem.lower_data, i, sizes.lower)


def first_point(
    problem: Problem, beginning: Beginning, region: Any, key: Key[Array, ""], i: Int[Array, ""]
) -> FirstPoint:
    """The first batch of task i, and y_0 on it, inside the set Y_i; `None` for methods that do not project y."""
    if region is None and problem.hessian == "unneeded" and problem.bounds.y is not None:
        raise TypeError(
            "this method does not keep y in a set; for a min-max problem with one use rsvrb, re_rsvrb or block_soba."
        )
    xi, zeta = first_batch(problem, beginning, key, i)
    y, solves = problem.y0_of(i), jnp.int32(0)
    if beginning.initialization == "theorem":
        solve = linear_lower.solve if linear_lower.serves(problem) else lower.solve
        y, solves = solve(problem, problem.x0, y, i, zeta)
    return FirstPoint(projection.onto(y, region), xi, zeta, solves)


def solving_cost(problem: Problem, beginning: Beginning, solves: Int[Array, " m"]) -> Cost:
    """The gradients that solving the lower problems took, without the samples that they are of."""
    size, tasks = beginning.sizes(problem).lower, jnp.arange(problem.num_tasks, dtype=jnp.int32)
    each = jax.vmap(lambda i: jnp.maximum(draw.count_samples(problem.lower_data, i[None], size), 1.0))(tasks)
    zero = jnp.asarray(0.0)
    return Cost(samples=zero, gradients=jnp.sum(each * solves.astype(float)), products=zero)


def initial_cost(problem: Problem, beginning: Beginning, products: int, solves: Int[Array, " m"]) -> Cost:
    """The first evaluation of everything, and the gradients that solving the lower problems took."""
    sizes, tasks = beginning.sizes(problem), jnp.arange(problem.num_tasks, dtype=jnp.int32)
    cost = count_cost(problem, products, tasks, sizes, points=1)
    return total(cost, solving_cost(problem, beginning, solves))
