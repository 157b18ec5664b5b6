"""MRBO (Yang, Ji, Liang 2021): STORM on ∇y g and on the hypergradient, with batches; a single loop.

    G(x, y) = mean_i ∇x f_i(x, y_i; ξ) − ∇²xy g_i(x, y_i; ζ')·h_i,
    h_i = ϑ Σ_{q=0..Q} Π_{k=1..q}(I − ϑ∇²yy g_i(x, y_i; ζ_k)) ∇y f_i(x, y_i; ξ)
    w_i ← (1−β_g)(w_i − ∇y g_i(before; ζ)) + ∇y g_i(now; ζ),   z ← (1−β_f)(z − G(before)) + G(now)
    y_i ← y_i − β w_i,   x ← x − α z

Õ(ε⁻³) samples to an ε-stationary point, with α_t ∝ t^(−1/3) and both mixings ∝ α_t².
"""

from typing import Any

import optax

from bilevax import arguments
from bilevax.algorithms.contract import Algorithm, described
from bilevax.algorithms.frame import assemble
from bilevax.algorithms.parts.all_tasks import common
from bilevax.algorithms.parts.neumann import NEUMANN_STEP, check_terms, whole_sum
from bilevax.algorithms.registry.tuning import MIXED_STEPS, NEUMANN_TERMS, SERIES, Tuning, constant_steps
from bilevax.algorithms.sustain import SUSTAIN
from bilevax.schedule import RateRule

UPPER_STEP, LOWER_STEP = RateRule(0.5, "step", 0, 100, 1 / 3), RateRule(0.5, "1/smoothness", 0, 1000, 1 / 3)
MIXING = RateRule(0.5, "1", 0, 100, 2 / 3)


@described(
    paper="Yang, Ji, Liang 2021",
    loops="single",
    batch="O(1)",
    samples="ε⁻³",
    tasks="all",
    memory="d'",
    curvature="Neumann series, sum",
    accepts="any",
    tuning=Tuning("MRBO", {**MIXED_STEPS, "series": SERIES}, constant_steps, NEUMANN_TERMS),
)
@arguments.known_keywords
def mrbo(
    *,
    upper_step: Any = UPPER_STEP,
    lower_step: Any = LOWER_STEP,
    mixing: Any = MIXING,
    neumann_step: Any = NEUMANN_STEP,
    neumann_terms: int = 10,
    batch_size: int | None = 32,
    upper_optimizer: optax.GradientTransformation | None = None,
    initialization: str = "theorem",
    initial_batch_size: int | None = None,
) -> Algorithm:
    """MRBO: STORM on ∇y g and on ∇x f − ∇²xy g·h, h = ϑ Σ_q Π_{k≤q}(I − ϑ∇²yy g)∇y f; x ← x − α z, y ← y − β w.

    - `upper_step` (α), `lower_step` (β): numbers or schedules of the step. `mixing`: β_g for ∇y g (as `Mixing.g_y`) and
      β_f for the hypergradient (`direction`).
    - `neumann_step` (ϑ): at most 1/L_g, found where not given; `neumann_terms` (Q): the bias is (1 − ϑλ)^Q.
    - `batch_size`: samples of every task for each gradient and each factor.

    All tasks are looked at in every step. Source: Yang, Ji, Liang,
    Provably Faster Algorithms for Bilevel Optimization, NeurIPS 2021, Algorithm 1.
    """
    settings = dict(locals())
    check_terms(neumann_terms)
    series = whole_sum("mrbo", neumann_step, [batch_size] * neumann_terms)
    return assemble("mrbo", SUSTAIN(**common(settings), series=series), settings)
