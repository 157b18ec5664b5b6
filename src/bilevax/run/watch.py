"""What a run looks at now and then: whether its lower problems are as curved as was said."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from bilevax import arguments, draw, lapack
from bilevax.algorithms.contract import Variables
from bilevax.problem import Problem
from bilevax.shards import COMMON, ROWS, spread
from bilevax.structure import Hessian
from bilevax.tasks import pick

TASKS, SAMPLES = 3, 1024  # looked at, at most
FEW = 128  # variables for which ∇²yy g is formed
PRODUCTS = 40  # with ∇²yy g, for each end of its spectrum, for more of them


class AssumptionWarning(UserWarning):
    """Something that a problem or an algorithm was told does not hold."""


class Spectrum(NamedTuple):
    """The smallest and the largest vᵀ∇²yy g v / vᵀv that was found: eigenvalues lie there or further out."""

    smallest: Float[Array, ""]
    largest: Float[Array, ""]


def _extreme(product: Callable[[Array], Array], start: Array, shift: Any) -> Array:
    """vᵀHv/vᵀv where |eigenvalue of H − shift| is about the largest, by power iterations."""

    def advance(_: Array, v: Array) -> Array:
        image = product(v) - shift * v
        length = jnp.linalg.norm(image)
        return jnp.where(length > 0, image / length, v)  # an eigenvector of eigenvalue zero stays

    v = jax.lax.fori_loop(0, PRODUCTS, advance, start / jnp.linalg.norm(start))
    return v @ product(v) / (v @ v)


@jax.jit
def curvature_at(problem: Problem, x: Float[Array, " d"], y: Float[Array, "n dy"], key: Key[Array, ""]) -> Spectrum:
    """The curvature of some lower problems on many of their samples; y is that of all, or of those looked at."""
    return spread(_curvature_at, (COMMON, ROWS, COMMON), COMMON)(problem, x, y, key)


def tasks_of_look(num_tasks: int, key: Key[Array, ""]) -> Int[Array, " k"]:
    """The tasks that are looked at, of so many."""
    return jax.random.randint(jax.random.split(key, 3)[0], (min(TASKS, num_tasks),), 0, num_tasks, jnp.int32)


def _curvature_at(problem: Problem, x: Float[Array, " d"], y: Float[Array, "n dy"], key: Key[Array, ""]) -> Spectrum:
    size = None if problem.lower_data.max_length <= SAMPLES else SAMPLES
    _, start_key, batch_key = jax.random.split(key, 3)
    tasks = tasks_of_look(problem.num_tasks, key)

    def look(given: tuple[Array, Array]) -> tuple[Array, Array]:
        i, y = given
        indices = draw.batch_indices(jax.random.fold_in(batch_key, i), problem.lower_data, i, size)
        second = problem.lower_derivatives(x, y, i, indices)[1]
        product = lambda h: second(h)[1]
        if problem.dim_y <= FEW:
            values = lapack.eigen(
                jax.lax.map(product, jnp.eye(problem.dim_y, dtype=problem.dtype), batch_size=16)
            ).values
            return values[0], values[-1]
        start = jax.random.normal(jax.random.fold_in(start_key, i), (problem.dim_y,), problem.dtype)
        largest = _extreme(product, start, 0)
        return _extreme(product, start, largest), largest

    smallest, largest = jax.lax.map(look, (tasks, pick(y, tasks, problem.num_tasks)))
    least, most = jnp.minimum(smallest, largest).min(), jnp.maximum(smallest, largest).max()
    return Spectrum(problem.shards.smallest(least), problem.shards.largest(most))


def look_at(problem: Problem, reached: Variables, step: int, neumann_step: Any = None) -> None:
    """Warn where λ is more than there is, or a Neumann series cannot converge, at this point."""
    lam = float(problem.strong_convexity)
    known, key = problem.structure.hessian is Hessian.IDENTITY, jax.random.key(step)
    smallest = largest = lam
    if not known:
        y = reached.y_at_hand(problem, lambda: tasks_of_look(problem.num_tasks // problem.shards.count, key))
        smallest, largest = map(float, curvature_at(problem, reached.x, y, key))
    rounding = problem.dim_y * float(jnp.finfo(problem.dtype).eps) * largest  # of eigenvalues, as far as they are seen
    if smallest + rounding < 0.5 * lam:
        warnings.warn(
            f"strong_convexity is {lam:.3g}, and at step {step} ∇²yy g has a direction of curvature {smallest:.3g}: "
            "methods that keep it above strong_convexity are then wrong. Lower strong_convexity, or add a ridge to the "
            "lower loss; bilevax.check(problem) shows more.",
            AssumptionWarning, stacklevel=4,
        )  # fmt: skip
    if arguments.is_number(neumann_step) and float(neumann_step) * largest > 2:
        warnings.warn(
            f"neumann_step must be at most 1/L_g for its series to converge; it is {float(neumann_step):.3g}, and at "
            f"step {step} L_g is {largest:.3g} at least: give {1 / largest:.2g} or less.",
            AssumptionWarning, stacklevel=4,
        )  # fmt: skip
