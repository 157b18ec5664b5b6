"""The paper's projections: on a ball (Π_C), on bounded matrices (S^u_C), on curved enough ones (S^l_λ)."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float


def ball(vector: Float[Array, " n"], radius: Any) -> Float[Array, " n"]:
    """Π_C: the nearest point of {v : ‖v‖ ≤ C}; `None` leaves the vector alone."""
    if radius is None:
        return vector
    return vector * jnp.minimum(1, radius / jnp.maximum(jnp.linalg.norm(vector), radius))


def singular_ceiling(matrix: Float[Array, "d dy"], ceiling: Any) -> Float[Array, "d dy"]:
    """S^u_C: every singular value above C is lowered to C; `None` leaves the matrix alone.

    Through the eigenvectors W of the smaller Gram matrix: V·W diag(min(1, C/s)) Wᵀ. Squaring costs small
    singular values their accuracy, but those are multiplied by exactly one.
    """
    if ceiling is None:
        return matrix
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    squares, vectors = jnp.linalg.eigh(tall.T @ tall)
    singular = jnp.sqrt(jnp.maximum(squares, 0))
    excess = 1 - ceiling / jnp.maximum(singular, ceiling)
    lowered = tall - ((tall @ vectors) * excess[None, :]) @ vectors.T
    return lowered if tall is matrix else lowered.T


def eigen_floor(
    matrix: Float[Array, "n n"], floor: Any
) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """S^l_λ: every eigenvalue below λ is lifted to λ; returned as eigenvalues and eigenvectors."""
    values, vectors = jnp.linalg.eigh(matrix)
    return jnp.maximum(values, floor), vectors
