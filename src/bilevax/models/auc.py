"""Many binary tasks on one representation, trained for the areas under their ROC curves."""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data

from bilevax import arguments
from bilevax.algorithms.base import Algorithm
from bilevax.algorithms.block_soba import block_soba
from bilevax.models import network
from bilevax.models.base import log_odds, probabilities, run, two_classes, written_out
from bilevax.problems import auc
from bilevax.rows import held


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
        arguments.positive("learning_rate", self.learning_rate)
        arguments.count("steps", self.steps)
        arguments.count("batch_size", self.batch_size)
        arguments.share("mixing", self.mixing)
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, multi_output=True)
        X, positive = written_out(X), self._read(np.asarray(y))
        key = jax.random.key(seed := int(check_random_state(self.random_state).randint(2**31)))
        begun = self._begin(X, positive, key)
        problem = auc(
            features=X, labels=2.0 * positive - 1.0, represent=network.representation, body0=begun["body"],
            heads0=np.asarray(begun["heads"]), ridge=self.ridge,
        )  # fmt: skip
        m = positive.shape[1]
        several = m if self.tasks_per_step is None else min(self.tasks_per_step, m)
        algorithm = _algorithm(several, self.steps, self.learning_rate, self.batch_size, self.mixing)
        result = run(problem, algorithm, steps=self.steps, metrics=None, seed=seed, progress=self.verbose)
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
            parameters, held(X), signs, self.ridge, draw_key, score=all_scores, steps=self.steps, batch=self.batch_size
        )

    def _scores(self, X: Any) -> np.ndarray:
        parameters = jax.tree.map(jnp.asarray, {"body": self.body_, "heads": self.heads_})
        return np.asarray(all_scores(parameters, held(X)), float)

    def decision_function(self, X: Any) -> np.ndarray:
        """Log-odds of the second class; a column for each task where there are several."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
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


@lru_cache(maxsize=8)
def _algorithm(several: int, steps: int, learning_rate: float, batch_size: int, mixing: float) -> Algorithm:
    """One object for one choice of settings, so that the next fit need not be compiled again."""
    return block_soba(
        lower_step=mixing / 2,  # ∇²yy g = 2
        mixing=1.0, tasks_per_step=several, batch_size=batch_size, initial_batch_size=8 * batch_size,
        upper_optimizer=optax.adam(optax.cosine_decay_schedule(learning_rate, steps)),
    )  # fmt: skip
