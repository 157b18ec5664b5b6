"""What the models share: two classes, a run that says when it did not go well, log-odds from scores."""

import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.utils.multiclass import check_classification_targets

from bilevax.algorithms.base import Algorithm
from bilevax.problem import Problem
from bilevax.run import Result, solve


def two_classes(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two classes in sorted order, and which samples are of the second."""
    check_classification_targets(y)
    classes, codes = np.unique(y, return_inverse=True)
    if len(classes) != 2:
        kind = "binary with one class" if len(classes) == 1 else "multiclass"
        raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
    return classes, codes.reshape(-1) == 1


DENSE = 2**24  # numbers up to which it pays to write out the zeros of a sparse matrix


def written_out(X: Any) -> Any:
    """Rows as an array where that is small: products with the weights of a network then are much quicker."""
    return X.toarray() if sp.issparse(X) and X.shape[0] * X.shape[1] <= DENSE else X


def run(problem: Problem, algorithm: Algorithm, **asked: Any) -> Result:
    """`solve`, with a warning where the run diverged or was interrupted; the model then is what was reached."""
    result = solve(problem, algorithm, **asked)
    if result.status == "diverged":
        warnings.warn(f"{result.message}; lower the learning rate or the mixing.", ConvergenceWarning, stacklevel=3)
    if result.status == "interrupted":
        warnings.warn(f"interrupted after {result.steps} steps.", ConvergenceWarning, stacklevel=3)
    return result


def log_odds(scores: np.ndarray, positive: np.ndarray) -> tuple[float, float]:
    """Slope and shift that turn scores into log-odds."""
    fitted = LogisticRegression(C=np.inf).fit(scores[:, None], positive)
    return float(fitted.coef_[0, 0]), float(fitted.intercept_[0])


def probabilities(odds: np.ndarray) -> np.ndarray:
    """1/(1 + exp(−odds))."""
    return 1 / (1 + np.exp(-np.clip(odds, -500, 500)))
