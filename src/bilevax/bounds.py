"""The sets that the paper projects on."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bilevax import arguments

Bound = float | Float[Array, " m"] | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Box:
    """The set of all y with low ≤ y_k ≤ high for each entry; both are one number, or m, one for each task."""

    low: Any
    high: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Bounds:
    """The sets that the paper projects on (Assumption 4); `None`, and infinity, mean not projected.

    Each is one number, or an array of m numbers, one for each task.

    - `f_x`: C_fx, the radius of the ball for the estimate of ∇x f_i.
    - `f_y`: C_fy, the radius of the ball for the estimate of ∇y f_i.
    - `g_xy`: C_gxy, the largest singular value of the estimate of ∇²xy g_i.
    - `y`: R_y, the radius of the ball Y_i that holds y_i; or a `bilevax.Box`.
    """

    f_x: Bound = None
    f_y: Bound = None
    g_xy: Bound = None
    y: Bound | Box = None

    @property
    def by_name(self) -> dict[str, Any]:
        """The four bounds by name."""
        return {"f_x": self.f_x, "f_y": self.f_y, "g_xy": self.g_xy, "y": self.y}


def as_bounds(bounds: Bounds, num_tasks: int) -> Bounds:
    """The bounds as arrays, once they are known to be bounds of so many tasks."""
    if not isinstance(bounds, Bounds):
        raise TypeError(f"bounds must be a bilevax.Bounds; got {bounds!r}.")
    for name, bound in bounds.by_name.items():
        if isinstance(bound, Box) and name == "y":
            _check_box(bound, num_tasks)
            continue
        if bound is None or not arguments.is_concrete(bound):
            continue
        values = arguments.floats(f"bounds.{name}", bound, f"a number > 0 or {num_tasks} of them")
        if values.shape not in [(), (num_tasks,)] or not (values > 0).all():
            raise ValueError(
                f"bounds.{name} must be a number > 0, or {num_tasks} of them (one for each task); got {bound!r}."
            )
    return Bounds(**{name: None if _is_none(bound) else _as_arrays(bound) for name, bound in bounds.by_name.items()})


def _as_arrays(bound: Any) -> Any:
    """A bound, or both ends of a box, as floats: a whole number may be too long for the integers of JAX."""
    if isinstance(bound, Box):
        return Box(_as_arrays(bound.low), _as_arrays(bound.high))
    return jnp.asarray(np.asarray(bound, float) if arguments.is_concrete(bound) else bound)


def _is_none(bound: Any) -> bool:
    """Whether a bound is none for any task: not given, or infinite."""
    return bound is None or (
        not isinstance(bound, Box) and arguments.is_concrete(bound) and bool(np.isposinf(np.asarray(bound)).all())
    )


def _check_box(box: Box, num_tasks: int) -> None:
    if not (arguments.is_concrete(box.low) and arguments.is_concrete(box.high)):
        return
    wanted = f"numbers, or {num_tasks} of them (one for each task), low below high"
    low, high = (arguments.floats(f"bounds.y.{name}", getattr(box, name), wanted) for name in ("low", "high"))
    shapes = [(), (num_tasks,)]
    if low.shape not in shapes or high.shape not in shapes or not (low < high).all():
        raise ValueError(f"bounds.y must be a Box of {wanted}; got {box!r}.")
