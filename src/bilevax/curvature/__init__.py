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
from bilevax.curvature.solution import tracked
from bilevax.linear_model import LinearModel
from bilevax.problem import Problem

__all__ = ["Curvature", "LinearModel", "choose", "dense", "known", "linear_model", "tracked", "unneeded"]


def check_type(curvature: Any) -> None:
    """Refuse anything but a curvature, or none."""
    if not isinstance(curvature, Curvature | None):
        raise TypeError(
            f"curvature must be one of bilevax.curvature: dense, linear_model or tracked; got {curvature!r}."
        )


def choose(curvature: Curvature | None, problem: Problem, pulls: bool = False) -> Curvature:
    """The given curvature, or the one that does least for this problem.

    That is `linear_model` where the lower loss is one, `known` where ∇²yy g is λI, `unneeded` for min-max (unless the
    method `pulls` y by H⁻¹Vᵀ), else `dense`.
    """
    if curvature is not None:
        curvature.check(problem)
        return curvature
    if problem.structure.linear_model:
        return linear_model
    if problem.structure.estimates_hessian:
        return dense
    if problem.structure.needs_hessian:
        return known
    return dense if pulls else unneeded
