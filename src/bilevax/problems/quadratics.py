"""Quadratic bilevel problems with a closed form and noise of known variance: where truth is known."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bilevax import arguments, device
from bilevax.bounds import Bounds
from bilevax.problem import Problem
from bilevax.samples import Shared


@dataclass(frozen=True)
class Quadratic:
    """A problem whose every quantity is known in closed form.

        g_i(x, y; ζ) = ½ yᵀ(A_i + s_ζ I) y − yᵀ((B_i + s'_ζ B_i) x + c_i + n_ζ)
        f_i(x, y; ξ) = ½ ‖y − b_i‖² + r/2 ‖x‖² + yᵀn_ξ + xᵀn'_ξ

    with noises of mean zero and the given variance, so y_i*(x) = A_i⁻¹(B_i x + c_i).
    """

    problem: Problem
    A: Float[Array, "m dy dy"]
    B: Float[Array, "m dy d"]
    c: Float[Array, "m dy"]
    b: Float[Array, "m dy"]
    ridge: float

    def lower_solution(self, x: Float[Array, " d"]) -> Float[Array, "m dy"]:
        """y_i*(x) = A_i⁻¹(B_i x + c_i), for all tasks."""
        right = jnp.einsum("mij,j->mi", self.B, x) + self.c
        return jnp.linalg.solve(self.A, right[..., None])[..., 0]

    def objective(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """F(x)."""
        gaps = self.lower_solution(x) - self.b
        return 0.5 * jnp.mean(jnp.sum(gaps**2, axis=1)) + 0.5 * self.ridge * jnp.sum(x**2)

    def gradient(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """∇F(x) = (1/m) Σ_i B_iᵀ A_i⁻¹ (y_i* − b_i) + r x."""
        gaps = self.lower_solution(x) - self.b
        h = jnp.linalg.solve(self.A, gaps[..., None])[..., 0]
        return jnp.mean(jnp.einsum("mij,mi->mj", self.B, h), axis=0) + self.ridge * x

    @property
    def solution(self) -> Float[Array, " d"]:
        """The minimiser of F: ∇F is affine, so one linear solve."""
        inverse_B = jnp.linalg.solve(self.A, self.B)
        hessian = jnp.mean(jnp.einsum("mij,mik->mjk", inverse_B, inverse_B), axis=0)
        hessian += self.ridge * jnp.eye(hessian.shape[0], dtype=hessian.dtype)
        return -jnp.linalg.solve(hessian, self.gradient(jnp.zeros(hessian.shape[0], hessian.dtype)))


def _lower(x: Array, y: Array, task: dict[str, Array], batch: dict[str, Array]) -> Array:
    mean = jax.tree.map(partial(jnp.mean, axis=0), batch)
    target = (1 + mean["cross"]) * (task["B"] @ x) + task["c"] + mean["push"]
    return 0.5 * y @ (task["A"] @ y) + 0.5 * mean["scale"] * (y @ y) - y @ target


def _upper(x: Array, y: Array, task: dict[str, Array], batch: dict[str, Array]) -> Array:
    push_y, push_x = jnp.mean(batch["push_y"], axis=0), jnp.mean(batch["push_x"], axis=0)
    return 0.5 * jnp.sum((y - task["b"]) ** 2) + 0.5 * task["ridge"] * (x @ x) + y @ push_y + x @ push_x


def _noise(rng: np.random.Generator, shapes: dict[str, tuple[int, ...]], variance: float, size: int) -> Shared:
    """Samples whose mean is exactly zero and whose variance is exactly the given one, in every coordinate."""
    held: dict[str, Any] = {}
    for name, shape in shapes.items():
        values = rng.normal(size=(size, *shape))
        values -= values.mean(axis=0)
        held[name] = jnp.asarray(values * np.sqrt(variance) / values.std(axis=0))
    return Shared(held, size)


@arguments.known_keywords
def quadratic(
    *,
    num_tasks: int = 1,
    dim_x: int = 5,
    dim_y: int = 4,
    noise: float = 1.0,
    num_samples: int = 1024,
    strong_convexity: float = 0.5,
    smoothness: float = 2.0,
    ridge: float = 0.1,
    bounds: Bounds | None = None,
    seed: int = 0,
) -> Quadratic:
    """A random quadratic problem with ∇²yy g_i between λ and L_g, and noise of variance `noise`.

    Every derivative that an algorithm samples is noisy: the variance of each noise coordinate over the
    `num_samples` samples is `noise`, its mean exactly zero, so the closed form is exact for the problem as
    sampled.
    """
    for name, count in [("num_tasks", num_tasks), ("dim_x", dim_x), ("dim_y", dim_y)]:
        arguments.count(name, count)
    arguments.count("num_samples", num_samples, least=2)
    arguments.positive("strong_convexity", strong_convexity)
    for name, value in [("noise", noise), ("ridge", ridge)]:
        arguments.number(
            name, value, "a finite number >= 0", lambda v: bool(0 <= v < jnp.finfo(jnp.result_type(float)).max)
        )
    arguments.number(
        "smoothness", smoothness, "finite and at least strong_convexity", lambda v: strong_convexity <= v < math.inf
    )
    arguments.count("seed", seed, least=0)
    numbers = num_tasks * dim_y * (dim_x + dim_y), num_samples * (dim_x + dim_y)
    sizes = {"num_tasks · dim_y · (dim_x + dim_y)": 8 * numbers[0], "num_samples · (dim_x + dim_y)": 8 * numbers[1]}
    device.require("quadratic", sizes, "Ask for fewer tasks, samples or variables.")
    rng = np.random.default_rng(seed)
    rotations = np.linalg.qr(rng.normal(size=(num_tasks, dim_y, dim_y)))[0]
    eigenvalues = np.linspace(float(strong_convexity), float(smoothness), dim_y)
    A = (rotations * eigenvalues) @ rotations.transpose(0, 2, 1)
    B = rng.normal(size=(num_tasks, dim_y, dim_x)) / np.sqrt(dim_x)
    c, b = rng.normal(size=(2, num_tasks, dim_y))
    problem = Problem(
        upper=_upper,
        lower=_lower,
        x0=jnp.asarray(rng.normal(size=dim_x)),
        y0=jnp.zeros(dim_y),
        y0_per_task=False,
        tasks={"A": A, "B": B, "c": c, "b": b, "ridge": np.full(num_tasks, float(ridge))},
        upper_data=_noise(rng, {"push_y": (dim_y,), "push_x": (dim_x,)}, float(noise), num_samples),
        lower_data=_noise(rng, {"push": (dim_y,), "scale": (), "cross": ()}, float(noise), num_samples),
        strong_convexity=strong_convexity,
        bounds=bounds,
    )
    return Quadratic(problem, jnp.asarray(A), jnp.asarray(B), jnp.asarray(c), jnp.asarray(b), float(ridge))
