"""SRBA (Dagréou et al. 2024): SARAH on all three directions; a single loop over a finite sum.

    every q steps      est = D(x, y, h) on all samples
    in between         est ← est + D(now; ξ, ζ) − D(before; ξ, ζ)
    y_i ← y_i − ρ·est_y,   h_i ← Π[h_i − ρ·est_h],   x ← x − γ·est_x

with D_y = ∇y g_i, D_h = ∇²yy g_i·h_i − ∇y f_i, D_x = mean_i ∇x f_i − ∇²xy g_i·h_i. O(√n ε⁻²) samples to an ε-stationary
point of a finite sum of n, near the lower bound.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Key, PyTree

from bilevax import arguments
from bilevax.algorithms.contract import Algorithm, Cost, described
from bilevax.algorithms.frame import Change, Move, RatesAt, State, assemble
from bilevax.algorithms.parts.all_tasks import common
from bilevax.algorithms.parts.hypergradient import Points, directions
from bilevax.algorithms.parts.three_directions import (
    ThreeDirections,
    draw_samples,
    evaluation_cost,
    points_of,
    step_along,
)
from bilevax.algorithms.registry.tuning import STEPS, Tuning, constant_steps
from bilevax.algorithms.start import all_tasks
from bilevax.problem import Problem
from bilevax.schedule import RateRule

UPPER_STEP, LOWER_STEP = RateRule(0.25, "step", condition_power=0.5), RateRule(0.5, "1/smoothness")


class Recursion(NamedTuple):
    """The estimates of the three directions, and the point before."""

    directions: Points
    before: Points


def _of_round(k: Any, tree: PyTree) -> PyTree:
    """The tree, as something of round k of a loop: XLA would move what is the same in all rounds out of it."""
    return jax.lax.optimization_barrier((tree, k))[0]


@dataclass(frozen=True, eq=False)
class SRBA(ThreeDirections):
    """SRBA with its settings; it keeps the estimates and the point before."""

    period: int | None = None

    def start_estimate(self, problem: Problem, at: Points) -> tuple[Recursion, tuple[()], None]:
        """Nothing yet: the first step looks at all samples."""
        return Recursion(jax.tree.map(jnp.zeros_like, at), at), (), None

    def _period(self, problem: Problem) -> int:
        """q: as many steps as there are batches in the larger data set, where the user did not say."""
        if self.period is not None:
            return self.period
        largest = max(problem.upper_data.max_length, problem.lower_data.max_length)
        return 1 if self.batch_size is None else -(-largest // self.batch_size)

    def step(
        self, problem: Problem, rates_at: RatesAt, state: State, key: Key[Array, ""], move: Callable[[Array], Move]
    ) -> Change:
        """All samples every q steps, differences on a batch in between."""
        size, at, recursion = self.batch_size, points_of(state), state.own.estimate
        samples, everything = draw_samples(problem, key, size), (all_tasks(problem), None, None)
        due = (state.step - 1) % self._period(problem) == 0

        def renew(k: Any, estimates: Points) -> Points:
            return directions(problem, _of_round(k, at), everything)

        def differ(k: Any, estimates: Points) -> Points:
            points = _of_round(k, (at, recursion.before))
            now, before = (directions(problem, at, samples) for at in points)
            return jax.tree.map(lambda old, a, b: old + a - b, estimates, now, before)

        # Two loops, one of one round and one of none: all samples are looked at only where it is time to.
        rounds = due.astype(jnp.int32)
        estimates = jax.lax.fori_loop(0, 1 - rounds, differ, recursion.directions)
        estimates = jax.lax.fori_loop(0, rounds, renew, estimates)
        costs = evaluation_cost(problem, None), evaluation_cost(problem, size, points=2)
        cost = Cost(*map(lambda whole, batch: jnp.where(due, whole, batch), *costs))
        keep = Recursion(estimates, at)
        return step_along(problem, rates_at(state.step), state, move, estimates, cost, keep=keep)


@described(
    paper="Dagréou et al. 2024",
    loops="single",
    batch="O(1), all every q steps",
    samples="√n ε⁻²",
    tasks="all",
    memory="d'",
    curvature="h followed",
    accepts="any (data are finite sums)",
    tuning=Tuning("SRBA", STEPS, constant_steps),
)
@arguments.known_keywords
def srba(
    *,
    upper_step: Any = UPPER_STEP,
    lower_step: Any = LOWER_STEP,
    period: int | None = None,
    batch_size: int | None = 32,
    upper_optimizer: optax.GradientTransformation | None = None,
    initialization: str = "theorem",
    initial_batch_size: int | None = None,
) -> Algorithm:
    """SRBA: est ← est + D(now; ξ, ζ) − D(before; ξ, ζ), all samples every q steps; y, h and x step along est.

    - `upper_step` (γ), `lower_step` (ρ): numbers or schedules of the step.
    - `period` (q): by default the number of batches in the larger of the two data sets.

    h is kept in the ball of radius C_fy/λ where `Bounds.f_y` is given. All tasks are looked at in every step. Source:
    Dagréou, Moreau, Vaiter, Ablin, A Lower Bound and a Near-Optimal Algorithm for Bilevel Empirical Risk Minimization,
    AISTATS 2024, Algorithm 1.
    """
    settings = dict(locals())
    if period is not None:
        arguments.count("period", period)
    return assemble("srba", SRBA(**common(settings), period=period), settings)
