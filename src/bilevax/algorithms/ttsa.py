"""TTSA (Hong, Wai, Wang, Yang 2020): one step on y and one on x, on two time scales; a single loop.

    y_i ← y_i − β_k ∇y g_i(x, y_i; ζ)
    h_i = Qϑ · Π_{q=1..p_i}(I − ϑ∇²yy g_i(x, y_i; ζ_q)) ∇y f_i(x, y_i; ξ),   p_i uniform on {0, ..., Q−1}, the new y_i
    x ← x − α_k mean_i(∇x f_i(x, y_i; ξ) − ∇²xy g_i(x, y_i; ζ')·h_i)

α_k ∝ k^(−3/5) and β_k ∝ k^(−2/5): y moves on the faster scale. O(ε⁻⁵) samples to an ε-stationary point. X is the
whole space here, so x is not projected.
"""

from typing import Any

import optax

from bilevax import arguments
from bilevax.algorithms.bsa import BSA
from bilevax.algorithms.contract import Algorithm, described
from bilevax.algorithms.frame import assemble
from bilevax.algorithms.parts.all_tasks import common
from bilevax.algorithms.parts.neumann import NEUMANN_STEP, random_length
from bilevax.algorithms.registry.tuning import FALLING_STEPS, NEUMANN_TERMS, TWO_SCALES, Tuning, two_scale_steps
from bilevax.schedule import RateRule

UPPER_STEP, LOWER_STEP = RateRule(0.5, "step", 0, 100, 3 / 5), RateRule(0.5, "1/smoothness", 0, 100, 2 / 5)


@described(
    paper="Hong, Wai, Wang, Yang 2020",
    loops="single",
    batch="O(1)",
    samples="ε⁻⁵",
    tasks="all",
    memory="nothing",
    curvature="Neumann series, random length",
    accepts="any",
    tuning=Tuning("TTSA", FALLING_STEPS, two_scale_steps, NEUMANN_TERMS, TWO_SCALES),
)
@arguments.known_keywords
def ttsa(
    *,
    upper_step: Any = UPPER_STEP,
    lower_step: Any = LOWER_STEP,
    neumann_step: Any = NEUMANN_STEP,
    neumann_terms: int = 10,
    batch_size: int | None = 32,
    upper_optimizer: optax.GradientTransformation | None = None,
    initialization: str = "theorem",
    initial_batch_size: int | None = None,
) -> Algorithm:
    """TTSA: y ← y − β_k ∇y g, h = Qϑ Π(I − ϑ∇²yy g)∇y f of random length, x ← x − α_k(∇x f − ∇²xy g·h).

    - `upper_step` (α_k), `lower_step` (β_k): numbers or schedules of the step, by default ∝ k^(−3/5) and k^(−2/5).
    - `neumann_step` (ϑ): at most 1/L_g, found where not given; `neumann_terms` (Q): the bias is (1 − ϑλ)^Q.
    - `batch_size`: samples of every task for each gradient and each factor.

    All tasks are looked at in every step. Source: Hong, Wai, Wang,
    Yang, A Two-Timescale Framework for Bilevel Optimization, 2020, Algorithm 1.
    """
    settings = dict(locals())
    series = random_length("ttsa", neumann_step, neumann_terms, batch_size)
    return assemble("ttsa", BSA(**common(settings), inner_steps=1, series=series), settings)
