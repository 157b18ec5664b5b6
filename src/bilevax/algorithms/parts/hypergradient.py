"""The direction of x on a batch of some tasks, matrix-free: one reverse pass for all of them.

G = mean_i ∇x f_i − ∇²xy g_i·h_i,   h_i ≈ [∇²yy g_i]⁻¹∇y f_i
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bilevax.problem import Problem, X, Y
from bilevax.samples import Batches, Samples

TaskSamples = tuple[Int[Array, " B"], Batches, Batches]  # tasks, and their samples of f and of g


class Points(NamedTuple):
    """x, and y and h of some tasks, a row for each; or directions for them."""

    x: X
    y: Float[Array, "B dy"]
    h: Any  # (B, dy); None where h = 0 is known


def _lagrangians(problem: Problem, at: Points, samples: TaskSamples) -> Float[Array, ""]:
    """Σ_i f_i − h_iᵀ∇y g_i on a batch of each task; `samples` are the tasks and their samples of f and of g.

    Its gradient is all that a matrix-free method needs: Σ_i ∇x f_i − ∇²xy g_i·h_i with respect to x, ∇y f_i −
    ∇²yy g_i·h_i with respect to y_i, −∇y g_i with respect to h_i.
    """

    def of_task(y: Y, h: Y, i: Any, xi: Samples, zeta: Samples) -> Array:
        return problem.upper_loss(at.x, y, i, xi) - h @ problem.lower_gradient(at.x, y, i, zeta)

    return jnp.sum(jax.vmap(of_task)(at.y, at.h, *samples))


def _uppers(problem: Problem, at: Points, samples: TaskSamples) -> Float[Array, ""]:
    """Σ_i f_i on a batch of each task."""
    tasks, xi, _ = samples
    return jnp.sum(jax.vmap(lambda y, i, xi: problem.upper_loss(at.x, y, i, xi))(at.y, tasks, xi))


def directions(problem: Problem, at: Points, samples: TaskSamples) -> Points:
    """D_x = mean_i ∇x f_i − ∇²xy g_i·h_i, and D_y = ∇y g_i, D_h = ∇²yy g_i·h_i − ∇y f_i of each task, on a batch."""
    x, y, h = jax.grad(_lagrangians, argnums=1)(problem, at, samples)
    return Points(x / len(at.y), -h, -y)


def hypergradient(problem: Problem, at: Points, samples: TaskSamples) -> X:
    """G on a batch of each task; without h the mean of ∇x f_i."""
    total = _uppers if at.h is None else _lagrangians
    return jax.grad(total, argnums=1)(problem, at, samples).x / len(at.y)


def hypergradient_innovation(problem: Problem, now: Points, before: Points, samples: TaskSamples, mixing: Any) -> X:
    """G(now) − (1 − β)·G(before) on the same samples; for min-max without the part of h.

    One reverse pass for all tasks at both points: only one vector of size d is formed, and only where the samples
    touch it.
    """
    total = _lagrangians if problem.structure.needs_hessian else _uppers

    def both(shift: X) -> Array:
        of = lambda at: total(problem, at._replace(x=at.x + shift), samples) / len(at.y)
        return of(now) - (1 - mixing) * of(before)

    return jax.grad(both)(jnp.zeros_like(now.x))
