"""How given labels come from right ones, learned from all rows; and what that says of each label.

    P(given j | right c, row) = 1 − ρ_c(row) for j = c, else ρ_c(row) ν_cj π_j^κ / Σ_{k≠c} ν_ck π_k^κ,
    log-odds ρ_c(row) = α_c − β·log-odds π_c

π are the probabilities of the right classes of the row. α and ν are the habits of whoever labelled: which classes are
mistaken for which. β and κ say how much more often, and for what, hard rows are mistaken. They are fitted to the given
labels of all rows by maximum likelihood with weak priors; Bayes' rule then gives P(right | given, row).
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int
from scipy.optimize import minimize

MANY = 20_000  # rows to fit by
USUAL, SPREAD = -2.0, 2.0  # log-odds of a wrong label before any row was seen, and how far α and log ν go
STEEPNESS = 1.0  # how far β and κ go from zero
FAR = 12.0  # log-odds beyond which a row is as sure as can be


class Habits(NamedTuple):
    """α, β, κ and log ν of the module's equation."""

    often: Array
    hard: Array
    near: Array
    taken_for: Array


def log_chances(habits: Habits, shares: Float[Array, "n K"], given: Int[Array, " n"]) -> Float[Array, "n K"]:
    """log P(given label | right class, row), a column for each right class."""
    logs = jnp.log(shares)
    odds = jnp.clip(logs - jnp.log1p(-shares), -FAR, FAR)
    wrong = habits.often[None, :] - habits.hard * odds
    pull = jnp.exp(habits.near * jnp.clip(logs, -FAR, 0.0))
    habit = jnp.exp(habits.taken_for) * (1 - jnp.eye(shares.shape[1], dtype=shares.dtype))
    others = jnp.log(pull @ habit.T)
    own = jnp.arange(shares.shape[1], dtype=given.dtype)[None, :] == given[:, None]
    mistaken = habits.taken_for[:, given].T + jnp.log(jnp.take_along_axis(pull, given[:, None], 1)) - others
    return jnp.where(own, jax.nn.log_sigmoid(-wrong), jax.nn.log_sigmoid(wrong) + jnp.where(own, 0.0, mistaken))


def loss(habits: Habits, shares: Float[Array, "n K"], given: Int[Array, " n"]) -> Float[Array, ""]:
    """−log P(given labels | rows) and the priors."""
    likely = jax.scipy.special.logsumexp(jnp.log(shares) + log_chances(habits, shares, given), axis=1)
    priors = jnp.sum((habits.often - USUAL) ** 2) / SPREAD**2 + jnp.sum(habits.taken_for**2) / SPREAD**2
    return -jnp.sum(likely) + 0.5 * (priors + (habits.hard**2 + habits.near**2) / STEEPNESS**2)


_value_and_slope = jax.jit(jax.value_and_grad(loss))


@jax.jit
def posterior(habits: Habits, shares: Float[Array, "n K"], given: Int[Array, " n"]) -> Float[Array, "n K"]:
    """P(right class | given label, row) by Bayes' rule."""
    return jax.nn.softmax(jnp.log(shares) + log_chances(habits, shares, given), axis=1)


def first_habits(num_classes: int) -> Habits:
    """One label in eight is wrong, any class is taken for any other, hard rows are like all others."""
    dtype = jnp.result_type(float)
    nothing = jnp.zeros((), dtype)
    return Habits(jnp.full(num_classes, USUAL, dtype), nothing, nothing, jnp.zeros((num_classes, num_classes), dtype))


def fit_habits(shares: np.ndarray, given: np.ndarray, seed: int) -> Habits:
    """The most probable habits; with very many rows from some of them."""
    some = np.random.default_rng(seed).permutation(len(given))[:MANY]
    rows = _clip(shares[some]), jnp.asarray(given[some])
    start, unravel = ravel_pytree(first_habits(shares.shape[1]))

    def at(v: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = _value_and_slope(unravel(jnp.asarray(v, start.dtype)), *rows)
        return float(value), np.asarray(ravel_pytree(slope)[0], float)

    found = minimize(at, np.asarray(start, float), jac=True, method="L-BFGS-B", options={"maxiter": 100})
    return unravel(jnp.asarray(found.x, start.dtype))


def right_classes(shares: np.ndarray, given: np.ndarray, seed: int) -> tuple[np.ndarray, Habits]:
    """P(right class | given label, row) of all rows, and the habits behind it."""
    habits = fit_habits(shares, given, seed)
    ask = partial(posterior, habits)
    return np.asarray(ask(_clip(shares), jnp.asarray(given)), float), habits


def _clip(shares: np.ndarray) -> Array:
    """Probabilities whose logarithms and log-odds are finite in the precision at hand."""
    least = 1e-6
    clipped = np.clip(shares, least, 1 - least)
    return jnp.asarray(clipped / clipped.sum(1, keepdims=True) * (1 - least), jnp.result_type(float))
