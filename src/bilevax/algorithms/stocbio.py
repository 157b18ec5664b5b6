"""StocBio (Ji, Yang, Liang 2021): steps on y, then a hypergradient from large batches; a double loop.

    y_i ← y_i − β ∇y g_i(x, y_i; ζ)                           D times, from the last y_i
    h_i = ϑ Σ_{q=0..Q} Π_{k=1..q}(I − ϑ∇²yy g_i(x, y_i; ζ_k)) ∇y f_i(x, y_i; ξ)
    x ← x − α mean_i(∇x f_i(x, y_i; ξ) − ∇²xy g_i(x, y_i; ζ')·h_i)

The factor that is applied k-th has a batch ∝ (1 − ϑλ)^{k−1}: the first ones are in most of the terms. Constant steps
and batches of O(ε⁻²), Õ(ε⁻⁴) samples to an ε-stationary point.
"""

from typing import Any

import numpy as np
import optax

from bilevax import arguments
from bilevax.algorithms.bsa import BSA
from bilevax.algorithms.contract import Algorithm, described
from bilevax.algorithms.frame import assemble
from bilevax.algorithms.parts.all_tasks import common
from bilevax.algorithms.parts.neumann import NEUMANN_STEP, check_terms, whole_sum
from bilevax.algorithms.registry.tuning import FALLING_STEPS, NEUMANN_TERMS, TWO_SCALES, Tuning, two_scale_steps
from bilevax.schedule import RateRule

UPPER_STEP, LOWER_STEP = RateRule(0.25, "step"), RateRule(0.5, "1/smoothness")


def _batch_sizes(size: int | None, terms: int, shrink: float) -> list[int | None]:
    """Batches ∝ shrink^{k−1} for the factors k = 1, ..., Q, `size` in the mean, none empty."""
    if size is None:
        return [None] * terms
    weights = shrink ** np.arange(terms)
    return [max(1, round(size * terms * float(weight))) for weight in weights / weights.sum()]


@described(
    paper="Ji, Yang, Liang 2021",
    loops="double",
    batch="O(ε⁻²)",
    samples="ε⁻⁴",
    tasks="all",
    memory="nothing",
    curvature="Neumann series, sum",
    accepts="any",
    tuning=Tuning("StocBio", FALLING_STEPS, two_scale_steps, NEUMANN_TERMS, TWO_SCALES),
)
@arguments.known_keywords
def stocbio(
    *,
    upper_step: Any = UPPER_STEP,
    lower_step: Any = LOWER_STEP,
    inner_steps: int = 10,
    neumann_step: Any = NEUMANN_STEP,
    neumann_terms: int = 10,
    neumann_shrink: float = 0.9,
    batch_size: int | None = 32,
    upper_optimizer: optax.GradientTransformation | None = None,
    initialization: str = "theorem",
    initial_batch_size: int | None = None,
) -> Algorithm:
    """StocBio: D steps on y, h = ϑ Σ_q Π_{k≤q}(I − ϑ∇²yy g)∇y f, x ← x − α(∇x f − ∇²xy g·h).

    - `upper_step` (α), `lower_step` (β): numbers or schedules of the step; `inner_steps` (D).
    - `neumann_step` (ϑ): at most 1/L_g, found where not given; `neumann_terms` (Q): the bias is (1 − ϑλ)^Q.
    - `neumann_shrink`: by how much the batch of a factor is smaller than that of the one before, in the paper 1 − ϑλ;
      together the factors take Q batches.
    - `batch_size`: samples of every task for each gradient; the rate asks for O(ε⁻²).

    All tasks are looked at in every step. Source: Ji, Yang, Liang,
    Bilevel Optimization: Convergence Analysis and Enhanced Design, ICML 2021, Algorithm 2.
    """
    settings = dict(locals())
    arguments.count("inner_steps", inner_steps)
    check_terms(neumann_terms)
    arguments.share("neumann_shrink", neumann_shrink)
    if batch_size is not None:
        arguments.count("batch_size", batch_size)
    series = whole_sum("stocbio", neumann_step, _batch_sizes(batch_size, neumann_terms, neumann_shrink))
    return assemble("stocbio", BSA(**common(settings), inner_steps=inner_steps, series=series), settings)
