"""Another estimator's view of the rows: what a transformer makes of them, or what a classifier says, out of fold."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier

from bilevax.models.held_out import Fold, judge_folds
from bilevax.models.linear_start import Line, Table

BLOCKS = 4  # of trees: the sums of their leaves' values
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the linear model beside the estimator


def check_estimator(estimator: Any, hidden: Any) -> None:
    """Refuse what neither transforms nor scores rows, and a network on top of a classifier."""
    able = any(hasattr(estimator, name) for name in ("transform", "decision_function", "predict_proba"))
    if isinstance(estimator, type) or not hasattr(estimator, "fit") or not able:
        raise TypeError(
            "estimator must be None, a transformer or a classifier with scikit-learn's methods, such as "
            f"HistGradientBoostingClassifier(); got {estimator!r}."
        )
    if scores_rows(estimator) and len(hidden):
        raise ValueError(f"hidden must be () where estimator is a classifier; got {tuple(hidden)!r}.")


def scores_rows(estimator: Any) -> bool:
    """Whether it is a classifier, whose scores are taken, and not a transformer."""
    return is_classifier(estimator) or not hasattr(estimator, "transform")


def fit_clone(estimator: Any, X: Any, positive: np.ndarray, weights: np.ndarray | None) -> Any:
    """A fitted copy; weights reach it only where there are some."""
    own = {} if weights is None else {"sample_weight": weights}
    return clone(estimator).fit(X, positive.astype(int), **own)


def score_blocks(estimator: Any, X: Any) -> np.ndarray:
    """Log-odds of a classifier as a sum of columns: blocks of consecutive trees where it has some, else one column."""
    if hasattr(estimator, "staged_decision_function"):
        stages = [np.reshape(stage, len(X)) for stage in estimator.staged_decision_function(X)]
        ends = np.ceil(np.arange(1, BLOCKS + 1) * len(stages) / BLOCKS).astype(int) - 1
        return np.diff(np.stack([stages[k] for k in ends], axis=1), axis=1, prepend=0)
    if hasattr(estimator, "decision_function"):
        return np.reshape(estimator.decision_function(X), (X.shape[0], 1))
    shares = np.clip(estimator.predict_proba(X)[:, 1:], 1e-6, 1 - 1e-6)
    return np.log(shares / (1 - shares))


def score_out_of_fold(
    estimator: Any, X: Any, positive: np.ndarray, weights: np.ndarray | None, folds: Sequence[Fold]
) -> tuple[list[Any], np.ndarray]:
    """The estimators of the folds, and of every row the blocks of the one that has not seen it."""
    fitted, blocks = [], None
    for fold in folds:
        places = np.unique(fold.train)
        own = fit_clone(estimator, X[places], positive[places], None if weights is None else weights[places])
        found = score_blocks(own, X[fold.held])
        blocks = np.zeros((X.shape[0], found.shape[1])) if blocks is None else blocks
        blocks[fold.held] = found
        fitted.append(own)
    assert blocks is not None
    return fitted, blocks


def blend(table: Table, folds: Sequence[Fold], blocks: np.ndarray, line: Line) -> tuple[float, Line]:
    """The share of the linear model with which held-out rows are ranked best, and both as one linear model.

    Its columns are the blocks and then those of the table.
    """
    held = [table.rows[fold.held] @ own[0] for fold, own in zip(folds, line.of_folds, strict=True)]
    own, beside = blocks.sum(axis=1), np.concatenate(held)
    size, size_beside = own.std() or 1.0, beside.std() or 1.0

    def judge(share: float) -> np.ndarray:
        scores = [(1 - share) * own[fold.held] / size + share * part / size_beside
                  for fold, part in zip(folds, held, strict=True)]  # fmt: skip
        return judge_folds(table.positive, table.weights, folds, scores)

    values = {share: judge(share) for share in SHARES}
    best = max(SHARES, key=lambda share: values[share].mean())
    head = np.full(blocks.shape[1], (1 - best) / size)
    join = lambda weights: np.concatenate([head, best * weights / size_beside])
    of_folds = [(join(weights), shift * best / size_beside) for weights, shift in line.of_folds]
    joined = line._replace(
        weights=join(line.weights), shift=line.shift * best / size_beside, of_folds=of_folds, values=values[best]
    )
    return best, joined
