"""A classifier that ranks: trained for average precision, the area under the precision-recall curve."""

import warnings
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from bilevax import arguments
from bilevax.models import network
from bilevax.models.base import (
    check_network,
    check_size,
    find_positive,
    log_odds,
    probabilities,
    random_numbers,
    read_rows,
    read_weights,
    tell,
    to_dense,
    two_classes,
)  # fmt: skip
from bilevax.models.descent import Pace
from bilevax.models.held_out import FEW, draw_folds
from bilevax.models.linear_start import OTHERS, Table, cut, find_line
from bilevax.models.ranker import Ranking, rank_linear, rank_network, rank_whole, strengths_of
from bilevax.models.scaling import Scaling, find_scaling
from bilevax.models.stacking import blend, check_estimator, fit_clone, score_blocks, score_out_of_fold, scores_rows
from bilevax.problems.precision import SURROGATES

WIDTHS = {"sigmoid": 0.3, "squared_hinge": 1.0}  # in units of the spread of the first scores


class AveragePrecisionClassifier(ClassifierMixin, BaseEstimator):
    """A ranking of rows of two classes, one of them rare: linear, a small network, or on another estimator's features.

        min_x −mean over positive i of E_j[ℓ(s_j − s_i) 1(b_j = 1)] / E_j[ℓ(s_j − s_i)] + penalty,   s = score(x, a)

    It begins as the logistic regression (for a network: the network on the logistic loss) that ranks held-out rows
    best, and goes on with block SOBA on `bilevax.problems.average_precision`, a group of 64 positive samples a step.
    It stops where held-out rows are ranked best, and at the start if what they gain is not more than noise: then it is
    that logistic regression. With fewer than 100 positive rows nobody could tell, and there are no such steps.

    >>> model = AveragePrecisionClassifier(random_state=0).fit(X, y)
    >>> trees = AveragePrecisionClassifier(estimator=HistGradientBoostingClassifier(early_stopping=True)).fit(X, y)
    >>> model.predict_proba(X)[:, 1], model.C_, model.n_steps_, model.held_out_

    - `hidden`: sizes of hidden layers; none makes a linear model. The networks of all folds stand side by side.
    - `estimator`: whose features are ranked. A transformer: what it makes of the rows. A classifier: its scores on rows
      that it has not seen, for boosted trees as sums of the leaves' values in four blocks of trees, with the columns
      of X beside them; as much of both as ranks held-out rows best. It is fitted once for each fold.
    - `C`: inverse strength of the ridge, as in scikit-learn's LogisticRegression; `None` finds it on held-out rows.
    - `folds`: parts that are held out in turn; 1 holds nothing out: C is 1 if not given, and all steps are taken.
    - `standardize`: bring columns to mean 0 and deviation 1 (sparse ones without the mean). A linear model also cuts
      values at three deviations, or gives both classes the same weight, where that ranks held-out rows better.
    - `positive`: the class that is to come first; `None` takes the rarer one.
    - `surrogate`: "sigmoid" or "squared_hinge" for ℓ; `width`: its width, in units of the spread of the first scores,
      0.3 and 1 by default.
    - `steps`, `learning_rate`: of Adam, its rate falls to zero along a cosine; `batch_size`: pairs of a positive and a
      negative sample in a step; `mixing`: weight of fresh samples in the moving averages of E_j.
    - `random_state`: of folds and draws; `verbose`: lines that say how held-out rows are ranked, on stderr or for a
      function of a line.

    Scores of held-out rows make one slope and one shift that turn scores into log-odds, so `predict` and
    `predict_proba` mean what they do elsewhere. Fitted: `classes_`, `positive_`, `layers_` (weights and shift of each
    layer, on the scale of `scaling_`), `log_odds_` (slope and shift), `C_`, `n_steps_` (0: it stayed at the start),
    `held_out_` (average precision of each held-out part), `linear_share_` (beside a classifier), `estimators_`.
    Sources: Guo, Hu, Zhang, Yang 2021 (the problem), Qi, Luo, Xu, Ji, Yang 2021 and Wang, Yang 2022 (the method).
    """

    def __init__(
        self, hidden: tuple[int, ...] = (), *, estimator: Any = None, C: float | None = None, folds: int = 5,
        standardize: bool = True, positive: Any = None, surrogate: str = "sigmoid", width: float | None = None,
        steps: int = 1000, learning_rate: float = 3e-3, batch_size: int = 128, mixing: float = 0.5,
        random_state: Any = None, verbose: Any = False,
    ):  # fmt: skip
        self.hidden = hidden
        self.estimator = estimator
        self.C = C
        self.folds = folds
        self.standardize = standardize
        self.positive = positive
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "AveragePrecisionClassifier":
        """Train on rows X, an array or a scipy.sparse matrix, with labels y of two classes, and weights of the rows."""
        self._check()
        rng = random_numbers(self.random_state)
        X, y = read_rows(self, X, y)
        check_size(self, X.shape[1])
        weights, kept = read_weights(sample_weight, X)
        X, y = (X, y) if kept.all() else (X[kept], y[kept])
        self.classes_, second = two_classes(y)
        self.positive_ = find_positive(self.positive, self.classes_, second, weights)
        positive = second == (self.positive_ == self.classes_[1])
        self._fit(to_dense(X), positive, weights, rng, None if sample_weight is None else weights)
        return self

    def _check(self) -> None:
        """Refuse settings that are out of range, before anything is read."""
        if self.C is not None:
            arguments.positive("C", self.C)
        check_network(self)
        arguments.count("folds", self.folds)
        arguments.flag("standardize", self.standardize)
        arguments.one_of("surrogate", self.surrogate, tuple(SURROGATES))
        if self.width is not None:
            arguments.positive("width", self.width)
        if self.estimator is not None:
            check_estimator(self.estimator, self.hidden)

    def _fit(self, X: Any, positive: np.ndarray, weights: np.ndarray, rng: Any, given: np.ndarray | None) -> None:
        """Find the ranking and its log-odds; `given`: the weights that the estimator gets."""
        self.estimators_, self.linear_share_ = [], 1.0
        if self.estimator is not None and not scores_rows(self.estimator):
            self.estimators_ = [fit_clone(self.estimator, X, positive, given)]
            X = to_dense(self.estimators_[0].transform(X))
        folds = draw_folds(positive, self.folds, rng) if self.folds > 1 else []
        self.scaling_ = find_scaling(X, self.standardize)
        table = Table(self.scaling_(X), positive, weights)
        ranking = self._rank(table, X, folds, rng, given)
        self.layers_, self.C_, self.n_steps_, self.held_out_ = ranking.layers, ranking.C, ranking.steps, ranking.values
        scores = self._scores(X, made=True) if ranking.held is None else ranking.held
        if np.ptp(scores) <= 1e-12 * np.abs(scores).max():
            warnings.warn("all rows have the same score; C may be far too small.", ConvergenceWarning, stacklevel=3)
        self.log_odds_ = log_odds(scores, positive, weights)

    def _rank(self, table: Table, X: Any, folds: list, rng: Any, given: np.ndarray | None) -> Ranking:
        """The ranking by what was asked for."""
        pace = Pace(
            self.surrogate, WIDTHS[self.surrogate] if self.width is None else float(self.width), int(self.steps),
            float(self.learning_rate), int(self.batch_size), float(self.mixing), int(rng.randint(2**31 - 1000)),
        )  # fmt: skip
        classifier = self.estimator is not None and scores_rows(self.estimator)
        if not folds:
            if classifier:
                raise ValueError(f"folds must be at least 2 with a classifier as estimator; got {self.folds!r}, for "
                                 f"{int(table.positive.sum())} positive rows.")  # fmt: skip
            return rank_whole(table, self.hidden, self.C, pace, self.folds == 1)
        if len(self.hidden):
            return rank_network(table, folds, self.hidden, self.C, pace, partial(tell, self))
        again = 2 if table.positive.sum() < FEW else 0
        more = [fold for _ in range(again) for fold in draw_folds(table.positive, self.folds, rng)]
        line = find_line(table, folds + more, len(folds), strengths_of(self.C), OTHERS if self.standardize else ())
        self.scaling_ = self.scaling_._replace(limit=line.kind.limit)
        own = table._replace(rows=cut(table.rows, line.kind.limit))
        tell(self, f"start: C = {line.C:g}, {line.kind}: {line.values.mean():.4f} on held-out rows")
        if classifier:
            own, line = self._stack(own, X, folds, line, given)
        return rank_linear(own, folds, line, pace, partial(tell, self))

    def _stack(self, table: Table, X: Any, folds: list, line: Any, given: np.ndarray | None) -> tuple[Table, Any]:
        """The table with the blocks of the estimator before its columns, and the blend of both as the start."""
        self.estimators_, blocks = score_out_of_fold(self.estimator, X, table.positive, given, folds)
        self.linear_share_, line = blend(table, folds, blocks, line)
        tell(self, f"estimator, with a share of {self.linear_share_:g} for the linear model: "
                  f"{line.values.mean():.4f} on held-out rows")  # fmt: skip
        return table._replace(rows=self._join(blocks, table.rows)), line

    @staticmethod
    def _join(blocks: np.ndarray, rows: Any) -> Any:
        return np.hstack([blocks, rows.toarray() if hasattr(rows, "toarray") else rows])

    def _scores(self, X: Any, made: bool = False) -> np.ndarray:
        """Scores of rows; `made`: they are what the transformer made already."""
        classifier = self.estimator is not None and scores_rows(self.estimator)
        if self.estimators_ and not classifier and not made:
            X = to_dense(self.estimators_[0].transform(X))
        rows = Scaling(*self.scaling_)(X)
        if classifier:
            rows = self._join(np.mean([score_blocks(own, X) for own in self.estimators_], axis=0), rows)
        return network.score_rows(self.layers_, rows)

    def decision_function(self, X: Any) -> np.ndarray:
        """Log-odds of the second class; where the first one is `positive_`, the smallest come first."""
        check_is_fitted(self)
        X = read_rows(self, X, reset=False)
        slope, shift = self.log_odds_
        odds = slope * self._scores(to_dense(X)) + shift
        return odds if self.positive_ == self.classes_[1] else -odds

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of both classes."""
        shares = probabilities(self.decision_function(X))
        return np.column_stack([1 - shares, shares])

    def predict(self, X: Any) -> np.ndarray:
        """The more probable class of each row."""
        positive = self.decision_function(X) > 0
        return self.classes_[positive.astype(int)]
