"""Average precision, the area under the precision-recall curve, through a pairwise surrogate.

    min_x −(1/m) Σ_{b_i = 1} E_j[ℓ(s_j − s_i) 1(b_j = 1)] / E_j[ℓ(s_j − s_i)] + ridge/2 ‖x‖²,   s = score(x, a)

With the step function for ℓ the ratio is the precision at the score of the positive sample i, and F is minus the
average precision. Smooth stand-ins are ℓ(d) = 1/(1 + exp(−d/w)), which tends to the step function with w, and
max(0, w + d)². Both expectations of each positive sample are one lower problem (`bilevax.problems.compositional`), so a
step looks at a few positive samples and compares each with a few others.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from bilevax import arguments
from bilevax.bounds import Bounds
from bilevax.data import shared
from bilevax.problem import Problem
from bilevax.problems.composition import compositional
from bilevax.problems.labelled import both_classes, checked_labels, finite_rows
from bilevax.problems.words import check_function, name_in_errors, rename_in_errors
from bilevax.rows import as_rows

Score = Callable[[PyTree, Any], Float[Array, " batch"]]


def sigmoid(gap: Array, width: float) -> Array:
    """1/(1 + exp(−d/w))."""
    return jax.nn.sigmoid(gap / width)


def squared_hinge(gap: Array, width: float) -> Array:
    """max(0, w + d)²."""
    return jnp.maximum(0, width + gap) ** 2


SURROGATES = {"sigmoid": sigmoid, "squared_hinge": squared_hinge}
WIDTHS = {"sigmoid": 0.3, "squared_hinge": 1.0}


@dataclass(frozen=True)
class Pairs:
    """E_j[ℓ(s_j − s_i) 1(b_j = 1)] and E_j[ℓ(s_j − s_i)] of the positive samples i of a group, on drawn pairs."""

    score: Score
    loss: Callable[[Array, float], Array]
    width: float

    def __call__(self, x: PyTree, task: PyTree, batch: PyTree) -> Float[Array, "group 2"]:
        own = self.score(x, task["rows"])[:, None]

        def mean_loss(kind: str) -> Array:
            losses = self.loss(self.score(x, batch[kind])[None, :] - own, self.width)
            return losses @ batch[f"{kind} weight"] / losses.shape[1]

        positive, negative = mean_loss("positive"), mean_loss("negative")
        return jnp.stack([positive, positive + negative], axis=1)


def minus_precision(u: Float[Array, "group 2"], task: PyTree) -> Float[Array, ""]:
    """Minus the mean of u_1/u_2 over a group, with u_2 kept above what E[ℓ] is at least: its estimate may go below."""
    return -jnp.mean(task["weight"] * u[:, 0] / jnp.maximum(u[:, 1], task["floor"]))


@dataclass(frozen=True)
class Ridge:
    """ridge · penalty(x)."""

    penalty: Callable[[PyTree], Any]

    def __call__(self, x: PyTree, task: PyTree) -> Array:
        return task["ridge"] * self.penalty(x)


def half_squares(x: PyTree) -> Any:
    """½‖x‖²."""
    return 0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(x))


def _round_up(count: int) -> int:
    """A number of rows not much above, with few leading digits: problems of nearly the same size are one program."""
    unit = 2 ** max(0, count.bit_length() - 3)
    return -(-count // unit) * unit


def _pair_up(rows: Any, count: int) -> tuple[Any, np.ndarray]:
    """The rows, repeated until there are `count`, and weights that give each row the same share of the mean."""
    n = rows.shape[0]
    places = np.arange(count) % n
    return rows[places], count / n / np.bincount(places, minlength=n)[places]


def _group_rows(rows: Any, group: int, **numbers: float) -> dict[str, Any]:
    """The positive samples as tasks, `group` in each; the numbers belong to every task."""
    groups = -(-rows.shape[0] // group)
    repeated, weights = _pair_up(rows, groups * group)
    own = {"rows": as_rows(repeated), "weight": as_rows(weights)}
    tasks = jax.tree.map(lambda leaf: leaf.reshape(groups, group, *leaf.shape[1:]), own)
    return {**tasks, **{name: as_rows(np.full(groups, number)) for name, number in numbers.items()}}


def _check_score(score: Score, x0: PyTree, rows: Any) -> None:
    """Refuse a function that does not return one float for each row."""
    for n in (1, 2):
        with name_in_errors(f"score(x, rows), called with x0 and {n} of the features"):
            given = jax.tree.map(jnp.asarray, x0), as_rows(rows[np.arange(n) % rows.shape[0]])
            out = jax.eval_shape(lambda x, rows: score(x, rows), *given)
        if getattr(out, "shape", None) != (n,) or not jnp.issubdtype(out.dtype, jnp.floating):
            shown = f"shape {out.shape} of {out.dtype}" if hasattr(out, "shape") else type(out).__name__
            raise ValueError(f"score must return one float for each row; for {n} of them it returned {shown}.")


@arguments.known_keywords
def average_precision(
    *,
    features: Any,
    labels: Any,
    score: Score,
    x0: PyTree,
    surrogate: str = "sigmoid",
    width: float | None = None,
    group: int = 1,
    ridge: float = 0.0,
    penalty: Callable[[PyTree], Any] = half_squares,
    bounds: Bounds | None = None,
) -> Problem:
    """Minus the average precision of the ranking by score(x, ·), one lower problem for each positive sample.

    - `features`: (samples, features), an array or a scipy.sparse matrix; `labels`: −1 or +1.
    - `score(x, rows)`: the scores of some rows, for example `rows @ x`; rows of a sparse matrix come as
      `bilevax.rows.SparseRows`, which `@` takes too. `x0`: where its parameters start.
    - `surrogate`: "sigmoid" or "squared_hinge" for ℓ; `width`: its w, by default 0.3 and 1. A smaller one is closer to
      the average precision and harder to minimise; it is in units of the scores.
    - `group`: positive samples in a lower problem. With one, as the paper has it, each is compared with samples of its
      own; a larger group shares them, so that a sample is scored once for all of its group.
    - `ridge`: added is ridge · `penalty(x)`, by default ½‖x‖².

    A sample that is drawn for a lower problem is a pair of a positive and a negative one: with rare positives a plain
    draw would hold none of them. Rows are repeated, with weights that undo it, until there are as many of both kinds,
    and a round number of them. Source: Guo, Hu, Zhang, Yang, the introduction's equation for AUPRC, after Qi, Luo, Xu,
    Ji, Yang 2021 (SOAP).
    """
    arguments.one_of("surrogate", surrogate, tuple(SURROGATES))
    width = WIDTHS[surrogate] if width is None else width
    dtype = jnp.result_type(float)
    right = f"a number > 0, and not 0 or infinite as {dtype}"
    arguments.number("width", width, right, lambda v: bool(0 < np.asarray(v).astype(dtype) < np.inf))
    arguments.count("group", group)
    arguments.number("ridge", ridge, "a finite number >= 0", lambda v: 0 <= v < math.inf)
    check_function("score", score, "x, rows")
    check_function("penalty", penalty, "x")
    arguments.finite_leaves("x0", x0)
    A, b = finite_rows("features", features), checked_labels("", features, labels)
    if b.shape[1] != 1:
        raise ValueError(f"labels must be one column, -1 or +1 for each sample; got {b.shape[1]} columns.")
    positive = both_classes(b)[:, 0]
    _check_score(score, x0, A)
    loss, n = SURROGATES[surrogate], len(positive)
    groups = {"positive": A[positive], "negative": A[~positive]}
    count = _round_up(max(group.shape[0] for group in groups.values()))
    data: dict[str, Any] = {}
    for kind, rows in groups.items():
        repeated, weights = _pair_up(rows, count)
        data |= {kind: as_rows(repeated), f"{kind} weight": as_rows(weights * rows.shape[0] / n)}
    floor = float(loss(jnp.zeros(()), float(width))) / n  # ℓ of a sample with itself is part of E[ℓ]
    with rename_in_errors(inner="score", penalty="ridge · penalty(x)"):
        return compositional(
            outer=minus_precision,
            inner=Pairs(score, loss, float(width)),
            x0=x0,
            tasks=_group_rows(
                groups["positive"], _round_up(min(int(group), int(positive.sum()))), floor=floor, ridge=float(ridge)
            ),
            data=shared(data),
            penalty=Ridge(penalty),
            bounds=bounds,
        )
