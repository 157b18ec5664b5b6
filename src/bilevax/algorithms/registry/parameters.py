"""What the arguments of several factories mean, said once and shown in the docstring of each."""

import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

WIDTH = 116

SHARED = {
    "upper_step": "the step of x, a number or a schedule: a function of the step t = 1, 2, ...; found where not given.",
    "lower_step": "the step of every y_i, a number or a schedule; found where not given.",
    "relaxation": "τ_t, the part of the step of y that is taken, a number in (0, 1] or a schedule.",
    "mixing": (
        "the weight β of the fresh sample in each estimate, a number in (0, 1] or a schedule; a `bilevax.Mixing` has "
        "one for each estimate."
    ),
    "tasks_per_step": "tasks drawn in a step; by default ten, or all where there are fewer.",
    "batch_size": "samples of each task and each loss in a step, `None` for all there are.",
    "task_probabilities": "p, with which tasks are drawn; by default they are drawn uniformly, without replacement.",
    "upper_optimizer": (
        "an optax transformation that takes the direction and gives the change of x; `upper_step` is then not used."
    ),
    "curvature": (
        "what is kept of ∇²g, `bilevax.curvature.dense` (matrices, any loss with small d'), `linear_model` (vectors, "
        "for `bilevax.problems.reweighting`) or `tracked` (matrix-free, large d'). By default the one that does least "
        "for the problem."
    ),
    "initialization": (
        '"theorem" solves every lower problem at x_0 on the first batch and starts all estimates from it; "cheap" '
        "leaves y at y_0."
    ),
    "initial_batch_size": (
        'samples of each task in the first batch; by default all there are for "theorem", `batch_size` of them for '
        '"cheap".'
    ),
    "inner_steps": "steps of y for each step of x.",
    "inverse_step": "the step of h, a number or a schedule; by default that of y.",
    "neumann_step": "ϑ of the Neumann series, at most 1/L_g; found where not given.",
    "neumann_terms": "Q, the length of the Neumann series: the bias is (1 − ϑλ)^Q.",
}


def document(factory: Callable[..., Any], texts: Mapping[str, str] = SHARED) -> None:
    """Add to the docstring of a factory what its arguments mean, but for those that it explains itself."""
    words = inspect.getdoc(factory) or ""
    missing = [name for name in inspect.signature(factory).parameters if f"`{name}`" not in words and name in texts]
    if missing:
        lines = [textwrap.fill(f"- `{name}`: {texts[name]}", WIDTH, subsequent_indent="  ") for name in missing]
        factory.__doc__ = "\n".join([words, "", *lines])
