"""RE-RSVRB, Algorithm 3 of the paper: RSVRB restarted in stages, for gradient-dominated problems.

    for k = 1, 2, ...:  Θ_k = RSVRB(Θ_{k−1}, η_k, τ_k, T_k)

The whole state Θ is carried over. ε_k halves from one stage to the next, hence (Theorem 3)
η_k = η_1/√2^{k−1}, τ_k = τ_1/√2^{k−1}, β_k = β_1/2^{k−1}, T_k = 2^{k−1} T_1.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int, Key

from bilevax import arguments
from bilevax.algorithms.contract import Algorithm, described
from bilevax.algorithms.registry.tuning import FIRST_BATCHES, MIXED_STEPS, STAGES, Tuning, shared_steps
from bilevax.algorithms.rsvrb import LOWER_STEP, MIXING, RSVRB, UPPER_STEP, assemble_family
from bilevax.algorithms.start import first_batch_of
from bilevax.curvature import Curvature
from bilevax.draw import Sampling
from bilevax.problem import Problem
from bilevax.schedule import Mixing, Rates, Step, as_rates

StageEnds = Int[Array, " K"]


@dataclass(frozen=True, eq=False)
class ReRSVRB(RSVRB):
    """Algorithm 3 with its settings: Algorithm 2 with the rates of stage k in every step of stage k.

    The state returned by a stage does not depend on the steps after it, so a random iterate t̃ of T_k is
    had by drawing t̃ first and running only t̃ steps: nothing is run in vain and no state is copied.
    """

    first_stage: int = 500
    restart_from: str = "last"

    def start_stages(self, key: Key[Array, ""]) -> StageEnds:
        """The last step of every stage: T_k = 2^{k−1} T_1 steps each, or a random number of them."""
        limit = np.iinfo(np.int32).max
        lengths = [self.first_stage * 2**k for k in range(31) if self.first_stage * (2 ** (k + 1) - 1) < limit]
        steps = jnp.asarray(lengths, jnp.int32)
        if self.restart_from == "random":
            steps = jax.random.randint(key, steps.shape, 0, steps + 1, jnp.int32)
        return jnp.cumsum(steps, dtype=jnp.int32)

    def rates_at(self, problem: Problem, state: Any, t: Step) -> Rates:
        """η_k = η_1/√2^{k−1}, τ_k = τ_1/√2^{k−1} and β_k = β_1/2^{k−1} in stage k."""
        k = jnp.sum(state.own.stages < t).astype(problem.dtype)
        shrink = 0.5 ** (k / 2)
        rates = super().rates_at(problem, state, t)
        mixing = Mixing(*(beta * shrink**2 for beta in rates.mixing))
        return rates._replace(upper_step=rates.upper_step * shrink, relaxation=rates.relaxation * shrink, mixing=mixing)


@described(
    paper="Guo, Hu, Zhang, Yang 2021",
    loops="stages",
    batch="O(1)",
    samples="ε⁻¹ to F − F* ≤ ε, gradient-dominated",
    tasks="a few",
    memory="as its curvature",
    curvature="dense, linear_model or tracked",
    accepts="any",
    tuning=Tuning("RE-RSVRB", MIXED_STEPS, partial(shared_steps, first_stage=1000), FIRST_BATCHES, STAGES),
)
@arguments.known_keywords
def re_rsvrb(
    *,
    upper_step: Any = UPPER_STEP,
    lower_step: Any = LOWER_STEP,
    relaxation: float = 1.0,
    mixing: Any = MIXING,
    first_stage: int = 500,
    restart_from: str = "last",
    tasks_per_step: int | None = None,
    batch_size: int | None = 32,
    task_probabilities: Any = None,
    upper_optimizer: optax.GradientTransformation | None = None,
    curvature: Curvature | None = None,
    initialization: str = "theorem",
    initial_batch_size: int | None = None,
) -> Algorithm:
    """RE-RSVRB, Algorithm 3: RSVRB in stages, η_{k+1} = η_k/√2, β_{k+1} = β_k/2, T_{k+1} = 2 T_k.

    `upper_step`, `relaxation` and `mixing` are those of the first stage, `first_stage` its number of steps T_1; the
    stages go on for as long as the run does. `restart_from`: "last" carries on from the last iterate of a stage,
    "random" from a random one as in the theorem (a stage then has a random length). With an `upper_optimizer` the
    stages shrink what it makes of d, η_k/η_1 times. Source: Guo, Hu, Zhang, Yang, Algorithm 3, Theorem 3.
    """
    settings = dict(locals())
    arguments.count("first_stage", first_stage)
    arguments.one_of("restart_from", restart_from, ("last", "random"))
    given = {"upper_step": upper_step, "lower_step": lower_step, "relaxation": relaxation, "mixing": mixing}
    for name, value in given.items():
        if any(callable(part) for part in (value if isinstance(value, Mixing) else [value])):
            raise TypeError(f"{name} of re_rsvrb must be a number, the stages are its schedule; got {value!r}.")
    method = ReRSVRB(
        rates=as_rates(upper_step, lower_step, relaxation, mixing, upper_optimizer),
        sampling=Sampling(tasks_per_step, batch_size, task_probabilities),
        first=first_batch_of(initialization, initial_batch_size, batch_size),
        curvature=curvature,
        optimizer=upper_optimizer,
        first_stage=first_stage,
        restart_from=restart_from,
    )
    return assemble_family("re_rsvrb", method, settings)
