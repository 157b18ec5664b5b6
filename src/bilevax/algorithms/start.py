"""How a run starts: the first batch of every task and its y_0, and what that takes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from bilevax import arguments, chunks, draw, projection
from bilevax.algorithms.contract import Cost
from bilevax.algorithms.frame import count_cost
from bilevax.exact import linear_lower, lower
from bilevax.problem import Problem
from bilevax.samples import Data, Indices


class FirstBatch(NamedTuple):
    """How a run starts: "theorem" solves every lower problem on a first batch, "cheap" leaves y at y_0.

    `size` is that of the first batch of every task, `None` for all its samples.
    """

    initialization: str
    size: int | None

    def size_of(self, data: Data) -> int | None:
        """How large the first batch is; `None`, everything there is, where there is no more than asked for."""
        return None if self.size is None or data.max_length <= self.size else self.size

    def indices(self, problem: Problem, key: Key[Array, ""], i: Int[Array, ""]) -> tuple[Indices, Indices]:
        """The samples ξ and ζ that task i starts from."""
        upper_key, lower_key = jax.random.split(jax.random.fold_in(key, i))
        xi = draw.batch_indices(upper_key, problem.upper_data, i, self.size_of(problem.upper_data))
        return xi, draw.batch_indices(lower_key, problem.lower_data, i, self.size_of(problem.lower_data))


class FirstPoint(NamedTuple):
    """y_0 of a task, the samples of its first batch, and the lower gradients that solving it took."""

    y: Float[Array, " dy"]
    upper: Indices
    lower: Indices
    gradients: Int[Array, ""]


def first_batch_of(initialization: str, initial_batch_size: int | None, batch_size: int | None) -> FirstBatch:
    """From what a user gave: by default all samples for "theorem", an ordinary batch for "cheap"."""
    arguments.one_of("initialization", initialization, ("theorem", "cheap"))
    if initial_batch_size is not None:
        arguments.count("initial_batch_size", initial_batch_size)
    elif initialization == "cheap":
        initial_batch_size = batch_size
    return FirstBatch(initialization, initial_batch_size)


def first_point(problem: Problem, first: FirstBatch, region: Any, key: Key[Array, ""], i: Int[Array, ""]) -> FirstPoint:
    """The first batch of task i, and y_0 on it, inside the set Y_i; `None` for methods that do not project y."""
    if region is None:
        refuse_set(problem)
    xi, zeta = first.indices(problem, key, i)
    y, gradients = problem.y0_of(i), jnp.int32(0)
    if first.initialization == "theorem":
        solver = linear_lower if linear_lower.serves(problem) else lower
        y, gradients = solver.solve_lower(problem, problem.x0, y, i, zeta)
    return FirstPoint(projection.onto(y, region), xi, zeta, gradients)


def refuse_set(problem: Problem) -> None:
    """Refuse a min-max problem whose y is held by a set: for methods that do not project y."""
    if not problem.structure.needs_hessian and problem.bounds.y is not None:
        raise TypeError(
            "this method does not keep y in a set; for a min-max problem with one use rsvrb, re_rsvrb or block_soba."
        )


def first_points(problem: Problem, first: FirstBatch, key: Key[Array, ""]) -> tuple[Float[Array, "m dy"], Cost]:
    """y_0 of every task, for methods that do not project y, and what that took."""

    def of_task(i: Int[Array, ""]) -> tuple[Array, Array]:
        point = first_point(problem, first, None, key, i)
        return point.y, point.gradients

    y, gradients = chunks.for_all(of_task, problem.num_tasks, problem.work)
    return y, cost_of_points(problem, first, gradients)


def all_tasks(problem: Problem) -> Int[Array, " m"]:
    """0, ..., m − 1."""
    return jnp.arange(problem.num_tasks, dtype=jnp.int32)


def _cost_of_solving(problem: Problem, first: FirstBatch, gradients: Int[Array, " m"]) -> Cost:
    """The gradients that solving the lower problems took, without the samples that they are of."""
    size = first.size_of(problem.lower_data)
    of_task = lambda i: jnp.maximum(draw.count_samples(problem.lower_data, i[None], size), 1.0)
    zero = jnp.asarray(0.0)
    return Cost(zero, jnp.sum(jax.vmap(of_task)(all_tasks(problem)) * gradients.astype(float)), zero)


def cost_of_points(problem: Problem, first: FirstBatch, gradients: Int[Array, " m"]) -> Cost:
    """The samples and gradients of y_0 alone; nothing where it is taken as given."""
    solves, size = float(first.initialization == "theorem"), first.size_of(problem.lower_data)
    samples = count_cost(problem.lower_data, all_tasks(problem), size, times=solves)
    return _cost_of_solving(problem, first, gradients) + samples


def cost_of_estimates(problem: Problem, first: FirstBatch, products: int, gradients: Int[Array, " m"]) -> Cost:
    """The first evaluation of everything, and the gradients that solving the lower problems took."""
    tasks, upper, lower = all_tasks(problem), problem.upper_data, problem.lower_data
    evaluation = count_cost(upper, tasks, first.size_of(upper), gradients=1)
    evaluation += count_cost(lower, tasks, first.size_of(lower), gradients=1, products=products)
    return evaluation + _cost_of_solving(problem, first, gradients)
