"""A classifier that ranks: trained for average precision, the area under the precision-recall curve."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.utils.validation import check_is_fitted

from bilevax import arguments
from bilevax.models import network
from bilevax.models.base import (
    check_network,
    check_size,
    log_odds,
    make_algorithm,
    probabilities,
    random_numbers,
    read_rows,
    run,
    to_dense,
    two_classes,
)  # fmt: skip
from bilevax.problem import Problem
from bilevax.problems import average_precision
from bilevax.problems.precision import SURROGATES
from bilevax.rows import as_rows

GROUP = 64  # positive samples that are compared with the same samples


class AveragePrecisionClassifier(ClassifierMixin, BaseEstimator):
    """A linear model or a small network for two classes, one of them rare, trained for average precision.

        min_x −mean over positive i of E_j[ℓ(s_j − s_i) 1(b_j = 1)] / E_j[ℓ(s_j − s_i)] + penalty,   s = score(x, a)

    The second class, in sorted order, is the positive one. Training starts from a logistic regression (for a network
    from the same network trained on the logistic loss) and goes on with block SOBA on
    `bilevax.problems.average_precision`, a group of 64 positive samples a step; at the end one slope and one shift turn
    scores into log-odds, so `predict` and `predict_proba` mean what they do elsewhere.

    - `hidden`: sizes of hidden layers; none makes a linear model.
    - `C`: inverse strength of the ridge, as in scikit-learn's LogisticRegression.
    - `surrogate`, `width`: of ℓ, see `bilevax.problems.average_precision`; by default a network has a width of 1.
    - `steps`, `learning_rate`: of Adam, its rate falls to zero along a cosine; `batch_size`: pairs of a positive and a
      negative sample in a step; `mixing`: weight of fresh samples in the moving averages of E_j.
    - `random_state`: of the draws; `verbose`: a progress bar on stderr.

    Fitted: `classes_`, `layers_` (weights and shift of each layer), `log_odds_` (slope and shift), `n_steps_`.
    Sources: Guo, Hu, Zhang, Yang 2021 (the problem), Qi, Luo, Xu, Ji, Yang 2021 and Wang, Yang 2022 (the method).
    """

    def __init__(
        self, hidden: tuple[int, ...] = (), *, C: float = 1.0, surrogate: str = "sigmoid", width: float | None = None,
        steps: int = 2000, learning_rate: float = 3e-3, batch_size: int = 128, mixing: float = 0.5,
        random_state: Any = None, verbose: bool = False,
    ):  # fmt: skip
        self.hidden = hidden
        self.C = C
        self.surrogate = surrogate
        self.width = width
        self.steps = steps
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.mixing = mixing
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        """Two classes, dense or sparse rows."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any) -> "AveragePrecisionClassifier":
        """Train on rows X, an array or a scipy.sparse matrix, with labels y of two classes."""
        arguments.positive("C", self.C)
        check_network(self)
        arguments.one_of("surrogate", self.surrogate, tuple(SURROGATES))
        if self.width is not None:
            arguments.positive("width", self.width)
        rng = random_numbers(self.random_state)
        X, y = read_rows(self, X, y)
        check_size(self, X.shape[1])
        self.classes_, positive = two_classes(y)
        X = to_dense(X)
        signs, seed = 2.0 * positive - 1.0, int(rng.randint(2**31))
        first = self._begin(X, signs, jax.random.key(seed))
        problem = self._problem(X, signs, first)
        algorithm = make_algorithm(float(self.mixing), 1, self.steps, float(self.learning_rate), self.batch_size)
        result = run(problem, algorithm, steps=self.steps, metrics=None, seed=seed, progress=bool(self.verbose))
        self.n_steps_ = result.steps
        self.layers_ = jax.tree.map(np.asarray, result.x)
        self.log_odds_ = log_odds(self._scores(X), positive)
        return self

    def _begin(self, X: Any, signs: np.ndarray, key: Any) -> network.Layers:
        """The model trained on the logistic loss."""
        dtype = jnp.result_type(float)
        if not len(self.hidden):
            regression = LogisticRegression(C=self.C, max_iter=1000).fit(X, signs)
            return [
                {"weights": jnp.asarray(regression.coef_.T, dtype), "shift": jnp.asarray(regression.intercept_, dtype)}
            ]
        random_key, draw_key = jax.random.split(key)
        layers = network.random_layers(random_key, (X.shape[1], *self.hidden, 1), dtype)
        return network.fit_logistic(
            layers, as_rows(X), jnp.asarray(signs, dtype), 1 / (self.C * len(signs)), draw_key,
            score=network.scores, steps=self.steps, batch=self.batch_size,
        )  # fmt: skip

    def _problem(self, X: Any, signs: np.ndarray, first: network.Layers) -> Problem:
        width = 1.0 if self.width is None and len(self.hidden) else self.width
        return average_precision(
            features=X, labels=signs, score=network.scores, x0=first, surrogate=self.surrogate, width=width,
            group=GROUP, ridge=1 / (self.C * len(signs)), penalty=network.half_squares,
        )  # fmt: skip

    def _scores(self, X: Any) -> np.ndarray:
        return np.asarray(network.scores(jax.tree.map(jnp.asarray, self.layers_), as_rows(X)), float)

    def decision_function(self, X: Any) -> np.ndarray:
        """Log-odds of the second class."""
        check_is_fitted(self)
        X = read_rows(self, X, reset=False)
        slope, shift = self.log_odds_
        return slope * self._scores(X) + shift

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of both classes."""
        shares = probabilities(self.decision_function(X))
        return np.column_stack([1 - shares, shares])

    def predict(self, X: Any) -> np.ndarray:
        """The more probable class of each row."""
        positive = self.decision_function(X) > 0
        return self.classes_[positive.astype(int)]
