"""Exact values of lower problems with so many variables that ∇²yy g is not formed."""

import jax.numpy as jnp
import numpy as np

import bilevax as bx
from bilevax.exact import lower

N = lower.DENSE_UP_TO + 1


def test_the_exact_gradient_of_a_large_quadratic_equals_its_closed_form():
    """g = ½yᵀAy − (Bx)ᵀy and f = ½‖y − c‖²: y* = A⁻¹Bx, ∇F = BᵀA⁻¹(y* − c), A with eigenvalues from 1 to 10⁴."""
    rng = np.random.default_rng(0)
    axis = rng.normal(size=N) / np.sqrt(N)
    values, B, c, x = np.geomspace(1, 1e4, N), rng.normal(size=(N, 2)), rng.normal(size=N), np.array([0.7, -1.3])
    mirrored = lambda v, dot: v - 2 / dot(axis, axis) * axis * dot(axis, v)  # A = M diag(values) M, M a reflection
    product = lambda y: mirrored(jnp.asarray(values) * mirrored(y, jnp.dot), jnp.dot)
    inverse = lambda v: mirrored(mirrored(v, np.dot) / values, np.dot)
    problem = bx.Problem(
        upper=lambda x, y, i, batch: 0.5 * jnp.sum((y - c) ** 2),
        lower=lambda x, y, i, batch: 0.5 * y @ product(y) - (B @ x) @ y,
        x0=jnp.zeros(2), y0=jnp.zeros(N), strong_convexity=1.0,
    )  # fmt: skip
    y = inverse(B @ x)
    np.testing.assert_allclose(bx.exact_gradient(problem, jnp.asarray(x)), B.T @ inverse(y - c), rtol=1e-8)
