"""MA-SOBA (Chen et al. 2023): SOBA with a moving average of the direction of x; a single loop.

    D_y = ∇y g_i,   D_h = ∇²yy g_i·h_i − ∇y f_i,   D_x = mean_i ∇x f_i − ∇²xy g_i·h_i
    y_i ← y_i − ρ D_y,   h_i ← h_i − ρ D_h,   d ← (1−θ)d + θD_x,   x ← x − γ d

O(ε⁻⁴) samples to an ε-stationary point, without the higher smoothness that SOBA's proof asks for.
"""

from typing import Any

import optax

from bilevax import arguments
from bilevax.algorithms.base import Algorithm, described
from bilevax.algorithms.three_directions import averaged, three_directions
from bilevax.algorithms.together import assemble
from bilevax.schedule import power

UPPER_STEP, LOWER_STEP, MIXING = power(0.3, 8, 1 / 2), power(1, 8, 1 / 2), power(1, 0, 1 / 2)


@described(
    paper="Chen, Xiao, Balasubramanian 2023",
    loops="single",
    batch="O(1)",
    samples="ε⁻⁴",
    tasks="all",
    memory="d'",
    curvature="h followed",
    accepts="any",
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

    `upper_step` (γ), `lower_step` (ρ) and `mixing` (θ; as `Mixing.direction`) are numbers or schedules of the step. The
    other arguments are those of `bilevax.rsvrb`; all tasks are looked at in every step. h is kept in the ball of radius
    C_fy/λ where `Bounds.f_y` is given. Source: Chen, Xiao,
    Balasubramanian, Optimal Algorithms for Stochastic Bilevel Optimization under Relaxed Smoothness Conditions, 2023.
    """
    return assemble("ma_soba", three_directions(averaged(batch_size)), dict(locals()))
