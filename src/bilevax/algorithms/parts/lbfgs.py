"""L-BFGS: what it remembers of the last steps, and the direction that follows from them.

Nocedal, Wright, Numerical Optimization, 2006, Algorithms 7.4 and 7.5.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class StepPairs(NamedTuple):
    """What L-BFGS remembers, the last first: changes of x and of ∇F, and one over their product; zero: nothing."""

    steps: Float[Array, "k d"]
    changes: Float[Array, "k d"]
    weights: Float[Array, " k"]


def remember(pairs: StepPairs, step: Array, change: Array) -> StepPairs:
    """The pairs with a new one, unless F curves the wrong way along it."""
    product = step @ change
    is_useful = product > 1e-6 * jnp.linalg.norm(step) * jnp.linalg.norm(change)
    push = lambda old, new: jnp.where(is_useful, jnp.concatenate([new[None], old[:-1]]), old)
    return StepPairs(push(pairs.steps, step), push(pairs.changes, change), push(pairs.weights, 1 / product))


def direction(pairs: StepPairs, gradient: Array, objective: Array, fall: Any) -> Array:
    """−B∇F by the two loops of L-BFGS; without pairs as long as would lower F by `fall`·|F| were F linear."""
    count = len(pairs.weights)

    def down(k: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        q, alphas = carry
        alpha = pairs.weights[k] * (pairs.steps[k] @ q)
        return q - alpha * pairs.changes[k], alphas.at[k].set(alpha)

    q, alphas = jax.lax.fori_loop(0, count, down, (gradient, jnp.zeros_like(pairs.weights)))
    last = pairs.weights[0] * (pairs.changes[0] @ pairs.changes[0])
    square = gradient @ gradient
    unknown = fall * jnp.where(objective == 0, 1, jnp.abs(objective)) / jnp.where(square == 0, 1, square)
    r = q * jnp.where(last > 0, 1 / jnp.where(last > 0, last, 1), unknown)

    def up(k: Array, r: Array) -> Array:
        k = count - 1 - k
        return r + (alphas[k] - pairs.weights[k] * (pairs.changes[k] @ r)) * pairs.steps[k]

    return -jax.lax.fori_loop(0, count, up, r)
