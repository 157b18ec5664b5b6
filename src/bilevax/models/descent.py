"""Training for average precision from a start, and where on the way held-out rows are ranked best."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevax.models import network
from bilevax.models.base import make_algorithm, run
from bilevax.models.held_out import Fold, is_gain, judge_folds, spread_weights
from bilevax.models.linear_start import Table
from bilevax.problems import average_precision

GROUP = 64  # positive samples that are compared with the same samples
LOOKS = 10  # at the held-out rows, along the way


class Pace(NamedTuple):
    """How the steps are taken."""

    surrogate: str
    width: float
    steps: int
    learning_rate: float
    batch_size: int
    mixing: float
    seed: int


class Stop(NamedTuple):
    """Where to stop: steps, the layers of each fold there, and the average precision of each fold there."""

    steps: int
    of_folds: list[network.Layers]
    values: np.ndarray


def bring_to_unit(layers: network.Layers, rows: Any) -> tuple[network.Layers, float]:
    """The layers with scores of mean zero and spread one, and their spread before: a ranking has no unit.

    So scores by the models of different folds can stand side by side, also where a strong penalty makes slopes tiny.
    """
    scores = network.score_rows(layers, rows)
    spread = float(np.std(scores)) or 1.0
    last = {name: leaf / spread for name, leaf in layers[-1].items()}
    last["shift"] = last["shift"] - float(np.mean(scores)) / spread
    return [*layers[:-1], last], spread


def descend(table: Table, first: network.Layers, ridge: float, pace: Pace) -> list[network.Layers]:
    """The layers along the way for average precision, from the first ones on."""
    places = spread_weights(table.weights, table.positive, np.arange(len(table.positive)))
    dtype = jnp.result_type(float)
    problem = average_precision(
        features=table.rows[places], labels=2.0 * table.positive[places] - 1.0, score=network.scores,
        x0=jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), first), surrogate=pace.surrogate, width=pace.width,
        group=GROUP, ridge=ridge, penalty=network.half_squares,
    )  # fmt: skip
    way: list[network.Layers] = []

    def keep(problem: Any, reached: Any) -> dict[str, float]:
        way.append(jax.tree.map(np.asarray, problem.unravel_x(reached.x)))
        return {}

    algorithm = make_algorithm(pace.mixing, 1, pace.steps, pace.learning_rate, pace.batch_size)
    every = max(1, pace.steps // LOOKS)
    result = run(problem, algorithm, steps=pace.steps, metrics=keep, record_every=every, seed=pace.seed, progress=False)
    way = way[-len(result.trace.rows) :]
    ended = result.steps == pace.steps and pace.steps % every
    return [*way, jax.tree.map(np.asarray, result.x)] if ended else way


def find_stop(
    table: Table, folds: Sequence[Fold], starts: Sequence[network.Layers], ridges: Sequence[float], pace: Pace,
    say: Callable[[str], None],
) -> Stop:  # fmt: skip
    """Go down on every fold, up to where held-out rows are ranked best; not at all unless that is more than noise."""
    part = lambda fold: Table(table.rows[fold.train], table.positive[fold.train], table.weights[fold.train])
    ways = [descend(part(fold), first, ridge, pace) for fold, first, ridge in zip(folds, starts, ridges, strict=True)]
    judged = []
    for k in range(min(map(len, ways))):
        scores = [network.score_rows(way[k], table.rows[fold.held]) for way, fold in zip(ways, folds, strict=True)]
        judged.append(judge_folds(table.positive, table.weights, folds, scores))
    every = max(1, pace.steps // LOOKS)
    for k, values in enumerate(judged):
        say(f"{min(k * every, pace.steps)} steps for average precision: {values.mean():.4f} on held-out rows")
    best = max(range(len(judged)), key=lambda k: judged[k].mean())
    best = best if is_gain(judged[best], judged[0], len(folds)) else 0
    return Stop(min(best * every, pace.steps), [way[best] for way in ways], judged[best])
