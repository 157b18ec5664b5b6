"""What is kept of every task: rows that are read and written in place, and exact updates that were delayed.

**Rows.** A step reads the rows of the tasks it draws and writes them back; its cost does not depend on their number.

**Delayed updates.** Between two visits, line by line of Algorithm 2, the estimates of a task are multiplied by
(1 − β_s) in every step s, and y moves by −τ_s τ w_{s+1}. Over a stretch of steps i ≤ s < t that is one factor
ρ = Π(1 − β_s) for each estimate and one length Σ τ_s τ Π_{r ≤ s}(1 − β_r) for y. A clock that ticks once a step keeps
running sums from which both follow in O(1), whatever the schedules and the length of the stretch.

Two numerical traps shape the clock. Logarithms of ρ grow without end, so they are summed with their rounding errors
(hi + lo). The length is a difference of sums of shrinking terms, which cancels once ρ is small; so that sum starts
afresh in every *era*, an era ends when w has shrunk by e⁻⁴, and a table keeps the totals of past eras. A length is then
put together from a dozen eras at most, because beyond them w has vanished.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from bilevax import projection
from bilevax.schedule import Rates, Step

RESCALE_BELOW = 1e-9  # the scale of a long row below which it is multiplied in
ERAS = 65_536  # eras remembered; a task unseen for longer is replayed step by step
ERA_DEPTH = -4.0  # an era ends when the logarithm of its decay falls below this
LOG_OF_ZERO = -1e3  # log(1 − β) at β = 1: its exponential is zero in every floating type


class ScaledRow(NamedTuple):
    """A long row, scale · values, of which a step multiplies all entries by one number and changes a few.

    `read` and `write` take the entries asked for; those are handed out as they are, with the scale already in them.
    """

    values: Float[Array, "*B n"]
    scale: Float[Array, "*B"]

    def times(self, factor: Any) -> "ScaledRow":
        """The row times a number."""
        return ScaledRow(factor * self.values, factor * self.scale)


def is_long(leaf: PyTree) -> bool:
    """Whether this is a row of which only some entries are read and written."""
    return isinstance(leaf, ScaledRow)


def read(table: PyTree, tasks: Int[Array, " B"], entries: Int[Array, "B e"] | None = None) -> PyTree:
    """The rows of the given tasks; of a `ScaledRow` only the given entries, where any are given."""

    def rows(leaf: PyTree) -> PyTree:
        if not is_long(leaf):
            return leaf[tasks]
        scale = leaf.scale[tasks]
        values = leaf.values[tasks] if entries is None else leaf.values[tasks[:, None], entries]
        return ScaledRow(scale[:, None] * values, scale)

    return jax.tree.map(rows, table, is_leaf=is_long)


def pick(y: Float[Array, "n dy"], some: Int[Array, " k"], num_tasks: int) -> Float[Array, "k dy"]:
    """y of tasks of these numbers, from y of all of them, or from rows that are these already."""
    return y[some] if len(y) == num_tasks else y


def write(
    table: PyTree,
    tasks: Int[Array, " B"],
    rows: PyTree,
    keep: Bool[Array, ""],
    entries: Int[Array, "B e"] | None = None,
) -> PyTree:
    """The table with the rows of the given tasks replaced; where `keep`, it stays as it is.

    One `dynamic_update_slice` a row, in a loop: a scatter makes XLA copy whole arrays in every step of a
    compiled loop (see `benchmarks.flat`), this does not. Of a `ScaledRow` the given entries are replaced
    (twice the same entry must come with the same value) and the rest gets the new scale.
    """

    def write_row(k: Array, table: PyTree) -> PyTree:
        def put(leaf: PyTree, new: PyTree) -> PyTree:
            if is_long(leaf):
                return _put_entries(leaf, tasks, k, new, keep, entries)
            old = jax.lax.dynamic_index_in_dim(leaf, tasks[k], 0, keepdims=False)
            row = jax.lax.select(jnp.broadcast_to(keep, old.shape), old, new[k])
            return jax.lax.dynamic_update_index_in_dim(leaf, row, tasks[k], 0)

        return jax.tree.map(put, table, rows, is_leaf=is_long)

    return jax.lax.fori_loop(0, tasks.shape[0], write_row, table)


def _put_entries(
    table: ScaledRow, tasks: Array, k: Array, new: ScaledRow, keep: Array, entries: Array | None
) -> ScaledRow:
    """The k-th of the new rows written at its entries, unless `keep`, or an earlier draw has written it."""
    i = tasks[k]
    stays = keep | jnp.any((tasks == i) & (jnp.arange(len(tasks)) < k))
    fades = new.scale[k] < RESCALE_BELOW
    scale = jnp.where(fades, 1, new.scale[k])
    rescale = lambda _, values: jax.lax.dynamic_update_index_in_dim(values, new.scale[k] * values[i], i, 0)
    values = jax.lax.fori_loop(0, (fades & ~stays).astype(jnp.int32), rescale, table.values)
    where = slice(None) if entries is None else entries[k]
    fresh = jnp.where(stays, values[i, where], new.values[k] / scale)
    scales = jax.lax.dynamic_update_index_in_dim(table.scale, jnp.where(stays, table.scale[i], scale), i, 0)
    return ScaledRow(values.at[i, where].set(fresh), scales)


Sum = Float[Array, "2 *n"]  # a compensated sum, hi and lo


class Decay(NamedTuple):
    """The product of (1 − β) over a stretch of steps, for each of the five estimates of a task."""

    f_x: Any
    f_y: Any
    g_y: Any
    g_xy: Any
    g_yy: Any


class Reading(NamedTuple):
    """What the clock shows before a step; a task keeps the reading of its last visit.

    Two small arrays, not one for each number: every array that a task keeps is read and written in every visit.

    - `counts`: the step that comes next, and the eras that have ended.
    - `sums`, compensated: five of log(1 − β) since the start, one for each estimate; the part of w's that is of this
      era; and Σ τ_s τ ρ_{s+1} since the era began.
    """

    counts: Int[Array, "*B 2"]
    sums: Float[Array, "*B 2 7"]


class Clock(NamedTuple):
    """The running sums.

    The totals of the last era wait in `last_era` until the next tick puts them into the table of eras: a table that is
    written before it is read in a step can be updated in place, the other way round it is copied.
    """

    now: Reading
    last_era: Float[Array, "3"]  # its log decay, and its length, hi and lo
    longest: Float[Array, ""]  # the largest τ so far


Eras = Float[Array, "eras 3"]  # the totals of each era that has ended; one row where no era ever ends


class Absence(NamedTuple):
    """From the last visit of a task to now: the decays, the length of y's way along −w and its last part.

    `known` says whether the length is: it is not for a task that slept through more eras than are remembered.
    """

    decay: Decay
    length: Float[Array, ""]
    last_drift: Float[Array, ""]
    since: Step
    until: Step
    none: Bool[Array, ""]  # whether the task was drawn in the step before this one
    known: Bool[Array, ""] | None  # None: no era ever ends, so it is
    longest: Float[Array, ""]
    rates_at: Callable[[Step], Rates]


def _add(total: Sum, term: Array) -> Sum:
    """Add to a compensated sum: what rounding takes from hi goes to lo (Knuth's two-sum, then Dekker's)."""
    hi = total[0] + term
    back = hi - total[0]
    lo = total[1] + ((total[0] - (hi - back)) + (term - back))
    high = hi + lo
    return jnp.stack([high, lo - (high - hi)])


def start_clock(dtype: Any) -> Clock:
    """A clock before step 1."""
    now = Reading(jnp.array([1, 0], jnp.int32), jnp.zeros((2, 7), dtype))
    return Clock(now, jnp.zeros(3, dtype), jnp.zeros((), dtype))


def start_eras(dtype: Any, fades: bool) -> Eras:
    """An empty table of eras; of one row where estimates do not fade, or a task never sleeps: no era ends then."""
    return jnp.zeros((ERAS if fades else 1, 3), dtype)


def tick(clock: Clock, eras: Eras, rates: Rates) -> tuple[Clock, Eras]:
    """The clock after one step with these rates, and the table of eras as it is to be read in that step."""
    counts, sums = clock.now
    fades = len(eras) > 1
    if fades:
        slot = (counts[1] - 1) % len(eras)
        eras = jax.lax.dynamic_update_index_in_dim(eras, clock.last_era, slot, 0)
    beta = jnp.stack(rates.mixing[:5])
    log = jnp.where(beta < 1, jnp.log1p(-jnp.minimum(beta, 1 - jnp.finfo(sums.dtype).eps)), LOG_OF_ZERO)
    era_sum = _add(sums[:, 5], log[Decay._fields.index("g_y")])
    era_log = era_sum[0] + era_sum[1]
    length = _add(sums[:, 6], rates.relaxation * rates.lower_step * jnp.exp(era_log))
    ends = era_log < ERA_DEPTH if fades else jnp.asarray(False)
    of_era = jnp.where(ends, 0, jnp.stack([era_sum, length], axis=1))
    after = Clock(
        now=Reading(
            counts=counts + jnp.stack([jnp.int32(1), ends.astype(jnp.int32)]),
            sums=jnp.concatenate([_add(sums[:, :5], log), of_era], axis=1),
        ),
        last_era=jnp.where(ends, jnp.stack([era_log, length[0], length[1]]), clock.last_era),
        longest=jnp.maximum(clock.longest, rates.lower_step),
    )
    return after, eras


def decay_since(clock: Clock, visit: Reading) -> Decay:
    """Π(1 − β_s) over the steps since the visit."""
    logs = clock.now.sums[:, :5] - visit.sums[:, :5]
    return Decay(*jnp.exp(logs[0] + logs[1]))


def absence_since(clock: Clock, eras: Eras, visit: Reading, rates_at: Callable[[Step], Rates]) -> Absence:
    """All that the steps since the visit did to a task that was not drawn in them."""
    step, era = clock.now.counts
    first_step, first_era = visit.counts
    length, known = (clock.now.sums - visit.sums)[:, 6].sum(0), None
    if len(eras) > 1:
        length, known = _length_over_eras(clock.now, eras, visit), era - first_era < len(eras)
    last = rates_at(step - 1)
    return Absence(
        decay=decay_since(clock, visit),
        length=length,
        last_drift=last.relaxation * last.lower_step,
        since=first_step,
        until=step,
        none=first_step == step,
        known=known,
        longest=clock.longest,
        rates_at=rates_at,
    )


def _length_over_eras(now: Reading, eras: Eras, visit: Reading) -> Float[Array, ""]:
    """The rest of the era of the visit, then era by era until w has vanished, then what there is of this one."""
    this_era, first_era = now.counts[1], visit.counts[1]
    same = first_era == this_era
    first = eras[first_era % len(eras)]
    end = jnp.where(same, now.sums[:, 6], first[1:])
    scale = jnp.exp(-(visit.sums[0, 5] + visit.sums[1, 5]))
    length = ((end[0] - visit.sums[0, 6]) + (end[1] - visit.sums[1, 6])) * scale
    left = jnp.where(same, 0, jnp.exp(first[0]) * scale)

    def goes_on(at: tuple[Array, Array, Array]) -> Array:
        era, left, _ = at
        return (era < this_era) & (left > jnp.finfo(eras.dtype).eps ** 1.5)

    def through_era(at: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        era, left, length = at
        log, hi, lo = eras[era % len(eras)]
        return era + 1, left * jnp.exp(log), length + left * (hi + lo)

    era, left, length = jax.lax.while_loop(goes_on, through_era, (first_era + 1, left, length))
    return length + jnp.where(era == this_era, left * (now.sums[0, 6] + now.sums[1, 6]), 0)


class Lower(NamedTuple):
    """y_t, y_{t−1} and w_t of one task."""

    y: Float[Array, " dy"]
    y_before: Float[Array, " dy"]
    w: Float[Array, " dy"]


def catch_up(absence: Absence, task: Lower, region: Any) -> Lower:
    """y and w of a task, brought from its last visit to now (line 15 of Algorithm 2, "delay update").

    All points of the stretch and all trial points y_s − τ w lie on one ray, so if the farthest that any
    can be is inside the convex set Y_i the projection is inactive throughout; where it may not be, or where
    the era of the visit has been forgotten, the steps are replayed.
    """
    w = absence.decay.g_y * task.w
    y = task.y - absence.length * task.w
    y_before = jnp.where(absence.none, task.y_before, y + absence.last_drift * w)
    if region is None and absence.known is None:
        return Lower(y, y_before, w)
    straight = jnp.asarray(True) if absence.known is None else absence.known
    if region is not None:
        straight &= projection.inside(task.y - (absence.length + absence.longest) * task.w, region)
    straight |= absence.none
    replay, replay_before = _replay(straight, absence, task, region)
    return Lower(jnp.where(straight, y, replay), jnp.where(straight, y_before, replay_before), w)


Replay = tuple[Array, Array, Array, Array]  # the step s, what is left of w, y_s and y_{s−1}


def _replay(skip: Array, absence: Absence, task: Lower, region: Any) -> tuple[Array, Array]:
    """y_t and y_{t−1} step by step.

    It ends early once w has vanished, so it takes some 70/β steps at most: the one place where a step can
    cost more with more tasks, and only for those that w presses against their set.
    """

    def goes_on(at: Replay) -> Array:
        s, left, *_ = at
        return ~skip & (s < absence.until) & (left > jnp.finfo(left.dtype).eps ** 2)

    def one_step(at: Replay) -> Replay:
        s, left, y, _ = at
        rates = absence.rates_at(s)
        left = left * (1 - rates.mixing.g_y)
        trial = projection.onto(y - rates.lower_step * left * task.w, region)
        return s + 1, left, y + rates.relaxation * (trial - y), y

    one = jnp.ones((), task.y.dtype)
    s, _, y, before = jax.lax.while_loop(goes_on, one_step, (absence.since, one, task.y, task.y))
    return y, jnp.where(s < absence.until, y, before)  # it ended early: y has stopped moving
