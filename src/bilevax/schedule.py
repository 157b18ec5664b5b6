"""Step sizes and mixing: a number, or a function of the step t = 1, 2, ... (any optax schedule is one)."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
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
    """All that Algorithm 2 sets at step t: η_t γ, τ, τ_t and the β's, as numbers, as schedules, or to be found.

    `neumann_step` is ϑ of methods with a Neumann series.
    """

    upper_step: Any
    lower_step: Any
    relaxation: Any
    mixing: Mixing
    neumann_step: Any = None


class Scales(NamedTuple):
    """What rates that are not given are made of; `bilevax.scales` measures them when a run starts.

    - `step`: how far F falls along −∇F(x_0) as its slope promises, about 1/L_F.
    - `smoothness`: L_g, the largest eigenvalue of ∇²yy g_i that was found on batches.
    - `share`: of the tasks that a step looks at.
    - `condition`: λ/L_g, at most one: how fast a step on y, or on h, gets it where it belongs.
    - `one`: what plain numbers are multiplied with, one but where somebody tunes them.
    """

    step: Any
    smoothness: Any
    share: Any
    condition: Any
    one: Any = 1.0


@dataclass(frozen=True)
class RateRule:
    """A rate that is found from the problem: factor·unit·share^a·condition^b·(offset/(offset + t))^exponent.

    a is `share_power`, b is `condition_power`. The unit is that of a step on x (`"step"`), of one on y
    (`"1/smoothness"`), or a plain number (`"1"`); see `Scales`.
    """

    factor: float
    unit: str
    share_power: float = 0.0
    offset: float = 1.0
    exponent: float = 0.0
    condition_power: float = 0.0

    def way(self, steps: int) -> float:
        """About the sum of the rate over so many steps, in units of the first: how far they can go."""
        if self.exponent == 1:
            return self.offset * math.log1p(steps / self.offset)
        left = 1 - self.exponent
        return self.offset * ((1 + steps / self.offset) ** left - 1) / left

    def __repr__(self) -> str:
        powers = [(self.share_power, "share"), (self.condition_power, "condition")]
        parts = [repr(self.factor), *([] if self.unit == "1" else [self.unit])]
        parts += [name if power == 1 else f"{name}^{power:g}" for power, name in powers if power]
        if self.exponent:
            parts.append(f"({self.offset:g}/({self.offset:g} + t))^{self.exponent:.3g}")
        return f"found({'·'.join(parts)})"


# Steps at which a function is looked at beforehand.
LOOKS = np.unique(np.r_[1:1025, np.geomspace(1, 2**24, 60)].astype(np.int32))
MOST_LOOKS = 2**17  # values of a function that are looked at in one go

Check = Callable[[str, Any], None]


def _from_then_on(check: Check) -> tuple[str, float]:
    """What a schedule has to be after its first step, in words and as the largest value: zero is harmless there."""
    if check is arguments.below_one:
        return "in [0, 1)", math.nextafter(1.0, 0.0)
    return ("in [0, 1]", 1.0) if check is arguments.share else ("finite and at least 0", math.inf)


def check_values(name: str, schedule: Schedule, check: Check, steps: np.ndarray) -> None:
    """Refuse a function that leaves its range in any of these steps."""
    program_values = jax.vmap(lambda t: jnp.asarray(schedule(t), float))(jnp.asarray(steps, jnp.int32))
    if not arguments.is_concrete(program_values):
        return
    (right, most), values = _from_then_on(check), np.asarray(program_values)
    wrong = ~(np.isfinite(values) & (values >= 0) & (values <= most))
    if wrong.any():
        k = int(np.argmax(wrong))
        raise ValueError(f"{name} must stay {right} in every step; at step {steps[k]} it is {values[k]:.6g}.")


def _trace(name: str, schedule: Schedule) -> Any:
    """The shape and type of what the function returns for a step that is not known yet."""
    try:
        return jax.eval_shape(schedule, jax.ShapeDtypeStruct((), np.int32))
    except Exception as error:
        raise TypeError(
            f"{name} must be a number, or a function of the step t that JAX can trace: jnp instead of NumPy, jnp.where "
            f"instead of if; called with a step it raised {type(error).__name__}: {str(error).splitlines()[0][:200]}"
        ) from error


def as_schedule(name: str, value: Any, check: Check) -> Any:
    """The number or the function of the step, once its values are known to be in range; one to be found as it is.

    A function is looked at in its first step and some later ones; a run looks at all of its steps (`check_all`).
    """
    if isinstance(value, RateRule):
        return value
    if not callable(value):
        check(name, value)
        return value
    _check_shape(name, value)
    check(f"{name}(1)", value(jnp.int32(1)))
    check_values(name, value, check, LOOKS)
    return value


def _check_shape(name: str, schedule: Schedule) -> None:
    """Refuse a function that does not return one real number."""
    shape = _trace(name, schedule)
    real = hasattr(shape, "dtype") and (
        jnp.issubdtype(shape.dtype, jnp.floating) or jnp.issubdtype(shape.dtype, jnp.integer)
    )
    if not real or shape.shape != ():
        raise TypeError(f"{name} must be a number, or a function of the step that returns one; it returns {shape}.")


def check_count(name: str, value: Any) -> None:
    """Refuse what is neither a whole number of something nor a function of the step that gives one."""
    if not callable(value):
        arguments.count(name, value)
        return
    _check_shape(name, value)
    counts = jax.vmap(lambda t: jnp.asarray(value(t), float))(jnp.asarray(LOOKS))
    if arguments.is_concrete(counts) and not (np.asarray(counts) >= 1).all():
        step = LOOKS[int(np.argmin(np.asarray(counts) >= 1))]
        raise ValueError(f"{name} must be at least 1 in every step; at step {step} it is {counts.min():.6g}.")


CHECKS: dict[str, Check] = {
    "upper_step": arguments.positive, "lower_step": arguments.positive, "inverse_step": arguments.positive,
    "relaxation": arguments.share, "mixing": arguments.share,
}  # fmt: skip


def check_all(settings: Mapping[str, Any], first: int, last: int) -> None:
    """Refuse settings of an algorithm of which a schedule leaves its range between two steps, both included."""
    few = last - first < MOST_LOOKS
    steps = np.arange(first, last + 1) if few else np.unique(np.geomspace(first, last, MOST_LOOKS).astype(np.int64))
    for name in CHECKS.keys() & settings.keys():
        value = settings[name]
        of_each = isinstance(value, Mixing)
        parts = {f"mixing.{part}": own for part, own in value._asdict().items()} if of_each else {name: value}
        for label, schedule in parts.items():
            if callable(schedule):
                check_values(label, schedule, CHECKS[name], steps)


def as_mixing(value: Any) -> Mixing:
    """Six schedules, from a `Mixing` or from one number or schedule for all."""
    given = value if isinstance(value, Mixing) else Mixing(*([value] * len(Mixing._fields)))
    pairs = zip(Mixing._fields, given, strict=True)
    where = "mixing.{}" if isinstance(value, Mixing) else "mixing"
    return Mixing(*(as_schedule(where.format(name), beta, arguments.share) for name, beta in pairs))


def as_rates(
    upper_step: Any, lower_step: Any, relaxation: Any, mixing: Any, optimizer: Any = None, neumann_step: Any = None
) -> Rates:
    """The schedules of Algorithm 2, from what a user gave; an optimizer has a step of its own, which is taken whole."""
    upper = as_schedule("upper_step", upper_step, arguments.positive)
    return Rates(
        upper if optimizer is None else 1.0,
        as_schedule("lower_step", lower_step, arguments.positive),
        as_schedule("relaxation", relaxation, arguments.share),
        as_mixing(mixing),
        neumann_step,
    )


def power(scale: float, offset: float, exponent: float) -> Schedule:
    """scale / (offset + t)^exponent.

    Theorem 1 sets η_t = τ_t = power(c, c_0, 1/3), and every β_t a multiple of η_t²: power(b·c², c_0, 2/3).
    """
    arguments.positive("scale", scale)
    arguments.number("offset", offset, "a finite number > -1, the first step is t = 1", lambda v: -1 < v < math.inf)
    arguments.positive("exponent", exponent)
    return lambda t: scale / (offset + jnp.asarray(t, float)) ** exponent
