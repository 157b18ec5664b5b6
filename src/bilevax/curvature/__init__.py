"""What is kept of ∇²g for one task: how it starts, ages, learns from a sample, and is applied.

`dense` keeps the paper's two matrices, `linear_model` two vectors for weights on the samples of a linear model,
`tracked` only what h ≈ H⁻¹v needs. `bilevax.curvature.base` has their contract.
"""

from bilevax.curvature.base import Curvature
from bilevax.curvature.dense import dense
from bilevax.curvature.linear_model import LinearModel, linear_model, serves
from bilevax.curvature.tracked import tracked
from bilevax.problem import Problem

__all__ = ["Curvature", "LinearModel", "chosen", "dense", "linear_model", "tracked"]


def chosen(curvature: Curvature | None, problem: Problem) -> Curvature:
    """The given curvature, or by default `linear_model` where the lower loss is one, else `dense`."""
    if curvature is None:
        return linear_model if serves(problem) else dense
    curvature.check(problem)
    return curvature
