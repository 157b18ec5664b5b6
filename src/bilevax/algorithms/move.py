"""The step on x: x − η d, or what the user's optimizer makes of d; and steps that are not taken."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PyTree

from bilevax.problem import Problem


def check_optimizer(optimizer: Any) -> None:
    """Refuse anything but an optax transformation, or none."""
    if optimizer is not None and not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(
            f"upper_optimizer must be an optax transformation, for example optax.adam(1e-2); got {optimizer!r}."
        )


def start_optimizer(problem: Problem, optimizer: optax.GradientTransformation | None) -> PyTree:
    """What the optimizer carries; nothing without one."""
    return () if optimizer is None else optimizer.init(problem.unravel_x(problem.x0))


def move(
    problem: Problem,
    optimizer: optax.GradientTransformation | None,
    carried: PyTree,
    x: Float[Array, " d"],
    step: Any,
    direction: Array,
) -> tuple[Float[Array, " d"], PyTree]:
    """x_{t+1} = x_t − η d, or x_t plus what the optimizer makes of d; and what it carries on."""
    if optimizer is None:
        return x - step * direction, carried
    with jax.numpy_dtype_promotion("standard"):  # what optimizers of optax are written for
        updates, carried = optimizer.update(problem.unravel_x(direction), carried, problem.unravel_x(x))
    return x + jax.flatten_util.ravel_pytree(updates)[0], carried


def finite_move(
    optimizer: optax.GradientTransformation | None, x: Float[Array, " d"], step: Any, direction: Float[Array, " d"]
) -> Bool[Array, ""]:
    """Whether d and x after the step are finite. x − η d is where η²‖d‖² is, which saves a look at x."""
    square = direction @ direction
    return jnp.isfinite(square) & jnp.isfinite(step * step * square if optimizer is None else x @ x)


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether all numbers are so far from overflow that the sums of their squares are finite."""
    floats = [leaf.ravel() for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.isfinite(jnp.stack([leaf @ leaf for leaf in floats])))


def unless_diverged(finite: Bool[Array, ""], moved: PyTree, unmoved: PyTree) -> PyTree:
    """The state after the step where it was finite, else the one before."""
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), moved, unmoved)
