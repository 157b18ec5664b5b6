"""MA-SOBA (Chen et al. 2023): SOBA with a moving average of the direction of x; a single loop.

    D_y = ∇y g_i,   D_h = ∇²yy g_i·h_i − ∇y f_i,   D_x = mean_i ∇x f_i − ∇²xy g_i·h_i
    y_i ← y_i − ρ D_y,   h_i ← h_i − ρ D_h,   d ← (1−θ)d + θD_x,   x ← x − γ d

O(ε⁻⁴) samples to an ε-stationary point, without the higher smoothness that SOBA's proof asks for.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key

from bilevax import arguments
from bilevax.algorithms.contract import Algorithm, described
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
from bilevax.algorithms.registry.tuning import MIXED_STEPS, Tuning, constant_steps
from bilevax.problem import Problem
from bilevax.schedule import RateRule, power

UPPER_STEP, LOWER_STEP = RateRule(0.5, "step", 0, 100, 1 / 2, 0.5), RateRule(0.5, "1/smoothness", 0, 1000, 1 / 2)
MIXING = power(1, 0, 1 / 2)


class MASOBA(ThreeDirections):
    """MA-SOBA with its settings; it keeps d."""

    def start_estimate(self, problem: Problem, at: Points) -> tuple[Float[Array, " d"], tuple[()], None]:
        """d, which the first sample replaces."""
        return jnp.zeros_like(at.x), (), None

    def step(
        self, problem: Problem, rates_at: RatesAt, state: State, key: Key[Array, ""], move: Callable[[Array], Move]
    ) -> Change:
        """The directions on fresh samples; that of x as a moving average."""
        rates = rates_at(state.step)
        D = directions(problem, points_of(state), draw_samples(problem, key, self.batch_size))
        theta = jnp.where(state.step == 1, 1, rates.mixing.direction)
        d = (1 - theta) * state.own.estimate + theta * D.x
        cost = evaluation_cost(problem, self.batch_size)
        return step_along(problem, rates, state, move, D._replace(x=d), cost, keep=d)


@described(
    paper="Chen, Xiao, Balasubramanian 2023",
    loops="single",
    batch="O(1)",
    samples="ε⁻⁴",
    tasks="all",
    memory="d'",
    curvature="h followed",
    accepts="any",
    tuning=Tuning("MA-SOBA", MIXED_STEPS, constant_steps),
)
@arguments.known_keywords
def ma_soba(
    *,
    upper_step: Any = UPPER_STEP,
    lower_step: Any = LOWER_STEP,
    mixing: Any = MIXING,
    batch_size: int | None = 32,
    upper_optimizer: optax.GradientTransformation | None = None,
    initialization: str = "theorem",
    initial_batch_size: int | None = None,
) -> Algorithm:
    """MA-SOBA: SOBA with d ← (1−θ)d + θ(∇x f − ∇²xy g·h), x ← x − γ d.

    `upper_step` (γ), `lower_step` (ρ) and `mixing` (θ; as `Mixing.direction`) are numbers or schedules of the step. All
    tasks are looked at in every step. h is kept in the ball of radius C_fy/λ where `Bounds.f_y` is given. Source: Chen,
    Xiao, Balasubramanian, Optimal Algorithms for Stochastic Bilevel Optimization under Relaxed Smoothness Conditions,
    2023.
    """
    settings = dict(locals())
    return assemble("ma_soba", MASOBA(**common(settings)), settings)
