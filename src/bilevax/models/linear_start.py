"""The logistic regression that training for average precision starts from, chosen by held-out average precision."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression

from bilevax.models.held_out import Fold, is_gain, judge_folds
from bilevax.models.scaling import Scaling

STRENGTHS = tuple(float(C) for C in np.logspace(-4, 1, 6))
LIMIT = 3.0  # deviations beyond which values are cut, in the kinds that cut


class Kind(NamedTuple):
    """What a logistic regression is fitted to: far values cut or not, classes weighted or not."""

    limit: float
    balanced: bool

    def __str__(self) -> str:
        cut = "" if np.isinf(self.limit) else f", values cut at {self.limit:g} deviations"
        return f"{'balanced' if self.balanced else 'plain'} classes{cut}"


PLAIN = Kind(np.inf, False)
OTHERS = (Kind(LIMIT, False), Kind(np.inf, True), Kind(LIMIT, True))


class Table(NamedTuple):
    """Rows on their scale, which are positive, and how much each counts."""

    rows: Any
    positive: np.ndarray
    weights: np.ndarray


class Line(NamedTuple):
    """A linear model of all rows, that of each fold, and what it is worth on the folds."""

    kind: Kind
    C: float
    weights: np.ndarray
    shift: float
    of_folds: list[tuple[np.ndarray, float]]
    values: np.ndarray


def cut(rows: Any, limit: float) -> Any:
    """The rows with far values brought in."""
    width = rows.shape[1]
    return rows if np.isinf(limit) else Scaling(np.zeros(width), np.ones(width), limit)(rows)


def weigh(table: Table, balanced: bool) -> np.ndarray:
    """Weights of the rows; with balanced classes both classes weigh the same."""
    if not balanced:
        return table.weights
    share = table.weights[table.positive].sum() / table.weights.sum()
    return table.weights * np.where(table.positive, 0.5 / share, 0.5 / (1 - share))


def fit_path(table: Table, balanced: bool, places: Any, strengths: Sequence[float]) -> list[tuple[np.ndarray, float]]:
    """Weights and shift for each strength, each fit from the one before."""
    rows, positive, weights = table.rows[places], table.positive[places], weigh(table, balanced)[places]
    regression = LogisticRegression(C=1.0, max_iter=500, tol=1e-3, warm_start=True)
    path = []
    for C in strengths:
        regression.set_params(C=C).fit(rows, positive, sample_weight=weights)
        path.append((regression.coef_[0].copy(), float(regression.intercept_[0])))
    return path


def _judge(table: Table, kind: Kind, folds: Sequence[Fold], strengths: Sequence[float]) -> tuple[Any, np.ndarray]:
    """The paths of the folds, and average precision for each strength and fold."""
    own = table._replace(rows=cut(table.rows, kind.limit))
    paths = [fit_path(own, kind.balanced, fold.train, strengths) for fold in folds]
    values = [
        judge_folds(
            table.positive, table.weights, folds,
            [own.rows[fold.held] @ path[k][0] for fold, path in zip(folds, paths, strict=True)],
        )
        for k in range(len(strengths))
    ]  # fmt: skip
    return paths, np.array(values)


def find_line(
    table: Table, folds: Sequence[Fold], own: int, strengths: Sequence[float], others: Sequence[Kind] = OTHERS
) -> Line:
    """The plain logistic regression of the best strength, or another kind where its gain is more than noise.

    `own`: how many of the folds, the first ones, are those whose models are kept.
    """
    judged = {kind: _judge(table, kind, folds, strengths) for kind in (PLAIN, *others)}
    best = {kind: int(np.argmax(values.mean(axis=1))) for kind, (_, values) in judged.items()}
    reached = {kind: values[best[kind]] for kind, (_, values) in judged.items()}
    challenger = max(others, key=lambda kind: reached[kind].mean(), default=PLAIN)
    kind = challenger if is_gain(reached[challenger], reached[PLAIN], own) else PLAIN
    k, C = best[kind], strengths[best[kind]]
    whole = table._replace(rows=cut(table.rows, kind.limit))
    weights, shift = fit_path(whole, kind.balanced, slice(None), [C])[0]
    return Line(kind, C, weights, shift, [path[k] for path in judged[kind][0][:own]], reached[kind])
