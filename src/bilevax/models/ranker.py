"""A ranking of rows, found with the help of held-out parts: a linear model, or networks side by side."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevax.models import network
from bilevax.models.descent import Pace, Stop, bring_to_unit, descend, find_stop
from bilevax.models.held_out import Fold, judge_folds, spread_weights
from bilevax.models.linear_start import STRENGTHS, Line, Table, fit_path
from bilevax.rows import as_rows

ENOUGH = 100  # positive rows from which held-out parts can tell whether steps for average precision help
NETWORK_STRENGTHS = (1e-2, 1e-1, 1.0, 10.0)
Say = Callable[[str], None]


class Ranking(NamedTuple):
    """Layers that score rows, scores of held-out rows where there are some, and what was chosen on the way."""

    layers: network.Layers
    held: np.ndarray | None
    C: float
    steps: int
    values: np.ndarray  # average precision on each held-out part


def as_layers(weights: np.ndarray, shift: float) -> network.Layers:
    """A linear model as a network of one layer."""
    return [{"weights": np.asarray(weights)[:, None], "shift": np.array([shift])}]


def place_held(rows: int, folds: Sequence[Fold], scores: Sequence[np.ndarray]) -> np.ndarray:
    """The scores of held-out rows, in the order of the rows."""
    held = np.zeros(rows)
    for fold, own in zip(folds, scores, strict=True):
        held[fold.held] = own
    return held


def go_on(
    table: Table, folds: Sequence[Fold], starts: Sequence[network.Layers], ridges: Sequence[float], pace: Pace, say: Say
) -> Stop | None:
    """Where to stop on the way for average precision; `None` with too few positive rows to tell."""
    if table.positive.sum() < ENOUGH:
        say(f"{int(table.positive.sum())} positive rows: no steps for average precision, from {ENOUGH} on there are")
        return None
    return find_stop(table, folds, starts, ridges, pace, say)


def rank_linear(table: Table, folds: Sequence[Fold], line: Line, pace: Pace, say: Say) -> Ranking:
    """A linear model from its start; moved by the mean of what the folds moved by, where that ranks better."""
    n = len(table.positive)
    first, _ = bring_to_unit(as_layers(line.weights, line.shift), table.rows)
    units = [bring_to_unit(as_layers(*own), table.rows[fold.train])
             for own, fold in zip(line.of_folds, folds, strict=True)]  # fmt: skip
    starts, ridges = [start for start, _ in units], [own**2 / (line.C * n) for _, own in units]
    stop = go_on(table, folds, starts, ridges, pace, say)
    reached, steps = (starts, 0) if stop is None else (stop.of_folds, stop.steps)
    if steps:
        moves = jax.tree.map(lambda *leaves: np.mean(leaves, 0), *[
            jax.tree.map(lambda new, old: np.asarray(new, float) - old, *pair)
            for pair in zip(reached, starts, strict=True)
        ])  # fmt: skip
        first = jax.tree.map(np.add, first, moves)
    held = [network.score_rows(own, table.rows[fold.held]) for own, fold in zip(reached, folds, strict=True)]
    values = line.values if stop is None else stop.values
    return Ranking(first, place_held(n, folds, held), line.C, steps, values)


def fit_network(table: Table, hidden: Sequence[int], C: float, pace: Pace) -> network.Layers:
    """The network trained on the logistic loss."""
    places = spread_weights(table.weights, table.positive, np.arange(len(table.positive)))
    random_key, draw_key = jax.random.split(jax.random.key(pace.seed))
    dtype = jnp.result_type(float)
    layers = network.random_layers(random_key, (table.rows.shape[1], *map(int, hidden), 1), dtype)
    signs = jnp.asarray(2.0 * table.positive[places] - 1.0, dtype)
    fitted = network.fit_logistic(
        layers, as_rows(table.rows[places]), signs, jnp.asarray(1 / (C * len(signs)), dtype), draw_key,
        score=network.scores, steps=pace.steps, batch=pace.batch_size,
    )  # fmt: skip
    return jax.tree.map(np.asarray, fitted)


def rank_network(
    table: Table, folds: Sequence[Fold], hidden: Sequence[int], C: float | None, pace: Pace, say: Say
) -> Ranking:
    """The networks of all folds side by side, with the strength that ranks held-out rows best."""
    parts = [Table(*(leaf[fold.train] for leaf in table)) for fold in folds]
    best: tuple[float, float, list[network.Layers], np.ndarray] | None = None
    for strength in NETWORK_STRENGTHS if C is None else (C,):
        fitted = [
            fit_network(part, hidden, strength, pace._replace(seed=pace.seed + k)) for k, part in enumerate(parts)
        ]
        scores = [network.score_rows(own, table.rows[fold.held]) for own, fold in zip(fitted, folds, strict=True)]
        values = judge_folds(table.positive, table.weights, folds, scores)
        say(f"logistic loss, C = {strength:g}: {values.mean():.4f} on held-out rows")
        if best is None or values.mean() > best[0]:
            best = values.mean(), strength, fitted, values
    assert best is not None
    _, strength, fitted, values = best
    starts = [bring_to_unit(own, part.rows)[0] for own, part in zip(fitted, parts, strict=True)]
    ridges = [1 / (strength * len(part.positive)) for part in parts]
    stop = go_on(table, folds, starts, ridges, pace, say)
    reached, steps = (starts, 0) if stop is None else (stop.of_folds, stop.steps)
    held = [network.score_rows(own, table.rows[fold.held]) for own, fold in zip(reached, folds, strict=True)]
    joined = network.join(reached, 1 / len(reached))
    return Ranking(
        joined, place_held(len(table.positive), folds, held), strength, steps, values if stop is None else stop.values
    )


def rank_whole(table: Table, hidden: Sequence[int], C: float | None, pace: Pace, steps: bool) -> Ranking:
    """All rows at once, nothing held out: the start, then all steps for average precision where they are asked for."""
    C = 1.0 if C is None else C
    begin = partial(fit_network, table, hidden, C, pace) if len(hidden) else None
    first = begin() if begin else as_layers(*fit_path(table, False, slice(None), [C])[0])
    first, size = bring_to_unit(first, table.rows)
    ridge = (1.0 if begin else size**2) / (C * len(table.positive))
    layers = descend(table, first, ridge, pace)[-1] if steps else first
    return Ranking(layers, None, C, pace.steps if steps else 0, np.zeros(0))


def strengths_of(C: float | None) -> Sequence[float]:
    """The strengths to try: the user's own, or several."""
    return STRENGTHS if C is None else (float(C),)
