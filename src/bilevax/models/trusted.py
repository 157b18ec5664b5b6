"""A classifier that learns how much to trust each training row, from a few rows that are trusted."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import svds
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_array, check_is_fitted

from bilevax import arguments
from bilevax.algorithms.contract import Algorithm
from bilevax.algorithms.rsvrb import rsvrb
from bilevax.exact import evaluation
from bilevax.models.base import (
    check_labels,
    check_training,
    explain_rows,
    probabilities,
    random_numbers,
    read_rows,
    run,
)
from bilevax.problem import Problem
from bilevax.problems import reweighting

TRUSTED_SHARE = 0.25  # the share of rows that are taken for trusted where none are given
TASKS_PER_STEP = 5


class TrustedReweighter(ClassifierMixin, BaseEstimator):
    """Logistic regression on weighted rows; the weights are learned so that it does well on trusted rows.

        min_x mean over trusted of ℓ(aᵀy_c*(x), b_c), meaned over classes c,
        y_c*(x) = argmin_y mean over training of σ(x_j) ℓ(a_jᵀy, b_jc) + ridge/2 ‖y‖²

    Rows with wrong labels, or from elsewhere, end with small weights. One model for each class against the rest (one in
    all for two classes); all share the weights. RSVRB looks at a few of the classes in a step.

    - `ridge`: λ, on standardised features; `steps`, `batch_size`: of the method.
    - `upper_step`: how fast weights move, in units of the number of rows; `mixing`: weight of fresh samples.
    - `random_state`: of the draws; `verbose`: a progress bar on stderr.

    Fitted: `weights_` (between 0 and 1, one for each training row), `suspicion_rank_` (1 is the row to look at first),
    `classes_`, `coef_` and `intercept_` (of standardised features), `trace_` (F as it fell).
    Source: Guo, Hu, Zhang, Yang 2021, its experiments.
    """

    def __init__(
        self, *, ridge: float = 1e-2, steps: int = 1500, batch_size: int = 64, upper_step: float = 0.3,
        mixing: float = 0.05, random_state: Any = None, verbose: bool = False,
    ):  # fmt: skip
        self.ridge = ridge
        self.steps = steps
        self.batch_size = batch_size
        self.upper_step = upper_step
        self.mixing = mixing
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        """Dense or sparse rows."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any, X_trusted: Any = None, y_trusted: Any = None) -> "TrustedReweighter":
        """Train on rows X with labels y that may be wrong, and on trusted rows.

        Without trusted rows a quarter of the rows, drawn at random, are taken for trusted: then the rows that are
        found suspicious are those that disagree with the others.
        """
        check_training(self)
        for name in ("upper_step", "ridge"):
            arguments.positive(name, getattr(self, name))
        rng = random_numbers(self.random_state)
        X, y = read_rows(self, X, y)
        check_labels(y)
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            raise ValueError(f"y must hold at least two classes; got one class, {self.classes_[0]!r}.")
        trusted, trusted_y = self._trusted_rows(X, y, X_trusted, y_trusted, rng)
        self.scaler_ = StandardScaler(with_mean=not sp.issparse(X)).fit(X)
        problem = reweighting(
            train_features=self.scaler_.transform(X), train_labels=self._signs(y),
            trusted_features=self.scaler_.transform(trusted), trusted_labels=self._signs(trusted_y), ridge=self.ridge,
        )  # fmt: skip
        result = run(
            problem, self._algorithm(problem, self.scaler_.transform(X)), steps=self.steps,
            seed=int(rng.randint(2**31)), metrics=_objective, progress=bool(self.verbose),
        )  # fmt: skip
        models = np.asarray(evaluation.exact(problem, jnp.asarray(result.x)).y, float)
        self.coef_, self.intercept_ = models[:, :-1], models[:, -1]
        self.weights_ = probabilities(np.asarray(result.x, float))
        self.suspicion_rank_ = 1 + np.argsort(np.argsort(self.weights_, kind="stable"), kind="stable")
        self.trace_ = result.trace
        self.n_iter_ = result.steps
        return self

    def _trusted_rows(self, X: Any, y: np.ndarray, X_trusted: Any, y_trusted: Any, rng: Any) -> tuple[Any, np.ndarray]:
        """The trusted rows, checked; some of the training rows where there are none."""
        if (X_trusted is None) != (y_trusted is None):
            raise ValueError("X_trusted and y_trusted must be given together.")
        if X_trusted is None:
            places = rng.permutation(len(y))[: max(1, int(TRUSTED_SHARE * len(y)))]
            return X[places], y[places]
        with explain_rows("X_trusted", "y_trusted", X_trusted, y_trusted):
            trusted = check_array(X_trusted, accept_sparse="csr", dtype=np.float64, input_name="X_trusted")
            labels = np.asarray(y_trusted)
        if trusted.shape[1] != X.shape[1] or labels.shape != trusted.shape[:1]:
            raise ValueError(
                f"X_trusted must have the {X.shape[1]} columns of X, and y_trusted one label for each of its rows; got "
                f"shapes {trusted.shape} and {labels.shape}."
            )
        unseen = sorted(set(labels.tolist()) - set(self.classes_.tolist()), key=str)
        if unseen:
            raise ValueError(f"y_trusted holds labels that y does not: {', '.join(map(repr, unseen[:5]))}.")
        return trusted, labels

    def _signs(self, y: np.ndarray) -> np.ndarray:
        """±1, a column for each class; one column, for the second class, where there are two."""
        columns = self.classes_[1:] if len(self.classes_) == 2 else self.classes_
        return np.where(y[:, None] == columns[None, :], 1.0, -1.0)

    def _algorithm(self, problem: Problem, rows: Any) -> Algorithm:
        """RSVRB with steps that fit the size of the problem: 1/L_g for y, in units of the number of rows for x."""
        smoothness = self.ridge + 0.25 * (_largest_singular(rows) ** 2 / problem.dim_x + 1)
        tasks = min(TASKS_PER_STEP, problem.num_tasks)
        share = tasks / problem.num_tasks
        return rsvrb(
            upper_step=self.upper_step * problem.dim_x * share, lower_step=share / smoothness, mixing=self.mixing,
            tasks_per_step=tasks, batch_size=min(self.batch_size, problem.dim_x),
        )  # fmt: skip

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores of each class; of the second one alone where there are two."""
        check_is_fitted(self)
        X = read_rows(self, X, reset=False)
        scores = np.asarray(self.scaler_.transform(X) @ self.coef_.T) + self.intercept_
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any) -> np.ndarray:
        """σ(score) of each class, normalised over the classes."""
        scores = self.decision_function(X)
        scores = np.column_stack([-scores, scores]) if scores.ndim == 1 else scores
        shares = probabilities(scores)
        return shares / shares.sum(1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """The class with the highest score."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)]


def _objective(problem: Problem, variables: Any) -> dict[str, Any]:
    return {"objective": evaluation.objective(problem, variables.x, variables.y)}


def _largest_singular(rows: Any) -> float:
    """‖A‖; by Lanczos' method where A is large."""
    if rows.shape[0] * rows.shape[1] <= 2**20:
        return float(np.linalg.norm(rows.toarray() if sp.issparse(rows) else rows, 2))
    return float(svds(rows, k=1, return_singular_vectors=False, random_state=0)[0])
