"""How the experiments set each algorithm's steps, and the ranges in which the settings are tuned.

The paper's text gives the rules of its Figure 1, with constants c_0, τ_0 and β "tuned in a range":

    SVRB                 η_t = τ_t = (t + c_0)^(−1/3),   β_t = β η_t²
    STABLE               η_t = (t + c_0)^(−1/2),         τ_t = τ_0 η_t
    TTSA, StocBio, BSA   η_t = (t + c_0)^(−1/2),         τ_t = τ_0 η_t²

Here every rule is written by its first value, first·(c_0/(c_0 + t))^power, so that one range fits all problems: η_t
starts at `upper`·n (∇F has entries of order 1/n), τ_t at `lower`, β_t at `mixing`, and c_0 is `offset`. Methods that
look at a few of m tasks take steps and mixing times their share of tasks. RE-RSVRB's stages are its rule; what the
paper does not compare with has constant steps.

Each method starts as its own paper says. Theorems 1 to 3 ask for y_0 close to y*(x_0) and estimates from a large first
batch: SVRB, RSVRB and RE-RSVRB take `initial_batch_size` samples of every task for that, and those count. The others
start from y_0 with an ordinary batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from bilevax.algorithms.base import Algorithm
from bilevax.algorithms.block_soba import block_soba
from bilevax.algorithms.bsa import bsa
from bilevax.algorithms.bsvrb import bsvrb_v1, bsvrb_v2
from bilevax.algorithms.ma_soba import ma_soba
from bilevax.algorithms.mrbo import mrbo
from bilevax.algorithms.re_rsvrb import re_rsvrb
from bilevax.algorithms.rsvrb import rsvrb
from bilevax.algorithms.saba import saba
from bilevax.algorithms.soba import soba
from bilevax.algorithms.srba import srba
from bilevax.algorithms.stable import stable
from bilevax.algorithms.stocbio import stocbio
from bilevax.algorithms.sustain import sustain
from bilevax.algorithms.svrb import svrb
from bilevax.algorithms.ttsa import ttsa
from bilevax.problem import Problem
from bilevax.schedule import Schedule, power

BATCH, FIRST_BATCH, TASKS_PER_STEP = 32, 512, 10
Range = tuple[float, float]
UPPER, LOWER, OFFSET, MIXING, SERIES = (0.01, 100.0), (0.02, 2.0), (10.0, 1e5), (3e-3, 1.0), (0.1, 1.0)


class Scale(NamedTuple):
    """What steps are measured in: n, and the share of tasks that a step of RSVRB looks at."""

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


def scale_of(problem: Problem) -> Scale:
    """The scale of a re-weighting problem."""
    return Scale(problem.dim_x, problem.num_tasks)


@dataclass(frozen=True)
class Method:
    """An algorithm with its step rule.

    `ranges` are tuned, evenly in the logarithm; `choices` too, but each of them is a program of its own. `make` builds
    the algorithm from a scale and one value for each.
    """

    label: str
    make: Callable[..., Algorithm]
    ranges: Mapping[str, Range]
    choices: Mapping[str, tuple] = field(default_factory=dict)
    rule: str = "constant steps"

    def algorithm(self, problem: Problem, options: Mapping[str, Any]) -> Algorithm:
        """The algorithm with these options, for a problem of this size."""
        return self.make(scale_of(problem), **options)


def _falling(first: Any, offset: Any, exponent: float) -> Schedule:
    """first·(c_0/(c_0 + t))^exponent."""
    return power(first * offset**exponent, offset, exponent)


def _svrb(scale: Scale, upper: Any, lower: Any, mixing: Any, offset: Any) -> Algorithm:
    return svrb(
        upper_step=_falling(upper * scale.n, offset, 1 / 3), lower_step=lower, relaxation=_falling(1.0, offset, 1 / 3),
        mixing=_falling(mixing, offset, 2 / 3), batch_size=BATCH, initial_batch_size=FIRST_BATCH,
    )  # fmt: skip


def _stable(scale: Scale, upper: Any, lower: Any, mixing: Any, offset: Any) -> Algorithm:
    return stable(
        upper_step=_falling(upper * scale.n, offset, 1 / 2), lower_step=_falling(lower, offset, 1 / 2),
        mixing=_falling(mixing, offset, 1 / 2), batch_size=BATCH, initialization="cheap",
    )  # fmt: skip


def _two_scales(factory: Callable[..., Algorithm]) -> Callable[..., Algorithm]:
    """TTSA, StocBio and BSA: τ_t falls as η_t²."""

    def make(scale: Scale, upper: Any, lower: Any, offset: Any, series: Any, **fixed: Any) -> Algorithm:
        return factory(
            upper_step=_falling(upper * scale.n, offset, 1 / 2), lower_step=_falling(lower, offset, 1.0),
            neumann_step=series, batch_size=BATCH, initialization="cheap", **fixed,
        )  # fmt: skip

    return make


def _few(factory: Callable[..., Algorithm]) -> Callable[..., Algorithm]:
    """RSVRB and RE-RSVRB: everything in proportion to the share of tasks that a step looks at."""

    def make(scale: Scale, upper: Any, lower: Any, mixing: Any, **fixed: Any) -> Algorithm:
        return factory(
            upper_step=upper * scale.n * scale.share, lower_step=lower * scale.share, mixing=mixing * scale.share,
            tasks_per_step=scale.tasks_per_step, batch_size=BATCH, **fixed,
        )  # fmt: skip

    return make


def _blocks(factory: Callable[..., Algorithm]) -> Callable[..., Algorithm]:
    """BSVRB: a task that is not drawn stays as it is, so only the step on x is in proportion to the share."""

    def make(scale: Scale, upper: Any, lower: Any, mixing: Any) -> Algorithm:
        return factory(
            upper_step=upper * scale.n * scale.share, lower_step=lower, mixing=mixing,
            tasks_per_step=scale.tasks_per_step, batch_size=BATCH, initialization="cheap",
        )  # fmt: skip

    return make


def _few_averaged(scale: Scale, upper: Any, lower: Any, mixing: Any) -> Algorithm:
    """Block SOBA: what is not drawn stays as it is and is not corrected for, so nothing shrinks with the share."""
    return block_soba(
        upper_step=upper * scale.n, lower_step=lower, mixing=mixing, tasks_per_step=scale.tasks_per_step,
        batch_size=BATCH, initialization="cheap",
    )  # fmt: skip


def _constant(factory: Callable[..., Algorithm]) -> Callable[..., Algorithm]:
    """Constant steps on all tasks."""

    def make(scale: Scale, upper: Any, lower: Any, series: Any = None, **fixed: Any) -> Algorithm:
        more = fixed if series is None else {**fixed, "neumann_step": series}
        return factory(upper_step=upper * scale.n, lower_step=lower, batch_size=BATCH, initialization="cheap", **more)

    return make


STEPS: dict[str, Range] = {"upper": UPPER, "lower": LOWER}
MIXED: dict[str, Range] = {**STEPS, "mixing": MIXING}
NEUMANN = {"neumann_terms": (10, 40)}
STARTS = {"initial_batch_size": (128, FIRST_BATCH)}
SQUARE = "η_t ∝ (t + c_0)^(−1/2), τ_t ∝ η_t²"

METHODS: dict[str, Method] = {
    "svrb": Method("SVRB", _svrb, {**MIXED, "offset": OFFSET}, rule="η_t = τ_t ∝ (t + c_0)^(−1/3), β_t ∝ η_t²"),
    "rsvrb": Method("RSVRB", _few(rsvrb), MIXED, STARTS),
    "re_rsvrb": Method(
        "RE-RSVRB", _few(partial(re_rsvrb, first_stage=1000)), MIXED, STARTS, "stages: η/√2, β/2, twice as long"
    ),
    "stable": Method("STABLE", _stable, {**MIXED, "offset": OFFSET}, rule="η_t ∝ (t + c_0)^(−1/2), τ_t ∝ η_t"),
    "ttsa": Method("TTSA", _two_scales(ttsa), {**STEPS, "offset": OFFSET, "series": SERIES}, NEUMANN, SQUARE),
    "stocbio": Method("StocBio", _two_scales(stocbio), {**STEPS, "offset": OFFSET, "series": SERIES}, NEUMANN, SQUARE),
    "bsa": Method("BSA", _two_scales(bsa), {**STEPS, "offset": OFFSET, "series": SERIES}, NEUMANN, SQUARE),
    "bsvrb_v1": Method("BSVRB v1", _blocks(bsvrb_v1), {**MIXED, "mixing": (3e-3, 0.9)}),
    "bsvrb_v2": Method("BSVRB v2", _blocks(bsvrb_v2), {**MIXED, "mixing": (3e-3, 0.9)}),
    "block_soba": Method("Block SOBA", _few_averaged, MIXED),
    "soba": Method("SOBA", _constant(soba), STEPS),
    "ma_soba": Method("MA-SOBA", _constant(ma_soba), MIXED),
    "saba": Method("SABA", _constant(saba), STEPS),
    "srba": Method("SRBA", _constant(srba), STEPS),
    "sustain": Method("SUSTAIN", _constant(sustain), {**MIXED, "series": SERIES}, NEUMANN),
    "mrbo": Method("MRBO", _constant(mrbo), {**MIXED, "series": SERIES}, NEUMANN),
}
