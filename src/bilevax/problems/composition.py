"""Sums of stochastic compositional functions, one lower problem for each.

    min_x F(x) = (1/m) Σ_i f_i(E_ζ[g_i(x; ζ)]) + r_i(x)

E[g_i] is inside f_i, so a sample of g_i gives no unbiased gradient. With y_i*(x) = argmin_y ½‖y‖² − yᵀE[g_i(x; ζ)] it
is a bilevel problem (the paper's equation for "a sum of stochastic compositional functions") whose ∇²yy g = I is known:
methods see that, estimate nothing of it, and a lower problem is solved exactly by one step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from bilevax import arguments
from bilevax.bounds import Bounds
from bilevax.problem import Problem
from bilevax.problems.words import check_data, check_function, name_in_errors, rename_in_errors
from bilevax.samples import Data, NoData


@dataclass(frozen=True)
class Outer:
    """f_i(y) + r_i(x), as a function of (x, y, task, batch)."""

    function: Callable[[Any, Any], Any]
    penalty: Callable[[Any, Any], Any] | None = None

    def __call__(self, x: PyTree, y: PyTree, task: PyTree, batch: Any) -> Array:
        value = self.function(y, task)
        return value if self.penalty is None else value + self.penalty(x, task)


@dataclass(frozen=True)
class Inner:
    """½‖y‖² − yᵀg_i(x; ζ), as a function of (x, y, task, batch); g_i may be a pytree."""

    function: Callable[[Any, Any, Any], Any]

    def __call__(self, x: PyTree, y: PyTree, task: PyTree, batch: Any) -> Float[Array, ""]:
        terms = jax.tree.map(lambda y, g: 0.5 * jnp.sum(y * y) - jnp.sum(y * g), y, self.function(x, task, batch))
        return sum(jax.tree.leaves(terms))  # type: ignore[return-value]


def _example(inner: Callable[..., Any], x0: PyTree, tasks: Any, data: Any) -> PyTree:
    """Zeros like g_i(x; ζ)."""
    if tasks is not None and not isinstance(tasks, (int, np.integer)):
        if arguments.leading_axis("tasks", tasks) == 0:
            raise ValueError("tasks must hold at least one task; its leading axis has length 0.")
        arguments.finite_leaves("tasks", tasks)
        task = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], tasks)
    else:
        task = jnp.int32(0)
    batch = (NoData() if data is None else data).take(jnp.int32(0), jnp.zeros(2, jnp.int32))
    with name_in_errors("inner(x, task, batch), called with x0, the first of tasks and 2 samples of data"):
        x0 = jax.tree.map(jnp.asarray, x0)
        shapes = jax.eval_shape(lambda *given: inner(*given), x0, task, batch)
    kinds = [leaf.dtype for leaf in jax.tree.leaves(shapes)]
    if not kinds or not all(jnp.issubdtype(kind, jnp.floating) for kind in kinds):
        listed = ", ".join(map(str, kinds)) or "nothing"
        raise TypeError(f"inner must return an array of floats, or a pytree of them; it returned {listed}.")
    dtype = jnp.result_type(*jax.tree.leaves(x0)) if jax.tree.leaves(x0) else kinds[0]
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, dtype), shapes)


@arguments.known_keywords
def compositional(
    *,
    outer: Callable[[PyTree, PyTree], Any],
    inner: Callable[[PyTree, PyTree, PyTree], PyTree],
    x0: PyTree,
    data: Data | None,
    tasks: PyTree | int | None = None,
    penalty: Callable[[PyTree, PyTree], Any] | None = None,
    bounds: Bounds | None = None,
) -> Problem:
    """min over x of (1/m) Σ_i outer(E[inner(x, task_i, ζ)], task_i) + penalty(x, task_i).

    - `outer(u, task)`: f_i, one number; `inner(x, task, batch)`: g_i, an array or a pytree of them, the mean over the
      batch.
    - `x0`: a pytree of floats; `tasks`: as for `bilevax.Problem`, a pytree with a leading axis m, or the number m.
    - `data`: what g_i is sampled from: `bilevax.shared`, `per_task` or `ragged`.
    - `penalty(x, task)`: r_i, one number; none by default.

    y_i starts at zero; with `initialization="theorem"` at g_i(x_0) on the first batch. A good lower step is at most 1.
    Source: Guo, Hu, Zhang, Yang, the introduction's "Optimizing a Sum of Stochastic Compositional Functions".
    """
    check_function("outer", outer, "u, task")
    check_function("inner", inner, "x, task, batch")
    if penalty is not None:
        check_function("penalty", penalty, "x, task")
    check_data("data", data)
    arguments.finite_leaves("x0", x0)
    y0 = _example(inner, x0, tasks, data)
    made_of = "outer" if penalty is None else "outer and penalty"
    with rename_in_errors(upper=made_of, lower="inner", y0="inner at x0", lower_data="data"):
        return Problem(
            upper=Outer(outer, penalty),
            lower=Inner(inner),
            x0=x0,
            y0=y0,
            y0_per_task=False,
            tasks=tasks,
            lower_data=data,
            strong_convexity=1.0,
            ridge=True,
            bounds=bounds,
        )
