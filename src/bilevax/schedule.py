"""Step sizes and mixing: a number, or a function of the step t = 1, 2, ... (any optax schedule is one)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bilevax import arguments

Step = Int[Array, ""]
Schedule = Callable[[Step], Float[Array, ""] | float]


class Mixing(NamedTuple):
    """The weight β of the fresh sample in each estimate; each a number in (0, 1] or a schedule.

    Paper: β_fx, β_fy, β_gy, β_gxy, β_gyy for the five estimates of a task, and β for the direction d.
    """

    f_x: Any
    f_y: Any
    g_y: Any
    g_xy: Any
    g_yy: Any
    direction: Any


class Rates(NamedTuple):
    """All that Algorithm 2 sets at step t: η_t γ, τ, τ_t and the β's, as numbers or as schedules."""

    upper_step: Any
    lower_step: Any
    relaxation: Any
    mixing: Mixing

    def at(self, t: Step, dtype: Any = None) -> "Rates":
        """The rates of step t, from schedules; as arrays of a floating type, where one is given."""
        mixing = Mixing(*(schedule(t) for schedule in self.mixing))
        rates = Rates(self.upper_step(t), self.lower_step(t), self.relaxation(t), mixing)
        return rates if dtype is None else jax.tree.map(lambda rate: jnp.asarray(rate, dtype), rates)

    @property
    def drift(self) -> Any:
        """τ_t·τ, how far y moves along −w in one step."""
        return self.relaxation * self.lower_step


def as_schedule(name: str, value: Any, check: Callable[[str, Any], None]) -> Schedule:
    """The schedule that a number or a function stands for; its value is checked, a function's at t = 1."""
    if callable(value):
        check(f"{name}(1)", value(jnp.int32(1)))
        return value
    check(name, value)
    return lambda t: value


def as_mixing(value: Any) -> Mixing:
    """Six schedules, from a `Mixing` or from one number or schedule for all."""
    given = value if isinstance(value, Mixing) else Mixing(*([value] * len(Mixing._fields)))
    named = zip(Mixing._fields, given, strict=True)
    where = "mixing.{}" if isinstance(value, Mixing) else "mixing"
    return Mixing(*(as_schedule(where.format(name), beta, arguments.share) for name, beta in named))


def as_rates(upper_step: Any, lower_step: Any, relaxation: Any, mixing: Any) -> Rates:
    """The schedules of Algorithm 2, from what a user gave."""
    return Rates(
        as_schedule("upper_step", upper_step, arguments.positive),
        as_schedule("lower_step", lower_step, arguments.positive),
        as_schedule("relaxation", relaxation, arguments.share),
        as_mixing(mixing),
    )


def power(scale: float, offset: float, exponent: float) -> Schedule:
    """scale / (offset + t)^exponent.

    Theorem 1 sets η_t = τ_t = power(c, c_0, 1/3), and every β_t a multiple of η_t²: power(b·c², c_0, 2/3).
    """
    arguments.positive("scale", scale)
    arguments.number("offset", offset, "a number > -1, the first step is t = 1", lambda v: v > -1)
    arguments.positive("exponent", exponent)
    return lambda t: scale / (offset + jnp.asarray(t, float)) ** exponent
