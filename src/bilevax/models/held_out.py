"""Parts of the rows that are held out in turn, and when a gain on them is more than noise."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import average_precision_score
from sklearn.model_selection import KFold, StratifiedKFold

FEW = 200  # positive rows below which the folds are drawn three times


class Fold(NamedTuple):
    """Places of the rows to train on, and of those that are held out."""

    train: np.ndarray
    held: np.ndarray


def draw_folds(positive: np.ndarray, count: int, rng: np.random.RandomState) -> list[Fold]:
    """Stratified folds, as many as the rarer class allows; all have the same numbers of rows to train on.

    A row or two stand twice in the training part of a fold for that: the folds then are one program.
    """
    count = min(count, int(positive.sum()), int((~positive).sum()))
    if count < 2:
        return []
    parts = list(StratifiedKFold(count, shuffle=True, random_state=rng).split(positive, positive))
    kinds = [(train[positive[train]], train[~positive[train]], held) for train, held in parts]
    most = [max(len(kind[k]) for kind in kinds) for k in (0, 1)]
    return [Fold(np.concatenate([np.resize(a, most[0]), np.resize(b, most[1])]), held) for a, b, held in kinds]


def draw_plain_folds(rows: int, count: int, rng: np.random.RandomState) -> list[Fold]:
    """Folds of rows that have many labels each; all have the same number of rows to train on."""
    count = min(count, rows)
    if count < 2:
        return []
    parts = list(KFold(count, shuffle=True, random_state=rng).split(np.zeros(rows)))
    most = max(len(train) for train, _ in parts)
    return [Fold(np.resize(train, most), held) for train, held in parts]


def spread_weights(weights: np.ndarray, positive: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Places again, each as often as its weight asks for, up to a rounding; with equal weights, each once."""

    def repeat(own: np.ndarray, count: int) -> np.ndarray:
        own = own[np.argsort(weights[own], kind="stable")]  # else weights that come in turns fall between the marks
        ends = np.cumsum(weights[own])
        return own[np.searchsorted(ends, (np.arange(count) + 0.5) / count * ends[-1])]

    if np.ptp(weights[places]) == 0:
        return places
    first, second = places[positive[places]], places[~positive[places]]
    share = weights[first].sum() / weights[places].sum()
    count = int(np.clip(round(share * len(places)), 1, len(places) - 1))
    return np.concatenate([repeat(first, count), repeat(second, len(places) - count)])


def precision(positive: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Average precision of a ranking; 0 where it holds what is no number."""
    if not np.isfinite(scores).all():
        return 0.0
    return float(average_precision_score(positive, scores, sample_weight=weights))


def judge_folds(positive: np.ndarray, weights: np.ndarray, folds: Sequence[Fold], scores: Any) -> np.ndarray:
    """Average precision of each fold's scores of the rows that it holds out."""
    pairs = zip(folds, scores, strict=True)
    return np.array([precision(positive[fold.held], own, weights[fold.held]) for fold, own in pairs])


def is_gain(new: np.ndarray, old: np.ndarray, folds: int) -> bool:
    """Whether new beats old on the same folds by more than its standard error.

    Folds share rows to train on, so the variance of the mean is taken as (1/values + 1/(folds − 1)) of that of a value
    (Nadeau, Bengio 2003).
    """
    gains = new - old
    if len(gains) < 2:
        return False
    return bool(gains.mean() > gains.std(ddof=1) * np.sqrt(1 / len(gains) + 1 / (folds - 1)))
