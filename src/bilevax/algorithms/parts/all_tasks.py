"""Methods that look at every lower problem in every step: what they share.

Many lower problems are one: y = (y_1, ..., y_m) with a Hessian of m blocks. So a method for one lower problem takes
fresh samples of every task in every step. None of these methods projects y; of the bounds only those are used that
its own docstring names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import Array, Float, Key

from bilevax import arguments, draw
from bilevax.algorithms.frame import Method, Optimizer
from bilevax.algorithms.start import FirstBatch, all_tasks, first_batch_of
from bilevax.problem import Problem
from bilevax.samples import Batches
from bilevax.schedule import Rates, as_rates

Rows = Float[Array, "m dy"]


@dataclass(frozen=True, eq=False)
class AllTasks(Method):
    """What all of these methods are told: rates, the batch of every task in a step, and how they start."""

    rates: Rates
    optimizer: Optimizer
    batch_size: int | None
    first: FirstBatch

    def portion(self, problem: Problem) -> tuple[int | None, float]:
        """A batch of every task."""
        return self.batch_size, 1.0


def common(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `AllTasks`, from the arguments of a factory."""
    size, optimizer = settings["batch_size"], settings["upper_optimizer"]
    if size is not None:
        arguments.count("batch_size", size)
    mixing = settings.get("mixing", 1.0)
    return {
        "rates": as_rates(
            settings["upper_step"], settings["lower_step"], 1.0, mixing, optimizer, settings.get("neumann_step")
        ),
        "optimizer": optimizer,
        "batch_size": size,
        "first": first_batch_of(settings["initialization"], settings["initial_batch_size"], size),
    }


def lower_gradients(problem: Problem, x: Array, y: Rows, zeta: Batches) -> Rows:
    """∇y g_i(x, y_i; ζ_i) for all tasks."""
    gradient = lambda y, i, zeta: problem.lower_gradient(x, y, i, zeta)
    return jax.vmap(gradient)(y, all_tasks(problem), zeta)


def upper_gradients(problem: Problem, x: Array, y: Rows, xi: Batches) -> Rows:
    """∇y f_i(x, y_i; ξ_i) for all tasks."""
    gradient = lambda y, i, xi: problem.upper_gradients(x, y, i, xi)[1]
    return jax.vmap(gradient)(y, all_tasks(problem), xi)


def descend(problem: Problem, x: Array, y: Rows, key: Key[Array, ""], count: Any, step: Any, size: int | None) -> Rows:
    """`count` steps along stochastic gradients of every g_i(x, ·), a fresh batch each."""
    one_step = lambda k, y: y - step * lower_gradients(problem, x, y, draw.batch_of_all(problem, key, k, size))
    return jax.lax.fori_loop(0, count, one_step, y)
