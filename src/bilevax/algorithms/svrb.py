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

from dataclasses import replace
from typing import Any

import optax

from bilevax import arguments
from bilevax.algorithms.base import Algorithm, described
from bilevax.algorithms.first import as_beginning
from bilevax.algorithms.rsvrb import assemble, scheduled
from bilevax.algorithms.state import Settings
from bilevax.curvature import Curvature
from bilevax.draw import Sampling
from bilevax.problem import Problem
from bilevax.schedule import as_rates, power

STEP, RELAXATION, MIXING = power(0.2, 8, 1 / 3), power(2, 8, 1 / 3), power(4, 8, 2 / 3)  # Theorem 1, c_0 = 8


class _OneTask(Sampling):
    def check(self, problem: Problem) -> None:
        """Refuse a problem with more than one lower problem."""
        if problem.num_tasks != 1:
            raise ValueError(f"svrb is for one lower problem, this one has {problem.num_tasks}; use bilevax.rsvrb.")


@described(
    paper="Guo, Hu, Zhang, Yang 2021",
    loops="single",
    batch="O(1)",
    samples="ε⁻³",
    tasks="one lower problem",
    memory="as its curvature",
    curvature="dense, linear_model or tracked",
    accepts="one lower problem",
)
@arguments.known_keywords
def svrb(
    *,
    upper_step: Any = STEP,
    lower_step: Any = 0.5,
    relaxation: Any = RELAXATION,
    mixing: Any = MIXING,
    batch_size: int | None = 32,
    upper_optimizer: optax.GradientTransformation | None = None,
    curvature: Curvature | None = None,
    initialization: str = "theorem",
    initial_batch_size: int | None = None,
) -> Algorithm:
    """SVRB, Algorithm 1: z = u − V H⁻¹ v, x ← x − η_t γ z, y ← y − τ_t τ w.

    The arguments are those of `bilevax.rsvrb`. The default schedules are Theorem 1's:
    η_t = τ_t = c/(c_0 + t)^{1/3} and β_t proportional to η_t². Source: Guo, Hu, Zhang, Yang, Algorithm 1.
    """
    chosen = dict(locals())
    settings = Settings(
        timetable=scheduled(as_rates(upper_step, lower_step, relaxation, mixing)),
        sampling=_OneTask(1, batch_size),
        curvature=curvature,
        optimizer=upper_optimizer,
        beginning=as_beginning(initialization, initial_batch_size, batch_size),
        bounds=lambda bounds: replace(bounds, f_x=None, y=None),
    )
    return assemble("svrb", settings, chosen)
