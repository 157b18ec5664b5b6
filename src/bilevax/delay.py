"""Delayed updates, exactly: what happened to a task in all the steps in which it was not drawn.

Between two visits, line by line of Algorithm 2, the estimates of a task are multiplied by (1 − β_s) in
every step s, and y moves by −τ_s τ w_{s+1}. Over a stretch of steps i ≤ s < t that is one factor
ρ = Π(1 − β_s) for each estimate and one length Σ τ_s τ Π_{r ≤ s}(1 − β_r) for y. A clock that ticks once
a step keeps running sums from which both follow in O(1), whatever the schedules and the length of the
stretch.

Two numerical traps shape it. Logarithms of ρ grow without end, so they are summed with their rounding
errors (hi + lo). The length is a difference of sums of shrinking terms, which cancels once ρ is small;
so that sum starts afresh in every *era*, an era ends when w has shrunk by e⁻⁴, and a table keeps the
totals of past eras. A length is then put together from a dozen eras at most, because beyond them w has
vanished.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bilevax import projection
from bilevax.schedule import Rates, Step

ERAS = 65_536  # eras remembered; a task unseen for longer is replayed step by step
ERA_DEPTH = -4.0  # an era ends when the logarithm of its decay falls below this
LOG_OF_ZERO = -1e3  # log(1 − β) at β = 1: its exponential is zero in every floating type

Sum = Float[Array, "2 *n"]  # a compensated sum, hi and lo


class Decay(NamedTuple):
    """The product of (1 − β) over a stretch of steps, for each of the five estimates of a task."""

    f_x: Any
    f_y: Any
    g_y: Any
    g_xy: Any
    g_yy: Any


class Reading(NamedTuple):
    """What the clock shows before step `step`; a task keeps the reading of its last visit.

    Two small arrays, not one for each number: every array that a task keeps is read and written in every visit.
    """

    counts: Int[Array, "2"]  # step and era
    sums: Float[Array, "2 7"]  # compensated sums: five of log(1 − β), and the two of the era

    @property
    def step(self) -> Step:
        """The step that comes next."""
        return self.counts[0]

    @property
    def era(self) -> Int[Array, ""]:
        """The eras that have ended."""
        return self.counts[1]

    @property
    def logs(self) -> Sum:
        """(2, 5): Σ log(1 − β) since the start, for each estimate."""
        return self.sums[:, :5]

    @property
    def era_log(self) -> Sum:
        """(2,): the part of it that is w's and this era's."""
        return self.sums[:, 5]

    @property
    def era_length(self) -> Sum:
        """(2,): Σ τ_s τ ρ_{s+1} since the era began."""
        return self.sums[:, 6]


class Clock(NamedTuple):
    """The running sums. `eras` holds (log decay, length hi, length lo) of each era that has ended.

    The totals of the last one wait in `ended` until `settle` puts them there at the start of a step: a
    table that is written before it is read can be updated in place, the other way round it is copied.
    """

    now: Reading
    ended: Float[Array, "3"]
    eras: Float[Array, "eras 3"]
    longest: Float[Array, ""]  # the largest τ so far


class Elapsed(NamedTuple):
    """From a reading to now: the decays, the length of y's way along −w and its last part, and the steps.

    `known` says whether the length is: it is not for a task that slept through more eras than are remembered.
    """

    decay: Decay
    length: Float[Array, ""]
    last_drift: Float[Array, ""]
    steps: Int[Array, ""]
    known: Array


def _add(total: Sum, term: Array) -> Sum:
    """Add to a compensated sum: what rounding takes from hi goes to lo (Knuth's two-sum, twice)."""

    def rounded(a: Array, b: Array) -> tuple[Array, Array]:
        added = a + b
        back = added - a
        return added, (a - (added - back)) + (b - back)

    hi, error = rounded(total[0], term)
    return jnp.stack(rounded(hi, total[1] + error))


def _between(later: Sum, earlier: Sum) -> Array:
    return (later[0] - earlier[0]) + (later[1] - earlier[1])


def start(dtype: Any, eras: int = ERAS) -> Clock:
    """A clock before step 1; with one era it is `endless`."""
    zero = jnp.zeros((), dtype)
    now = Reading(jnp.array([1, 0], jnp.int32), jnp.zeros((2, 7), dtype))
    return Clock(now, jnp.zeros(3, dtype), jnp.zeros((eras, 3), dtype), zero)


def endless(clock: Clock) -> bool:
    """Whether no era ends: for estimates that do not fade, or a task that never sleeps."""
    return len(clock.eras) == 1


def settle(clock: Clock) -> Clock:
    """The clock with its table of eras complete; to be called before any question to it."""
    if endless(clock):
        return clock
    slot = (clock.now.era - 1) % len(clock.eras)
    return clock._replace(eras=jax.lax.dynamic_update_index_in_dim(clock.eras, clock.ended, slot, 0))


def tick(clock: Clock, rates: Rates) -> Clock:
    """The clock after one step with these rates."""
    now, dtype = clock.now, clock.eras.dtype
    beta = jnp.stack(rates.mixing[:5])
    log = jnp.where(beta < 1, jnp.log1p(-jnp.minimum(beta, 1 - jnp.finfo(dtype).eps)), LOG_OF_ZERO)
    era_sum = _add(now.era_log, log[Decay._fields.index("g_y")])
    era_log = era_sum[0] + era_sum[1]
    length = _add(now.era_length, rates.drift * jnp.exp(era_log))
    ends = jnp.asarray(False) if endless(clock) else era_log < ERA_DEPTH
    of_era = jnp.where(ends, 0, jnp.stack([era_sum, length], axis=1))
    return clock._replace(
        now=Reading(
            counts=now.counts + jnp.stack([jnp.int32(1), ends.astype(jnp.int32)]),
            sums=jnp.concatenate([_add(now.logs, log), of_era], axis=1),
        ),
        ended=jnp.where(ends, jnp.stack([era_log, length[0], length[1]]), clock.ended),
        longest=jnp.maximum(clock.longest, rates.lower_step),
    )


def elapsed_decay(clock: Clock, since: Reading) -> Decay:
    """Π(1 − β_s) over the steps since the reading."""
    return Decay(*jnp.exp(_between(clock.now.logs, since.logs)))


def elapsed(clock: Clock, since: Reading, rates_at: Callable[[Step], Rates]) -> Elapsed:
    """All that the steps since the reading did to a task that was not drawn in them."""
    now, eras = clock.now, clock.eras
    of = lambda length, known: Elapsed(
        decay=elapsed_decay(clock, since),
        length=length,
        last_drift=rates_at(now.step - 1).drift,
        steps=now.step - since.step,
        known=known,
    )
    if endless(clock):
        return of(_between(now.era_length, since.era_length), jnp.asarray(True))
    this_era = since.era == now.era
    first = eras[since.era % len(eras)]
    end = jnp.where(this_era, now.era_length, first[1:])
    scale = jnp.exp(-(since.era_log[0] + since.era_log[1]))
    length = _between(end, since.era_length) * scale
    left = jnp.where(this_era, 0, jnp.exp(first[0]) * scale)

    def unfinished(carry: tuple[Array, Array, Array]) -> Array:
        era, left, _ = carry
        return (era < now.era) & (left > jnp.finfo(eras.dtype).eps ** 1.5)

    def through_era(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        era, left, length = carry
        log, hi, lo = eras[era % len(eras)]
        return era + 1, left * jnp.exp(log), length + left * (hi + lo)

    era, left, length = jax.lax.while_loop(unfinished, through_era, (since.era + 1, left, length))
    length += jnp.where(era == now.era, left * (now.era_length[0] + now.era_length[1]), 0)
    return of(length, now.era - since.era < len(eras))


class Lower(NamedTuple):
    """y_t, y_{t−1} and w_t of one task."""

    y: Float[Array, " dy"]
    y_before: Float[Array, " dy"]
    g_y: Float[Array, " dy"]


def bring_lower(
    clock: Clock,
    since: Reading,
    passed: Elapsed,
    kept: Lower,
    region: Any,
    rates_at: Callable[[Step], Rates],
) -> Lower:
    """y and w of a task, brought from its last visit to now (line 15 of Algorithm 2, "delay update").

    All points of the stretch and all trial points y_s − τ w lie on one ray, so if the farthest that any
    can be is inside the convex set Y_i the projection is inactive throughout; where it may not be, or where
    the era of the visit has been forgotten, the steps are replayed.
    """
    g_y = passed.decay.g_y * kept.g_y
    y = kept.y - passed.length * kept.g_y
    awake = passed.steps == 0
    y_before = jnp.where(awake, kept.y_before, y + passed.last_drift * g_y)
    if region is None and endless(clock):
        return Lower(y, y_before, g_y)
    straight = passed.known
    if region is not None:
        straight &= projection.inside(kept.y - (passed.length + clock.longest) * kept.g_y, region)
    replayed, replayed_before = _replay(straight | awake, clock.now.step, since, kept, region, rates_at)
    straight |= awake
    return Lower(jnp.where(straight, y, replayed), jnp.where(straight, y_before, replayed_before), g_y)


def _replay(
    skip: Array,
    until: Step,
    since: Reading,
    kept: Lower,
    region: Any,
    rates_at: Callable[[Step], Rates],
) -> tuple[Array, Array]:
    """y_t and y_{t−1} step by step.

    It ends early once w has vanished, so it takes some 70/β steps at most: the one place where a step can
    cost more with more tasks, and only for those that w presses against their set.
    """

    def unfinished(carry: tuple) -> Array:
        s, left, *_ = carry
        return ~skip & (s < until) & (left > jnp.finfo(left.dtype).eps ** 2)

    def one_step(carry: tuple) -> tuple:
        s, left, y, _ = carry
        rates = rates_at(s)
        left = left * (1 - rates.mixing.g_y)
        trial = projection.onto(y - rates.lower_step * left * kept.g_y, region)
        return s + 1, left, y + rates.relaxation * (trial - y), y

    one = jnp.ones((), kept.y.dtype)
    s, _, y, before = jax.lax.while_loop(unfinished, one_step, (since.step, one, kept.y, kept.y))
    return y, jnp.where(s < until, y, before)  # ended early: y has stopped moving
