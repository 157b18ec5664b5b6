"""Many binary tasks on one representation, trained for the areas under their ROC curves."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from sklearn.base import BaseEstimator, ClassifierMixin
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
from bilevax.problems import auc
from bilevax.rows import as_rows


def all_scores(parameters: dict[str, Any], rows: Any) -> Float[Array, "n m"]:
    """The scores of every task."""
    return network.representation(parameters["body"], rows) @ parameters["heads"].T


class MultiTaskAUCClassifier(ClassifierMixin, BaseEstimator):
    """Binary tasks with one linear head each on a shared network, trained for their mean area under the ROC curve.

        min over (h, w_i) of (1/m) Σ_i E[(1 − s₊ + s₋)²] over pairs of a positive and a negative sample of task i

    as the min-max problem of `bilevax.problems.auc`: a step of block SOBA looks at a few of the tasks. It starts from
    the same network trained on the logistic loss.

    - `hidden`: sizes of the hidden layers that all tasks share; none leaves linear models that share nothing.
    - `tasks_per_step`: tasks that a step looks at, `None` for all; `batch_size`: samples for each.
    - `ridge`: of all weights; `steps`, `learning_rate`: of Adam, its rate falls to zero along a cosine; `mixing`:
      weight of fresh samples in the dual variable that each task keeps.
    - `random_state`: of the draws; `verbose`: a progress bar on stderr.

    y is (samples,) with two classes, or (samples, tasks) with 0 and 1. Fitted: `classes_`, `body_`, `heads_`,
    `log_odds_` (slope and shift of each task), `n_steps_`. Sources: Guo, Hu, Zhang, Yang 2021; Ying, Wen, Lyu 2016.
    """

    def __init__(
        self, hidden: tuple[int, ...] = (32,), *, tasks_per_step: int | None = 10, batch_size: int = 64,
        ridge: float = 1e-4, steps: int = 2000, learning_rate: float = 3e-3, mixing: float = 0.6,
        random_state: Any = None, verbose: bool = False,
    ):  # fmt: skip
        self.hidden = hidden
        self.tasks_per_step = tasks_per_step
        self.batch_size = batch_size
        self.ridge = ridge
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
        check_network(self)
        arguments.number("ridge", self.ridge, "a finite number >= 0", lambda v: 0 <= v < np.inf)
        if self.tasks_per_step is not None:
            arguments.count("tasks_per_step", self.tasks_per_step)
        rng = random_numbers(self.random_state)
        X, y = read_rows(self, X, y, multi_output=True)
        check_size(self, X.shape[1])
        X, positive = to_dense(X), self._read(np.asarray(y))
        key = jax.random.key(seed := int(rng.randint(2**31)))
        first = self._begin(X, positive, key)
        problem = auc(
            features=X, labels=2.0 * positive - 1.0, represent=network.representation, body0=first["body"],
            heads0=np.asarray(first["heads"]), ridge=self.ridge,
        )  # fmt: skip
        m = positive.shape[1]
        several = m if self.tasks_per_step is None else min(self.tasks_per_step, m)
        lower_step = float(self.mixing) / 2  # ∇²yy g = 2
        algorithm = make_algorithm(lower_step, several, self.steps, float(self.learning_rate), self.batch_size)
        result = run(problem, algorithm, steps=self.steps, metrics=None, seed=seed, progress=bool(self.verbose))
        self.n_steps_ = result.steps
        self.body_, self.heads_ = jax.tree.map(np.asarray, (result.x["body"], result.x["heads"]))
        scores = self._scores(X)
        odds = [log_odds(scores[:, i], positive[:, i]) for i in range(m)]
        self.log_odds_ = np.asarray(odds)
        return self

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

    def _begin(self, X: Any, positive: np.ndarray, key: Any) -> dict[str, Any]:
        """Body and heads trained on the logistic loss of all tasks."""
        random_key, draw_key = jax.random.split(key)
        dtype, sizes = jnp.result_type(float), (X.shape[1], *self.hidden)
        body = network.random_layers(random_key, (*sizes, 1), dtype)[:-1]
        parameters = {"body": body, "heads": jnp.zeros((positive.shape[1], sizes[-1]), dtype)}
        signs = jnp.asarray(2.0 * positive - 1.0, dtype)
        return network.fit_logistic(
            parameters,
            as_rows(X),
            signs,
            self.ridge,
            draw_key,
            score=all_scores,
            steps=self.steps,
            batch=self.batch_size,
        )

    def _scores(self, X: Any) -> np.ndarray:
        parameters = jax.tree.map(jnp.asarray, {"body": self.body_, "heads": self.heads_})
        return np.asarray(all_scores(parameters, as_rows(X)), float)

    def decision_function(self, X: Any) -> np.ndarray:
        """Log-odds of the second class; a column for each task where there are several."""
        check_is_fitted(self)
        X = read_rows(self, X, reset=False)
        odds = self._scores(X) * self.log_odds_[:, 0] + self.log_odds_[:, 1]
        return odds[:, 0] if self.one_column_ else odds

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of both classes; of the second one, a column for each task, where there are several tasks."""
        shares = probabilities(self.decision_function(X))
        return np.column_stack([1 - shares, shares]) if self.one_column_ else shares

    def predict(self, X: Any) -> np.ndarray:
        """The more probable class of each row and task."""
        positive = self.decision_function(X) > 0
        return self.classes_[positive.astype(int)]
