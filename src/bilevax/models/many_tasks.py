"""Many binary tasks on rows that are held out in turn: starts, steps for the areas, and where to stop."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from bilevax.models import network
from bilevax.models.base import make_algorithm, run
from bilevax.models.held_out import Fold, is_gain
from bilevax.problems import auc
from bilevax.rows import as_rows

STRENGTHS = (1e-2, 1e-1, 1.0)  # C of the linear models
RIDGES = (1e-4, 1e-3, 1e-2)  # of the network
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the linear models beside the network
LOOKS = 10  # at the held-out rows, along the way


class Pace(NamedTuple):
    """How the steps are taken."""

    steps: int
    learning_rate: float
    batch_size: int
    tasks_per_step: int
    mixing: float
    seed: int


def all_scores(parameters: dict[str, Any], rows: Any) -> Float[Array, "n m"]:
    """The scores of every task."""
    return network.representation(parameters["body"], rows) @ parameters["heads"].T


def as_layers(parameters: Any) -> list[dict[str, np.ndarray]]:
    """Body and heads as layers with an output for each task."""
    heads = np.asarray(parameters["heads"], float)
    return [*parameters["body"], {"weights": heads.T, "shift": np.zeros(len(heads))}]


def complete(fold: Fold, positive: np.ndarray) -> Fold:
    """The fold with rows of the held-out part added where a task would have one class alone to train on."""
    more = []
    for i in range(positive.shape[1]):
        for wanted in (True, False):
            if not (positive[fold.train, i] == wanted).any():
                more.append(np.flatnonzero(positive[:, i] == wanted)[0])
    return fold if not more else Fold(np.concatenate([fold.train, more]).astype(int), fold.held)


def judge(positive: np.ndarray, scores: np.ndarray) -> float:
    """The mean area under the ROC curves of the tasks that have both classes here."""
    both = np.flatnonzero(positive.any(0) & ~positive.all(0))
    if not len(both) or not np.isfinite(scores).all():
        return 0.5
    return float(np.mean([roc_auc_score(positive[:, i], scores[:, i]) for i in both]))


def judge_folds(positive: np.ndarray, folds: Sequence[Fold], scores: Sequence[np.ndarray]) -> np.ndarray:
    """The mean area on the rows that each fold holds out."""
    return np.array([judge(positive[fold.held], own) for fold, own in zip(folds, scores, strict=True)])


def fit_lines(rows: Any, positive: np.ndarray, C: float) -> network.Layers:
    """A logistic regression for each task."""
    fits = [LogisticRegression(C=C, max_iter=300, tol=1e-3).fit(rows, own) for own in positive.T]
    weights, shifts = [fit.coef_[0] for fit in fits], [fit.intercept_[0] for fit in fits]
    return [{"weights": np.stack(weights, axis=1), "shift": np.array(shifts)}]


def fit_network(rows: Any, positive: np.ndarray, hidden: Sequence[int], ridge: float, pace: Pace) -> dict[str, Any]:
    """Body and heads trained on the logistic loss of all tasks."""
    random_key, draw_key = jax.random.split(jax.random.key(pace.seed))
    dtype, sizes = jnp.result_type(float), (rows.shape[1], *map(int, hidden))
    body = network.random_layers(random_key, (*sizes, 1), dtype)[:-1]
    parameters = {"body": body, "heads": jnp.zeros((positive.shape[1], sizes[-1]), dtype)}
    fitted = network.fit_logistic(
        parameters, as_rows(rows), jnp.asarray(2.0 * positive - 1.0, dtype), jnp.asarray(ridge, dtype), draw_key,
        score=all_scores, steps=pace.steps, batch=pace.batch_size,
    )  # fmt: skip
    return jax.tree.map(np.asarray, fitted)


def descend(rows: Any, positive: np.ndarray, first: dict[str, Any], ridge: float, pace: Pace) -> list[Any]:
    """Body and heads along the way for the areas, from the first ones on."""
    problem = auc(
        features=rows, labels=2.0 * positive - 1.0, represent=network.representation,
        body0=jax.tree.map(jnp.asarray, first["body"]), heads0=np.asarray(first["heads"], float), ridge=float(ridge),
    )  # fmt: skip
    way: list[Any] = []

    def keep(problem: Any, reached: Any) -> dict[str, float]:
        x = problem.unravel_x(reached.x)
        way.append(jax.tree.map(np.asarray, {"body": x["body"], "heads": x["heads"]}))
        return {}

    lower_step = pace.mixing / 2  # ∇²yy g = 2
    algorithm = make_algorithm(lower_step, pace.tasks_per_step, pace.steps, pace.learning_rate, pace.batch_size)
    every = max(1, pace.steps // LOOKS)
    result = run(problem, algorithm, steps=pace.steps, metrics=keep, record_every=every, seed=pace.seed, progress=False)
    return way[-len(result.trace.rows) :]


class Choice(NamedTuple):
    """Models of all folds for one setting, the scores of the rows that each holds out, and their mean areas."""

    setting: Any
    models: list[Any]
    held: list[np.ndarray]
    values: np.ndarray


def choose(
    rows: Any, positive: np.ndarray, folds: Sequence[Fold], settings: Sequence[float], fit: Callable[..., Any],
    layers: Callable[[Any], Any],
) -> Choice:  # fmt: skip
    """The setting with which held-out rows are ranked best."""
    choices = []
    for setting in settings:
        models = [fit(rows[fold.train], positive[fold.train], setting) for fold in folds]
        held = [network.score_columns(layers(own), rows[fold.held]) for own, fold in zip(models, folds, strict=True)]
        choices.append(Choice(setting, models, held, judge_folds(positive, folds, held)))
    return max(choices, key=lambda choice: choice.values.mean())


def choose_network(
    rows: Any, positive: np.ndarray, folds: Sequence[Fold], hidden: Sequence[int], ridges: Sequence[float], pace: Pace
) -> Choice:
    """Networks on the logistic loss, with the ridge that ranks held-out rows best."""
    fit = lambda rows, positive, ridge: fit_network(rows, positive, hidden, ridge, pace)
    return choose(rows, positive, folds, ridges, fit, as_layers)


def choose_lines(rows: Any, positive: np.ndarray, folds: Sequence[Fold]) -> Choice:
    """A logistic regression for each task, with the strength that ranks held-out rows best."""
    return choose(rows, positive, folds, STRENGTHS, fit_lines, lambda layers: layers)


def find_stop(
    rows: Any, positive: np.ndarray, folds: Sequence[Fold], start: Choice, ridge: float, pace: Pace,
    say: Callable[[str], None],
) -> tuple[int, Choice]:  # fmt: skip
    """Go down on every fold, up to where held-out rows are ranked best; not at all unless that is more than noise."""
    go = partial(descend, ridge=ridge, pace=pace)
    ways = [go(rows[fold.train], positive[fold.train], own) for own, fold in zip(start.models, folds, strict=True)]
    every, best, steps = max(1, pace.steps // LOOKS), start, 0
    for k in range(min(map(len, ways))):
        models = [way[k] for way in ways]
        held = [network.score_columns(as_layers(own), rows[fold.held]) for own, fold in zip(models, folds, strict=True)]
        reached = Choice(start.setting, models, held, judge_folds(positive, folds, held))
        say(f"{k * every} steps for the areas: {reached.values.mean():.4f} on held-out rows")
        if reached.values.mean() > best.values.mean():
            best, steps = reached, k * every
    return (steps, best) if is_gain(best.values, start.values, len(folds)) else (0, start)


class Blend(NamedTuple):
    """The share of the linear models, what the scores of both are divided by, and blended scores of held-out rows."""

    share: float
    sizes: tuple[np.ndarray, np.ndarray]
    held: list[np.ndarray]


def blend(positive: np.ndarray, folds: Sequence[Fold], own: Choice, lines: Choice) -> Blend:
    """As much of the linear models as ranks held-out rows best."""
    sizes = tuple(np.concatenate(choice.held).std(axis=0) + 1e-12 for choice in (own, lines))
    mix = lambda share: [(1 - share) * a / sizes[0] + share * b / sizes[1]
                         for a, b in zip(own.held, lines.held, strict=True)]  # fmt: skip
    best = max(SHARES, key=lambda share: judge_folds(positive, folds, mix(share)).mean())
    return Blend(best, (sizes[0], sizes[1]), mix(best))


def scale_outputs(layers: Any, factors: np.ndarray | float) -> Any:
    """The layers with their outputs times the factors."""
    last = {name: leaf * np.asarray(factors) for name, leaf in layers[-1].items()}
    return [*layers[:-1], last]
