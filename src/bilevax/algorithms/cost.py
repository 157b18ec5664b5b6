"""What a step takes: samples, gradients, and products with second derivatives."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from bilevax import draw
from bilevax.algorithms.base import Cost
from bilevax.data import Data
from bilevax.problem import Problem


class Sizes(NamedTuple):
    """The batch sizes for the upper and the lower loss; `None` is every sample there is."""

    upper: int | None
    lower: int | None


def work(
    data: Data, tasks: Int[Array, " B"], size: int | None, *, times: Any = 1.0, gradients: int = 0, products: int = 0
) -> Cost:
    """`times` batches of the given size for each task, and so many gradients and products for each sample.

    A loss without data is one evaluation for a task, and no samples.
    """
    samples = draw.count_samples(data, tasks, size)
    evaluations = times * jnp.maximum(samples, float(len(tasks)))
    return Cost(times * samples, evaluations * float(gradients), evaluations * float(products))


def total(*costs: Cost) -> Cost:
    """Their sum."""
    return Cost(*(sum(counts[1:], counts[0]) for counts in zip(*costs, strict=True)))


def count_cost(problem: Problem, products: int, tasks: Int[Array, " B"], sizes: Sizes, points: int) -> Cost:
    """The work of evaluating both losses at `points` points, on a batch of each task.

    `products` is the number of products with second derivatives that it takes for one sample at one point.
    """
    return total(
        work(problem.upper_data, tasks, sizes.upper, gradients=points),
        work(problem.lower_data, tasks, sizes.lower, gradients=points, products=points * products),
    )
