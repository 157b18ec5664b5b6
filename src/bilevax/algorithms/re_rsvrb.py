"""RE-RSVRB, Algorithm 3 of the paper: RSVRB restarted in stages, for gradient-dominated problems.

    for k = 1, 2, ...:  Θ_k = RSVRB(Θ_{k−1}, η_k, τ_k, T_k)

The whole state Θ is carried over. ε_k halves from one stage to the next, hence (Theorem 3)
η_k = η_1/√2^{k−1}, τ_k = τ_1/√2^{k−1}, β_k = β_1/2^{k−1}, T_k = 2^{k−1} T_1.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int, Key

from bilevax import arguments
from bilevax.algorithms.base import Algorithm, described
from bilevax.algorithms.first import as_beginning
from bilevax.algorithms.rsvrb import assemble
from bilevax.algorithms.state import Settings, Timetable
from bilevax.curvature import Curvature
from bilevax.draw import Sampling
from bilevax.schedule import Mixing, Rates, Step, as_rates

StageEnds = Int[Array, " K"]


def stagewise(first: Rates, first_stage: int, restart_from: str) -> Timetable:
    """The rates of stage k in every step of stage k.

    The state returned by a stage does not depend on the steps after it, so a random iterate t̃ of T_k is
    had by drawing t̃ first and running only t̃ steps: nothing is run in vain and no state is copied.
    """
    limit = np.iinfo(np.int32).max
    lengths = [first_stage * 2**k for k in range(31) if first_stage * (2 ** (k + 1) - 1) < limit]

    def begin(key: Key[Array, ""]) -> StageEnds:
        steps = jnp.asarray(lengths, jnp.int32)
        if restart_from == "random":
            steps = jax.random.randint(key, steps.shape, 0, steps + 1, jnp.int32)
        return jnp.cumsum(steps, dtype=jnp.int32)

    def rates(ends: StageEnds, t: Step) -> Rates:
        k = jnp.sum(ends < t).astype(float)
        shrink = 0.5 ** (k / 2)
        now = first.at(jnp.int32(1))
        return Rates(
            upper_step=now.upper_step * shrink,
            lower_step=now.lower_step,
            relaxation=now.relaxation * shrink,
            mixing=Mixing(*(beta * shrink**2 for beta in now.mixing)),
        )

    return Timetable(begin, rates)


@described(
    paper="Guo, Hu, Zhang, Yang 2021",
    loops="stages",
    batch="O(1)",
    samples="ε⁻¹ to F − F* ≤ ε, gradient-dominated",
    tasks="a few",
    memory="as its curvature",
    curvature="dense, linear_model or tracked",
    accepts="any",
)
@arguments.known_keywords
def re_rsvrb(
    *,
    upper_step: float = 0.1,
    lower_step: float = 0.5,
    relaxation: float = 1.0,
    mixing: Any = 0.1,
    first_stage: int = 500,
    restart_from: str = "last",
    tasks_per_step: int = 1,
    batch_size: int | None = 32,
    task_probabilities: Any = None,
    upper_optimizer: optax.GradientTransformation | None = None,
    curvature: Curvature | None = None,
    initialization: str = "theorem",
    initial_batch_size: int | None = None,
) -> Algorithm:
    """RE-RSVRB, Algorithm 3: RSVRB in stages, η_{k+1} = η_k/√2, β_{k+1} = β_k/2, T_{k+1} = 2 T_k.

    `upper_step`, `relaxation` and `mixing` are those of the first stage, `first_stage` its number of steps
    T_1; the stages go on for as long as the run does. `restart_from`: "last" carries on from the last
    iterate of a stage, "random" from a random one as in the theorem (a stage then has a random length).
    The other arguments are those of `bilevax.rsvrb`. Source: Guo, Hu, Zhang, Yang, Algorithm 3, Theorem 3.
    """
    chosen = dict(locals())
    arguments.count("first_stage", first_stage)
    arguments.one_of("restart_from", restart_from, ("last", "random"))
    given = {"upper_step": upper_step, "lower_step": lower_step, "relaxation": relaxation, "mixing": mixing}
    for name, value in given.items():
        if any(callable(part) for part in (value if isinstance(value, Mixing) else [value])):
            raise TypeError(f"{name} of re_rsvrb must be a number, the stages are its schedule; got {value!r}.")
    first = as_rates(upper_step, lower_step, relaxation, mixing)
    settings = Settings(
        timetable=stagewise(first, first_stage, restart_from),
        sampling=Sampling(tasks_per_step, batch_size, task_probabilities),
        curvature=curvature,
        optimizer=upper_optimizer,
        beginning=as_beginning(initialization, initial_batch_size, batch_size),
    )
    return assemble("re_rsvrb", settings, chosen)
