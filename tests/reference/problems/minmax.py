"""Three bilinear min-max problems with a concave term, free or in a set."""

import jax.numpy as jnp
import numpy as np

import bilevax as bx
from bilevax.problems import minmax

M, N, D, DY = 3, 8, 4, 2
RNG = np.random.default_rng(1)
B, ROWS = RNG.normal(size=(M, DY, D)), RNG.normal(size=(N, DY))
ROWS -= ROWS.mean(0)
LAMBDA = 1.5


def loss(x, y, task, batch):
    """yᵀ(B_i x + ζ) − λ/2 ‖y‖² + ½‖x − 1‖², so y_i* is the projection of B_i x/λ on Ω_i."""
    pushed = task @ x + jnp.mean(batch, axis=0)
    return y @ pushed - LAMBDA / 2 * (y @ y) + 0.5 * jnp.sum((x - 1) ** 2)


def problem_in(region):
    """The problem with y in a set, or anywhere for None."""
    return minmax(
        loss=loss, x0=jnp.full(D, 0.5), y0=jnp.zeros(DY), y0_per_task=False, tasks=B, data=bx.shared(ROWS),
        strong_concavity=LAMBDA, region=region,
    )  # fmt: skip
