"""A prior for the linear models of many groups, as the upper variables; a lower problem for each group and fold.

    min over (μ, α) of Σ loss of held rows at y_t*,   y_t* = argmin_y Σ loss of the other rows + ½ Σ_j α_j (y_j − μ_j)²

A task t is a group and a fold of its rows that is held back; once for each group all of its rows are, so that μ alone
is a model for groups that are new. μ is held to zero as the pooled ridge regression holds it, log α_j to a common one.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bilevax.data import ragged
from bilevax.models import fold_problem
from bilevax.models.base import probabilities
from bilevax.problem import Problem

TASKS = 32  # their number is filled up to a multiple by a power of two: fewer programs
NEWTON_STEPS = 50
LEAST = 1e-6  # precision that is always there, so that groups without rows have one model


class Split(NamedTuple):
    """Which rows a task fits, and which it is judged by."""

    train: np.ndarray
    held: np.ndarray


class Prior(NamedTuple):
    """Mean and precision of the coefficients, the shift last."""

    mean: np.ndarray
    precision: np.ndarray


class Search(NamedTuple):
    """The precision to begin with, whether it is free to change, and how strongly changes are held back."""

    centre: float
    free: bool
    shrinkage: float


def fit_towards(prior: Prior, A: Float[np.ndarray, "n p"], b: Float[np.ndarray, " n"], *, logistic: bool) -> np.ndarray:
    """argmin of the losses of the rows + ½ Σ_j α_j (y_j − μ_j)²: one Newton step for squares, some for labels ±1."""
    y = prior.mean
    if not logistic:
        return y + np.linalg.solve(A.T @ A + np.diag(prior.precision), A.T @ (b - A @ y))
    value = lambda y: np.logaddexp(0, -b * (A @ y)).sum() + 0.5 * np.sum(prior.precision * (y - prior.mean) ** 2)
    for _ in range(NEWTON_STEPS):
        share = probabilities(-b * (A @ y))
        slope = prior.precision * (y - prior.mean) - A.T @ (b * share)
        hessian = (A.T * (share * (1 - share))) @ A + np.diag(prior.precision)
        step, size = np.linalg.solve(hessian, slope), 1.0
        while value(y - size * step) > value(y) and size > 1e-6:
            size /= 2
        y = y - size * step
        if np.abs(step).max() < 1e-10 * (1 + np.abs(y).max()):
            break
    return y


def splits_of(group: np.ndarray, fold: np.ndarray) -> list[Split]:
    """Every fold of every group, and every group as a whole."""
    found = []
    for i in range(group.max() + 1):
        rows = np.flatnonzero(group == i)
        numbers = np.unique(fold[rows])
        pairs = [(rows[fold[rows] != k], rows[fold[rows] == k]) for k in numbers] if len(rows) > 1 else []
        found += [Split(*pair) for pair in [*pairs, (rows[:0], rows)]]
    return found


def precision_at(x: Any, task: Any) -> Float[Array, " p"]:
    """α_j = least + centre·exp(R tanh((c + d_j)/R)); the centre alone where it is fixed."""
    change = task["free"] * (x["common"] + x["changes"]) / fold_problem.REACH
    return LEAST + task["centre"] * jnp.exp(fold_problem.REACH * jnp.tanh(change))


def prior_at(x: Any, problem: Problem) -> Prior:
    """The prior that x is."""
    return Prior(np.asarray(x["mean"], float), np.asarray(precision_at(x, problem.task(0)), float))


def _pull(x: Any, y: Float[Array, " p"], task: Any) -> Float[Array, ""]:
    return 0.5 * jnp.sum(precision_at(x, task) * (y - x["mean"]) ** 2)


def _hold(x: Any, task: Any) -> Float[Array, ""]:
    """What is added for each row: the ridge of the pooled model on μ, and the shrinkage of log α_j."""
    ridge = jnp.sum(task["ridge"] * x["mean"] ** 2)
    return 0.5 * (ridge + task["shrinkage"] * jnp.sum(jnp.log1p(x["changes"] ** 2)))


def quadratic_upper(x: Any, y: Float[Array, " p"], task: Any, batch: Any) -> Float[Array, ""]:
    """Half the squared errors of the held rows, in units of the noise."""
    error = 0.5 * (y @ (task["held_gram"] @ y)) - task["held_slope"] @ y + task["held_constant"]
    return task["weight"] * error + _hold(x, task)


def quadratic_lower(x: Any, y: Float[Array, " p"], task: Any, batch: Any) -> Float[Array, ""]:
    """Half the squared errors of the other rows, up to a constant, and the pull towards μ."""
    return (0.5 * (y @ (task["gram"] @ y)) - task["slope"] @ y + _pull(x, y, task)) / task["rows"]


def _odds_losses(y: Float[Array, " p"], batch: Any) -> Float[Array, " n"]:
    return jax.nn.softplus(-batch["signs"] * (batch["features"] @ y))


def logistic_upper(x: Any, y: Float[Array, " p"], task: Any, batch: Any) -> Float[Array, ""]:
    """The logistic losses of the held rows."""
    return task["weight"] * task["held"] * jnp.mean(batch["there"] * _odds_losses(y, batch)) + _hold(x, task)


def logistic_lower(x: Any, y: Float[Array, " p"], task: Any, batch: Any) -> Float[Array, ""]:
    """The mean logistic loss of the other rows, and the pull towards μ; a task without rows has one that weighs 0."""
    return jnp.mean(batch["there"] * _odds_losses(y, batch)) + _pull(x, y, task) / task["rows"]


def _told(splits: Sequence[Split], number: int, ridge: np.ndarray, search: Search, noise: float) -> Any:
    """What each task is told but for its rows."""
    total = sum(len(split.held) for split in splits)
    rows = np.array([max(1, len(split.train)) for split in splits], float)
    weight = np.full(len(splits), number / (total * noise))
    fill = lambda values, empty: np.concatenate([values, np.full(number - len(values), empty)])
    return {
        "rows": fill(rows, 1.0), "weight": fill(weight, 0.0), "centre": np.full(number, search.centre),
        "free": np.full(number, float(search.free)), "shrinkage": np.full(number, search.shrinkage / total),
        "ridge": np.tile(ridge / (total * noise), (number, 1)),
    }  # fmt: skip


def _start(mean: np.ndarray) -> dict[str, Array]:
    return fold_problem.as_floats({"mean": mean, "common": np.zeros(1), "changes": np.zeros(len(mean))})


def quadratic_problem(
    A: Float[np.ndarray, "n p"], b: Float[np.ndarray, " n"], splits: Sequence[Split], pooled: Prior, search: Search
) -> Problem:
    """Least squares: a task is known by the products of its columns, so the number of its rows costs nothing."""
    number = fold_problem.round_up(len(splits), TASKS)
    noise = max(float(np.mean((A @ pooled.mean - b) ** 2)), 1e-8)
    parts = []
    for train, held in [*splits, *[Split(np.arange(0), np.arange(0))] * (number - len(splits))]:
        inner, outer = A[train], A[held]
        parts.append({
            "gram": inner.T @ inner, "slope": inner.T @ b[train], "held_gram": outer.T @ outer,
            "held_slope": outer.T @ b[held], "held_constant": np.sum(b[held] ** 2) / 2,
        })  # fmt: skip
    tasks = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
    tasks |= _told(splits, number, pooled.precision, search, noise)
    return Problem(
        upper=quadratic_upper, lower=quadratic_lower, x0=_start(pooled.mean), y0=fold_problem.as_floats(pooled.mean),
        y0_per_task=False, tasks=fold_problem.as_floats(tasks), strong_convexity=LEAST / tasks["rows"].max(),
    )  # fmt: skip


def _fill_lengths(lengths: Sequence[int], tasks: int) -> list[int]:
    """Lengths of so many more tasks that the longest, and the sum of all, are standard sizes."""
    longest = fold_problem.round_up(max(lengths), 16)
    total = fold_problem.round_up(sum(lengths) + longest + tasks, 512)
    left = total - sum(lengths) - longest
    return [longest, *(left // (tasks - 1) + (k < left % (tasks - 1)) for k in range(tasks - 1))]


def _count_fill(lengths: Sequence[int]) -> int:
    """How many tasks hold what is missing to standard sizes, none of them longer than the longest."""
    longest = fold_problem.round_up(max(lengths), 16)
    spare = 1
    while True:
        number = fold_problem.round_up(len(lengths) + 1 + spare, TASKS)
        tasks = number - len(lengths)
        if max(_fill_lengths(lengths, tasks)) <= longest:
            return tasks
        spare = tasks + 1


def _rows(A: np.ndarray, signs: np.ndarray, parts: Sequence[np.ndarray], fill: Sequence[int]) -> Any:
    """The rows of all tasks one behind the other; rows that weigh nothing where a task has none, and in the last."""
    own = [part if len(part) else np.zeros(1, int) for part in parts]
    there = [np.full(len(place), float(len(part) > 0)) for place, part in zip(own, parts, strict=True)]
    order = np.concatenate([*own, np.zeros(sum(fill), int)])
    offsets = np.cumsum([0, *map(len, own), *fill])
    rows = {"features": A[order], "signs": signs[order], "there": np.concatenate([*there, np.zeros(sum(fill))])}
    return ragged(fold_problem.as_floats(rows), offsets)


def logistic_problem(
    A: Float[np.ndarray, "n p"], signs: Float[np.ndarray, " n"], splits: Sequence[Split], pooled: Prior, search: Search
) -> Problem:
    """Logistic regression for two classes, −1 and +1; tasks have as many rows as they have."""
    parts = [[split.train for split in splits], [split.held for split in splits]]
    lengths = [[max(1, len(part)) for part in one] for one in parts]
    more = max(map(_count_fill, lengths))
    tasks = _told(splits, len(splits) + more, pooled.precision, search, 1.0)
    tasks["held"] = np.array([*(float(len(split.held)) for split in splits), *[0.0] * more])
    lower, upper = (
        _rows(A, signs, *pair) for pair in zip(parts, (_fill_lengths(k, more) for k in lengths), strict=True)
    )
    return Problem(
        upper=logistic_upper, lower=logistic_lower, x0=_start(pooled.mean), y0=fold_problem.as_floats(pooled.mean),
        y0_per_task=False, tasks=fold_problem.as_floats(tasks), strong_convexity=LEAST / tasks["rows"].max(),
        lower_data=lower, upper_data=upper,
    )  # fmt: skip
