"""Min-max problems, non-convex in x and strongly concave in each y_i.

    min_x (1/m) Σ_i max_{y_i ∈ Ω_i} f_i(x, y_i)

It is the bilevel problem with g_i = −f_i. ∇y f_i vanishes at y_i*(x), or y_i* leans on Ω_i, and either way the
gradient is that of f_i alone, ∇F(x) = (1/m) Σ_i ∇x f_i(x, y_i*(x)) (Danskin): methods see that and keep nothing of ∇²g.
"""

from typing import Any

from jaxtyping import PyTree

from bilevax import arguments
from bilevax.bounds import Bounds, Box
from bilevax.problem import Problem
from bilevax.problems.words import check_data, check_function, rename_in_errors
from bilevax.samples import Data
from bilevax.structure import Loss, Negative


@arguments.known_keywords
def minmax(
    *,
    loss: Loss,
    x0: PyTree,
    y0: PyTree,
    strong_concavity: float,
    region: Any | Box | None = None,
    y0_per_task: bool | None = None,
    tasks: PyTree | int | None = None,
    data: Data | None = None,
) -> Problem:
    """min over x of (1/m) Σ_i max over y_i in Ω_i of loss(x, y_i, task_i, ζ).

    - `loss(x, y, task, batch)`: f_i, the mean over the batch; `strong_concavity`: λ with ∇²yy f_i ⪯ −λI.
    - `region`: Ω_i, the radius of a ball around zero, or a `bilevax.Box`; by default y is free. Only `rsvrb`,
      `re_rsvrb` and `block_soba` keep y in a set.
    - `x0`, `y0`, `y0_per_task`, `tasks`: as for `bilevax.Problem`; `data`: what f_i is sampled from, on both levels.

    Source: Guo, Hu, Zhang, Yang, the introduction's "Structured Non-Convex Strongly-Concave Min-Max Optimization".
    """
    check_function("loss", loss, "x, y, task, batch")
    arguments.positive("strong_concavity", strong_concavity)
    check_data("data", data)
    with rename_in_errors(
        upper="loss", lower="minus loss", strong_convexity="strong_concavity", bounds="region", upper_data="data"
    ):
        return Problem(
            upper=loss,
            lower=Negative(loss),
            x0=x0,
            y0=y0,
            y0_per_task=y0_per_task,
            tasks=tasks,
            upper_data=data,
            lower_data=data,
            strong_convexity=strong_concavity,
            bounds=Bounds(y=region),
        )
