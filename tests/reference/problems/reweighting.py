"""Re-weighting of few sparse rows, with one model or several."""

import numpy as np
import scipy.sparse as sp

import bilevax as bx


def problem_of(m=1, n=30, p=5, form="dense", **settings):
    """A small re-weighting problem with sparse features and m temperatures."""
    rng = np.random.default_rng(m)
    A = sp.random(n + 12, p, density=0.6, random_state=rng, format="csr")
    b = np.sign(A @ rng.normal(size=p) + 0.3 * rng.normal(size=n + 12))
    b[b == 0] = 1
    return bx.problems.reweighting(
        train_features=A[:n], train_labels=b[:n], trusted_features=A[n:], trusted_labels=b[n:], ridge=0.2,
        temperatures=None if m == 1 else rng.uniform(0.5, 2, m), rows=form, **settings,
    )  # fmt: skip
