"""Tasks as lower problems: a linear head on a shared network adapts to support rows, and is judged by query rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bilevax.data import ragged
from bilevax.models import fold_problem, network
from bilevax.problem import Problem
from bilevax.problems import meta_learning


class Split(NamedTuple):
    """The rows that a task adapts to, and those that it is judged by."""

    task: int
    support: np.ndarray
    query: np.ndarray


def features(parameters: Any, rows: Any) -> Float[Array, "n h"]:
    """What a head sees: the last layer and a constant, each in units that are learned.

    A head moves by a ridge of one, so these units say how far it may go: they are the prior's spread.
    """
    hidden = network.representation(parameters["body"], rows)
    units = jnp.exp(parameters["units"])
    constant = jnp.full((hidden.shape[0], 1), units[1])
    return jnp.concatenate([units[0] * hidden / hidden.shape[1] ** 0.5, constant], axis=1)


@dataclass(frozen=True)
class TaskLoss:
    """Weighted squared or logistic loss and the decay of the body, as a function of (parameters, task, batch)."""

    logistic: bool

    def __call__(self, parameters: Any, task: Any, batch: Any) -> Float[Array, ""]:
        scores = features(parameters, batch["rows"]) @ parameters["head"]
        b = batch["targets"]
        losses = jax.nn.softplus(-b * scores) if self.logistic else 0.5 * (scores - b) ** 2
        decay = jnp.mean(batch["decay"]) * network.half_squares(parameters["body"])
        return jnp.mean(batch["weight"] * losses) + decay


def split_tasks(task: np.ndarray, count: int, share: float, random: np.random.RandomState) -> list[Split]:
    """So many splits of every task, and one without support."""
    found = []
    for i in range(task.max() + 1):
        rows = np.flatnonzero(task == i)
        size = min(len(rows) - 1, max(1, round(share * len(rows))))
        orders = [random.permutation(rows) for _ in range(count)]
        found += [Split(i, order[:size], order[size:]) for order in orders] + [Split(i, rows[:0], rows)]
    return found


def _rows(Z: np.ndarray, b: np.ndarray, parts: Sequence[np.ndarray], weights: Sequence[float], decay: float) -> Any:
    """The rows of all tasks one behind the other; one that weighs nothing where a task has none."""
    places = [part if len(part) else np.zeros(1, int) for part in parts]
    order, lengths = np.concatenate(places), [len(place) for place in places]
    held = {
        "rows": Z[order], "targets": b[order], "weight": np.repeat(np.asarray(weights, float), lengths),
        "decay": np.full(len(order), decay),
    }  # fmt: skip
    return ragged(fold_problem.as_floats(held), np.cumsum([0, *lengths]))


def make_problem(
    Z: Float[np.ndarray, "n p"], b: Float[np.ndarray, " n"], splits: Sequence[Split], weights: Float[np.ndarray, " m"],
    decay: float, start: Any, support_rows: float, logistic: bool,
) -> Problem:  # fmt: skip
    """`bilevax.problems.meta_learning` with heads that adapt; support weighs as many rows as it has."""
    support, query = [split.support for split in splits], [split.query for split in splits]
    return meta_learning(
        loss=TaskLoss(logistic), x0=start, ridge=1.0, adapts=("head",),
        support=_rows(Z, b, support, [len(part) / support_rows for part in support], decay),
        query=_rows(Z, b, query, list(weights), decay),
    )  # fmt: skip


def join_tasks(tasks: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tasks one behind the other, and the number of the task of each row."""
    parts = []
    for i, task in enumerate(tasks):
        if not isinstance(task, (tuple, list)) or len(task) != 2:
            raise TypeError(
                f"X must be a list of tasks (rows, targets), or rows with y; got {type(task).__name__} as task {i}."
            )
        rows, targets = np.asarray(task[0]), np.asarray(task[1])
        if rows.ndim != 2 or targets.shape != rows.shape[:1] or not len(rows):
            raise ValueError(
                f"X[{i}] must be rows (n, features) and n targets, n > 0; got shapes {rows.shape} and {targets.shape}."
            )
        parts.append((rows, targets, np.full(len(rows), i)))
    widths = {part[0].shape[1] for part in parts}
    if len(widths) != 1:
        raise ValueError(f"X must be tasks with the same columns; got {sorted(widths)} of them.")
    rows, targets, number = (np.concatenate(column) for column in zip(*parts, strict=True))
    return rows, targets, number
