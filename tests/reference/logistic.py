"""A small non-quadratic problem, written twice: derivatives by hand in NumPy, losses in JAX.

g_i(x, y; ζ) = s(k·x)·log(1 + exp(−a·y)) + θ_i/2 ‖y‖²     with s the logistic function, ζ = (a, k)
f_i(x, y; ξ) = ½(r·y − c)² + θ_i/2 (q·x)²                  with ξ = (r, q, c)
"""

import jax
import jax.numpy as jnp
import numpy as np

import bilevax as bx


def sigmoid(t):
    """The logistic function."""
    return 1 / (1 + np.exp(-t))


class Model:
    """Derivatives by hand; every method takes task, x, y and the indices of its samples."""

    def __init__(self, m, seed=0, dim_x=3, dim_y=2, n=6, lam=0.5, C_fx=None, C_fy=None, C_gxy=None, R_y=None):
        rng = np.random.default_rng(seed)
        self.m, self.lam = m, lam
        self.C_fx, self.C_fy, self.C_gxy, self.R_y = C_fx, C_fy, C_gxy, R_y
        self.R_h = None if C_fy is None else C_fy / self.lam  # the ball of H⁻¹v
        self.theta = 0.5 + rng.random(m)
        self.a, self.k = rng.normal(size=(m, n, dim_y)), rng.normal(size=(m, n, dim_x))
        self.r, self.q = rng.normal(size=(m, n, dim_y)), 0.5 * rng.normal(size=(m, n, dim_x))
        self.c = rng.normal(size=(m, n))
        self.x0 = 0.3 * rng.normal(size=dim_x)
        self.y0 = 0.3 * rng.normal(size=(m, dim_y))

    def fx(self, i, x, y, xi):
        """∇x f."""
        q = self.q[i, xi]
        return self.theta[i] * (q @ x) @ q / len(q)

    def fy(self, i, x, y, xi):
        """∇y f."""
        r = self.r[i, xi]
        return (r @ y - self.c[i, xi]) @ r / len(r)

    def gy(self, i, x, y, zeta):
        """∇y g."""
        a = self.a[i, zeta]
        return -(sigmoid(self.k[i, zeta] @ x) * sigmoid(-a @ y)) @ a / len(a) + self.theta[i] * y

    def gyy(self, i, x, y, zeta):
        """∇²yy g."""
        a = self.a[i, zeta]
        p = sigmoid(-a @ y)
        return (a.T * (sigmoid(self.k[i, zeta] @ x) * p * (1 - p))) @ a / len(a) + self.theta[i] * np.eye(y.size)

    def gxy(self, i, x, y, zeta):
        """∇²xy g, d × d'."""
        a, k = self.a[i, zeta], self.k[i, zeta]
        weight = sigmoid(k @ x)
        return -(k.T * (weight * (1 - weight) * sigmoid(-a @ y))) @ a / len(a)

    def problem(self, dtype=float):
        """The same problem for the library."""
        cast = lambda a: jnp.asarray(a, dtype)
        bounds = bx.Bounds(f_x=self.C_fx, f_y=self.C_fy, g_xy=self.C_gxy, y=self.R_y)
        return bx.Problem(
            upper=upper,
            lower=lower,
            x0=cast(self.x0),
            y0=cast(self.y0),
            y0_per_task=True,
            tasks=cast(self.theta),
            upper_data=bx.per_task({"r": cast(self.r), "q": cast(self.q), "c": cast(self.c)}),
            lower_data=bx.per_task({"a": cast(self.a), "k": cast(self.k)}),
            strong_convexity=self.lam,
            bounds=bounds,
        )


def upper(x, y, theta, batch):
    """f_i."""
    return jnp.mean(0.5 * (batch["r"] @ y - batch["c"]) ** 2 + theta / 2 * (batch["q"] @ x) ** 2)


def lower(x, y, theta, batch):
    """g_i."""
    weight = jax.nn.sigmoid(batch["k"] @ x)
    return jnp.mean(weight * jax.nn.softplus(-batch["a"] @ y)) + theta / 2 * jnp.sum(y**2)
