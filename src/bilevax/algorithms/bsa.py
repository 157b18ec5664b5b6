"""BSA (Ghadimi and Wang 2018): steps on y until it is close enough, then one step on x; a double loop.

    y_i ← y_i − β_k ∇y g_i(x, y_i; ζ)                         t_k times, t_k = ⌈√k⌉, from the last y_i
    h_i = Qϑ · Π_{q=1..p}(I − ϑ∇²yy g_i(x, y_i; ζ_q)) ∇y f_i(x, y_i; ξ),   p uniform on {0, ..., Q−1}
    x ← x − α_k mean_i(∇x f_i(x, y_i; ξ) − ∇²xy g_i(x, y_i; ζ')·h_i)

O(ε⁻⁶) samples of the lower problem to an ε-stationary point.
"""

from typing import Any

import jax.numpy as jnp
import optax

from bilevax import arguments
from bilevax.algorithms.base import Algorithm, described
from bilevax.algorithms.nested import nested
from bilevax.algorithms.neumann import random_length
from bilevax.algorithms.together import assemble
from bilevax.schedule import Step, power

UPPER_STEP, LOWER_STEP = power(0.1, 8, 1 / 2), power(0.3, 8, 1 / 4)


def _root(t: Step) -> Any:
    """⌈√t⌉."""
    return jnp.ceil(jnp.sqrt(jnp.asarray(t, jnp.float32)))


@described(
    paper="Ghadimi, Wang 2018",
    loops="double",
    batch="O(1)",
    samples="ε⁻⁶",
    tasks="all",
    memory="nothing",
    curvature="Neumann series, random length",
    accepts="any; needs neumann_step",
)
@arguments.known_keywords
def bsa(
    *,
    upper_step: Any = UPPER_STEP,
    lower_step: Any = LOWER_STEP,
    inner_steps: Any = _root,
    neumann_step: Any = None,
    neumann_terms: int = 10,
    batch_size: int | None = 32,
    upper_optimizer: optax.GradientTransformation | None = None,
    initialization: str = "theorem",
    initial_batch_size: int | None = None,
) -> Algorithm:
    """BSA: inner steps on y, h = Qϑ Π(I − ϑ∇²yy g)∇y f of random length, x ← x − α(∇x f − ∇²xy g·h).

    - `upper_step` (α_k), `lower_step` (β_k): numbers or schedules of the step; `inner_steps` (t_k): a whole number, or
      a function of the step, by default ⌈√k⌉.
    - `neumann_step` (ϑ): at most 1/L_g, to be given; `neumann_terms` (Q): the bias is (1 − ϑλ)^Q.
    - `batch_size`: samples of every task for each gradient and each factor.

    The other arguments are those of `bilevax.rsvrb`; all tasks are looked at in every step. Source: Ghadimi, Wang,
    Approximation Methods for Bilevel Programming, 2018.
    """
    chosen = dict(locals())
    if not callable(inner_steps):
        arguments.count("inner_steps", inner_steps)
    count = inner_steps if callable(inner_steps) else lambda t: inner_steps
    return assemble(
        "bsa", nested(count, random_length("bsa", neumann_step, neumann_terms, batch_size), batch_size), chosen
    )
