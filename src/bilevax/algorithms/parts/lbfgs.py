"""L-BFGS: what it remembers of the last steps, the direction that follows from them, and a search along it.

A descent is at x, with F and ∇F there, and has a trial point. Whoever looks at F there says whether it was taken: the
next trial point follows from either answer, so a look is a step, and there is no loop inside a step.

Nocedal, Wright, Numerical Optimization, 2006, Algorithms 7.4 and 7.5.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

ROUGHLY = 1e-3  # of both slopes along a step: by how much F may miss a tangent and still pass for convex
STEP_GROWTH = 3.0  # a step is at most so many times as long as the last one; so long where F curved downwards there
ARMIJO = 1e-4  # of the fall that ∇F promises, what F must fall by
REJECTIONS = 12  # points in a row after which L-BFGS forgets what it knows, and again as many after which x stays
IDLE_STEPS = 4  # steps in a row that lower F by no more than rounding, after which x stays


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


class Descent(NamedTuple):
    """F and ∇F at x (∞: not looked at yet), what is remembered, the trial point and ∇F(x)·(trial − x).

    `rejections` and `idle_steps` count for how long nothing good has come.
    """

    objective: Float[Array, ""]
    gradient: Float[Array, " d"]
    pairs: StepPairs
    trial: Float[Array, " d"]
    slope: Float[Array, ""]
    rejections: Int[Array, ""]
    idle_steps: Int[Array, ""]


def start_descent(x: Float[Array, " d"], memory: int) -> Descent:
    """Nothing is known yet, so x itself is looked at first."""
    none, zero = jnp.zeros((memory, x.shape[0]), x.dtype), jnp.zeros((), x.dtype)
    pairs = StepPairs(none, none, jnp.zeros(memory, x.dtype))
    return Descent(zero + jnp.inf, jnp.zeros_like(x), pairs, x, zero, jnp.int32(0), jnp.int32(0))


def look_again(descent: Descent, x: Float[Array, " d"]) -> Descent:
    """Look at x again, because F has become another function; what is remembered stays."""
    return start_descent(x, len(descent.pairs.weights))._replace(gradient=descent.gradient, pairs=descent.pairs)


def falls_enough(descent: Descent, objective: Array, rounding: Array) -> Bool[Array, ""]:
    """Whether F at the trial point is as small as Armijo's rule asks for."""
    return objective <= descent.objective + ARMIJO * descent.slope + rounding


def is_over(descent: Descent) -> Bool[Array, ""]:
    """Whether nothing good has come for too long."""
    return (descent.rejections >= 2 * REJECTIONS) | (descent.idle_steps >= IDLE_STEPS)


def is_above(
    descent: Descent, x: Float[Array, " d"], objective: Array, gradient: Array, rounding: Array
) -> Bool[Array, ""]:
    """Whether a tangent of F, at x or at the trial point, lies above F at the other one: then F is not convex."""
    slope, slope_there = descent.slope, gradient @ (descent.trial - x)
    margin = ROUGHLY * (jnp.abs(slope) + jnp.abs(slope_there)) + rounding
    at_trial, at_x = descent.objective + slope - objective, objective - slope_there - descent.objective
    return jnp.maximum(at_trial, at_x) > margin


def accept(
    descent: Descent, x: Float[Array, " d"], objective: Array, gradient: Array, fall: Any, rounding: Array
) -> Descent:
    """The trial point, with this F and ∇F, is taken: L-BFGS learns from the step, and says where to look next."""
    is_first, trial = jnp.isinf(descent.objective), descent.trial
    step, change = trial - x, gradient - descent.gradient
    curves_downwards = ~is_first & (step @ change < 0) & (descent.objective - objective > rounding)
    learned = remember(descent.pairs, step, change)
    pairs = jax.tree.map(lambda new, old: jnp.where(is_first, old, new), learned, descent.pairs)
    toward = direction(pairs, gradient, objective, fall)
    descends = gradient @ toward < 0  # else it forgets what it knows
    pairs = jax.tree.map(lambda leaf: jnp.where(descends, leaf, 0), pairs)
    steepest = direction(jax.tree.map(jnp.zeros_like, pairs), gradient, objective, fall)
    toward = jnp.where(descends, toward, steepest)
    last, length = jnp.linalg.norm(step), jnp.linalg.norm(toward)
    most = STEP_GROWTH * last
    right = jnp.where(curves_downwards, most, jnp.where(is_first, length, jnp.minimum(length, most)))
    toward = right / jnp.where(length > 0, length, 1) * toward
    is_idle = descent.objective - objective <= rounding
    idle_steps = jnp.where(is_idle, descent.idle_steps + 1, 0)
    return Descent(objective, gradient, pairs, trial + toward, gradient @ toward, jnp.int32(0), idle_steps)


def reject(descent: Descent, x: Float[Array, " d"], objective: Array, is_finite: Bool[Array, ""]) -> Descent:
    """The trial point is not taken: the next one is nearer, where a parabola says; in the end along −∇F."""
    step, bend = descent.trial - x, objective - descent.objective - descent.slope
    shrink = jnp.where(is_finite, jnp.clip(-descent.slope / (2 * jnp.where(bend > 0, bend, 1)), 0.1, 0.5), 0.1)
    forgets = descent.rejections == REJECTIONS - 1
    steepness = jnp.linalg.norm(descent.gradient)
    steepest = -jnp.linalg.norm(step) / jnp.where(steepness > 0, steepness, 1) * descent.gradient
    back = jnp.where(forgets, steepest, shrink * step)
    return descent._replace(
        pairs=jax.tree.map(lambda leaf: jnp.where(forgets, 0, leaf), descent.pairs),
        trial=x + back, slope=descent.gradient @ back, rejections=descent.rejections + 1,
    )  # fmt: skip
