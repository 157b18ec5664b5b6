"""What the models share: two classes, the method, a run that says when it did not go well, log-odds from scores."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import optax
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.utils import ClassifierTags, RegressorTags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_random_state, validate_data

from bilevax import arguments, device
from bilevax.algorithms.block_soba import block_soba
from bilevax.algorithms.contract import Algorithm
from bilevax.problem import Problem
from bilevax.run.result import Result
from bilevax.run.solve import solve


def two_classes(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two classes in sorted order, and which samples are of the second."""
    check_labels(y)
    classes, codes = np.unique(y, return_inverse=True)
    if len(classes) != 2:
        kind = "binary with one class" if len(classes) == 1 else "multiclass"
        error = ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
        error.add_note(f"y must hold two classes; it holds {len(classes)}.")  # the message itself is scikit-learn's
        raise error
    return classes, codes.reshape(-1) == 1


DENSE = 2**24  # numbers up to which it pays to write out the zeros of a sparse matrix


def to_dense(X: Any) -> Any:
    """Rows as an array where that is small: products with the weights of a network then are much quicker."""
    return X.toarray() if sp.issparse(X) and X.shape[0] * X.shape[1] <= DENSE else X


@contextmanager
def explain_rows(rows: str, labels: str, X: Any, y: Any) -> Iterator[None]:
    """Refuse what scikit-learn would take for something else; add to its errors which arrays they are about."""
    for name, value in [(rows, X), (labels, y)]:
        if np.ma.isMaskedArray(value):
            raise TypeError(f"{name} must not be a masked array: fill what is masked, or drop its rows.")
    if sp.issparse(y):
        raise TypeError(
            f"{labels} must be an array of labels; got a sparse {type(y).__name__}: write it out by toarray()."
        )
    if getattr(getattr(X, "dtype", None), "kind", "f") in "USMm":
        raise TypeError(f"{rows} must hold real numbers; got an array of {X.dtype}.")
    try:
        yield
    except (ValueError, TypeError, OverflowError) as error:
        error.add_note(f"{rows} must be (samples, features) of finite real numbers, {labels} a label for each sample.")
        raise


def read_rows(model: Any, X: Any, y: Any = "no_validation", **options: Any) -> Any:
    """Rows, and labels where they are given, as scikit-learn takes them."""
    with explain_rows("X", "y", X, y):
        return validate_data(model, X, y, accept_sparse="csr", dtype=np.float64, **options)


def check_labels(y: np.ndarray) -> None:
    """Refuse what are no classes: complex numbers, or labels that cannot be sorted."""
    if y.dtype.kind in "cV":
        raise TypeError(f"y must hold classes; got an array of {y.dtype}.")
    try:
        np.unique(y)
    except TypeError as error:
        raise TypeError(f"y must hold classes of one kind, all text or all numbers ({error}).") from None
    check_classification_targets(y)


def random_numbers(value: Any) -> np.random.RandomState:
    """The random numbers that `random_state` asks for."""
    try:
        return check_random_state(value)
    except (ValueError, TypeError):
        raise ValueError(
            f"random_state must be None, a whole number in 0..2**32 - 1 or a numpy RandomState; got {value!r}."
        ) from None


def check_training(model: Any) -> None:
    """Refuse settings that all models have and that are out of range."""
    arguments.count("steps", model.steps)
    arguments.count("batch_size", model.batch_size)
    arguments.share("mixing", model.mixing)
    check_verbose(model.verbose)


def check_verbose(value: Any) -> None:
    """Refuse what says neither whether nor whom to tell."""
    if not (isinstance(value, (bool, int, np.bool_)) or callable(value)):
        raise TypeError(f"verbose must be True, False or a function of a line; got {value!r}.")


def tell(model: Any, line: str) -> None:
    """A line on stderr, or for the function that `verbose` is; nothing where it is False."""
    if callable(model.verbose):
        model.verbose(line)
    elif model.verbose:
        print(f"{type(model).__name__}: {line}", file=sys.stderr, flush=True)


def tag_kind(tags: Any, kind: str) -> Any:
    """Tags of a model that is a classifier of two classes where its kind is logistic, a regressor else."""
    tags.target_tags.required = True
    tags.estimator_type = "classifier" if kind == "logistic" else "regressor"
    if kind == "logistic":
        tags.classifier_tags = ClassifierTags(multi_class=False)
    else:
        tags.regressor_tags = RegressorTags()
    return tags


