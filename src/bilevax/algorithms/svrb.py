"""SVRB, Algorithm 1 of the paper: one lower problem, every quantity estimated by STORM.

    u ← (1−β)(u − ∇x f(before; ξ)) + ∇x f(now; ξ)
    v ← Π_C[(1−β)(v − ∇y f(before; ξ)) + ∇y f(now; ξ)]
    V ← S^u_C[(1−β)(V − ∇²xy g(before; ζ)) + ∇²xy g(now; ζ)]
    H ← S^l_λ[(1−β)(H − ∇²yy g(before; ζ)) + ∇²yy g(now; ζ)]
    w ← (1−β)(w − ∇y g(before; ζ)) + ∇y g(now; ζ)
    z = u − V H⁻¹ v,   x ← x − η_t γ z,   y ← y − τ_t τ w

It is RSVRB with one task, where p = 1 and d = z, without the projections of u and y. Õ(1/ε³) samples to an
ε-stationary point (Theorem 1).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import optax
from jaxtyping import Array, Key

from bilevax import arguments
from bilevax.algorithms.contract import ONE_LOWER, Algorithm, Variables, described
from bilevax.algorithms.frame import Change, Move, RatesAt, Some, Start, State
from bilevax.algorithms.registry.tuning import CUBE_ROOT, FALLING_MIXED_STEPS, Tuning, cube_root_steps
from bilevax.algorithms.rsvrb import RSVRB, assemble_family
from bilevax.algorithms.start import first_batch_of, refuse_set
from bilevax.curvature import Curvature
from bilevax.draw import Sampling
from bilevax.problem import Problem
from bilevax.schedule import RateRule, as_rates

# Theorem 1's powers of t; RELAXATION is one at first.
STEP, LOWER_STEP = RateRule(0.5, "step", 0, 100, 1 / 3), RateRule(1 / 3, "1/smoothness")
RELAXATION, MIXING = RateRule(1.0, "1", 0, 100, 1 / 3), RateRule(0.5, "1", 0, 100, 2 / 3)


@dataclass(frozen=True, eq=False)
class SVRB(RSVRB):
    """Algorithm 1 with its settings."""

    def check(self, problem: Problem) -> None:
        """Refuse a problem with more than one lower problem."""
        if problem.num_tasks != 1:
            raise ValueError(f"svrb is for one lower problem, this one has {problem.num_tasks}; use bilevax.rsvrb.")
        refuse_set(problem)
        super().check(problem)

    def start(self, problem: Problem, key: Key[Array, ""]) -> Start:
        """Line 1."""
        return super().start(without_projections(problem), key)

    def step(
        self, problem: Problem, rates_at: RatesAt, state: State, key: Key[Array, ""], move: Callable[[Array], Move]
    ) -> Change:
        """Lines 3 to 11: those of Algorithm 2 for the one task."""
        return super().step(without_projections(problem), rates_at, state, key, move)

    def variables(self, problem: Problem, rates_at: RatesAt, state: State, some: Some) -> Variables:
        """x and y."""
        return super().variables(without_projections(problem), rates_at, state, some)


def without_projections(problem: Problem) -> Problem:
    """Algorithm 1 projects neither u nor y."""
    return problem.replace(bounds=replace(problem.bounds, f_x=None, y=None))


@described(
    paper="Guo, Hu, Zhang, Yang 2021",
    loops="single",
    batch="O(1)",
    samples="ε⁻³",
    tasks=ONE_LOWER,
    memory="as its curvature",
    curvature="dense, linear_model or tracked",
    accepts=ONE_LOWER,
    tuning=Tuning("SVRB", FALLING_MIXED_STEPS, cube_root_steps, rule=CUBE_ROOT),
)
@arguments.known_keywords
def svrb(
    *,
    upper_step: Any = STEP,
    lower_step: Any = LOWER_STEP,
    relaxation: Any = RELAXATION,
    mixing: Any = MIXING,
    batch_size: int | None = 32,
    upper_optimizer: optax.GradientTransformation | None = None,
    curvature: Curvature | None = None,
    initialization: str = "theorem",
    initial_batch_size: int | None = None,
) -> Algorithm:
    """SVRB, Algorithm 1: z = u − V H⁻¹ v, x ← x − η_t γ z, y ← y − τ_t τ w.

    Schedules that are not given are Theorem 1's, with a scale that is found: η_t and τ_t ∝ (c_0 + t)^(−1/3), and β_t
    proportional to η_t². Source: Guo, Hu, Zhang, Yang, Algorithm 1.
    """
    settings = dict(locals())
    method = SVRB(
        rates=as_rates(upper_step, lower_step, relaxation, mixing, upper_optimizer),
        sampling=Sampling(1, batch_size),
        first=first_batch_of(initialization, initial_batch_size, batch_size),
        curvature=curvature,
        optimizer=upper_optimizer,
    )
    return assemble_family("svrb", method, settings, without_projections)
