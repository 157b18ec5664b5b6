"""What models say of rows that they have not seen: probabilities of the classes, out of fold."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

LEAST = 1e-6  # of a probability
MANY = 20_000  # rows, beyond which models are compared on one fold
STRENGTHS = (0.01, 0.1, 1.0)  # C of linear models
MOST_LEVELS = 100  # of a category, that have a column of their own in linear models; the rest share one
MOST_CODES = 255  # of a category, that trees can tell apart
LEAST_FOR_TREES = 100  # trusted rows
FEW = 20  # rows of a class, some of which are needed to see when to stop


class Opinion(NamedTuple):
    """Probabilities of the classes, (rows, classes), for rows to clean and for trusted rows; no row was trained on."""

    rows: np.ndarray
    trusted: np.ndarray


def widen(categories: Sequence[int]) -> list[Any]:
    """What makes a column for each level of these columns, which hold codes; nothing where there are none."""
    if not len(categories):
        return []
    levels = OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=MOST_LEVELS, sparse_output=False)
    return [ColumnTransformer([("levels", levels, list(categories))], remainder="passthrough")]


def linear_models(sparse: bool, categories: Sequence[int] = ()) -> list[Any]:
    """Logistic regressions on standardised columns, of several strengths."""
    return [
        make_pipeline(
            *widen(categories), StandardScaler(with_mean=not sparse), LogisticRegression(C=C, max_iter=300)
        )
        for C in STRENGTHS
    ]  # fmt: skip


def trees(codes: np.ndarray, seed: int, categories: Sequence[int] = ()) -> Any:
    """Histogram boosting that stops by itself, or early where a class has too few rows to set some aside."""
    counts, own = np.bincount(codes), list(categories) or None
    if counts[counts > 0].min() < FEW:
        return HistGradientBoostingClassifier(
            early_stopping=False, max_iter=50, max_leaf_nodes=15, min_samples_leaf=5, random_state=seed,
            categorical_features=own,
        )  # fmt: skip
    return HistGradientBoostingClassifier(
        early_stopping=True, max_leaf_nodes=15, validation_fraction=0.15, n_iter_no_change=8, random_state=seed,
        categorical_features=own,
    )  # fmt: skip


def class_probabilities(model: Any, X: Any, num_classes: int) -> np.ndarray:
    """A column for each class, also for those that the model has never met."""
    found = np.zeros((X.shape[0], num_classes))
    found[:, model.classes_.astype(int)] = model.predict_proba(X)
    found = np.clip(np.nan_to_num(found), LEAST, None)
    return found / found.sum(1, keepdims=True)


def mean_loss(shares: np.ndarray, codes: np.ndarray) -> float:
    """Mean −log of the probability of the given class."""
    return float(-np.log(shares[np.arange(len(codes)), codes]).mean())


def split(codes: np.ndarray, folds: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Places to train on and places left out, with all classes in every part as far as they go."""
    folds = max(2, min(folds, len(codes)))
    if np.bincount(codes).max() < folds:
        return list(KFold(folds, shuffle=True, random_state=seed).split(codes))
    with np.errstate(all="ignore"):
        return list(StratifiedKFold(folds, shuffle=True, random_state=seed).split(np.zeros(len(codes)), codes))


def ask_out_of_fold(
    train: Callable[[int, np.ndarray], Callable[[Any], np.ndarray]], X: Any, X_trusted: Any,
    parts: Sequence[tuple[np.ndarray, np.ndarray]], num_classes: int,
) -> Opinion:  # fmt: skip
    """What models say of the part they have not seen; a trusted row is shown to one of them, as if of its part."""
    found = Opinion(np.zeros((X.shape[0], num_classes)), np.zeros((X_trusted.shape[0], num_classes)))
    part_of = np.arange(X_trusted.shape[0]) % len(parts)
    for k, (seen, left) in enumerate(parts):
        ask = train(k, seen)
        found.rows[left] = ask(X[left])
        if (part_of == k).any():
            found.trusted[part_of == k] = ask(X_trusted[part_of == k])
    return found


class Base(NamedTuple):
    """The model that was chosen, not fitted; what it says out of fold, and its mean loss there."""

    model: Any
    opinion: Opinion
    loss: float


def choose_base(
    candidates: Sequence[Any], X: Any, codes: np.ndarray, X_trusted: Any, num_classes: int, folds: int, seed: int,
    tell: Callable[[str], None] = lambda line: None,
) -> Base:  # fmt: skip
    """The candidate that predicts the given labels best out of fold; with very many rows seen on one fold."""
    parts = split(codes, folds, seed)

    def trainer(candidate: Any) -> Callable[[int, np.ndarray], Callable[[Any], np.ndarray]]:
        def train(k: int, seen: np.ndarray) -> Callable[[Any], np.ndarray]:
            model = clone(candidate).fit(X[seen], codes[seen])
            return lambda rows: class_probabilities(model, rows, num_classes)

        return train

    if len(candidates) > 1 and len(codes) > MANY:
        seen, left = parts[0]
        losses = []
        for candidate in candidates:
            tell(f"trying {describe(candidate)}")
            losses.append(mean_loss(trainer(candidate)(0, seen)(X[left]), codes[left]))
        candidates = [candidates[int(np.argmin(losses))]]
    best = None
    for candidate in candidates:
        tell(f"predicting every row by a model that has not seen it: {describe(candidate)}")
        opinion = ask_out_of_fold(trainer(candidate), X, X_trusted, parts, num_classes)
        loss = mean_loss(opinion.rows, codes)
        if best is None or loss < best.loss:
            best = Base(candidate, opinion, loss)
    assert best is not None
    return best


def trust_alone(
    candidates: Sequence[Any], X: Any, X_trusted: Any, codes: np.ndarray, num_classes: int
) -> tuple[Opinion, Any]:
    """What a model of the trusted rows alone says, of trusted rows by models that have not seen them; and the model.

    Of the candidates it is the one with the least loss on trusted rows left out.
    """
    parts, best = split(codes, 5, 0), None
    for candidate in candidates:
        found = np.full((len(codes), num_classes), 1 / num_classes)
        for seen, left in parts:
            if len(np.unique(codes[seen])) > 1:
                model = clone(candidate).fit(X_trusted[seen], codes[seen])
                found[left] = class_probabilities(model, X_trusted[left], num_classes)
        loss = mean_loss(found, codes)
        if best is None or loss < best[0]:
            best = (loss, candidate, found)
    assert best is not None
    if len(np.unique(codes)) < 2:
        return Opinion(np.full((X.shape[0], num_classes), 1 / num_classes), best[2]), best[1]
    model = clone(best[1]).fit(X_trusted, codes)
    return Opinion(class_probabilities(model, X, num_classes), best[2]), best[1]


def describe(model: Any) -> str:
    """A model in a few words."""
    last = model.steps[-1][1] if hasattr(model, "steps") else model
    if isinstance(last, LogisticRegression):
        return f"a linear model (C = {last.C:g})"
    return "boosted trees" if isinstance(last, HistGradientBoostingClassifier) else type(last).__name__
