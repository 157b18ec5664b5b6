"""The lower problems of linear models, solved to high accuracy: Newton's method with one factorisation for all tasks.

    H_i = Aᵀ diag(c_i) A + λI,   c_ij = s(x_j) ℓ''(a_jᵀy_i/σ_i)/(n σ_i²)

The tasks share A and the weights s(x_j), so their Hessians are much alike. With C = mean_i c_i where the solver begins
and Aᵀ diag(C) A = QΛQᵀ, decomposed once,

    P_i = (Σ_j c_ij / Σ_j C_j) QΛQᵀ + λI

is close to H_i, and conjugate gradients that are preconditioned with it need a few products of A for each Newton step.
`bilevax.lower` is the same for any loss, at the price of a Hessian for each task and step.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bilevax import lapack, memory, oracle
from bilevax.curvature.linear_model import factors_at, features, low_rank, taken
from bilevax.curvature.linear_model import serves as is_linear_model
from bilevax.draw import Indices
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


def _conjugate_gradients(
    problem: Problem, A: Any, c: Float[Array, " e"], near: Callable[[Y], Y], v: Y, tolerance: float
) -> Y:
    """(Aᵀ diag(c) A + λI)⁻¹ v for rows A, preconditioned with `near`; in units of the largest entry of v."""
    product = lambda h: (c * (A @ h)) @ A + problem.strong_convexity * h
    unit = jnp.maximum(jnp.max(jnp.abs(v)), float(jnp.finfo(v.dtype).tiny) ** 0.5)
    return unit * jax.scipy.sparse.linalg.cg(product, v / unit, M=near, tol=tolerance, maxiter=PRODUCTS)[0]


def _invert(problem: Problem, metric: Metric, x: X, y: Y, i: Any, v: Y, tolerance: float) -> Y:
    """H_i⁻¹ v at a point."""
    near = lambda v: _precondition(problem, metric, i, v)
    return _conjugate_gradients(problem, features(problem), _curvatures(problem, x, y, i), near, v, tolerance)


class Reached(NamedTuple):
    """Where Newton's method is, the length of the gradient there, whether it is still falling, and what it took."""

    y: Y
    gradient: Y
    length: Float[Array, ""]
    falling: Bool[Array, ""]
    steps: Int[Array, ""]
    gradients: Int[Array, ""]


def newton(start: Y, at: Callable[[Y], tuple[Y, Array]], direction: Callable[[Y, Y], Y]) -> tuple[Y, Int[Array, ""]]:
    """Newton steps, halved until ‖∇y g‖ falls, for as long as it does: down to rounding; and the gradients it took.

    `at(y)` is the gradient and its length, `direction(y, gradient)` what to subtract.
    """
    eps = float(jnp.finfo(start.dtype).eps)

    def one_step(before: Reached) -> Reached:
        step = direction(before.y, before.gradient)

        def trial(halvings: Array) -> tuple[Y, Y, Array, Array]:
            y = before.y - 0.5 ** halvings.astype(step.dtype) * step
            return y, *at(y), halvings

        near = jnp.linalg.norm(step) <= eps**0.5 * (1 + jnp.linalg.norm(before.y))  # what is left is rounding
        rises = lambda tried: ~(tried[2] < before.length) & (tried[3] < HALVINGS) & ~near
        tried = jax.lax.while_loop(rises, lambda tried: trial(tried[3] + 1), trial(jnp.int32(0)))
        y, gradient, length, halvings = tried
        fell = length < before.length
        where = lambda new, old: jnp.where(fell, new, old)
        return Reached(
            y=where(y, before.y),
            gradient=where(gradient, before.gradient),
            length=where(length, before.length),
            falling=fell & (~near | (length < 0.5 * before.length)),
            steps=before.steps + 1,
            gradients=before.gradients + 1 + halvings,
        )

    first = Reached(start, *at(start), jnp.asarray(True), jnp.int32(0), jnp.int32(1))
    end = jax.lax.while_loop(lambda now: now.falling & (now.steps < NEWTON_STEPS), one_step, first)
    return end.y, end.gradients


def _solve(problem: Problem, metric: Metric, x: X, start: Y, i: Any) -> Y:
    """y_i*(x) on all samples; gradients are as long as P_i⁻¹ says."""

    def at(y: Y) -> tuple[Y, Array]:
        gradient = oracle.lower_gradient(problem, x, y, i)
        return gradient, jnp.sqrt(gradient @ _precondition(problem, metric, i, gradient))

    return newton(start, at, lambda y, gradient: _invert(problem, metric, x, y, i, gradient, INEXACT))[0]


def solve(problem: Problem, x: X, start: Y, i: Any, indices: Indices) -> tuple[Y, Int[Array, ""]]:
    """y_i*(x) on samples of the task's own, and the number of gradients it took.

    Their Hessian has few rows and is never formed: its diagonal preconditions.
    """
    rows = taken(problem, indices)

    def at(y: Y) -> tuple[Y, Array]:
        gradient = oracle.lower_gradient(problem, x, y, i, indices)
        return gradient, jnp.linalg.norm(gradient)

    def direction(y: Y, gradient: Y) -> Y:
        c = factors_at(problem, i, indices, x, y).c
        diagonal = c @ rows**2 + problem.strong_convexity
        return _conjugate_gradients(problem, rows, c, lambda v: v / diagonal, gradient, INEXACT)

    return newton(start, at, direction)


def solver(problem: Problem, x: X, starts: Float[Array, "m dy"]) -> Solver:
    """y_i*(x) and H_i⁻¹v for every task, from what all tasks share at x."""
    metric, exact = metric_at(problem, x, starts), 10 * float(jnp.finfo(problem.dtype).eps)
    return Solver(
        solve=lambda i: _solve(problem, metric, x, starts[i], i),
        invert=lambda y, i, v: _invert(problem, metric, x, y, i, v, exact),
    )
