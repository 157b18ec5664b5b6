"""Shrunken means: how far to pull the mean of each coordinate towards zero, learned over many small samples.

    g_i(x, y; a) = ½‖y − a‖² + ½ Σ_k e^(x_k) y_k²        the mean of task i, with one penalty for each coordinate
    f_i(x, y; b) = ½‖y − b‖²                             on other samples of the same task

So y_i*(x) = ā_i/(1 + e^x), ∇²yy g = diag(1 + e^x) ⪰ I, and F is known in closed form. A skeleton: copy it and put your
own losses here.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

import bilevax as bx
from bilevax import arguments


@dataclass(frozen=True)
class ShrunkenMeans:
    """The problem and its closed form."""

    problem: bx.Problem
    train: Float[Array, "m n d"]
    validation: Float[Array, "m k d"]

    def lower_solution(self, x: Float[Array, " d"]) -> Float[Array, "m d"]:
        """y_i*(x) = ā_i/(1 + e^x)."""
        return self.train.mean(1) / (1 + jnp.exp(x))[None, :]

    def objective(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """F(x)."""
        gaps = self.lower_solution(x)[:, None, :] - self.validation
        return 0.5 * jnp.mean(jnp.sum(gaps**2, axis=-1))

    @property
    def solution(self) -> Float[Array, " d"]:
        """The minimiser of F: 1/(1 + e^x) = Σ_i ā_i b̄_i / Σ_i ā_i², where that lies between 0 and 1."""
        a, b = self.train.mean(1), self.validation.mean(1)
        shrink = jnp.sum(a * b, axis=0) / jnp.sum(a * a, axis=0)
        return jnp.log(1 / shrink - 1)


def _lower(x: Array, y: Array, task: Array, batch: Array) -> Array:
    fit = jnp.mean(jnp.sum((y[None, :] - batch) ** 2, axis=1))
    return 0.5 * fit + 0.5 * jnp.sum(jnp.exp(x) * y**2)


def _upper(x: Array, y: Array, task: Array, batch: Array) -> Array:
    return 0.5 * jnp.mean(jnp.sum((y[None, :] - batch) ** 2, axis=1))


@arguments.known_keywords
def shrunken_means(*, train: Any, validation: Any) -> ShrunkenMeans:
    """Learn one penalty for each coordinate; `train` is (m, n, d), `validation` (m, k, d): samples of m tasks."""
    train, validation = jnp.asarray(train, float), jnp.asarray(validation, float)
    for name, samples in [("train", train), ("validation", validation)]:
        if samples.ndim != 3 or samples.shape[::2] != train.shape[::2]:
            raise ValueError(
                f"{name} must be of shape (tasks, samples, coordinates), with as many tasks and coordinates as train, "
                f"which has shape {train.shape}; got {samples.shape}."
            )
    dim = train.shape[2]
    problem = bx.Problem(
        upper=_upper,
        lower=_lower,
        x0=jnp.zeros(dim),
        y0=jnp.zeros(dim),
        y0_per_task=False,
        lower_data=bx.per_task(train),
        upper_data=bx.per_task(validation),
        strong_convexity=1.0,
    )
    return ShrunkenMeans(problem, train, validation)


if __name__ == "__main__":
    import numpy as np

    rng = np.random.default_rng(0)
    means = rng.normal(size=(200, 1, 3)) * [0.3, 0.6, 1.2]  # the smaller the means, the more shrinking helps
    samples = means + rng.normal(size=(200, 10, 3))
    truth = shrunken_means(train=samples[:, :5], validation=samples[:, 5:])
    print(bx.check(truth.problem))
    algorithm = bx.rsvrb(upper_step=0.2, lower_step=0.05, mixing=0.05, tasks_per_step=20, batch_size=None)
    result = bx.solve(truth.problem, algorithm, steps=5000)
    print(result, "\nx =", result.x, "\nin closed form", truth.solution)
