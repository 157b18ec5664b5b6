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
from jaxtyping import Array, Float, Int

from bilevax import chunks, lapack
from bilevax.exact.lower import INEXACT, Metric, Solution, Solver, newton
from bilevax.linear_model import factors_at, features, low_rank, rows_at
from bilevax.problem import Problem, X, Y
from bilevax.rows import SparseRows
from bilevax.samples import Indices

COMMON_UP_TO = 512  # variables for which the decomposition pays
PRODUCTS = 400  # most products of H within one of them


class CommonFactors(NamedTuple):
    """QΛQᵀ, and the factor of each task in P_i."""

    vectors: Float[Array, "dy dy"]
    values: Float[Array, " dy"]
    scales: Float[Array, " m"]


def serves(problem: Problem) -> bool:
    """Whether the lower loss is a LinearModel on rows that are held as an array, with few enough variables."""
    if not problem.structure.linear_model or problem.dim_y > COMMON_UP_TO:
        return False
    return not isinstance(features(problem), SparseRows)


def _curvatures(problem: Problem, x: X, y: Y, i: Any) -> Float[Array, " n"]:
    return factors_at(problem, i, None, x, y).c


def common_factors_at(problem: Problem, x: X, starts: Float[Array, "m dy"]) -> CommonFactors:
    """What all P_i are made of, at the points where the solver begins."""

    def look(i: Array) -> tuple[Array, Array]:
        c = _curvatures(problem, x, starts[i], i)
        return c, c.sum()

    mean, sums = chunks.mean_and_all(look, problem.num_tasks, problem.work)
    values, vectors = lapack.eigen(low_rank(rows_at(problem, None), jnp.maximum(mean, 0)))
    tiny = float(jnp.finfo(problem.dtype).tiny) ** 0.5
    sums = jnp.maximum(sums, 0)
    return CommonFactors(vectors, jnp.maximum(values, 0), sums / jnp.maximum(sums.mean(), tiny))


def _precondition(problem: Problem, shared: CommonFactors, i: Any, v: Y) -> Y:
    """P_i⁻¹ v."""
    return ((v @ shared.vectors) / (shared.scales[i] * shared.values + problem.strong_convexity)) @ shared.vectors.T


def _conjugate_gradients(
    problem: Problem, A: Any, c: Float[Array, " e"], near: Callable[[Y], Y], v: Y, tolerance: float
) -> Solution:
    """(Aᵀ diag(c) A + λI)⁻¹ v for rows A, preconditioned with `near`; in units of the largest entry of v."""
    product = lambda h: (c * (A @ h)) @ A + problem.strong_convexity * h
    unit = jnp.maximum(jnp.max(jnp.abs(v)), float(jnp.finfo(v.dtype).tiny) ** 0.5)
    v = v / unit
    h = jax.scipy.sparse.linalg.cg(product, v, M=near, tol=tolerance, maxiter=PRODUCTS)[0]
    slack = jnp.maximum(10 * tolerance, 1e4 * float(jnp.finfo(v.dtype).eps))
    return Solution(unit * h, jnp.linalg.norm(v - product(h)) <= slack * jnp.linalg.norm(v))


def _invert(problem: Problem, shared: CommonFactors, x: X, y: Y, i: Any, v: Y, tolerance: float) -> Solution:
    """H_i⁻¹ v at a point."""
    near = lambda v: _precondition(problem, shared, i, v)
    return _conjugate_gradients(problem, features(problem), _curvatures(problem, x, y, i), near, v, tolerance)


def _value_and_gradient(problem: Problem, x: X, i: Any, indices: Indices) -> Callable[[Y], tuple[Array, Y]]:
    return jax.value_and_grad(lambda y: problem.lower_loss(x, y, i, indices))


def _solve(problem: Problem, shared: CommonFactors, x: X, start: Y, i: Any) -> tuple[Y, Y]:
    """y_i*(x) on all samples and the last step towards it; gradients are as long as P_i⁻¹ says."""

    def metric_at(y: Y) -> Metric:
        length = lambda gradient: jnp.sqrt(gradient @ _precondition(problem, shared, i, gradient))
        return Metric(lambda gradient: _invert(problem, shared, x, y, i, gradient, INEXACT), length)

    reached = newton(start, _value_and_gradient(problem, x, i, None), metric_at)
    return reached.y, reached.step


def solve_lower(problem: Problem, x: X, start: Y, i: Any, indices: Indices) -> tuple[Y, Int[Array, ""]]:
    """y_i*(x) on samples of the task's own, and the number of gradients it took.

    Their Hessian has few rows and is never formed: its diagonal preconditions.
    """
    rows = rows_at(problem, indices)

    def metric_at(y: Y) -> Metric:
        c = factors_at(problem, i, indices, x, y).c
        diagonal = c @ rows**2 + problem.strong_convexity
        near = lambda v: v / diagonal
        step = lambda gradient: _conjugate_gradients(problem, rows, c, near, gradient, INEXACT)
        return Metric(step, lambda gradient: jnp.sqrt(gradient @ near(gradient)))

    reached = newton(start, _value_and_gradient(problem, x, i, indices), metric_at)
    return reached.y, reached.gradients


def solver(problem: Problem, x: X, starts: Float[Array, "m dy"]) -> Solver:
    """y_i*(x) and H_i⁻¹v for every task, from what all tasks share at x.

    Columns of very different scales can leave P_i too far from H_i; what is not found is said, and `bilevax.lower` is
    there for it.
    """
    shared, exact = common_factors_at(problem, x, starts), 10 * float(jnp.finfo(problem.dtype).eps)
    return Solver(
        solve=lambda i, start: _solve(problem, shared, x, start, i),
        inverse=lambda y, i: lambda v: _invert(problem, shared, x, y, i, v, exact),
    )
