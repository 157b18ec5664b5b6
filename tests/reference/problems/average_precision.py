"""Average precision of a linear score on two dozen rows."""

import jax.numpy as jnp
import numpy as np

from bilevax.problems import average_precision

RNG = np.random.default_rng(0)
P, N = 3, 23
FEATURES = RNG.normal(size=(N, P)) * (RNG.random((N, P)) < 0.7)
LABELS = np.where(np.arange(N) % 4 == 0, 1.0, -1.0)
X = jnp.asarray([0.4, -0.7, 1.1])


def linear(x, rows):
    """Scores of a linear model."""
    return rows @ x


def problem_of(features=FEATURES, labels=LABELS, **changed):
    """The problem of all rows, with its arguments changed."""
    return average_precision(**{"features": features, "labels": labels, "score": linear, "x0": jnp.zeros(P), **changed})
