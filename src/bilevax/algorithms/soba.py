"""SOBA (Dagréou et al. 2022): all three variables follow their sampled directions at once; a single loop.

    y_i ← y_i − ρ ∇y g_i,   h_i ← h_i − ρ(∇²yy g_i·h_i − ∇y f_i),   x ← x − γ mean_i(∇x f_i − ∇²xy g_i·h_i)

on the same samples ξ, ζ at the same (x, y, h). O(ε⁻⁴) samples to an ε-stationary point with steps ∝ t^(−1/2).
"""

from collections.abc import Callable
from typing import Any

import optax
from jaxtyping import Array, Key

from bilevax import arguments
from bilevax.algorithms.contract import Algorithm, described
from bilevax.algorithms.frame import Change, Move, RatesAt, State, assemble
from bilevax.algorithms.parts.all_tasks import common
from bilevax.algorithms.parts.hypergradient import directions
from bilevax.algorithms.parts.three_directions import (
    ThreeDirections,
    draw_samples,
    evaluation_cost,
    points_of,
    step_along,
)
from bilevax.algorithms.registry.tuning import STEPS, Tuning, constant_steps
from bilevax.problem import Problem
from bilevax.schedule import RateRule

UPPER_STEP, LOWER_STEP = RateRule(0.5, "step", 0, 100, 1 / 2, 0.5), RateRule(0.5, "1/smoothness", 0, 1000, 1 / 2)


class SOBA(ThreeDirections):
    """SOBA with its settings."""

    def step(
        self, problem: Problem, rates_at: RatesAt, state: State, key: Key[Array, ""], move: Callable[[Array], Move]
    ) -> Change:
        """The directions on fresh samples, and a step along them."""
        D = directions(problem, points_of(state), draw_samples(problem, key, self.batch_size))
        return step_along(problem, rates_at(state.step), state, move, D, evaluation_cost(problem, self.batch_size))


@described(
    paper="Dagréou et al. 2022",
    loops="single",
    batch="O(1)",
    samples="ε⁻⁴",
    tasks="all",
    memory="d'",
    curvature="h followed",
    accepts="any",
    tuning=Tuning("SOBA", STEPS, constant_steps),
)
@arguments.known_keywords
def soba(
    *,
    upper_step: Any = UPPER_STEP,
    lower_step: Any = LOWER_STEP,
    batch_size: int | None = 32,
    upper_optimizer: optax.GradientTransformation | None = None,
    initialization: str = "theorem",
    initial_batch_size: int | None = None,
) -> Algorithm:
    """SOBA: y ← y − ρ ∇y g, h ← h − ρ(∇²yy g·h − ∇y f), x ← x − γ(∇x f − ∇²xy g·h), at once.

    `upper_step` (γ) and `lower_step` (ρ) are numbers or schedules of the step. All tasks are looked at in every step. h
    is kept in the ball of radius C_fy/λ where `Bounds.f_y` is given. Source: Dagréou, Ablin, Vaiter, Moreau, A
    Framework for Bilevel Optimization that Enables Stochastic and Global Variance Reduction Algorithms, NeurIPS 2022,
    Algorithm SOBA.
    """
    settings = dict(locals())
    return assemble("soba", SOBA(**common(settings)), settings)
