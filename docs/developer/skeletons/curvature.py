"""Diagonal curvature: V (d × d') as an array, of H only its diagonal. A skeleton: copy it and keep what you need.

What is kept of a task are V_i ≈ ∇²xy g_i and a vector D_i ≈ diag ∇²yy g_i ≥ λ, so H⁻¹v is one division. That is exact
where ∇²yy g is diagonal, as for penalties on single coordinates, and a guess elsewhere. D takes d' numbers instead of
d'², and no factorisation.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

import bilevax as bx
from bilevax import projection
from bilevax.curvature import Curvature
from bilevax.curvature.contract import Drift, Sample, Second, Update
from bilevax.schedule import Rates
from bilevax.tasks import Decay


class Kept(NamedTuple):
    """V_i and the diagonal D_i."""

    cross: Float[Array, "d dy"]
    diagonal: Float[Array, " dy"]


def look(sample: Sample) -> Second:
    """∇²xy g and the diagonal of ∇²yy g on a sample, column by column."""
    cross_rows, hessian = jax.vmap(sample.second)(jnp.eye(len(sample.y), dtype=sample.y.dtype))
    return Second(cross_rows.T, jnp.diagonal(hessian))


def project(problem: bx.Problem, raw: Second, bounds: bx.Bounds) -> Kept:
    """S^u_C[V] and D ≥ λ."""
    cross = projection.singular_ceiling(raw.cross, bounds.g_xy)
    return Kept(cross, jnp.maximum(raw.hessian, problem.strong_convexity))


class Diagonal(Curvature):
    """See the top of this file."""

    name = "diagonal"

    def products(self, problem: bx.Problem) -> int:
        """d' columns of each of the two matrices are looked at."""
        return 2 * problem.dim_y

    def start(self, problem: bx.Problem, sample: Sample, v: Float[Array, " dy"], bounds: bx.Bounds) -> Kept:
        """From the first batch."""
        return project(problem, look(sample), bounds)

    def age(self, problem: bx.Problem, kept: Kept, decay: Decay, drift: Drift | None) -> Kept:
        """(1−β)V and (1−β)D, not below λ, over all the steps since the task was last drawn."""
        diagonal = jnp.maximum(decay.g_yy * kept.diagonal, problem.strong_convexity)
        return Kept(decay.g_xy * kept.cross, diagonal)

    def observe(self, problem: bx.Problem, kept: Kept, now: Sample, before: Sample) -> tuple[Second, Second]:
        """The same samples at both points; STORM takes the difference."""
        return look(now), look(before)

    def update(self, problem: bx.Problem, rates: Rates, kept: Kept, new: Second, now: Update) -> Kept:
        """Lines 6 and 7 of Algorithm 2, for the diagonal."""
        cross = (1 - rates.mixing.g_xy) * kept.cross + new.cross
        diagonal = (1 - rates.mixing.g_yy) * kept.diagonal + new.hessian
        return project(problem, Second(cross, diagonal), now.bounds)

    def correction(self, problem: bx.Problem, kept: Kept, v: Float[Array, " dy"]) -> Float[Array, " d"]:
        """V H⁻¹ v."""
        return kept.cross @ (v / kept.diagonal)

    def pull(self, problem: bx.Problem, kept: Kept, dx: Float[Array, " d"]) -> Float[Array, " dy"]:
        """H⁻¹ Vᵀ dx; only STABLE asks for it."""
        return (dx @ kept.cross) / kept.diagonal


diagonal = Diagonal()


if __name__ == "__main__":
    truth = bx.problems.quadratic(num_tasks=3, noise=0.05)
    for curvature in (diagonal, bx.curvature.dense):
        algorithm = bx.rsvrb(curvature=curvature, upper_step=0.03, lower_step=0.2, mixing=0.1, tasks_per_step=2)
        x = bx.solve(truth.problem, algorithm, steps=3000, metrics=None).x
        print(f"{curvature!r}: ‖x − x*‖ = {float(jnp.linalg.norm(x - truth.solution)):.3g}")
