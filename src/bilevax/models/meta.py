"""A representation that many tasks share, from which each adapts a linear head to a few rows of its own."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from bilevax import arguments
from bilevax.models import fold_problem, network
from bilevax.models.base import check_verbose, probabilities, random_numbers, tag_kind, tell, two_classes
from bilevax.models.meta_problem import Split, features, join_tasks, make_problem, split_tasks
from bilevax.models.prior import is_logistic, read_groups
from bilevax.models.prior_problem import Prior, fit_towards

DECAYS = (1e-2, 1e-3, 1e-4)  # of the weights that are tried
HELD = 0.25  # the share of the tasks that they are judged by


class AdaptedModel:
    """A model of one task, as `MetaLearner.adapt` returns it: `predict`, and of two classes `predict_proba`."""

    def __init__(self, learner: "MetaLearner", head: np.ndarray):
        self.learner = learner
        self.head = head

    def predict(self, X: Any) -> np.ndarray:
        """The number, or the more probable class, of each row."""
        return self.learner._answer(self.learner._scores(X, self.head))

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n 2"]:
        """Probabilities of both classes."""
        if not is_logistic(self.learner):
            raise AttributeError('predict_proba needs a learner with kind="logistic".')
        return _both(self.learner._scores(X, self.head))


class MetaLearner(BaseEstimator):
    """A small network that many tasks share, with a linear head that adapts to a few rows of a new one.

        min over (body, head) of mean_i loss of query rows at head + y_i*,
        y_i* = argmin Σ loss of support rows + ½ n̄ ‖y‖²,   n̄ the mean number of support rows

    `bilevax.problems.meta_learning` with heads that adapt. A task is split in support and query rows `splits` times.
    Once it has no support at all, so that `predict` without `adapt` is a model too.

    - `hidden`: sizes of the hidden layers; none leaves linear models with a shared mean.
    - `kind`: "ridge" for numbers, "logistic" for two classes that mean something else in each task.
    - `splits`: how often a task is split; `support`: the share of its rows that it adapts to.
    - `decay`: of the weights of the body; "auto" chooses among 0.01, 0.001 and 0.0001 on tasks that are held back.
    - `steps`: of the search, at most; `random_state`: of weights and splits; `verbose`: losses, on stderr or
      for a function.
    - `devices`: how many share the lower problems (`bilevax.shard`); more than one pays where they fill a device.

    Fitted: `layers_` and `head_` (of standardised columns), `units_`, `decay_`, `decay_losses_`, `classes_`.
    Source: Guo, Hu, Zhang, Yang 2021, the introduction's "Meta Learning"; Rajeswaran, Finn, Kakade, Levine 2019.

    >>> learner = MetaLearner((32,), random_state=0).fit([(X_1, y_1), (X_2, y_2), (X_3, y_3)])
    >>> learner.adapt(X_few, y_few).predict(X_new)
    """

    def __init__(
        self, hidden: tuple[int, ...] = (32,), *, kind: str = "ridge", splits: int = 2, support: float = 0.5,
        decay: float | str = "auto", steps: int = 300, devices: int = 1, random_state: Any = None,
        verbose: Any = False,
    ):  # fmt: skip
        self.hidden = hidden
        self.kind = kind
        self.splits = splits
        self.support = support
        self.decay = decay
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
        if not isinstance(self.hidden, (tuple, list)):
            raise TypeError(f"hidden must be the sizes of the hidden layers, such as (32,) or (); got {self.hidden!r}.")
        for k, size in enumerate(self.hidden):
            arguments.count(f"hidden[{k}]", size)
        if self.decay != "auto":
            arguments.number("decay", self.decay, '"auto" or a finite number >= 0', lambda v: 0 <= v < np.inf)
        arguments.count("splits", self.splits)
        arguments.count("steps", self.steps)
        arguments.below_one("support", self.support)
        fold_problem.check_devices(self.devices)
        check_verbose(self.verbose)

    def fit(self, X: Any, y: Any = None, groups: Any = None) -> "MetaLearner":
        """Learn from X, a list of tasks (rows, targets); or from rows X, targets y and the task of each row."""
        self._check()
        random = random_numbers(self.random_state)
        if y is None and isinstance(X, (list, tuple)):
            X, y, groups = join_tasks(X)
        options = {} if is_logistic(self) else {"y_numeric": True}
        X, y = fold_problem.read_dense(self, X, y, ensure_min_samples=2, **options)
        task = read_groups(groups, len(X))[1]
        self.mean_, self.scale_ = fold_problem.mean_and_scale(X, True)
        Z, b = (X - self.mean_) / self.scale_, self._targets(y)
        splits = split_tasks(task, self.splits, self.support, random)
        self.support_rows_ = max(
            1.0, float(np.mean([len(split.support) for split in splits if len(split.support)] or [1]))
        )
        start = self._start(Z.shape[1], int(random.randint(2**31)))
        self.decay_ = self._choose(Z, b, splits, start, random) if self.decay == "auto" else float(self.decay)
        learned = self._train(Z, b, splits, self.decay_, start, np.ones(len(splits)))
        self.layers_, self.units_, self.head_ = learned["body"], learned["units"], np.asarray(learned["head"], float)
        return self

    def _targets(self, y: np.ndarray) -> np.ndarray:
        """±1, or numbers of mean zero and variance one."""
        if is_logistic(self):
            self.classes_, positive = two_classes(y)
            self.level_, self.unit_ = 0.0, 1.0
            return 2.0 * positive - 1.0
        y = np.asarray(y, float)
        self.level_, self.unit_ = float(y.mean()), float(y.std()) or 1.0
        return (y - self.level_) / self.unit_

    def _start(self, inputs: int, seed: int) -> dict[str, Any]:
        """A random body, a head of zeros and units of one."""
        dtype, sizes = jnp.result_type(float), (inputs, *self.hidden)
        body = network.random_layers(jax.random.key(seed), (*sizes, 1), dtype)[:-1]
        return {"body": body, "units": jnp.zeros(2, dtype), "head": jnp.zeros(sizes[-1] + 1, dtype)}

    def _train(self, Z: np.ndarray, b: np.ndarray, splits: list[Split], decay: float, start: Any, kept: Any) -> Any:
        """Body, units and head that adapt best to the splits that are kept."""
        problem = make_problem(Z, b, splits, kept / kept.mean(), decay, start, self.support_rows_, is_logistic(self))
        result = fold_problem.search(problem, self.steps, self.devices)
        self.n_steps_ = result.steps
        return jax.tree.map(np.asarray, result.x)

    def _choose(self, Z: np.ndarray, b: np.ndarray, splits: list[Split], start: Any, random: Any) -> float:
        """The decay that is best for tasks that are held back; the strongest where there are too few."""
        task = np.array([split.task for split in splits])
        held = np.isin(task, random.permutation(task.max() + 1)[: int(HELD * (task.max() + 1))])
        if not held.any():
            return DECAYS[0]
        self.decay_losses_ = {}
        for decay in DECAYS:
            learned = self._train(Z, b, splits, decay, start, (~held).astype(float))
            losses = [self._query_loss(learned, Z, b, splits[k]) for k in np.flatnonzero(held)]
            self.decay_losses_[decay] = float(np.mean(losses))
            tell(self, f"decay {decay:g}, held loss {self.decay_losses_[decay]:.4g}")
        return min(self.decay_losses_, key=self.decay_losses_.__getitem__)

    def _query_loss(self, learned: Any, Z: np.ndarray, b: np.ndarray, split: Split) -> float:
        train, query = split.support, split.query
        A = np.asarray(features(learned, jnp.asarray(Z, jnp.result_type(float))), float)
        scores = A[query] @ self._fit_head(A[train], b[train], np.asarray(learned["head"], float))
        return float(np.mean(np.logaddexp(0, -b[query] * scores) if is_logistic(self) else (scores - b[query]) ** 2))

    def _fit_head(self, A: np.ndarray, b: np.ndarray, head: np.ndarray) -> np.ndarray:
        """The lower problem of a task: Σ loss + ½ n̄ ‖y‖²."""
        prior = Prior(head, np.full(len(head), self.support_rows_))
        return fit_towards(prior, A, b, logistic=is_logistic(self)) if len(A) else head

    def _features(self, X: Any) -> np.ndarray:
        parameters = jax.tree.map(jnp.asarray, {"body": self.layers_, "units": self.units_})
        rows = jnp.asarray((X - self.mean_) / self.scale_, jnp.result_type(float))
        return np.asarray(features(parameters, rows), float)

    def adapt(self, X: Any, y: Any) -> AdaptedModel:
        """The model of a new task, from a few rows X of it and their targets or labels y."""
        check_is_fitted(self)
        X, y = fold_problem.read_dense(self, X, y, reset=False)
        if is_logistic(self):
            unseen = sorted(set(y.tolist()) - set(self.classes_.tolist()), key=str)
            if unseen:
                raise ValueError(f"y must hold the classes {self.classes_.tolist()} alone; got {unseen[0]!r}.")
            b = np.where(y == self.classes_[1], 1.0, -1.0)
        else:
            b = (np.asarray(y, float) - self.level_) / self.unit_
        return AdaptedModel(self, self._fit_head(self._features(X), b, self.head_))

    def _scores(self, X: Any, head: np.ndarray) -> np.ndarray:
        check_is_fitted(self)
        return self._features(fold_problem.read_dense(self, X, reset=False)) @ head * self.unit_ + self.level_

    def _answer(self, scores: np.ndarray) -> np.ndarray:
        return self.classes_[(scores > 0).astype(int)] if is_logistic(self) else scores

    @available_if(is_logistic)
    def decision_function(self, X: Any) -> Float[np.ndarray, " n"]:
        """Log-odds of the second class, of a task without any rows of its own."""
        check_is_fitted(self)
        return self._scores(X, self.head_)

    @available_if(is_logistic)
    def predict_proba(self, X: Any) -> Float[np.ndarray, "n 2"]:
        """Probabilities of both classes, of a task without any rows of its own."""
        return _both(self.decision_function(X))

    def predict(self, X: Any) -> np.ndarray:
        """The number, or the more probable class, of each row of a task without any rows of its own."""
        check_is_fitted(self)
        return self._answer(self._scores(X, self.head_))

    def score(self, X: Any, y: Any) -> float:
        """R², or the share of rows that are told right."""
        measure = accuracy_score if is_logistic(self) else r2_score
        return float(measure(y, self.predict(X)))


def _both(scores: np.ndarray) -> np.ndarray:
    shares = probabilities(scores)
    return np.column_stack([1 - shares, shares])
