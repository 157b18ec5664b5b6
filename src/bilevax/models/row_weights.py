"""How much to believe each given label, learned as a small function of what is known of it: a bilevel problem.

    min over θ, λ of the mean loss of y*(θ, λ) on trusted rows + ‖θ − θ₀‖²/(2 t s²),
    y*(θ, λ) = argmin_y mean over rows of w_j ℓ(y; z_j, b_j) + (1 − w_j) Σ_c q_jc ℓ(y; z_j, c) + e^λ/2 ‖y‖²,
    w_j = σ(θᵀφ_j)

φ_j says of row j's label b_j: the log-odds that it is right, as a first look has them; how improbable it is out of
fold; by how much another class is more probable; and which class it is. q_j are the probabilities of the classes if b_j
is wrong. ℓ is the softmax loss of a linear model on z_j: columns of the table and log-probabilities. θ₀ takes the first
look for what it says. So the number of unknowns is that of the classes and a few, which some tens of trusted rows can
bear; a weight for each row is more than even a thousand can (`bilevax.problems.reweighting` has that one).
Compare Shu and others, Meta-Weight-Net, NeurIPS 2019.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Array, Float
from scipy.special import expit
from sklearn.decomposition import TruncatedSVD
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bilevax.algorithms.implicit import implicit
from bilevax.data import shared
from bilevax.models.opinions import class_probabilities, widen
from bilevax.problem import Problem
from bilevax.run.solve import solve

MANY, MOST_COLUMNS = 4096, 128  # rows and columns that the problem looks at
STEPS, SPREAD = 12, 0.5
FIRST_RIDGE, LEAST_RIDGE = 3e-3, 1e-4
LEAST_SHARE = 0.02  # of a class in a row that it is trained on
FAR = 8.0
METHOD = implicit(descents=1)


class Labels(NamedTuple):
    """What is known of given labels: φ, (rows, features); q, (rows, classes); and the labels themselves."""

    known: np.ndarray
    otherwise: np.ndarray
    given: np.ndarray


def describe_labels(shares: np.ndarray, right: np.ndarray, given: np.ndarray) -> Labels:
    """φ and q from out-of-fold probabilities and a first look at P(right class)."""
    places, num_classes = np.arange(len(given)), right.shape[1]
    own = np.clip(right[places, given], 1e-6, 1 - 1e-6)
    loss = -np.log(shares[places, given])
    others = np.where(np.eye(num_classes, dtype=bool)[given], 0.0, shares).max(1)
    margin = np.log(others) + loss
    known = [np.clip(np.log(own) - np.log1p(-own), -FAR, FAR), np.clip(loss, 0, FAR), np.clip(margin, -FAR, FAR)]
    otherwise = np.where(np.eye(num_classes, dtype=bool)[given], 0.0, right) + 1e-12
    otherwise = otherwise * (1 - np.eye(num_classes)[given])
    return Labels(
        np.column_stack([*known, np.eye(num_classes)[given]]), otherwise / otherwise.sum(1, keepdims=True), given
    )


def _softmax_loss(y: Float[Array, "p K"], z: Float[Array, "n p"], targets: Float[Array, "n K"]) -> Float[Array, " n"]:
    scores = z @ y
    return jax.scipy.special.logsumexp(scores, axis=1) - jnp.sum(targets * scores, axis=1)


def _targets(theta: Float[Array, " f"], batch: dict[str, Array]) -> Float[Array, "n K"]:
    weight = jax.nn.sigmoid(batch["known"] @ theta)[:, None]
    return weight * batch["given"] + (1 - weight) * batch["otherwise"]


def _lower(x: dict[str, Array], y: Array, i: Any, batch: dict[str, Array]) -> Array:
    ridge = LEAST_RIDGE + jnp.exp(x["log_ridge"])
    losses = _softmax_loss(y, batch["z"], _targets(x["theta"], batch))
    return jnp.mean(batch["counts"] * losses) + 0.5 * ridge * jnp.sum(y**2)


def _upper(x: dict[str, Array], y: Array, i: Any, batch: dict[str, Array]) -> Array:
    away = jnp.sum((x["theta"] - _first_theta(len(x["theta"]))) ** 2) / SPREAD**2
    away += (x["log_ridge"] - np.log(FIRST_RIDGE)) ** 2
    losses = _softmax_loss(y, batch["z"], batch["targets"])
    return jnp.mean(batch["counts"] * losses) + 0.5 * away * jnp.mean(batch["counts"] * batch["prior"])


def _first_theta(size: int) -> np.ndarray:
    """θ₀: the first look is taken for what it says."""
    return np.eye(1, size)[0]


def make_problem(z: np.ndarray, labels: Labels, z_trusted: np.ndarray, codes: np.ndarray) -> Problem:
    """The problem of the module, on these rows.

    Rows that do not count fill both tables up to a power of two: so a program serves tables of about the same size.
    """
    num_classes, dtype = labels.otherwise.shape[1], jnp.result_type(float)
    rows = {"z": z, "known": labels.known, "otherwise": labels.otherwise, "given": np.eye(num_classes)[labels.given]}
    trusted = {"z": z_trusted, "targets": np.eye(num_classes)[codes], "prior": np.full(len(codes), 1 / len(codes))}
    lower_data, upper_data = (
        shared(jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), _fill_up(part))) for part in (rows, trusted)
    )
    first = {"theta": _first_theta(labels.known.shape[1]), "log_ridge": np.log(FIRST_RIDGE)}
    return Problem(
        upper=_upper, lower=_lower, x0=jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), first),
        y0=jnp.zeros((z.shape[1], num_classes), dtype), strong_convexity=LEAST_RIDGE,
        lower_data=lower_data, upper_data=upper_data,
    )  # fmt: skip


def _fill_up(part: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rows of zeros behind the others; `counts` makes the mean over all the mean over those that count."""
    length = len(part["z"])
    full = 2 ** int(np.ceil(np.log2(max(length, 64))))
    filled = {name: np.concatenate([leaf, np.zeros((full - length, *leaf.shape[1:]))]) for name, leaf in part.items()}
    return {**filled, "counts": np.where(np.arange(full) < length, full / length, 0.0)}


