"""SOBA (Dagréou et al. 2022): all three variables follow their sampled directions at once; a single loop.

    y_i ← y_i − ρ ∇y g_i,   h_i ← h_i − ρ(∇²yy g_i·h_i − ∇y f_i),   x ← x − γ mean_i(∇x f_i − ∇²xy g_i·h_i)

on the same samples ξ, ζ at the same (x, y, h). O(ε⁻⁴) samples to an ε-stationary point with steps ∝ t^(−1/2).
"""

from typing import Any

import optax

from bilevax import arguments
from bilevax.algorithms.base import Algorithm, described
from bilevax.algorithms.three_directions import plain, three_directions
from bilevax.algorithms.together import assemble
from bilevax.schedule import power

UPPER_STEP, LOWER_STEP = power(0.3, 8, 1 / 2), power(1, 8, 1 / 2)


@described(
    paper="Dagréou et al. 2022",
    loops="single",
    batch="O(1)",
    samples="ε⁻⁴",
    tasks="all",
    memory="d'",
    curvature="h followed",
    accepts="any",
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

    `upper_step` (γ) and `lower_step` (ρ) are numbers or schedules of the step. The other arguments are those of
    `bilevax.rsvrb`; all tasks are looked at in every step. h is kept in the ball of radius
    C_fy/λ where `Bounds.f_y` is given. Source: Dagréou, Ablin, Vaiter, Moreau, A Framework for
    Bilevel Optimization that Enables Stochastic and Global Variance Reduction Algorithms, NeurIPS 2022, Algorithm SOBA.
    """
    return assemble("soba", three_directions(plain(batch_size)), dict(locals()))
