"""Linear models with a penalty for each feature, or group of features, learned by validation folds."""

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp, softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.linear_model import LogisticRegression
from sklearn.utils.validation import check_is_fitted

from bilevax.models import fold_problem
from bilevax.models.base import check_labels, random_numbers
from bilevax.models.penalty_search import LOGISTIC_GRID, PenaltySearch
from bilevax.problem import Problem

ABSENT = -20.0  # score of a class without rows


class PenaltyRidge(RegressorMixin, PenaltySearch):
    """Ridge regression with a penalty for each feature, or group of features, learned by validation folds.

        y*(p) = argmin Σ (b − aᵀy − shift)² + Σ_j p_j y_j²,   p minimises the error of the folds plus a shrinkage

    Where few features tell something this is between ridge and lasso; where all tell the same it is ridge: the strength
    of the shrinkage is chosen on folds that the search for penalties does not see, and one common penalty is taken
    unless others are surely better. Costs some hundred fits of the plain model.

    - `groups`: one label for each column, columns of a label share a penalty; `None`: each column has its own.
    - `shrinkage`: s, how strongly log penalties are held to a common one, in s/2n Σ log(1 + d_j²); infinity is one
      penalty for all. "auto" takes the strongest of infinity, 3, 1 and 0.3 that is not surely worse than the best.
    - `cv`: the number of folds, drawn at random.
    - `standardize`: whether penalties are those of columns with variance one.
    - `steps`: of the search for penalties, at most; `random_state`: of the folds; `verbose`: losses of folds, on
      stderr or for a function.

    Fitted: `coef_` and `intercept_` (of the columns as given), `penalties_` (one for each column, as RidgeCV's
    alpha), `common_penalty_`, `shrinkage_`, `shrinkage_losses_` (of the folds, by strength).
    Sources: Bengio 2000, Pedregosa 2016 (penalties by gradient).

    >>> model = PenaltyRidge(random_state=0).fit(X, y)
    >>> model.penalties_.argsort()[:5]  # the columns that are held back least
    """

    def fit(self, X: Any, y: Any) -> "PenaltyRidge":
        """Learn penalties and coefficients from rows X and targets y."""
        self._check()
        random = random_numbers(self.random_state)
        X, y = fold_problem.read_dense(self, X, y, y_numeric=True, ensure_min_samples=2)
        self._learn(X, np.asarray(y, float), random)
        return self

    def _problem(self, Z: np.ndarray, y: np.ndarray, fold: np.ndarray, place: np.ndarray) -> Problem:
        inside = fold >= 0
        return fold_problem.quadratic_problem(Z[inside], y[inside], fold[inside], place, self.common_penalty_)

    def _refit(self, Z: np.ndarray, y: np.ndarray, penalties: np.ndarray) -> tuple[np.ndarray, Any]:
        middle, level = Z.mean(0), y.mean()
        A = Z - middle
        weights = np.linalg.solve(A.T @ A + np.diag(penalties), A.T @ (y - level))
        return weights, level - weights @ middle

    def _losses(self, model: tuple[np.ndarray, Any], Z: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (Z @ model[0] + model[1] - y) ** 2

    def predict(self, X: Any) -> Float[np.ndarray, " n"]:
        """aᵀy + shift of each row."""
        check_is_fitted(self)
        return fold_problem.read_dense(self, X, reset=False) @ self.coef_ + self.intercept_


class PenaltyLogistic(ClassifierMixin, PenaltySearch):
    """Logistic regression with a penalty for each feature, or group of features, learned by validation folds.

        y*(p) = argmin Σ ℓ(aᵀy + shift, b) + ½ Σ_j p_j ‖y_j‖²,   p minimises the loss of the folds plus a shrinkage

    Where few features tell something this is between ridge and lasso; where all tell the same it is ridge: the strength
    of the shrinkage is chosen on folds that the search for penalties does not see, and one common penalty is taken
    unless others are surely better. Costs some hundred fits of the plain model.

    - `groups`: one label for each column, columns of a label share a penalty; `None`: each column has its own.
    - `shrinkage`: s, how strongly log penalties are held to a common one, in s/2n Σ log(1 + d_j²); infinity is one
      penalty for all. "auto" takes the strongest of infinity, 3, 1 and 0.3 that is not surely worse than the best.
    - `cv`: the number of folds, drawn at random, each with its share of every class.
    - `standardize`: whether penalties are those of columns with variance one.
    - `steps`: of the search for penalties, at most; `random_state`: of the folds; `verbose`: losses of folds, on
      stderr or for a function.

    Fitted: `coef_` and `intercept_` (of the columns as given), `penalties_` (one for each column, as 1/C),
    `common_penalty_`, `shrinkage_`, `shrinkage_losses_` (of the folds, by strength); `classes_`.
    Sources: Bengio 2000, Pedregosa 2016 (penalties by gradient).

    >>> model = PenaltyLogistic(random_state=0).fit(X, y)
    >>> model.penalties_.argsort()[:5]  # the columns that are held back least
    """

    grid = LOGISTIC_GRID

    def fit(self, X: Any, y: Any) -> "PenaltyLogistic":
        """Learn penalties and coefficients from rows X and labels y of two or more classes."""
        self._check()
        random = random_numbers(self.random_state)
        X, y = fold_problem.read_dense(self, X, y, ensure_min_samples=2)
        check_labels(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must hold at least two classes; got one class, {self.classes_[0]!r}.")
        self._learn(X, codes, random)
        self.coef_, self.intercept_ = np.atleast_2d(self.coef_), np.atleast_1d(self.intercept_)
        return self

    def _problem(self, Z: np.ndarray, y: np.ndarray, fold: np.ndarray, place: np.ndarray) -> Problem:
        labels = y[:, None] == (np.arange(1, 2) if len(self.classes_) == 2 else np.arange(len(self.classes_)))
        return fold_problem.logistic_problem(Z, labels.astype(float), fold, place, self.common_penalty_)

    def _refit(self, Z: np.ndarray, y: np.ndarray, penalties: np.ndarray) -> tuple[np.ndarray, Any]:
        """½ Σ p_j y_j² is ½ ‖z‖² with z_j = √p_j y_j. Classes that are not there get a probability of about zero."""
        number, seen = len(self.classes_), np.unique(y)
        scores, weights = np.full(number, ABSENT), np.zeros((number, Z.shape[1]))
        if len(seen) == 1:
            scores[seen] = 0.0
        else:
            scale = penalties**-0.5
            model = LogisticRegression(C=1.0, solver="newton-cholesky", max_iter=100).fit(Z * scale, y)
            both = len(seen) == 2  # the odds of the second, against zero for the first
            weights[seen[both:]] = model.coef_ * scale
            scores[seen] = 0.0
            scores[seen[both:]] = model.intercept_
        return (weights[1], scores[1] - scores[0]) if number == 2 else (weights, scores)

    def _losses(self, model: tuple[np.ndarray, Any], Z: np.ndarray, y: np.ndarray) -> np.ndarray:
        scores = _all_scores(Z @ model[0].T + model[1])
        return logsumexp(scores, axis=1) - scores[np.arange(len(y)), y]

    def decision_function(self, X: Any) -> np.ndarray:
        """Log-odds of the second class, or a score for each of several."""
        check_is_fitted(self)
        scores = fold_problem.read_dense(self, X, reset=False) @ self.coef_.T + self.intercept_
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n c"]:
        """Probabilities of all classes."""
        return softmax(_all_scores(self.decision_function(X)), axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        best = _all_scores(self.decision_function(X)).argmax(1)
        return self.classes_[best]


def _all_scores(scores: np.ndarray) -> np.ndarray:
    """A column for each class; zero for the first of two."""
    return np.column_stack([np.zeros_like(scores), scores]) if scores.ndim == 1 else scores