def check_network(model: Any) -> None:
    """Refuse settings of a network that are out of range."""
    check_training(model)
    arguments.positive("learning_rate", model.learning_rate)
    several = isinstance(model.hidden, (tuple, list)) or (isinstance(model.hidden, np.ndarray) and model.hidden.ndim)
    if not several:
        raise TypeError(f"hidden must be the sizes of the hidden layers, such as (32,) or (); got {model.hidden!r}.")
    for k, size in enumerate(model.hidden):
        arguments.count(f"hidden[{k}]", size)


def check_size(model: Any, inputs: int) -> None:
    """Refuse a network or a batch that does not fit in memory."""
    sizes = [inputs, *map(int, model.hidden)]
    weights = {f"hidden[{k}]": 8 * before * after for k, (before, after) in enumerate(pairwise(sizes))}
    device.require("hidden", weights, "Have smaller layers.")
    device.require("batch_size", {"a batch": 8 * int(model.batch_size) * max(sizes)}, "Take fewer samples.")


@lru_cache(maxsize=8)
def make_algorithm(
    lower_step: float, tasks_per_step: int, steps: int, learning_rate: float, batch_size: int
) -> Algorithm:
    """Block SOBA with Adam; one object for one choice, so that the next fit need not be compiled again."""
    return block_soba(
        lower_step=lower_step, mixing=1.0, tasks_per_step=tasks_per_step, batch_size=batch_size,
        initial_batch_size=8 * batch_size,
        upper_optimizer=optax.adam(optax.cosine_decay_schedule(float(learning_rate), steps)),
    )  # fmt: skip


def run(problem: Problem, algorithm: Algorithm, **options: Any) -> Result:
    """`solve`, with a warning where the run diverged or was interrupted; the model then is what was reached."""
    result = solve(problem, algorithm, **options)
    if result.status == "diverged":
        warnings.warn(f"{result.message}; lower the learning rate or the mixing.", ConvergenceWarning, stacklevel=3)
    if result.status == "interrupted":
        warnings.warn(f"interrupted after {result.steps} steps.", ConvergenceWarning, stacklevel=3)
    return result


def read_weights(given: Any, X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the rows that have some, one in the mean, and which those are; refuse what are none."""
    n = X.shape[0]
    if given is None:
        return np.ones(n), np.ones(n, bool)
    weights = arguments.floats("sample_weight", given, "a number >= 0 for each row")
    if weights.shape == ():
        weights = np.full(n, float(weights))
    if weights.shape != (n,):
        raise ValueError(f"sample_weight must be a number for each of {n} rows; got shape {weights.shape}.")
    if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.any()):
        raise ValueError("sample_weight must be finite numbers >= 0, and not all of them zero.")
    kept = weights > 0
    return weights[kept] / weights[kept].mean(), kept


def find_positive(given: Any, classes: np.ndarray, second: np.ndarray, weights: np.ndarray) -> Any:
    """The class that is to be ranked first: the given one, else the rarer one, else the second."""
    if given is None:
        return classes[1] if 2 * weights[second].sum() <= weights.sum() else classes[0]
    for label in classes:
        if np.ndim(given) == 0 and label == given:
            return label
    raise ValueError(f"positive must be one of the classes, {classes[0]!r} or {classes[1]!r}; got {given!r}.")


def log_odds(scores: np.ndarray, positive: np.ndarray, weights: np.ndarray | None = None) -> tuple[float, float]:
    """Slope and shift that turn scores into log-odds; the slope is above zero, so that the ranking stays."""
    size = float(np.std(scores)) or 1.0
    regression = LogisticRegression(C=np.inf).fit(scores[:, None] / size, positive, sample_weight=weights)
    slope, shift = float(regression.coef_[0, 0]), float(regression.intercept_[0])
    if slope <= 0:  # worse than by chance: say no more than how frequent the class is
        share = float(np.average(positive, weights=weights))
        slope, shift = 1e-3, float(np.log(share / (1 - share))) - 1e-3 * float(np.mean(scores)) / size
    return slope / size, shift


def probabilities(odds: np.ndarray) -> np.ndarray:
    """1/(1 + exp(−odds))."""
    return 1 / (1 + np.exp(-np.clip(odds, -500, 500)))
