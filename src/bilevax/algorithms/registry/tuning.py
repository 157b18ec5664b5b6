"""What it takes to tune an algorithm and compare it with others: the ranges of its settings, and what they mean.

An algorithm's `@described` block holds a `Tuning`. Its options are the same for problems of every size: `upper` is a
step of x in units of n, the number of entries of x (∇F has entries of order 1/n), and whoever looks at a few of m tasks
in a step takes steps in proportion to their share. `arguments` turns options into what the factory is called with.

The paper's text gives the rules of its Figure 1, with constants c_0, τ_0 and β "tuned in a range":

    SVRB                 η_t = τ_t = (t + c_0)^(−1/3),   β_t = β η_t²
    STABLE               η_t = (t + c_0)^(−1/2),         τ_t = τ_0 η_t
    TTSA, StocBio, BSA   η_t = (t + c_0)^(−1/2),         τ_t = τ_0 η_t²

Here every rule is written by its first value, first·(c_0/(c_0 + t))^power, so that one range fits all problems: η_t
starts at `upper`·n, τ_t at `lower`, β_t at `mixing`, and c_0 is `offset`. RE-RSVRB's stages are its rule; what the
paper does not compare with has constant steps.

Each algorithm starts as its own paper says. Theorems 1 to 3 ask for y_0 close to y*(x_0) and estimates from a large
first batch: SVRB, RSVRB and RE-RSVRB take `initial_batch_size` samples of every task for that, and those count. The
others start from y_0 with an ordinary batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bilevax import arguments
from bilevax.schedule import Schedule, power

BATCH, FIRST_BATCH, TASKS_PER_STEP = 32, 512, 10
Range = tuple[float, float]
Keywords = dict[str, Any]

UPPER, LOWER, OFFSET, MIXING, SERIES = (0.01, 100.0), (0.02, 2.0), (10.0, 1e5), (3e-3, 1.0), (0.1, 1.0)
STEPS: dict[str, Range] = {"upper": UPPER, "lower": LOWER}
MIXED_STEPS: dict[str, Range] = {**STEPS, "mixing": MIXING}
FALLING_STEPS: dict[str, Range] = {**STEPS, "offset": OFFSET, "series": SERIES}
FALLING_MIXED_STEPS: dict[str, Range] = {**MIXED_STEPS, "offset": OFFSET}
NEUMANN_TERMS = {"neumann_terms": (10, 40)}
FIRST_BATCHES = {"initial_batch_size": (128, FIRST_BATCH)}

CUBE_ROOT = "η_t = τ_t ∝ (t + c_0)^(−1/3), β_t ∝ η_t²"
ROOT = "η_t ∝ (t + c_0)^(−1/2), τ_t ∝ η_t"
TWO_SCALES = "η_t ∝ (t + c_0)^(−1/2), τ_t ∝ η_t²"
STAGES = "stages: η/√2, β/2, twice as long"


class Scale(NamedTuple):
    """What steps are measured in: n, the number of entries of x, and the number of tasks."""

    n: int
    tasks: int

    @property
    def tasks_per_step(self) -> int:
        """Ten, as in the paper, or all where there are fewer."""
        return min(TASKS_PER_STEP, self.tasks)

    @property
    def share(self) -> float:
        """Of the tasks that such a step looks at."""
        return self.tasks_per_step / self.tasks


@dataclass(frozen=True)
class Tuning:
    """How an algorithm is tuned and compared.

    `ranges` are searched evenly in the logarithm; so are `choices`, but each of them is a program of its own.
    `arguments(scale, **options)` gives the factory's keyword arguments, from one value for each range and choice; the
    values of ranges may be traced. `label` names the algorithm in figures, `rule` says in words what its steps do.
    """

    label: str
    ranges: Mapping[str, Range]
    arguments: Callable[..., Keywords]
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    rule: str = "constant steps"

    def __post_init__(self) -> None:
        if not isinstance(self.label, str) or not self.label.strip():
            raise ValueError(f"label must be the name of an algorithm in figures; got {self.label!r}.")
        if not callable(self.arguments):
            raise TypeError(f"arguments must be a function of a Scale and the options; got {self.arguments!r}.")
        for name, ends in self.ranges.items():
            _check_range(name, ends)
        for name, values in self.choices.items():
            if name in self.ranges or not isinstance(values, tuple) or not values:
                raise ValueError(f"choices must be tuples for options that have no range; got {name!r}: {values!r}.")


def _check_range(name: str, ends: Any) -> None:
    """Refuse what is no range of positive numbers."""
    if not isinstance(ends, tuple) or len(ends) != 2:
        raise ValueError(f"the range of {name!r} must be a pair of numbers; got {ends!r}.")
    for end in ends:
        arguments.positive(f"the range of {name!r}", end)
    if ends[0] >= ends[1]:
        raise ValueError(f"the range of {name!r} must go from a smaller to a larger number; got {ends!r}.")


def fall(first: Any, offset: Any, exponent: float) -> Schedule:
    """first·(c_0/(c_0 + t))^exponent."""
    return power(first * offset**exponent, offset, exponent)


def constant_steps(scale: Scale, upper: Any, lower: Any, series: Any = None, **more: Any) -> Keywords:
    """Constant steps on all tasks; `series` is the step of a Neumann series."""
    steps = {"upper_step": upper * scale.n, "lower_step": lower, "batch_size": BATCH, "initialization": "cheap"}
    return {**steps, **more} if series is None else {**steps, **more, "neumann_step": series}


def shared_steps(scale: Scale, upper: Any, lower: Any, mixing: Any, **more: Any) -> Keywords:
    """RSVRB and RE-RSVRB: everything in proportion to the share of tasks that a step looks at."""
    return {
        "upper_step": upper * scale.n * scale.share, "lower_step": lower * scale.share, "mixing": mixing * scale.share,
        "tasks_per_step": scale.tasks_per_step, "batch_size": BATCH, **more,
    }  # fmt: skip


def block_steps(scale: Scale, upper: Any, lower: Any, mixing: Any) -> Keywords:
    """BSVRB: a task that is not drawn stays as it is, so only the step on x is in proportion to the share."""
    return drawn_steps(scale, upper * scale.share, lower, mixing)


def drawn_steps(scale: Scale, upper: Any, lower: Any, mixing: Any) -> Keywords:
    """Block SOBA: what is not drawn stays as it is and is not corrected for, so nothing shrinks with the share."""
    return {
        "upper_step": upper * scale.n, "lower_step": lower, "mixing": mixing, "tasks_per_step": scale.tasks_per_step,
        "batch_size": BATCH, "initialization": "cheap",
    }  # fmt: skip


def cube_root_steps(scale: Scale, upper: Any, lower: Any, mixing: Any, offset: Any) -> Keywords:
    """SVRB: η_t and τ_t fall as t^(−1/3), β_t as their square."""
    return {
        "upper_step": fall(upper * scale.n, offset, 1 / 3), "lower_step": lower,
        "relaxation": fall(1.0, offset, 1 / 3), "mixing": fall(mixing, offset, 2 / 3), "batch_size": BATCH,
        "initial_batch_size": FIRST_BATCH,
    }  # fmt: skip


def root_steps(scale: Scale, upper: Any, lower: Any, mixing: Any, offset: Any) -> Keywords:
    """STABLE: everything falls as t^(−1/2)."""
    return {
        "upper_step": fall(upper * scale.n, offset, 1 / 2), "lower_step": fall(lower, offset, 1 / 2),
        "mixing": fall(mixing, offset, 1 / 2), "batch_size": BATCH, "initialization": "cheap",
    }  # fmt: skip


def two_scale_steps(scale: Scale, upper: Any, lower: Any, offset: Any, series: Any, **more: Any) -> Keywords:
    """TTSA, StocBio and BSA: η_t falls as t^(−1/2), τ_t as its square."""
    return {
        "upper_step": fall(upper * scale.n, offset, 1 / 2), "lower_step": fall(lower, offset, 1.0),
        "neumann_step": series, "batch_size": BATCH, "initialization": "cheap", **more,
    }  # fmt: skip
