"""`dense`: H (d' × d') and V (d × d') as arrays, for any loss with small d': the paper's own form.

What is estimated of ∇²yy g is H − κI, where κI is what is known of it (λI where the problem has a ridge), and S^l_λ
floors it at λ − κ. Two ways to keep it, whichever pays fewer eigendecompositions:

- as a matrix, where nothing has to be floored while a task sleeps: with one task, which never does, or with a
  known ridge, where the floor is zero and S_0[ρH] = ρ S_0[H]. A drawn task then pays for an eigendecomposition
  only if a Cholesky factorisation says that its floor changes anything.
- else as eigenvalues and eigenvectors. S^l_λ[ρH] only scales and lifts the eigenvalues, a solve is two
  products, and a drawn task pays for one eigendecomposition.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bilevax import lapack, projection
from bilevax.bounds import Bounds
from bilevax.curvature.contract import Curvature, Drift, Sample, Second, Update
from bilevax.lapack import Eigen, Factor
from bilevax.problem import Problem
from bilevax.schedule import Rates
from bilevax.tasks import Decay

Matrix = Float[Array, "dy dy"]


class Dense(NamedTuple):
    """V_i, and H_i − κI as a matrix or as its eigenvalues and eigenvectors; H_i as a factor while it is solved with."""

    cross: Float[Array, "d dy"]
    hessian: Matrix | Eigen | Factor


def second_derivatives(problem: Problem, sample: Sample) -> Second:
    """∇²xy g (d × d') and ∇²yy g − κI (d' × d') on a sample in full, column by column."""
    identity = jnp.eye(sample.y.shape[0], dtype=sample.y.dtype)
    cross_rows, hessian = jax.vmap(sample.second)(identity)
    known = problem.strong_convexity * identity if problem.structure.ridge else 0.0
    return Second(cross_rows.T, hessian - known)


class DenseCurvature(Curvature):
    """See the top of this file."""

    name = "dense"

    def products(self, problem: Problem) -> int:
        """d' columns of each of the two matrices."""
        return 2 * problem.dim_y

    def _project(self, problem: Problem, raw: Second, bounds: Bounds) -> Dense:
        """S^u_C[V] and S^l_λ[H]."""
        cross = raw.cross if bounds.g_xy is None else projection.singular_ceiling(raw.cross, bounds.g_xy)
        if problem.num_tasks > 1 and not problem.structure.ridge:  # H of a sleeping task has to be floored
            return Dense(cross, projection.eigen_floor(raw.hessian, problem.strong_convexity))
        floor = jnp.zeros((), problem.dtype) if problem.structure.ridge else problem.strong_convexity
        return Dense(cross, projection.matrix_floor(raw.hessian, floor, problem.strong_convexity / 100))

    def start(self, problem: Problem, sample: Sample, v: Float[Array, " dy"], bounds: Bounds) -> Dense:
        """S^u_C[∇²xy g] and S^l_λ[∇²yy g] of the first batch."""
        return self._project(problem, second_derivatives(problem, sample), bounds)

    def age(self, problem: Problem, kept: Dense, decay: Decay, drift: Drift | None) -> Dense:
        """(1−β)V and S^l_λ[(1−β)H], over all the steps since the task was last drawn."""
        cross = decay.g_xy * kept.cross
        if isinstance(kept.hessian, Eigen):
            values, vectors = kept.hessian
            return Dense(cross, Eigen(jnp.maximum(decay.g_yy * values, problem.strong_convexity), vectors))
        return Dense(cross, decay.g_yy * kept.hessian)

    def observe(self, problem: Problem, kept: Dense, now: Sample, before: Sample) -> tuple[Second, Second]:
        """∇²xy g and ∇²yy g − κI at both points."""
        return second_derivatives(problem, now), second_derivatives(problem, before)

    def update(self, problem: Problem, rates: Rates, kept: Dense, new: Second, now: Update) -> Dense:
        """Lines 6 and 7 of Algorithm 2."""
        mixing, hessian = rates.mixing, kept.hessian
        if isinstance(hessian, Eigen):
            hessian = (hessian.vectors * hessian.values[None, :]) @ hessian.vectors.T
        cross = (1 - mixing.g_xy) * kept.cross + new.cross
        return self._project(problem, Second(cross, (1 - mixing.g_yy) * hessian + new.hessian), now.bounds)

    def apply_inverse(self, problem: Problem, kept: Dense, v: Float[Array, " dy"]) -> Float[Array, " dy"]:
        """H⁻¹ v."""
        if isinstance(kept.hessian, Eigen):
            values, vectors = kept.hessian
            return vectors @ ((v @ vectors) / values)
        if isinstance(kept.hessian, Factor):
            return lapack.solve_with(kept.hessian, v)
        return lapack.solve_positive(self._whole(problem, kept.hessian), v)

    def correction(self, problem: Problem, kept: Dense, v: Float[Array, " dy"]) -> Float[Array, " d"]:
        """V H⁻¹ v."""
        return kept.cross @ self.apply_inverse(problem, kept, v)

    def pull(self, problem: Problem, kept: Dense, dx: Float[Array, " d"]) -> Float[Array, " dy"]:
        """H⁻¹ Vᵀ dx."""
        return self.apply_inverse(problem, kept, dx @ kept.cross)

    def factor(self, problem: Problem, kept: Dense) -> Dense:
        """H factorised, where it is kept as a matrix."""
        if isinstance(kept.hessian, Eigen | Factor):
            return kept
        return Dense(kept.cross, lapack.factor(self._whole(problem, kept.hessian)))

    def _whole(self, problem: Problem, hessian: Matrix) -> Matrix:
        known = problem.strong_convexity if problem.structure.ridge else jnp.zeros((), problem.dtype)
        return hessian + known * jnp.eye(problem.dim_y, dtype=problem.dtype)


dense = DenseCurvature()
"""H (d' × d') and V (d × d') as arrays, for any loss with small d': the paper's own form."""
