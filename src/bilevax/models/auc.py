"""Many binary tasks on one representation, trained for the areas under their ROC curves."""

from functools import partial
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from bilevax import arguments
from bilevax.models import many_tasks, network
from bilevax.models.base import (
    check_network,
    check_size,
    log_odds,
    probabilities,
    random_numbers,
    read_rows,
    tell,
    to_dense,
    two_classes,
)  # fmt: skip
from bilevax.models.held_out import Fold, draw_plain_folds
from bilevax.models.many_tasks import Choice, Pace, as_layers
from bilevax.models.scaling import Scaling, find_scaling


class MultiTaskAUCClassifier(ClassifierMixin, BaseEstimator):
    """Binary tasks with one linear head each on a shared network, trained for their mean area under the ROC curve.

        min over (h, w_i) of (1/m) Σ_i E[(1 − s₊ + s₋)²] over pairs of a positive and a negative sample of task i

    as the min-max problem of `bilevax.problems.auc`: a step of block SOBA looks at a few of the tasks. It starts from
    the same network trained on the logistic loss, and stops where held-out rows are ranked best: at the start, if what
    they gain is not more than noise. Beside it stands a logistic regression for each task; scores are as much of both
    as ranks held-out rows best.

    >>> model = MultiTaskAUCClassifier(random_state=0).fit(X, Y)
    >>> model.predict_proba(X), model.n_steps_, model.linear_share_, model.held_out_

    - `hidden`: sizes of the hidden layers that all tasks share; none leaves linear models that share nothing.
    - `tasks_per_step`: tasks that a step looks at, `None` for all; `batch_size`: samples for each.
    - `ridge`: of all weights of the network; `None` finds it on held-out rows.
    - `folds`: parts that are held out in turn, whose networks stand side by side; 1 holds nothing out: the ridge is
      1e-4 if not given, all steps are taken, and no logistic regression stands beside.
    - `standardize`: bring columns to mean 0 and deviation 1 (sparse ones without the mean).
    - `steps`, `learning_rate`: of Adam, its rate falls to zero along a cosine; `mixing`: weight of fresh samples in the
      dual variable that each task keeps.
    - `random_state`: of folds and draws; `verbose`: lines that say how held-out rows are ranked, on stderr or for a
      function of a line.

    y is (samples,) with two classes, or (samples, tasks) with 0 and 1. Fitted: `classes_`, `layers_` and `lines_` (of
    the network and of the linear models, whose outputs are added, on the scale of `scaling_`), `log_odds_` (slope and
    shift of each task), `n_steps_`, `ridge_`, `linear_share_`, `held_out_` (mean area of each held-out part).
    Sources: Guo, Hu, Zhang, Yang 2021; Ying, Wen, Lyu 2016.
    """

    def __init__(
        self, hidden: tuple[int, ...] = (32,), *, tasks_per_step: int | None = 10, batch_size: int = 64,
        ridge: float | None = None, folds: int = 5, standardize: bool = True, steps: int = 1000,
        learning_rate: float = 3e-3, mixing: float = 0.6, random_state: Any = None, verbose: Any = False,
    ):  # fmt: skip
        self.hidden = hidden
        self.tasks_per_step = tasks_per_step
        self.batch_size = batch_size
        self.ridge = ridge
        self.folds = folds
        self.standardize = standardize
        self.steps = steps
        self.learning_rate = learning_rate
        self.mixing = mixing
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        """Two classes, or several columns of them; dense or sparse rows."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = True
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any) -> "MultiTaskAUCClassifier":
        """Train on rows X, an array or a scipy.sparse matrix, with labels y of one or many binary tasks."""
        self._check()
        rng = random_numbers(self.random_state)
        X, y = read_rows(self, X, y, multi_output=True)
        check_size(self, X.shape[1])
        X, positive = to_dense(X), self._read(np.asarray(y))
        self.scaling_ = find_scaling(X, self.standardize)
        rows, m = self.scaling_(X), positive.shape[1]
        several = m if self.tasks_per_step is None else min(int(self.tasks_per_step), m)
        folds = draw_plain_folds(len(positive), self.folds, rng) if self.folds > 1 else []
        pace = Pace(
            int(self.steps), float(self.learning_rate), int(self.batch_size), several, float(self.mixing),
            int(rng.randint(2**31)),
        )  # fmt: skip
        held = self._fit_folds(rows, positive, [many_tasks.complete(fold, positive) for fold in folds], pace)
        self.log_odds_ = np.asarray([log_odds(held[:, i], positive[:, i]) for i in range(m)])
        return self

    def _check(self) -> None:
        """Refuse settings that are out of range, before anything is read."""
        check_network(self)
        if self.ridge is not None:
            arguments.number("ridge", self.ridge, "a finite number >= 0", lambda v: 0 <= v < np.inf)
        if self.tasks_per_step is not None:
            arguments.count("tasks_per_step", self.tasks_per_step)
        arguments.count("folds", self.folds)
        arguments.flag("standardize", self.standardize)

    def _fit_whole(self, rows: Any, positive: np.ndarray, pace: Pace) -> np.ndarray:
        """Nothing held out: the start, and all steps. Returns scores of the rows."""
        self.ridge_ = 1e-4 if self.ridge is None else float(self.ridge)
        self.linear_share_, self.n_steps_, self.held_out_ = 0.0, pace.steps, np.zeros(0)
        first = many_tasks.fit_network(rows, positive, self.hidden, self.ridge_, pace)
        self.layers_ = as_layers(many_tasks.descend(rows, positive, first, self.ridge_, pace)[-1])
        self.lines_ = [{"weights": np.zeros((rows.shape[1], positive.shape[1])), "shift": np.zeros(positive.shape[1])}]
        return network.score_columns(self.layers_, rows)

    def _fit_folds(self, rows: Any, positive: np.ndarray, folds: list[Fold], pace: Pace) -> np.ndarray:
        """The network and the linear models with the help of held-out rows. Returns scores of rows as held out."""
        if not folds:
            return self._fit_whole(rows, positive, pace)
        lines = many_tasks.choose_lines(rows, positive, folds)
        tell(self, f"logistic regressions, C = {lines.setting:g}: {lines.values.mean():.4f} on held-out rows")
        start = self._begin(rows, positive, folds, lines, pace)
        tell(self, f"start, ridge = {self.ridge_:g}: {start.values.mean():.4f} on held-out rows")
        self.n_steps_, best = many_tasks.find_stop(rows, positive, folds, start, self.ridge_, pace, partial(tell, self))
        blended = many_tasks.blend(positive, folds, best, lines)
        self.linear_share_, (size, size_of_lines) = blended.share, blended.sizes
        joined = network.join([as_layers(own) for own in best.models], 1 / len(folds))
        self.layers_ = many_tasks.scale_outputs(joined, (1 - blended.share) / size)
        whole = many_tasks.fit_lines(rows, positive, lines.setting)
        self.lines_ = many_tasks.scale_outputs(whole, blended.share / size_of_lines)
        self.held_out_ = many_tasks.judge_folds(positive, folds, blended.held)
        tell(self, f"with a share of {blended.share:g} for the regressions: {self.held_out_.mean():.4f}")
        held = np.zeros(positive.shape)
        for fold, own in zip(folds, blended.held, strict=True):
            held[fold.held] = own
        return held

    def _begin(self, rows: Any, positive: np.ndarray, folds: list[Fold], lines: Choice, pace: Pace) -> Choice:
        """Networks on the logistic loss; without hidden layers the logistic regressions."""
        if not len(self.hidden):
            self.ridge_ = 1e-4 if self.ridge is None else float(self.ridge)
            return lines._replace(models=[{"body": [], "heads": own[0]["weights"].T} for own in lines.models])
        ridges = many_tasks.RIDGES if self.ridge is None else (float(self.ridge),)
        start = many_tasks.choose_network(rows, positive, folds, self.hidden, ridges, pace)
        self.ridge_ = start.setting
        return start

    def _read(self, y: np.ndarray) -> np.ndarray:
        """True for positive samples, (samples, tasks); remembers the classes."""
        self.one_column_ = y.ndim == 1 or y.shape[1] == 1
        if self.one_column_:
            self.classes_, positive = two_classes(y)
            return positive[:, None]
        if not np.isin(y, (0, 1)).all():
            raise ValueError(f"y of several tasks must hold 0 and 1; got {y[~np.isin(y, (0, 1))][0]!r}.")
        self.classes_ = np.array([0, 1])
        return y == 1

    def _scores(self, X: Any) -> np.ndarray:
        rows = Scaling(*self.scaling_)(X)
        return network.score_columns(self.layers_, rows) + network.score_columns(self.lines_, rows)

    def decision_function(self, X: Any) -> np.ndarray:
        """Log-odds of the second class; a column for each task where there are several."""
        check_is_fitted(self)
        X = read_rows(self, X, reset=False)
        odds = self._scores(to_dense(X)) * self.log_odds_[:, 0] + self.log_odds_[:, 1]
        return odds[:, 0] if self.one_column_ else odds

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of both classes; of the second one, a column for each task, where there are several tasks."""
        shares = probabilities(self.decision_function(X))
        return np.column_stack([1 - shares, shares]) if self.one_column_ else shares

    def predict(self, X: Any) -> np.ndarray:
        """The more probable class of each row and task."""
        positive = self.decision_function(X) > 0
        return self.classes_[positive.astype(int)]
