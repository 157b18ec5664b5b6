"""Areas under the ROC curves of many binary tasks that share a representation, as one min-max problem.

For the squared loss the area of task i, with scores s = w_iᵀ h(a), is had without pairs, through one dual variable α_i:

    min over (h, w_i, a_i, b_i) max over α_i of
        E[(s − a_i)² | +] + E[(s − b_i)² | −] + 2(1 + α_i)(E[s | −] − E[s | +]) − α_i²

which is E[(1 − s₊ + s₋)²] − 1 over pairs of a positive and a negative sample (Ying, Wen, Lyu 2016). A step looks at a
few of the tasks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Array, Float, PyTree

from bilevax import arguments
from bilevax.data import shared
from bilevax.problem import Problem
from bilevax.problems.minmax import minmax
from bilevax.rows import sparse_rows

Represent = Callable[[PyTree, Any], Float[Array, "batch k"]]


@dataclass(frozen=True)
class AreaLoss:
    """The loss of one task above, divided by nothing: positive samples weigh 1/p_i, negative ones 1/(1 − p_i)."""

    represent: Represent
    ridge: float

    def __call__(self, x: PyTree, y: Float[Array, ""], task: PyTree, batch: PyTree) -> Float[Array, ""]:
        i, share = task["index"], task["share"]
        scores = self.represent(x["body"], batch["rows"]) @ x["heads"][i]
        positive = batch["positive"][:, i]
        above, below = positive / share, (1 - positive) / (1 - share)
        (a, b), gap = x["means"][i], jnp.mean(below * scores) - jnp.mean(above * scores)
        spread = jnp.mean(above * (scores - a) ** 2) + jnp.mean(below * (scores - b) ** 2)
        squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(x["body"])) + jnp.sum(x["heads"][i] ** 2)
        return spread + 2 * (1 + y) * gap - y**2 + self.ridge / 2 * squares


def _shares(positive: np.ndarray) -> np.ndarray:
    shares = positive.mean(0)
    lonely = np.flatnonzero((shares == 0) | (shares == 1))
    if len(lonely):
        raise ValueError(f"labels must hold both -1 and +1 in every column; column {lonely[0]} does not.")
    return shares


@arguments.known_keywords
def auc(
    *,
    features: Any,
    labels: Any,
    represent: Represent,
    body0: PyTree,
    heads0: Float[Any, "m k"],
    ridge: float = 0.0,
) -> Problem:
    """One linear head for each of m binary tasks on a shared representation, for the mean area under their ROC curves.

    - `features`: (samples, features), an array or a scipy.sparse matrix; `labels`: −1 or +1, a column for each task.
    - `represent(body, rows)`: the representation (batch, k) of some rows; `body0`: its first parameters.
    - `heads0`: the first head of each task, (m, k); `ridge`: of body and heads.

    x is {"body", "heads", "means"}; means are a_i and b_i. Every task draws from all samples; positive and negative
    ones are weighed so that both kinds count one half. Source: Guo, Hu, Zhang, Yang, the introduction's multi-task deep
    AUC maximization; Ying, Wen, Lyu 2016 for one task.
    """
    arguments.number("ridge", ridge, "a number >= 0", lambda v: v >= 0)
    A = features.tocsr() if sp.issparse(features) else arguments.floats("features", features, "an array of numbers")
    b, heads = arguments.floats("labels", labels, "-1 or +1"), arguments.floats("heads0", heads0, "an array of numbers")
    b = b[:, None] if b.ndim == 1 else b
    if len(A.shape) != 2 or b.ndim != 2 or len(b) != A.shape[0] or heads.ndim != 2 or len(heads) != b.shape[1]:
        raise ValueError(
            "features must be (samples, features), labels (samples, tasks) and heads0 (tasks, k); got shapes "
            f"{A.shape}, {b.shape} and {heads.shape}."
        )
    if not np.isin(b, (-1, 1)).all():
        raise ValueError(f"labels must be -1 or +1; got {b[~np.isin(b, (-1, 1))][0]:g}.")
    if not np.isfinite(A.data if sp.issparse(A) else A).all():
        raise ValueError("features must be finite; some of the values are not.")
    dtype, positive = jnp.result_type(float), b == 1
    shares, m = _shares(positive), b.shape[1]
    rows = sparse_rows(A, dtype) if sp.issparse(A) else jnp.asarray(A, dtype)
    return minmax(
        loss=AreaLoss(represent, float(ridge)),
        x0={"body": body0, "heads": jnp.asarray(heads, dtype), "means": jnp.zeros((m, 2), dtype)},
        y0=jnp.zeros((), dtype),
        y0_per_task=False,
        tasks={"index": jnp.arange(m, dtype=jnp.int32), "share": jnp.asarray(shares, dtype)},
        data=shared({"rows": rows, "positive": jnp.asarray(positive, dtype)}),
        strong_concavity=2.0,
    )
