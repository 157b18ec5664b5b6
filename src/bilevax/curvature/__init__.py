"""What is kept of ∇²g for one task: how it starts, ages, learns from a sample, and is applied.

`dense` keeps the paper's two matrices, `linear_model` two vectors for weights on the samples of a linear model,
`tracked` only what h ≈ H⁻¹v needs, `known` V alone where H = λI, and `unneeded` nothing, for min-max.
`bilevax.curvature.base` has their contract.
"""

from bilevax.curvature.base import Curvature
from bilevax.curvature.dense import dense
from bilevax.curvature.known import known, unneeded
from bilevax.curvature.linear_model import LinearModel, linear_model, serves
from bilevax.curvature.tracked import tracked
from bilevax.problem import Problem

__all__ = ["Curvature", "LinearModel", "chosen", "dense", "known", "linear_model", "tracked", "unneeded"]


def chosen(curvature: Curvature | None, problem: Problem, pulls: bool = False) -> Curvature:
    """The given curvature, or the one that does least for this problem.

    That is `linear_model` where the lower loss is one, `known` where ∇²yy g is, `unneeded` for min-max (unless the
    method `pulls` y by H⁻¹Vᵀ), else `dense`.
    """
    if curvature is not None:
        curvature.check(problem)
        return curvature
    if serves(problem):
        return linear_model
    least = {"known": known, "unneeded": dense if pulls else unneeded, "estimated": dense}
    return least[problem.hessian]
