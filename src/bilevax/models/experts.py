"""Several opinions on the right class of a row, weighed by trusted rows."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from scipy.stats import beta

from bilevax.models.opinions import Opinion, mean_loss, split

SPREADS = (0.1, 0.5)  # of the weights of opinions around their centre
SHIFTS = (0.1, 0.5, 2.0)  # of the log-odds of classes around zero
LEAST_SAY = 0.01  # of a prior that counts
USUALLY_WRONG, MANY = 0.2, 5000  # share of labels; rows by which priors are judged


class Weighing(NamedTuple):
    """log P(class | row) ∝ Σ_e a_e log p_e(class | row) + shift(class)."""

    weights: np.ndarray
    shifts: np.ndarray

    def __call__(self, shares: Sequence[np.ndarray]) -> np.ndarray:
        """Probabilities of the classes from the opinions' probabilities."""
        return softmax(np.tensordot(self.weights, np.log(np.stack(shares)), 1) + self.shifts, axis=1)


class Prior(NamedTuple):
    """Around which weights of the opinions the search starts, how far it goes from there, and how far shifts go."""

    centre: tuple[float, ...]
    spread: float
    shift: float


def fit(shares: Sequence[np.ndarray], codes: np.ndarray, prior: Prior) -> Weighing:
    """The most probable weights a = s·(centre + away) and shifts for rows of known classes, under Gaussian priors.

    s, how sure the opinions are together, is free but for a wide prior on its logarithm: models of wrong labels are
    less sure than they should be, and that alone is no reason to listen to another one.
    """
    logs, places = np.log(np.stack(shares)), np.arange(len(codes))
    centre, several = np.asarray(prior.centre, float), len(shares)

    def parts_of(v: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        return float(np.exp(v[0])), v[1 : 1 + several], v[1 + several :]

    def loss(v: np.ndarray) -> tuple[float, np.ndarray]:
        scale, away, shifts = parts_of(v)
        mixed = np.tensordot(centre + away, logs, 1)
        found = log_softmax(scale * mixed + shifts, axis=1)
        rest = np.exp(found)
        rest[places, codes] -= 1
        priors = v[0] ** 2 + away @ away / prior.spread**2 + shifts @ shifts / prior.shift**2
        slopes = scale * np.einsum("ens,ns->e", logs, rest) + away / prior.spread**2
        surer = scale * np.sum(mixed * rest) + v[0]
        return -found[places, codes].sum() + 0.5 * priors, np.concatenate(
            [[surer], slopes, rest.sum(0) + shifts / prior.shift**2]
        )

    start = np.zeros(1 + several + logs.shape[2])
    scale, away, shifts = parts_of(minimize(loss, start, jac=True, method="L-BFGS-B").x)
    return Weighing(scale * (centre + away), shifts)


def surely_better(one: np.ndarray, other: np.ndarray, codes: np.ndarray) -> float:
    """How sure it is that the first probabilities name the right class more often: 0 where they do not, up to 1.

    Of the rows where just one of both is right, the share p for the first has the posterior Beta(2 + right, 2 + wrong);
    what is returned is P(p > ½) − P(p < ½).
    """
    first, second = one.argmax(1) == codes, other.argmax(1) == codes
    right, wrong = np.sum(first & ~second), np.sum(second & ~first)
    return max(0.0, float(1 - 2 * beta.cdf(0.5, 2 + right, 2 + wrong)))


def weigh(
    opinions: Sequence[Opinion], codes: np.ndarray, given: np.ndarray, folds: int = 5
) -> tuple[np.ndarray, Weighing]:
    """Probabilities of the right classes of all rows, and how the opinions were weighed.

    Priors start from one of the opinions alone or from their mean, so that what comes out is no worse than the best of
    them. Each counts as much as it is likely: on trusted rows left out, whose classes are `codes`; and on the rows with
    their `given` labels, most of which are right, as if they were as many as the trusted ones. With few trusted rows
    several priors have a say, with many it is one.
    """
    shares, rows = [opinion.trusted for opinion in opinions], [opinion.rows for opinion in opinions]
    several = len(opinions)
    centres = [tuple(row) for row in np.eye(several)] + [(1 / several,) * several] * (several > 1)
    priors = [Prior(centre, spread, shift) for centre in centres for spread in SPREADS for shift in SHIFTS]
    fits = [fit(shares, codes, prior) for prior in priors]
    parts, some = split(codes, folds, 0), np.random.default_rng(0).permutation(len(given))[:MANY]

    def left_out(prior: Prior) -> float:
        total = 0.0
        for seen, left in parts:
            weighing = fit([share[seen] for share in shares], codes[seen], prior)
            total -= len(left) * mean_loss(weighing([share[left] for share in shares]), codes[left])
        return total

    def of_given(weighing: Weighing) -> float:
        found = weighing([share[some] for share in rows])
        return -len(codes) * mean_loss((1 - USUALLY_WRONG) * found + USUALLY_WRONG / found.shape[1], given[some])

    says = softmax([left_out(prior) + of_given(weighing) for prior, weighing in zip(priors, fits, strict=True)])
    chosen = [(say, weighing) for say, weighing in zip(says, fits, strict=True) if say > LEAST_SAY]
    whole = sum(say for say, _ in chosen)
    mean = Weighing(*(sum(say / whole * part[k] for say, part in chosen) for k in range(2)))
    return sum(say / whole * weighing(rows) for say, weighing in chosen), mean
