"""Areas under the ROC curves of many binary tasks that share a representation, as one min-max problem.

For the squared loss the area of task i, with scores s = w_iᵀ h(a), is had without pairs, through one dual variable α_i:

    min over (h, w_i, a_i, b_i) max over α_i of
        E[(s − a_i)² | +] + E[(s − b_i)² | −] + 2(1 + α_i)(E[s | −] − E[s | +]) − α_i²

which is E[(1 − s₊ + s₋)²] − 1 over pairs of a positive and a negative sample (Ying, Wen, Lyu 2016). A step looks at a
few of the tasks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from bilevax import arguments
from bilevax.data import shared
from bilevax.problem import Problem
from bilevax.problems.labelled import both_classes, checked_labels, finite_rows, real_numbers
from bilevax.problems.saddle import minmax
from bilevax.problems.words import check_function, rename_in_errors
from bilevax.rows import as_rows

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
    arguments.number("ridge", ridge, "a finite number >= 0", lambda v: 0 <= v < math.inf)
    check_function("represent", represent, "body, rows")
    arguments.finite_leaves("body0", body0)
    A, b = finite_rows("features", features), checked_labels("", features, labels)
    heads, m = real_numbers("heads0", heads0), b.shape[1]
    if heads.ndim != 2 or len(heads) != m:
        raise ValueError(f"heads0 must be (tasks, k), with a row for each of {m} tasks; got shape {heads.shape}.")
    positive, dtype = both_classes(b), jnp.result_type(float)
    with rename_in_errors(loss="represent(body0, features) @ heads0", x0="body0 and heads0"):
        return minmax(
            loss=AreaLoss(represent, float(ridge)),
            x0={"body": body0, "heads": jnp.asarray(heads, dtype), "means": jnp.zeros((m, 2), dtype)},
            y0=jnp.zeros((), dtype),
            y0_per_task=False,
            tasks={"index": jnp.arange(m, dtype=jnp.int32), "share": jnp.asarray(positive.mean(0), dtype)},
            data=shared({"rows": as_rows(A), "positive": jnp.asarray(positive, dtype)}),
            strong_concavity=2.0,
        )
