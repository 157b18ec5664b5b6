"""Five linear regressions that adapt one start."""

import jax.numpy as jnp
import numpy as np

import bilevax as bx
from bilevax.problems import meta_learning

M, N, P = 5, 6, 3
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(2, M, N, P))
TRUTHS = np.array([1.0, -2.0, 0.5]) + 0.3 * RNG.normal(size=(M, P))
RIDGE = 0.7


def linear_loss(parameters, task, batch):
    """Half the mean squared error."""
    return 0.5 * jnp.mean((batch["rows"] @ parameters["w"] - batch["targets"]) ** 2)


def samples(which):
    """Rows of every task, 0 to adapt with and 1 to judge by."""
    return bx.per_task({"rows": ROWS[which], "targets": np.einsum("mnp,mp->mn", ROWS[which], TRUTHS)})


def linear(**more):
    """The problem."""
    given = {"loss": linear_loss, "x0": {"w": jnp.zeros(P)}, "support": samples(0), "query": samples(1)}
    return meta_learning(**given, ridge=RIDGE, **more)
