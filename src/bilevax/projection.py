"""The paper's projections: on a ball (Π_C), on bounded matrices (S^u_C), on curved enough ones (S^l_λ)."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


class Eigen(NamedTuple):
    """A symmetric matrix as eigenvalues and eigenvectors (columns)."""

    values: Float[Array, " n"]
    vectors: Float[Array, "n n"]


def ball(vector: Float[Array, " n"], radius: Any) -> Float[Array, " n"]:
    """Π_C: the nearest point of {v : ‖v‖ ≤ C}; `None` leaves the vector alone."""
    if radius is None:
        return vector
    return vector * jnp.minimum(1, radius / jnp.maximum(jnp.linalg.norm(vector), radius))


def singular_ceiling(matrix: Float[Array, "d dy"], ceiling: Any, gram: Eigen | None = None) -> Float[Array, "d dy"]:
    """S^u_C: every singular value above C is lowered to C.

    Through the eigenvectors W of the Gram matrix VᵀV: V·W diag(min(1, C/s)) Wᵀ. Squaring costs small
    singular values their accuracy, but those are multiplied by exactly one. `gram` is that
    eigendecomposition, where it is known already.
    """
    squares, vectors = jnp.linalg.eigh(matrix.T @ matrix) if gram is None else gram
    singular = jnp.sqrt(jnp.maximum(squares, 0))
    excess = 1 - ceiling / jnp.maximum(singular, ceiling)
    return matrix - ((matrix @ vectors) * excess[None, :]) @ vectors.T


def eigen_floor(eigen: Eigen, floor: Any) -> Eigen:
    """S^l_λ: every eigenvalue below λ is lifted to λ."""
    return Eigen(jnp.maximum(eigen.values, floor), eigen.vectors)
