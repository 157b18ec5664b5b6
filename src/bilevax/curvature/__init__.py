"""What is kept of ∇²g for one task: how it starts, ages, learns from a sample, and is applied.

A curvature is six functions on the pytree that it keeps for one task. `second` is the map
h ↦ (∇²xy g·h, ∇²yy g·h) on a sample, so a curvature decides itself whether matrices are ever formed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from bilevax.curvature import dense as _dense


class Curvature(NamedTuple):
    """`V H⁻¹ v` and what it takes to follow it.

    - `start(problem, second, bounds)`: from the first batch.
    - `age(problem, kept, decay)`: after steps in which the task was not drawn; decay.g_xy and decay.g_yy
      are the products of (1 − β) over them.
    - `innovation(second_now, second_before, mixing, dim_y, dtype)`: what one batch tells; innovations add up.
    - `update(problem, kept, innovation, mixing, bounds)`: STORM, then the projections.
    - `correction(kept, v)`: V H⁻¹ v, what the hypergradient subtracts.
    - `products(problem)`: products of second derivatives with a vector that it takes for a sample at a point.
    """

    name: str
    start: Callable[..., Any]
    age: Callable[..., Any]
    innovation: Callable[..., Any]
    update: Callable[..., Any]
    correction: Callable[..., Any]
    products: Callable[..., int]


dense = Curvature(
    name="dense",
    start=_dense.start,
    age=_dense.age,
    innovation=_dense.innovation,
    update=_dense.update,
    correction=_dense.correction,
    products=_dense.products,
)
"""H (d' × d') and V (d × d') as arrays, for any loss with small d': the paper's own form."""
