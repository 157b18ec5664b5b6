"""SRBA (Dagréou et al. 2024): SARAH on all three directions; a single loop over a finite sum.

    every q steps      est = D(x, y, h) on all samples
    in between         est ← est + D(now; ξ, ζ) − D(before; ξ, ζ)
    y_i ← y_i − ρ·est_y,   h_i ← Π[h_i − ρ·est_h],   x ← x − γ·est_x

with D_y = ∇y g_i, D_h = ∇²yy g_i·h_i − ∇y f_i, D_x = mean_i ∇x f_i − ∇²xy g_i·h_i. O(√n ε⁻²) samples to an ε-stationary
point of a finite sum of n, near the lower bound.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Key, PyTree

from bilevax import arguments, oracle
from bilevax.algorithms.base import Algorithm, Cost, described
from bilevax.algorithms.three_directions import (
    Estimate,
    Found,
    Given,
    draw_samples,
    evaluation_cost,
    three_directions,
)
from bilevax.algorithms.together import Begun, all_tasks, assemble
from bilevax.oracle import Points
from bilevax.problem import Problem


class Recursion(NamedTuple):
    """The estimates of the three directions, and the point before."""

    directions: Points
    before: Points


def _period(problem: Problem, size: int | None, period: int | None) -> int:
    """q: as many steps as there are batches in the larger data set, where the user did not say."""
    if period is not None:
        return period
    largest = max(problem.upper_data.max_length, problem.lower_data.max_length)
    return 1 if size is None else -(-largest // size)


def _of_round(k: Any, tree: PyTree) -> PyTree:
    """The tree, as something of round k of a loop: XLA would move what is the same in all rounds out of it."""
    return jax.lax.optimization_barrier((tree, k))[0]


def recursive(size: int | None, period: int | None) -> Estimate:
    """All samples every so many steps, differences in between."""

    def start(problem: Problem, at: Points) -> Begun:
        return Begun(Recursion(jax.tree.map(jnp.zeros_like, at), at))

    def find(problem: Problem, given: Given, key: Key[Array, ""]) -> Found:
        samples, everything = draw_samples(problem, key, size), (all_tasks(problem), None, None)
        renewed = (given.step - 1) % _period(problem, size, period) == 0

        def renew(k: Any, directions: Points) -> Points:
            return oracle.directions(problem, _of_round(k, given.at), everything)

        def differ(k: Any, directions: Points) -> Points:
            points = _of_round(k, (given.at, given.own.before))
            now, before = (oracle.directions(problem, at, samples) for at in points)
            return jax.tree.map(lambda old, a, b: old + a - b, directions, now, before)

        # Two loops, one of one round and one of none: all samples are looked at only where it is time to.
        once = renewed.astype(jnp.int32)
        directions = jax.lax.fori_loop(0, 1 - once, differ, given.own.directions)
        directions = jax.lax.fori_loop(0, once, renew, directions)
        costs = evaluation_cost(problem, None), evaluation_cost(problem, size, points=2)
        pick = lambda whole, batch: jnp.where(renewed, whole, batch)
        return Found(directions, Recursion(directions, given.at), Cost(*map(pick, *costs)))

    return Estimate(find, start)


@described(
    paper="Dagréou et al. 2024",
    loops="single",
    batch="O(1), all every q steps",
    samples="√n ε⁻²",
    tasks="all",
    memory="d'",
    curvature="h followed",
    accepts="any (data are finite sums)",
)
@arguments.known_keywords
def srba(
    *,
    upper_step: Any = 0.1,
    lower_step: Any = 0.1,
    period: int | None = None,
    batch_size: int | None = 32,
    upper_optimizer: optax.GradientTransformation | None = None,
    initialization: str = "theorem",
    initial_batch_size: int | None = None,
) -> Algorithm:
    """SRBA: est ← est + D(now; ξ, ζ) − D(before; ξ, ζ), all samples every q steps; y, h and x step along est.

    - `upper_step` (γ), `lower_step` (ρ): numbers or schedules of the step.
    - `period` (q): by default the number of batches in the larger of the two data sets.

    h is kept in the ball of radius C_fy/λ where `Bounds.f_y` is given. The other arguments are those of
    `bilevax.rsvrb`; all tasks are looked at in every step. Source: Dagréou, Moreau, Vaiter, Ablin, A Lower Bound and a
    Near-Optimal Algorithm for Bilevel Empirical Risk Minimization, AISTATS 2024, Algorithm 1.
    """
    chosen = dict(locals())
    if period is not None:
        arguments.count("period", period)
    return assemble("srba", three_directions(recursive(batch_size, period)), chosen)
