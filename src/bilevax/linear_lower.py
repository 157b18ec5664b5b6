"""The lower problems of linear models, solved to high accuracy: Newton's method with one factorisation for all tasks.

    H_i = Aᵀ diag(c_i) A + λI,   c_ij = s(x_j) ℓ''(a_jᵀy_i/σ_i)/(n σ_i²)

The tasks share A and the weights s(x_j), so their Hessians are much alike. With C = mean_i c_i where the solver begins
and Aᵀ diag(C) A = QΛQᵀ, decomposed once,

    P_i = (Σ_j c_ij / Σ_j C_j) QΛQᵀ + λI

is close to H_i, and conjugate gradients that are preconditioned with it need a few products of A for each Newton step.
`bilevax.lower` is the same for any loss, at the price of a Hessian for each task and step.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bilevax import lapack, memory, oracle
from bilevax.curvature.linear_model import factors_at, features, low_rank, taken
from bilevax.curvature.linear_model import serves as is_linear_model
from bilevax.lower import DENSE_UP_TO, Solver
from bilevax.oracle import X, Y
from bilevax.problem import Problem
from bilevax.rows import SparseRows

NEWTON_STEPS, HALVINGS = 60, 20
INEXACT = 1e-2  # how far conjugate gradients go within a Newton step
PRODUCTS = 400  # most products of H within one of them


class Metric(NamedTuple):
    """QΛQᵀ, and the factor of each task in P_i."""

    vectors: Float[Array, "dy dy"]
    values: Float[Array, " dy"]
    scales: Float[Array, " m"]


def serves(problem: Problem) -> bool:
    """Whether the lower loss is a LinearModel on rows that are held as an array, with few enough variables."""
    if not is_linear_model(problem) or problem.dim_y > DENSE_UP_TO:
        return False
    return not isinstance(features(problem), SparseRows)


def _curvatures(problem: Problem, x: X, y: Y, i: Any) -> Float[Array, " n"]:
    return factors_at(problem, i, None, x, y).c


def metric_at(problem: Problem, x: X, starts: Float[Array, "m dy"]) -> Metric:
    """What all P_i are made of, at the points where the solver begins."""

    def look(i: Array) -> tuple[Array, Array]:
        c = _curvatures(problem, x, starts[i], i)
        return c, c.sum()

    mean, sums = memory.mean_and_all(look, problem.num_tasks, problem.work)
    values, vectors = lapack.eigen(low_rank(taken(problem, None), jnp.maximum(mean, 0)))
    tiny = float(jnp.finfo(problem.dtype).tiny) ** 0.5
    sums = jnp.maximum(sums, 0)
    return Metric(vectors, jnp.maximum(values, 0), sums / jnp.maximum(sums.mean(), tiny))


def _precondition(problem: Problem, metric: Metric, i: Any, v: Y) -> Y:
    """P_i⁻¹ v."""
    return ((v @ metric.vectors) / (metric.scales[i] * metric.values + problem.strong_convexity)) @ metric.vectors.T


def _invert(problem: Problem, metric: Metric, x: X, y: Y, i: Any, v: Y, tolerance: float) -> Y:
    """H_i⁻¹ v at a point, by preconditioned conjugate gradients."""
    A, c = features(problem), _curvatures(problem, x, y, i)
    product = lambda h: (c * (A @ h)) @ A + problem.strong_convexity * h
    near = lambda v: _precondition(problem, metric, i, v)
    unit = jnp.maximum(jnp.max(jnp.abs(v)), float(jnp.finfo(v.dtype).tiny) ** 0.5)
    return unit * jax.scipy.sparse.linalg.cg(product, v / unit, M=near, tol=tolerance, maxiter=PRODUCTS)[0]


class Reached(NamedTuple):
    """Where Newton's method is, the length of the gradient there in P_i⁻¹, and whether it is still falling."""

    y: Y
    gradient: Y
    length: Float[Array, ""]
    falling: Bool[Array, ""]
    steps: Int[Array, ""]


def _newton(problem: Problem, metric: Metric, x: X, start: Y, i: Any) -> Y:
    """Newton steps, halved until ‖∇y g‖ falls, for as long as it does: down to rounding."""
    eps = float(jnp.finfo(start.dtype).eps)

    def at(y: Y) -> tuple[Y, Array]:
        gradient = oracle.lower_gradient(problem, x, y, i)
        return gradient, jnp.sqrt(gradient @ _precondition(problem, metric, i, gradient))

    def one_step(before: Reached) -> Reached:
        direction = _invert(problem, metric, x, before.y, i, before.gradient, INEXACT)

        def trial(halvings: Array) -> tuple[Y, Y, Array, Array]:
            y = before.y - 0.5 ** halvings.astype(direction.dtype) * direction
            return y, *at(y), halvings

        near = jnp.linalg.norm(direction) <= eps**0.5 * (1 + jnp.linalg.norm(before.y))  # what is left is rounding
        rises = lambda tried: ~(tried[2] < before.length) & (tried[3] < HALVINGS) & ~near
        y, gradient, length, _ = jax.lax.while_loop(rises, lambda tried: trial(tried[3] + 1), trial(jnp.int32(0)))
        fell = length < before.length
        falling = fell & (~near | (length < 0.5 * before.length))
        new = Reached(y, gradient, length, falling, before.steps + 1)
        kept = jax.tree.map(lambda new, old: jnp.where(fell, new, old), new, before)
        return kept._replace(falling=falling, steps=before.steps + 1)

    first = Reached(start, *at(start), jnp.asarray(True), jnp.int32(0))
    return jax.lax.while_loop(lambda now: now.falling & (now.steps < NEWTON_STEPS), one_step, first).y


def solver(problem: Problem, x: X, starts: Float[Array, "m dy"]) -> Solver:
    """y_i*(x) and H_i⁻¹v for every task, from what all tasks share at x."""
    metric, exact = metric_at(problem, x, starts), 10 * float(jnp.finfo(problem.dtype).eps)
    return Solver(
        solve=lambda i: _newton(problem, metric, x, starts[i], i),
        invert=lambda y, i, v: _invert(problem, metric, x, y, i, v, exact),
    )
