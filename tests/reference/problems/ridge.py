"""Penalties of a linear model with two features that tell and four that mislead."""

import numpy as np

from bilevax.problems import ridge

RNG = np.random.default_rng(0)
P, N = 6, 40
FEATURES = RNG.normal(size=(2, N, P))
TARGETS = FEATURES @ np.array([2.0, -1.0] + [0.0] * (P - 2)) + 0.5 * RNG.normal(size=(2, N))


def problem_of(loss="squared", form=np.asarray, **changed):
    """The problem of all rows, with its arguments changed."""
    labels = TARGETS if loss == "squared" else np.where(TARGETS > 0, 1.0, -1.0)
    given = {
        "train_features": form(FEATURES[0]), "train_labels": labels[0], "validation_features": form(FEATURES[1]),
        "validation_labels": labels[1], "loss": loss, "floor": 1e-3,
    }  # fmt: skip
    return ridge(**{**given, **changed})
