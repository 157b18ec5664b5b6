"""Meta-learning: one model x that adapts to each of very many tasks by a small change y_i.

    min_x (1/m) Σ_i f_i(x + y_i*(x)),   y_i*(x) = argmin_y g_i(x + y) + λ/2 ‖y‖²

f_i is the loss of task i on its query samples, g_i the same on its support samples: the paper's form of model-agnostic
meta-learning (after Rajeswaran, Finn, Kakade, Levine 2019). Adapting to a new task is solving its lower problem.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from bilevax import arguments
from bilevax.bounds import Bounds
from bilevax.problem import Problem
from bilevax.problems.words import check_data, check_function, rename_in_errors
from bilevax.samples import Data

TaskLoss = Callable[[PyTree, PyTree, PyTree], Any]


def adapt(x: PyTree, y: PyTree) -> PyTree:
    """x + y, where y may have some of the parts of x alone."""
    if isinstance(x, Mapping):
        return {name: jax.tree.map(jnp.add, part, y[name]) if name in y else part for name, part in x.items()}
    return jax.tree.map(jnp.add, x, y)


def _zeros_like(leaf: Any) -> Any:
    """Zeros also of what is no array yet: `bilevax.Problem` says what is wrong with it."""
    return jnp.zeros_like(leaf) if isinstance(leaf, jax.Array) else jnp.asarray(np.zeros_like(leaf))


def _changes(x0: PyTree, adapts: Sequence[str] | None) -> PyTree:
    """y = 0 for what a task changes."""
    if adapts is None:
        return jax.tree.map(_zeros_like, x0)
    parts = sorted(x0) if isinstance(x0, Mapping) else None
    if not isinstance(adapts, (list, tuple)) or not adapts or not all(name in (parts or ()) for name in adapts):
        right = "x0 is not a mapping, so leave it out" if parts is None else f"some of the parts of x0, {parts}"
        raise ValueError(f"adapts must name what a task changes: {right}; got {adapts!r}.")
    return {name: jax.tree.map(_zeros_like, x0[name]) for name in adapts}


@dataclass(frozen=True)
class Query:
    """f_i(x + y), as a function of (x, y, task, batch)."""

    loss: TaskLoss

    def __call__(self, x: PyTree, y: PyTree, task: PyTree, batch: PyTree) -> Float[Array, ""]:
        return self.loss(adapt(x, y), task, batch)


@dataclass(frozen=True)
class Support:
    """g_i(x + y) + λ/2 ‖y‖², as a function of (x, y, task, batch)."""

    loss: TaskLoss
    ridge: float

    def __call__(self, x: PyTree, y: PyTree, task: PyTree, batch: PyTree) -> Float[Array, ""]:
        squares = sum(jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(y))
        return self.loss(adapt(x, y), task, batch) + self.ridge / 2 * squares


@arguments.known_keywords
def meta_learning(
    *,
    loss: TaskLoss,
    x0: PyTree,
    support: Data | None,
    query: Data | None,
    ridge: float,
    adapts: Sequence[str] | None = None,
    tasks: PyTree | int | None = None,
    strong_convexity: float | None = None,
    bounds: Bounds | None = None,
) -> Problem:
    """min over x of (1/m) Σ_i loss(x + y_i*(x); query_i), y_i* = argmin loss(x + y; support_i) + ridge/2 ‖y‖².

    - `loss(parameters, task, batch)`: the mean loss over a batch of a task; `x0`: the first parameters, a pytree.
    - `support`, `query`: the samples that a task adapts to, and those that it is judged by, mostly from
      `bilevax.per_task`; `tasks`: what else the loss is told of a task, or their number.
    - `ridge`: λ, how close y_i stays to zero. A small one lets a task go far.
    - `adapts`: the parts of x0, a mapping, that a task changes; all by default. The last layer of a network alone makes
      the lower problem convex, and y_i small.
    - `strong_convexity`: of the lower problem; by default the ridge, which is right for a convex loss. A network's loss
      takes some of it away: then give less.

    For very many tasks use `bilevax.block_soba`. Source: Guo, Hu, Zhang, Yang, the introduction's "Meta Learning".
    """
    check_function("loss", loss, "parameters, task, batch")
    arguments.positive("ridge", ridge)
    arguments.finite_leaves("x0", x0)
    for name, data in [("support", support), ("query", query)]:
        check_data(name, data)
    lam, own = (ridge, "ridge") if strong_convexity is None else (strong_convexity, "strong_convexity")
    with rename_in_errors(
        upper="loss on the query", lower="loss on the support", y0="the part of x0 that adapts",
        upper_data="query", lower_data="support", strong_convexity=own,
    ):  # fmt: skip
        return Problem(
            upper=Query(loss),
            lower=Support(loss, float(ridge)),
            x0=x0,
            y0=_changes(x0, adapts),
            y0_per_task=False,
            tasks=tasks,
            upper_data=query,
            lower_data=support,
            strong_convexity=lam,
            ridge=strong_convexity is None,
            bounds=bounds,
        )
