"""Factorisations, and a trap in them.

Batched LAPACK calls of jaxlib (0.10.2) hand their matrices to the threads that also run the program, and wait. Two
such calls that run at the same time wait for each other for ever on a machine with two cores; calls for a single
matrix do not use those threads. So all but `eigen` take one matrix at a time also under `vmap`, and nothing may run two
batched `eigen` side by side. One at a time also lets `cond` decide for each matrix alone.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Bool, Float


class Eigen(NamedTuple):
    """A symmetric matrix as eigenvalues and eigenvectors (columns)."""

    values: Float[Array, " n"]
    vectors: Float[Array, "n n"]


def eigen(matrix: Float[Array, "n n"]) -> Eigen:
    """The eigendecomposition of a symmetric matrix; under `vmap` one call for the batch, on all cores."""
    return Eigen(*jnp.linalg.eigh(matrix))


@sequential_vmap
def solve_positive(matrix: Float[Array, "n n"], right: Float[Array, " n"]) -> Float[Array, " n"]:
    """matrix⁻¹ right, for a symmetric positive definite matrix."""
    return jax.scipy.linalg.solve(matrix, right, assume_a="pos")


class Factor(NamedTuple):
    """The lower Cholesky factor of a symmetric positive definite matrix."""

    lower: Float[Array, "n n"]


@sequential_vmap
def factor(matrix: Float[Array, "n n"]) -> Factor:
    """The matrix, ready for several solves."""
    return Factor(jax.scipy.linalg.cholesky(matrix, lower=True))


@sequential_vmap
def solve_with(factor: Factor, right: Float[Array, " n"]) -> Float[Array, " n"]:
    """matrix⁻¹ right, from its factor."""
    return jax.scipy.linalg.cho_solve((factor.lower, True), right)


@sequential_vmap
def is_positive(matrix: Float[Array, "n n"]) -> Bool[Array, ""]:
    """Whether a symmetric matrix is positive definite: whether it has a Cholesky factor."""
    return ~jnp.isnan(jnp.linalg.cholesky(matrix)[-1, -1])


class ScaledFactor(NamedTuple):
    """The Cholesky factor of S(matrix)S with a unit diagonal, and the diagonal of S."""

    lower: Float[Array, "n n"]
    scale: Float[Array, " n"]


@sequential_vmap
def factor_scaled(matrix: Float[Array, "n n"]) -> ScaledFactor:
    """A symmetric matrix ready for solves, whatever the scales of its rows.

    Where rounding, or a matrix that is not positive definite, leaves it without a factor, its scaled diagonal is raised
    until it has one: a solve is then a damped one.
    """
    n, diagonal = matrix.shape[0], jnp.diagonal(matrix)
    scale = 1 / jnp.sqrt(jnp.where(diagonal > 0, diagonal, 1))
    unit, identity = matrix * scale[:, None] * scale[None, :], jnp.eye(n, dtype=matrix.dtype)
    least, most = 4 * n * float(jnp.finfo(matrix.dtype).eps), 1e30

    def raise_shift(before: tuple[Array, Array]) -> tuple[Array, Array]:
        shift = jnp.maximum(100 * before[0], least)
        return shift, jnp.linalg.cholesky(unit + shift * identity)

    fails = lambda tried: jnp.isnan(tried[1][-1, -1]) & (tried[0] < most)
    first = jnp.zeros((), matrix.dtype), jnp.linalg.cholesky(unit)
    return ScaledFactor(jax.lax.while_loop(fails, raise_shift, first)[1], scale)


@sequential_vmap
def solve_scaled(factor: ScaledFactor, right: Float[Array, " n"]) -> Float[Array, " n"]:
    """matrix⁻¹ right, from its scaled factor."""
    return factor.scale * jax.scipy.linalg.cho_solve((factor.lower, True), factor.scale * right)


@sequential_vmap
def invert_scaled(factor: ScaledFactor) -> Float[Array, "n n"]:
    """matrix⁻¹, from its scaled factor."""
    identity = jnp.eye(factor.scale.shape[0], dtype=factor.scale.dtype)
    inverse = jax.scipy.linalg.cho_solve((factor.lower, True), identity)
    return inverse * factor.scale[:, None] * factor.scale[None, :]
