"""H (d' × d') and V (d × d') as arrays, for any loss with small d': the paper's own form.

What is estimated of ∇²yy g is H − κI, where κI is what is known of it (`Problem.ridge`), and S^l_λ floors it at
λ − κ. Two ways to keep it, whichever pays fewer eigendecompositions:

- as a matrix, where nothing has to be floored while a task sleeps: with one task, which never does, or with a
  known ridge, where the floor is zero and S_0[ρH] = ρ S_0[H]. A drawn task then pays for an eigendecomposition
  only if a Cholesky factorisation says that its floor changes anything.
- else as eigenvalues and eigenvectors. S^l_λ[ρH] only scales and lifts the eigenvalues, a solve is two
  products, and a drawn task pays for one eigendecomposition.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bilevax import draw, estimator, lapack, projection
from bilevax.bounds import Bounds
from bilevax.curvature.base import At, Curvature, Fresh, accept_all, change_of_rows
from bilevax.delay import Decay, Elapsed
from bilevax.draw import Indices
from bilevax.lapack import Eigen, Factor
from bilevax.oracle import SecondOrder
from bilevax.problem import Problem

Hessian = Float[Array, "dy dy"] | Eigen | Factor


class Dense(NamedTuple):
    """V_i, and H_i − κI as a matrix or as its eigenvalues and eigenvectors; H_i as a factor while it is solved with."""

    cross: Float[Array, "d dy"]
    hessian: Hessian


class Matrices(NamedTuple):
    """∇²xy g (d × d') and ∇²yy g (d' × d') on a sample, or their innovations."""

    cross: Float[Array, "d dy"]
    hessian: Float[Array, "dy dy"]


def matrices(second: SecondOrder, dim_y: int, dtype: Any) -> Matrices:
    """Both second derivatives in full, column by column."""
    cross_rows, hessian = jax.vmap(second)(jnp.eye(dim_y, dtype=dtype))
    return Matrices(cross_rows.T, hessian)


def _unknown(problem: Problem, second: SecondOrder) -> Matrices:
    """∇²xy g and ∇²yy g − κI."""
    cross, hessian = matrices(second, problem.dim_y, problem.dtype)
    return Matrices(cross, hessian - problem.known_curvature * jnp.eye(problem.dim_y, dtype=problem.dtype))


def _fades_below_its_floor(problem: Problem) -> bool:
    """Whether H of a sleeping task has to be floored."""
    return problem.num_tasks > 1 and not problem.ridge


def _project(problem: Problem, raw: Matrices, bounds: Bounds) -> Dense:
    """S^u_C[V] and S^l_λ[H]."""
    cross = projection.singular_ceiling(raw.cross, bounds.g_xy)
    if _fades_below_its_floor(problem):
        return Dense(cross, projection.eigen_floor(lapack.eigen(raw.hessian), problem.strong_convexity))
    floor, slack = problem.strong_convexity - problem.known_curvature, problem.strong_convexity / 100
    return Dense(cross, projection.matrix_floor(raw.hessian, floor, slack))


def start(problem: Problem, i: Any, indices: Indices, at: At, f_y: Array, bounds: Bounds) -> Dense:
    """S^u_C[∇²xy g] and S^l_λ[∇²yy g] of the first batch."""
    return _project(problem, _unknown(problem, at.second), bounds)


def _age(problem: Problem, kept: Dense, decay: Decay) -> Dense:
    cross = decay.g_xy * kept.cross
    if isinstance(kept.hessian, Eigen):
        values, vectors = kept.hessian
        return Dense(cross, Eigen(jnp.maximum(decay.g_yy * values, problem.strong_convexity), vectors))
    return Dense(cross, decay.g_yy * kept.hessian)


def age(problem: Problem, kept: Dense, passed: Elapsed, f_y: Array) -> Dense:
    """(1−β)V and S^l_λ[(1−β)H], over all the steps since the task was last drawn."""
    return _age(problem, kept, passed.decay)


def innovation(
    problem: Problem, i: Int[Array, ""], indices: Indices, kept: Dense, now: At, before: At, mixing: Any
) -> Matrices:
    """∇²g(now; ζ) − (1−β)·∇²g(before; ζ), for both matrices."""
    fresh, old = (_unknown(problem, at.second) for at in (now, before))
    return Matrices(
        estimator.innovation(fresh.cross, old.cross, mixing.g_xy),
        estimator.innovation(fresh.hessian, old.hessian, mixing.g_yy),
    )


def _matrix(hessian: Any) -> Float[Array, "dy dy"]:
    if not isinstance(hessian, Eigen):
        return hessian
    return (hessian.vectors * hessian.values[None, :]) @ hessian.vectors.T


def update(problem: Problem, kept: Dense, new: Matrices, fresh: Fresh) -> Dense:
    """Lines 6 and 7 of Algorithm 2 for the drawn tasks."""
    mixing, new = fresh.rates.mixing, draw.merged(fresh.same, new)

    def one(i: Array, kept: Dense, new: Matrices) -> Dense:
        raw = Matrices(
            estimator.storm(kept.cross, new.cross, mixing.g_xy),
            estimator.storm(_matrix(kept.hessian), new.hessian, mixing.g_yy),
        )
        return _project(problem, raw, fresh.bounds.of(i))

    return jax.vmap(one)(fresh.tasks, kept, new)


def _solve(problem: Problem, kept: Dense, v: Float[Array, " dy"]) -> Float[Array, " dy"]:
    """H⁻¹ v."""
    if isinstance(kept.hessian, Eigen):
        values, vectors = kept.hessian
        return vectors @ ((v @ vectors) / values)
    if isinstance(kept.hessian, Factor):
        return lapack.solve_with(kept.hessian, v)
    return lapack.solve(_whole(problem, kept.hessian), v)


def _whole(problem: Problem, hessian: Float[Array, "dy dy"]) -> Float[Array, "dy dy"]:
    return hessian + problem.known_curvature * jnp.eye(problem.dim_y, dtype=problem.dtype)


def factored(problem: Problem, kept: Dense) -> Dense:
    """H factorised, where it is kept as a matrix."""
    if isinstance(kept.hessian, Eigen | Factor):
        return kept
    return Dense(kept.cross, lapack.factor(_whole(problem, kept.hessian)))


def correction(problem: Problem, kept: Dense, v: Float[Array, " dy"]) -> Float[Array, " d"]:
    """V H⁻¹ v."""
    return kept.cross @ _solve(problem, kept, v)


def pull(problem: Problem, kept: Dense, dx: Float[Array, " d"]) -> Float[Array, " dy"]:
    """H⁻¹ Vᵀ dx."""
    return _solve(problem, kept, dx @ kept.cross)


def products(problem: Problem) -> int:
    """d' columns of each of the two matrices."""
    return 2 * problem.dim_y


dense = Curvature(
    name="dense",
    start=start,
    age=age,
    innovation=innovation,
    update=update,
    correction=correction,
    change=change_of_rows(_age, correction),
    pull=pull,
    factored=factored,
    products=products,
    check=accept_all,
)
"""H (d' × d') and V (d × d') as arrays, for any loss with small d': the paper's own form."""
