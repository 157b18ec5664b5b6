"""H (d' × d') and V (d × d') as arrays, for any loss with small d'.

H is kept as its eigenvalues and eigenvectors. S^l_λ then costs nothing for a task that was not drawn:
S^l_λ[ρH] only scales and lifts the eigenvalues, and a solve is two products. A drawn task pays for one
eigendecomposition, the one that S^l_λ needs anyway.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bilevax import estimator, projection
from bilevax.oracle import SecondOrder
from bilevax.problem import Bounds, Problem
from bilevax.projection import Eigen


class Dense(NamedTuple):
    """V_i, and H_i = vectors · diag(values) · vectorsᵀ."""

    cross: Float[Array, "d dy"]
    values: Float[Array, " dy"]
    vectors: Float[Array, "dy dy"]


class Matrices(NamedTuple):
    """∇²xy g (d × d') and ∇²yy g (d' × d') on a sample, or their innovations."""

    cross: Float[Array, "d dy"]
    hessian: Float[Array, "dy dy"]


def matrices(second: SecondOrder, dim_y: int, dtype: Any) -> Matrices:
    """Both second derivatives in full, column by column."""
    cross_rows, hessian = jax.vmap(second)(jnp.eye(dim_y, dtype=dtype))
    return Matrices(cross_rows.T, hessian)


def _project(problem: Problem, raw: Matrices, bounds: Bounds) -> Dense:
    """S^u_C[V] and S^l_λ[H], both from one call of `eigh`.

    One call, not two: jaxlib's batched LAPACK calls wait for each other's threads, and two that run at the
    same time stand still for ever on a machine with two cores (seen with jaxlib 0.10.2).
    """
    cross, stack = raw.cross, [raw.hessian]
    if bounds.g_xy is not None:
        stack.append(cross.T @ cross)
    values, vectors = jnp.linalg.eigh(jnp.stack(stack))
    if bounds.g_xy is not None:
        cross = projection.singular_ceiling(cross, bounds.g_xy, Eigen(values[1], vectors[1]))
    hessian = projection.eigen_floor(Eigen(values[0], vectors[0]), problem.strong_convexity)
    return Dense(cross, hessian.values, hessian.vectors)


def start(problem: Problem, second: SecondOrder, bounds: Bounds) -> Dense:
    """S^u_C[∇²xy g] and S^l_λ[∇²yy g] of the first batch."""
    return _project(problem, matrices(second, problem.dim_y, problem.dtype), bounds)


def age(problem: Problem, kept: Dense, decay: Any) -> Dense:
    """(1−β)V and S^l_λ[(1−β)H], over all the steps since the task was last drawn."""
    values = jnp.maximum(decay.g_yy * kept.values, problem.strong_convexity)
    return Dense(decay.g_xy * kept.cross, values, kept.vectors)


def innovation(second_now: SecondOrder, second_before: SecondOrder, mixing: Any, dim_y: int, dtype: Any) -> Matrices:
    """∇²g(now; ζ) − (1−β)·∇²g(before; ζ), for both matrices."""
    now, before = (matrices(second, dim_y, dtype) for second in (second_now, second_before))
    return Matrices(
        estimator.innovation(now.cross, before.cross, mixing.g_xy),
        estimator.innovation(now.hessian, before.hessian, mixing.g_yy),
    )


def update(problem: Problem, kept: Dense, new: Matrices, mixing: Any, bounds: Bounds) -> Dense:
    """Lines 6 and 7 of Algorithm 2 for a drawn task."""
    hessian = (kept.vectors * kept.values[None, :]) @ kept.vectors.T
    raw = Matrices(
        estimator.storm(kept.cross, new.cross, mixing.g_xy),
        estimator.storm(hessian, new.hessian, mixing.g_yy),
    )
    return _project(problem, raw, bounds)


def correction(kept: Dense, v: Float[Array, " dy"]) -> Float[Array, " d"]:
    """V H⁻¹ v."""
    return kept.cross @ (kept.vectors @ ((v @ kept.vectors) / kept.values))


def products(problem: Problem) -> int:
    """d' columns of each of the two matrices."""
    return 2 * problem.dim_y
