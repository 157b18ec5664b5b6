"""What a problem knows about itself: what of ∇²yy g has to be estimated, and whether f depends on x.

Decided once, when a problem is made; everybody else asks `problem.structure`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from bilevax import arguments
from bilevax.linear_model import LinearModel
from bilevax.samples import Data, Shared

Loss = Callable[..., Any]  # (x, y, task, batch) -> one number
LARGEST = 512  # variables up to which ∇²yy g is looked at, whether it is λI


@dataclass(frozen=True)
class Negative:
    """The loss −f, as a function of (x, y, task, batch): the lower loss of min over x of max over y of f."""

    loss: Loss

    def __call__(self, x: PyTree, y: PyTree, task: PyTree, batch: PyTree) -> Any:
        return -self.loss(x, y, task, batch)


class Hessian(Enum):
    """What methods have to know of ∇²yy g_i.

    - `ESTIMATE`: it has to be estimated.
    - `IDENTITY`: it is λI, whatever x, y and the samples are.
    - `UNNEEDED`: g_i is −f_i (min-max). Then ∇y f_i(x, y_i*) = 0, or y_i* is held by its set, and ∇F is the mean of
      ∇x f_i(x, y_i*) alone (Danskin).
    """

    ESTIMATE = "estimated"
    IDENTITY = "known"
    UNNEEDED = "unneeded"


@dataclass(frozen=True)
class Structure:
    """What is known of a problem without looking at its numbers again.

    - `hessian`: what has to be known of ∇²yy g.
    - `upper_uses_x`: whether f depends on x; where it does not, u = ∇x f = 0 needs no estimate.
    - `ridge`: whether λ/2 ‖y‖² is a part of g, so that λI is a known part of ∇²yy g.
    - `linear_model`: whether g is a `LinearModel` with such a ridge on shared data.
    """

    hessian: Hessian
    upper_uses_x: bool
    ridge: bool
    linear_model: bool

    @property
    def estimates_hessian(self) -> bool:
        """Whether H⁻¹v takes an estimate of ∇²yy g."""
        return self.hessian is Hessian.ESTIMATE

    @property
    def needs_hessian(self) -> bool:
        """Whether ∇F has a part with H⁻¹v at all; a min-max problem's has not."""
        return self.hessian is not Hessian.UNNEEDED

    def apply_inverse(self, strong_convexity: Any, v: Array) -> Array:
        """H⁻¹v where it is known without an estimate: v/λ where H = λI, zero where it is not needed."""
        return v / strong_convexity if self.needs_hessian else jnp.zeros_like(v)


def depends(function: Callable[..., Any], first: PyTree, *rest: Any) -> bool:
    """Whether what the function returns depends on its first argument; yes in case of doubt."""
    program = jax.make_jaxpr(function)(first, *rest).jaxpr
    needs = {id(variable) for variable in program.outvars}
    for equation in reversed(program.eqns):
        if equation.effects or any(id(variable) in needs for variable in equation.outvars):
            needs |= {id(variable) for variable in equation.invars}
    return any(id(variable) in needs for variable in program.invars[: len(jax.tree.leaves(first))])


def hessian_of(upper: Loss, lower: Loss, at: tuple[Any, ...], strong_convexity: Any) -> Hessian:
    """What has to be known of ∇²yy g; `at` is (x, y, task, batch), x as the loss takes it, and y flat with its pytree.

    `lower` is a function of these four here.
    """
    if isinstance(lower, Negative) and lower.loss == upper:
        return Hessian.UNNEEDED
    x, (y, unravel_y), task, batch = at
    if y.shape[0] > LARGEST or not arguments.is_concrete(strong_convexity):
        return Hessian.ESTIMATE

    def product(given: tuple[Any, ...], h: Array) -> Array:
        x, y, task, batch = given
        return jax.vjp(jax.grad(lambda y: lower(x, unravel_y(y), task, batch)), y)[1](h)[0]

    given = (x, y, task, batch)
    if depends(product, given, y):
        return Hessian.ESTIMATE
    identity = jnp.eye(y.shape[0], dtype=y.dtype)
    columns = jax.jit(jax.vmap(product, in_axes=(None, 0)))(given, identity)
    same = bool(jnp.allclose(columns, strong_convexity * identity, rtol=1e-6, atol=0))
    return Hessian.IDENTITY if same else Hessian.ESTIMATE


def is_linear_model(lower: Loss, lower_data: Data, ridge: bool) -> bool:
    """Whether the lower loss is a LinearModel with a known ridge on shared data."""
    return isinstance(lower, LinearModel) and isinstance(lower_data, Shared) and ridge
