"""What is kept of ∇²g for one task: how it starts, ages, learns from a sample, and is applied.

`dense` keeps the paper's two matrices, `linear_model` two vectors for weights on the samples of a linear model,
`tracked` only what h ≈ H⁻¹v needs, `known` V alone where H = λI, and `unneeded` nothing, for min-max.
`bilevax.curvature.contract` has their contract.
"""

from typing import Any

from bilevax.curvature.contract import Curvature
from bilevax.curvature.given import known, unneeded
from bilevax.curvature.linear import linear_model
from bilevax.curvature.matrices import dense
from bilevax.curvature.solution import tracked, tracked_rows
from bilevax.linear_model import LinearModel
from bilevax.problem import Problem

MANY_WEIGHTS = 4096  # from which on it pays to change k of `tracked` at the drawn samples alone

__all__ = ["Curvature", "LinearModel", "choose", "dense", "known", "linear_model", "tracked", "unneeded"]


def check_type(curvature: Any) -> None:
    """Refuse anything but a curvature, or none."""
    if not isinstance(curvature, Curvature | None):
        raise TypeError(
            f"curvature must be one of bilevax.curvature: dense, linear_model or tracked; got {curvature!r}."
        )


def choose(curvature: Curvature | None, problem: Problem, pulls: bool = False) -> Curvature:
    """The given curvature, or the one that does least for this problem.

    By default that is `linear_model` where the lower loss is one, `known` where ∇²yy g is λI, `unneeded` for min-max
    (unless the method `pulls` y by H⁻¹Vᵀ), else `dense`. Where tasks share many weights of samples `tracked` is
    `tracked_rows`.
    """
    if curvature is not None:
        curvature.check(problem)
        shared_weights = problem.structure.linear_model and problem.num_tasks > 1 and problem.dim_x >= MANY_WEIGHTS
        return tracked_rows if curvature is tracked and shared_weights else curvature
    if problem.structure.linear_model:
        return linear_model
    if problem.structure.estimates_hessian:
        return dense
    if problem.structure.needs_hessian:
        return known
    return dense if pulls else unneeded
