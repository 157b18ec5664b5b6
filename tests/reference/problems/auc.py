"""Multi-task AUC of three tasks that share their rows, in the layers of a small network."""

import jax.numpy as jnp
import numpy as np

from bilevax.problems import auc

RNG = np.random.default_rng(0)
M, N, P, K = 3, 30, 4, 2
FEATURES = RNG.normal(size=(N, P))
LABELS = np.where(FEATURES @ RNG.normal(size=(P, M)) + RNG.normal(size=(N, M)) > 0.7, 1.0, -1.0)
BODY, HEADS = RNG.normal(size=(P, K)), RNG.normal(size=(M, K))


def represent(body, rows):
    """One layer."""
    return jnp.tanh(rows @ body)


def problem_of(form=np.asarray, ridge=0.0, **changed):
    """The problem of all rows, with its arguments changed."""
    given = {
        "features": form(FEATURES), "labels": LABELS, "represent": represent, "body0": jnp.asarray(BODY),
        "heads0": HEADS,
    }  # fmt: skip
    return auc(ridge=ridge, **{**given, **changed})
