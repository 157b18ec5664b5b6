"""The paper's projections: on a ball (Π_C) or a box, on bounded matrices (S^u_C), on curved enough ones (S^l_λ)."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Bool, Float

from bilevax import lapack
from bilevax.bounds import Box
from bilevax.lapack import Eigen


def ball(vector: Float[Array, " n"], radius: Any) -> Float[Array, " n"]:
    """Π_C: the nearest point of {v : ‖v‖ ≤ C}; `None` leaves the vector alone."""
    if radius is None:
        return vector
    norm = jnp.linalg.norm(vector)
    return vector * jnp.where(norm > radius, radius / norm, 1)  # an infinite radius leaves it alone too


def onto(vector: Float[Array, " n"], region: Any) -> Float[Array, " n"]:
    """Π_Y: the nearest point of a ball, given by its radius, or of a `Box`; `None` leaves the vector alone."""
    if isinstance(region, Box):
        return jnp.clip(vector, region.low, region.high)
    return ball(vector, region)


def inside(vector: Float[Array, " n"], region: Any) -> Bool[Array, ""]:
    """Whether Π_Y leaves the vector where it is."""
    if isinstance(region, Box):
        return jnp.all((vector >= region.low) & (vector <= region.high))
    return jnp.linalg.norm(vector) <= region


def surely_below(matrix: Float[Array, "d dy"], ceiling: Any) -> Bool[Array, ""]:
    """Whether a cheap bound already says that no singular value is above C.

    ‖V‖ is at most √(‖V‖₁ ‖V‖_∞), the largest column and row sums of |V|, and at most the Frobenius norm.
    """
    sizes = jnp.abs(matrix)
    sums = jnp.sqrt(sizes.sum(0).max() * sizes.sum(1).max())
    return jnp.minimum(sums, jnp.linalg.norm(matrix)) <= ceiling


@sequential_vmap
def _lower_singular_values(matrix: Float[Array, "d dy"], ceiling: Any) -> Float[Array, "d dy"]:
    def lower(matrix: Array) -> Array:
        squares, vectors = lapack.eigen(matrix.T @ matrix)
        singular = jnp.sqrt(jnp.maximum(squares, 0))
        excess = jnp.where(singular > ceiling, 1 - ceiling / singular, 0)
        return matrix - ((matrix @ vectors) * excess[None, :]) @ vectors.T

    return jax.lax.cond(surely_below(matrix, ceiling), lambda matrix: matrix, lower, matrix)


def singular_ceiling(matrix: Float[Array, "d dy"], ceiling: Any) -> Float[Array, "d dy"]:
    """S^u_C: every singular value above C is lowered to C; `None` leaves the matrix alone.

    Through the eigenvectors W of the Gram matrix VᵀV: V·W diag(min(1, C/s)) Wᵀ, and only where a cheap bound
    does not say that there is nothing to do. Squaring costs small singular values their accuracy, but those
    are multiplied by exactly one.
    """
    return matrix if ceiling is None else _lower_singular_values(matrix, jnp.asarray(ceiling, matrix.dtype))


def eigen_floor(matrix: Float[Array, "n n"], floor: Any) -> Eigen:
    """S^l_λ of a symmetric matrix as eigenvalues and eigenvectors: every eigenvalue below λ is lifted to λ."""
    values, vectors = jnp.linalg.eigh(matrix)  # under `vmap` one call for the batch, on all cores: see `bilevax.lapack`
    return Eigen(jnp.maximum(values, floor), vectors)


def curved_enough(matrix: Float[Array, "n n"], floor: Any, slack: Any) -> Bool[Array, ""]:
    """Whether every eigenvalue is at least the floor, up to rounding: H − floor·I has a Cholesky factor.

    Rounding of large entries must not hide a small curvature, so no more than `slack` is allowed for it.
    """
    n = matrix.shape[0]
    rounding = 4 * n * float(jnp.finfo(matrix.dtype).eps) * jnp.max(jnp.abs(jnp.diagonal(matrix)))
    return lapack.is_positive(matrix + (jnp.minimum(rounding, slack) - floor) * jnp.eye(n, dtype=matrix.dtype))


@sequential_vmap
def _lift_eigenvalues(matrix: Float[Array, "n n"], floor: Any, slack: Any) -> Float[Array, "n n"]:
    def lift(matrix: Array) -> Array:
        values, vectors = eigen_floor(matrix, floor)
        return (vectors * values[None, :]) @ vectors.T

    return jax.lax.cond(curved_enough(matrix, floor, slack), lambda matrix: matrix, lift, matrix)


def matrix_floor(matrix: Float[Array, "n n"], floor: Any, slack: Any) -> Float[Array, "n n"]:
    """S^l_λ of a symmetric matrix, at the price of an eigendecomposition only where it changes anything.

    Eigenvalues that rounding may have put below the floor, by no more than `slack`, are left alone.
    """
    return _lift_eigenvalues(matrix, jnp.asarray(floor, matrix.dtype), jnp.asarray(slack, matrix.dtype))