class Columns:
    """z: standardised columns of a table, the strongest directions where they are many, and log-probabilities."""

    def __init__(self, X: Any, seed: int, categories: Sequence[int] = ()):
        scaler, first = StandardScaler(with_mean=not sp.issparse(X)), widen(categories)
        wide = (first[0].fit_transform(X) if first else X).shape[1] > MOST_COLUMNS
        fewer = [TruncatedSVD(MOST_COLUMNS, random_state=seed), StandardScaler()] if wide else []
        self.transformer = make_pipeline(*first, scaler, *fewer).fit(X)

    def __call__(self, X: Any, shares: np.ndarray) -> np.ndarray:
        """z of rows with these out-of-fold probabilities."""
        logs = np.log(shares)
        found = self.transformer.transform(X)
        dense = found.toarray() if sp.issparse(found) else found
        return np.column_stack([np.clip(dense, -FAR, FAR), logs - logs.mean(1, keepdims=True), np.ones(len(logs))])


class RowWeights(NamedTuple):
    """What was learned: θ, the ridge, and w of each row."""

    theta: np.ndarray
    ridge: float
    weights: np.ndarray


def learn_weights(z: np.ndarray, labels: Labels, z_trusted: np.ndarray, codes: np.ndarray, seed: int) -> RowWeights:
    """Solve the problem, on some of the rows where they are many."""
    some = np.sort(np.random.default_rng(seed).permutation(len(z))[:MANY])
    problem = make_problem(z[some], Labels(*(part[some] for part in labels)), z_trusted, codes)
    found = solve(problem, METHOD, steps=STEPS, metrics=None, progress=False).x
    theta = np.asarray(found["theta"], float)
    return RowWeights(theta, LEAST_RIDGE + float(np.exp(found["log_ridge"])), expit(labels.known @ theta))


def train_on_weighted_rows(z: np.ndarray, labels: Labels, learned: RowWeights, seen: np.ndarray) -> Any:
    """The linear model of the lower problem on these rows, as a function that gives probabilities for others."""
    num_classes, weights = labels.otherwise.shape[1], learned.weights[seen, None]
    targets = weights * np.eye(num_classes)[labels.given[seen]] + (1 - weights) * labels.otherwise[seen]
    row, code = np.nonzero(targets > LEAST_SHARE)
    model = LogisticRegression(C=1 / (learned.ridge * len(seen)), max_iter=300, fit_intercept=False)
    model.fit(z[seen][row], code, sample_weight=targets[row, code])
    return lambda rows: class_probabilities(model, rows, num_classes)
