"""Linear models of many groups that share a prior, learned from all of them."""

from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from bilevax import arguments
from bilevax.models import fold_problem, prior_problem
from bilevax.models.base import check_verbose, probabilities, random_numbers, tag_kind, tell, two_classes
from bilevax.models.penalty_search import LOGISTIC_GRID, RIDGE_GRID
from bilevax.models.prior_problem import Prior


def is_logistic(model: Any) -> bool:
    """Whether a model has odds and probabilities to show."""
    return bool(model.kind == "logistic")


class SharedPrior(BaseEstimator):
    """Ridge or logistic models of many groups with a common prior that is learned: mean and spread of each coefficient.

        y_i = argmin Σ loss of the rows of group i + ½ Σ_j α_j (y_j − μ_j)²,   (μ, α) minimise the loss of held rows

    A group with few rows stays near μ, one with many goes its own way, coefficient by coefficient as far as groups
    differ in it. μ is the model of groups that are new. With one group, or none given, it is pooled ridge or logistic
    regression.

    - `kind`: "ridge" for numbers, "logistic" for two classes.
    - `precision`: α of all coefficients, infinity for one pooled model; "auto" learns one for each.
    - `shrinkage`: s, how strongly log α_j are held to a common one, in s/2n Σ log(1 + d_j²).
    - `cv`: the number of folds of the rows of each group; a group as a whole is one more.
    - `standardize`: whether columns are brought to variance one first.
    - `steps`: of the search, at most; `random_state`: of the folds; `verbose`: what was found, on stderr or
      for a function.
    - `devices`: how many share the lower problems (`bilevax.shard`); more than one pays where they fill a device.

    Fitted: `groups_`, `coef_` (groups, features) and `intercept_` (groups,), `prior_coef_` and `prior_intercept_` (of
    new groups), all of the columns as given; `precision_` (of standardised columns, the shift last), `classes_`.
    Sources: Guo, Hu, Zhang, Yang 2021 (many lower problems); Gelman, Hill 2007 (models of groups).

    >>> model = SharedPrior(random_state=0).fit(X, y, groups=table["school"])
    >>> model.predict(X_new, groups=["school 7", "a new one"])
    """

    def __init__(
        self, *, kind: str = "ridge", precision: float | str = "auto", shrinkage: float = 1.0, cv: int = 5,
        standardize: bool = True, steps: int = 100, devices: int = 1, random_state: Any = None,
        verbose: Any = False,
    ):  # fmt: skip
        self.kind = kind
        self.precision = precision
        self.shrinkage = shrinkage
        self.cv = cv
        self.standardize = standardize
        self.steps = steps
        self.devices = devices
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        """A classifier of two classes, or a regressor."""
        return tag_kind(super().__sklearn_tags__(), self.kind)

    def _check(self) -> None:
        """Refuse settings that are out of range."""
        arguments.one_of("kind", self.kind, ("ridge", "logistic"))
        if self.precision != "auto":
            arguments.number("precision", self.precision, '"auto" or a number > 0, or infinity', lambda v: v > 0)
        arguments.positive("shrinkage", self.shrinkage)
        arguments.count("cv", self.cv, least=2)
        arguments.count("steps", self.steps)
        arguments.flag("standardize", self.standardize)
        fold_problem.check_devices(self.devices)
        check_verbose(self.verbose)

    def fit(self, X: Any, y: Any, groups: Any = None) -> "SharedPrior":
        """Learn the prior and the models from rows X, targets or labels y, and the group of each row."""
        self._check()
        random = random_numbers(self.random_state)
        logistic = self.kind == "logistic"
        X, y = fold_problem.read_dense(self, X, y, ensure_min_samples=2, **({} if logistic else {"y_numeric": True}))
        self.groups_, group = read_groups(groups, len(X))
        b = self._targets(y)
        A = self._columns(X)
        fold = fold_problem.deal(group, self.cv, random)
        pooled = self._pool(A, b, fold_problem.deal(b if logistic else group, self.cv, random))
        prior = self._learn(A, b, prior_problem.splits_of(group, fold), pooled) if len(self.groups_) > 1 else pooled
        flat = np.isinf(prior.precision).all()
        models = [
            prior.mean if flat else self._fit_one(A[group == i], b[group == i], prior) for i in range(group.max() + 1)
        ]
        self.precision_ = prior.precision
        self.prior_coef_, self.prior_intercept_ = (value[0] for value in self._original(prior.mean[None]))
        self.coef_, self.intercept_ = self._original(np.stack(models))
        return self

    def _targets(self, y: np.ndarray) -> np.ndarray:
        """±1, or numbers of mean zero and variance one."""
        if self.kind == "logistic":
            self.classes_, positive = two_classes(y)
            self.level_, self.unit_ = 0.0, 1.0
            return 2.0 * positive - 1.0
        y = np.asarray(y, float)
        self.level_, self.unit_ = float(y.mean()), float(y.std()) or 1.0
        return (y - self.level_) / self.unit_

    def _columns(self, X: np.ndarray) -> np.ndarray:
        """The columns as the search takes them, and a constant behind them."""
        self.mean_, self.scale_ = fold_problem.mean_and_scale(X, self.standardize)
        return np.column_stack([(X - self.mean_) / self.scale_, np.ones(len(X))])

    def _original(self, models: Float[np.ndarray, "m p"]) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients and shifts of the columns and targets as they were given."""
        weights = self.unit_ * models[:, :-1] / self.scale_
        return weights, self.unit_ * models[:, -1] + self.level_ - weights @ self.mean_

    def _pool(self, A: np.ndarray, b: np.ndarray, fold: np.ndarray) -> Prior:
        """The model of all rows with the ridge that is best by the folds, as a prior without any spread."""
        ridge = lambda size: np.append(np.full(A.shape[1] - 1, size), 1e-9 * len(A))
        fit = lambda rows, size: self._fit_one(A[rows], b[rows], Prior(np.zeros(A.shape[1]), ridge(size)))
        grid = (RIDGE_GRID if self.kind == "ridge" else LOGISTIC_GRID) * len(A)
        numbers = range(fold.max() + 1)
        losses = [
            np.mean([self._loss(fit(fold != k, size), A[fold == k], b[fold == k]) for k in numbers]) for size in grid
        ]
        self.pooled_penalty_ = float(grid[int(np.argmin(losses))])
        self.pooled_ = Prior(fit(fold >= 0, self.pooled_penalty_), np.full(A.shape[1], np.inf))
        return self.pooled_

    def _learn(self, A: np.ndarray, b: np.ndarray, splits: list[prior_problem.Split], pooled: Prior) -> Prior:
        """The prior by which held rows are predicted best."""
        if self.precision != "auto" and np.isinf(self.precision):
            return pooled
        rows = len(A) / len(self.groups_)
        ridge = np.append(np.full(A.shape[1] - 1, self.pooled_penalty_), 0.0)
        make = prior_problem.quadratic_problem if self.kind == "ridge" else prior_problem.logistic_problem
        free = self.precision == "auto"
        search = prior_problem.Search(rows if free else float(self.precision), free, float(self.shrinkage))
        problem = make(A, b, splits, Prior(pooled.mean, ridge), search)
        result = fold_problem.search(problem, self.steps, self.devices)
        self.n_steps_ = result.steps
        found = prior_problem.prior_at(result.x, problem)
        told = ", ".join(f"{value:.3g}" for value in found.precision[:10])
        tell(self, f"{len(splits)} lower problems, {result.steps} steps, precision {told}")
        return found

    def _fit_one(self, A: np.ndarray, b: np.ndarray, prior: Prior) -> np.ndarray:
        return prior_problem.fit_towards(prior, A, b, logistic=self.kind == "logistic")

    def _loss(self, y: np.ndarray, A: np.ndarray, b: np.ndarray) -> float:
        return float(np.mean((A @ y - b) ** 2 if self.kind == "ridge" else np.logaddexp(0, -b * (A @ y))))

    def _scores(self, X: Any, groups: Any) -> np.ndarray:
        """aᵀy_i + shift of each row, of its group i; without groups, and for new ones, the prior's."""
        check_is_fitted(self)
        X = fold_problem.read_dense(self, X, reset=False)
        weights = np.vstack([self.coef_, self.prior_coef_])
        shifts = np.append(self.intercept_, self.prior_intercept_)
        place = self._places(groups, len(X))
        return np.einsum("np,np->n", X, weights[place]) + shifts[place]

    def _places(self, groups: Any, n: int) -> np.ndarray:
        """The number of the group of each row; the last for one that is new."""
        if groups is None:
            return np.full(n, -1)
        numbers = {name: k for k, name in enumerate(self.groups_.tolist())}
        return np.array([numbers.get(name, -1) for name in _column(groups, n).tolist()], int)

    @available_if(is_logistic)
    def decision_function(self, X: Any, groups: Any = None) -> Float[np.ndarray, " n"]:
        """Log-odds of the second class."""
        return self._scores(X, groups)

    @available_if(is_logistic)
    def predict_proba(self, X: Any, groups: Any = None) -> Float[np.ndarray, "n 2"]:
        """Probabilities of both classes."""
        shares = probabilities(self.decision_function(X, groups))
        return np.column_stack([1 - shares, shares])

    def predict(self, X: Any, groups: Any = None) -> np.ndarray:
        """The number, or the more probable class, of each row."""
        scores = self._scores(X, groups)
        return self.classes_[(scores > 0).astype(int)] if self.kind == "logistic" else scores

    def score(self, X: Any, y: Any, groups: Any = None) -> float:
        """R², or the share of rows that are told right."""
        measure = accuracy_score if self.kind == "logistic" else r2_score
        return float(measure(y, self.predict(X, groups)))


def _column(groups: Any, n: int) -> np.ndarray:
    given = np.asarray(groups)
    if given.shape != (n,):
        raise ValueError(f"groups must be one label for each of the {n} rows; got shape {given.shape}.")
    return given


def read_groups(groups: Any, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The labels in sorted order, and the number of the group of each row."""
    given = np.zeros(n, int) if groups is None else _column(groups, n)
    try:
        names, group = np.unique(given, return_inverse=True)
    except TypeError as error:
        raise TypeError(f"groups must hold labels of one kind, all text or all numbers ({error}).") from None
    return names, group.reshape(-1)
