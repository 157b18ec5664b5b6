"""Which tasks and samples a step looks at: unbiased, and never O(m)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, UInt32

from bilevax import arguments
from bilevax.samples import Batches, Data, DrawnAhead, Indices, NoData, NotAheadError, numbers_of, span
from bilevax.shards import Alone, Shards
from bilevax.words import key_of, random_words

FEW_TASKS = 10  # that a step draws where nobody says how many
Words = UInt32[Array, "2 *n"]  # two random words for each number to be drawn


class Source(Protocol):
    """What is drawn from: a `bilevax.Problem`."""

    num_tasks: int
    upper_data: Data
    lower_data: Data
    x0: Any
    shards: Alone | Shards


class Draw(NamedTuple):
    """The draws of one step. `weights` are 1 / (expected number of times the task is drawn).

    `same[k, l]` says that draws k and l are of one task, `None` that no two can be. `entries` are the samples of g that
    any draw of a task looks at: its own batch, or all batches where tasks can repeat.
    """

    tasks: Int[Array, " B"]
    weights: Float[Array, " B"]
    upper: Batches
    lower: Batches
    direction_tasks: Int[Array, " J"]
    same: Bool[Array, "B B"] | None
    entries: Int[Array, "B e"] | None


@dataclass(frozen=True, eq=False)
class Sampling:
    """How a step samples: B tasks (from p, or uniformly without replacement), a batch for each.

    With p the B draws are independent, a task can come up twice, and E[count_i] = B·p_i. Without p the
    tasks are distinct and E[count_i] = B/m. A batch is drawn uniformly with replacement from the samples
    of its task; `batch_size=None` takes them all. `tasks_per_step=None` is ten, or all where there are fewer.

    A shard draws its share of the B from its own tasks, by p as it is among these.
    """

    tasks_per_step: int | None
    batch_size: int | None
    probabilities: Float[Any, " m"] | None = None

    def __post_init__(self) -> None:
        if self.tasks_per_step is not None:
            arguments.count("tasks_per_step", self.tasks_per_step)
        if self.batch_size is not None:
            arguments.count("batch_size", self.batch_size)
        if self.probabilities is not None:
            check_probabilities(self.probabilities)

    def check(self, source: Source) -> None:
        """Refuse a problem with fewer tasks than a step draws, or with another number than p has."""
        m, shards = source.num_tasks * source.shards.count, source.shards.count
        if self.tasks_per_step is not None and self.tasks_per_step > m:
            raise ValueError(f"tasks_per_step must be at most the number of tasks, {m}; got {self.tasks_per_step}.")
        if self.tasks_per_step is not None and self.tasks_per_step % shards:
            raise ValueError(
                f"tasks_per_step must be a multiple of the number of shards, {shards}, each draws as many of its own "
                f"tasks; got {self.tasks_per_step}."
            )
        if self.probabilities is not None and len(self.probabilities) != m:
            raise ValueError(
                f"task_probabilities must have one entry for each of the {m} tasks; got {len(self.probabilities)}."
            )

    def count(self, source: Source) -> int:
        """How many tasks a step draws, of those of a shard where there are several."""
        shards = source.shards.count
        if self.tasks_per_step is not None:
            return self.tasks_per_step // shards
        return min(-(-FEW_TASKS // shards), source.num_tasks)

    def portion(self, source: Source) -> tuple[int | None, float]:
        """Samples of a task, `None` for all, and the share of the tasks, that a step looks at."""
        return self.batch_size, self.count(source) / source.num_tasks

    def weighted_tasks(self, source: Source, words: Words) -> tuple[Int[Array, " n"], Float[Array, " n"]]:
        """Tasks drawn with p, of those of a shard where there are several, and their probabilities."""
        p = np.asarray(self.probabilities, float).reshape(source.shards.count, source.num_tasks)
        p = p / p.sum(axis=1, keepdims=True)
        tasks = weighted_tasks(words, source.shards.own_row(thresholds_of(p)))
        return tasks, source.shards.own_row(p.astype(source.x0.dtype))[tasks]


def check_probabilities(probabilities: Any) -> None:
    """Refuse probabilities that are not one for each task, positive, and of sum one."""
    p = arguments.floats("task_probabilities", probabilities, "a vector of numbers")
    if p.ndim != 1 or p.size == 0:
        raise ValueError(f"task_probabilities must be a vector with one entry for each task; got shape {p.shape}.")
    if not (p > 0).all():
        worst = int(np.argmin(np.where(np.isnan(p), -np.inf, p)))
        raise ValueError(
            "task_probabilities must all be > 0, a task that is never drawn is never solved; "
            f"entry {worst} is {p[worst]}."
        )
    if abs(p.sum() - 1) > 1e-6:
        raise ValueError(f"task_probabilities must sum to 1; they sum to {p.sum():.8g}.")


def below(words: Words, span: Any) -> Int[Array, "*n"]:
    """A whole number in 0..span − 1 from each pair of random words: their 64 bits modulo the span.

    For spans above 2**16 only the second word counts: no number is then more likely than another by more than
    span/2**32.
    """
    span = jnp.asarray(span, jnp.uint32)
    half = (2**16) % span
    high = (words[0] % span) * ((half * half) % span) % span  # below 2**16 the product fits in 32 bits
    return ((high + words[1] % span) % span).astype(jnp.int32)


def distinct_tasks(words: Words, num_tasks: int) -> Int[Array, " n"]:
    """As many distinct tasks as there are words, every subset equally likely, in O(n²) (Floyd 1987)."""
    size = words.shape[1]
    tops = jnp.arange(num_tasks - size, num_tasks, dtype=jnp.int32)
    picks = below(words, tops + 1)

    def pick(k: Array, tasks: Array) -> Array:
        repeats = jnp.any(tasks == picks[k])
        return tasks.at[k].set(jnp.where(repeats, tops[k], picks[k]))

    return jax.lax.fori_loop(0, size, pick, jnp.full(size, -1, jnp.int32))


def thresholds_of(probabilities: Float[Any, "*s m"]) -> UInt32[Any, "*s m-1"]:
    """Up to which random word each task but the last is drawn: 32 bits resolve more than a float32 does."""
    cumulative = np.cumsum(np.asarray(probabilities, float), axis=-1)
    return np.floor(cumulative[..., :-1] / cumulative[..., -1:] * 2.0**32).clip(0, 2.0**32 - 1).astype(np.uint32)


def weighted_tasks(words: Words, thresholds: UInt32[Any, " m-1"]) -> Int[Array, " n"]:
    """Independent tasks with the probabilities of these thresholds, by inverting their cumulative sums."""
    return jnp.searchsorted(jnp.asarray(thresholds), words[0], side="right").astype(jnp.int32)


def words_of_batch(data: Data, size: int | None) -> int:
    """How many numbers are drawn for a batch: one for each sample, one for a block, none where all are taken."""
    if size is None or isinstance(data, NoData):
        return 0
    return 1 if data.draw == "blocks" else size


def _samples_at(data: Data, i: Any, words: Words, size: int) -> Int[Array, "*B size"]:
    """Samples of task i, or of several tasks, from the words of a batch."""
    lengths = jnp.broadcast_to(jnp.asarray(span(data, i), jnp.int32), jnp.shape(i))[..., None]
    drawn = below(words, lengths)
    if data.draw == "independent":
        return drawn
    shape = (*drawn.shape[:-1], size)
    ahead = jnp.broadcast_to(jnp.arange(size, dtype=np.uint32), shape)
    follow = jnp.broadcast_to(drawn.astype(np.uint32), shape) + ahead  # may be beyond what an int32 holds
    return jax.lax.rem(follow, jnp.broadcast_to(lengths, shape).astype(np.uint32)).astype(jnp.int32)


def batch_indices(key: Key[Array, ""], data: Data, i: Int[Array, ""], size: int | None) -> Indices:
    """`size` samples of task i, each with the same probability; all of them for `None`."""
    if size is None or isinstance(data, NoData):
        return None
    if isinstance(data, DrawnAhead):
        raise NotAheadError
    return _samples_at(data, i, random_words(key, (2, words_of_batch(data, size))), size)


def count_samples(data: Data, tasks: Int[Array, " B"], size: int | None) -> Float[Array, ""]:
    """How many samples batches of the given size for the given tasks hold in all."""
    if isinstance(data, NoData):
        return jnp.asarray(0.0)
    if size is not None:
        return jnp.asarray(float(size * len(tasks)))
    return jnp.sum(jax.vmap(lambda i: jnp.asarray(data.length(i), float))(tasks))


def _batches(data: Data, tasks: Int[Array, " B"], words: Words, size: int | None) -> Batches:
    """A batch of each task from as many words as it takes; all samples without a size."""
    if size is None or isinstance(data, NoData):
        return None
    indices = _samples_at(data, tasks, words.reshape(2, len(tasks), -1), size)
    return data.hand_out(tasks, indices) if isinstance(data, DrawnAhead) else indices


def draw_step(source: Source, sampling: Sampling, key: Key[Array, ""]) -> Draw:
    """The draws of one step: tasks i_t by p, their batches ξ and ζ, and tasks j_t uniformly.

    All from one call for random bits: a call costs more than its bits.
    """
    m = source.num_tasks
    size = sampling.count(source)
    of_batches = [size * words_of_batch(data, sampling.batch_size) for data in (source.upper_data, source.lower_data)]
    ends = np.cumsum([size, *of_batches])
    words = random_words(key, (2, int(ends[-1]) + size))
    for_tasks, for_upper, for_lower, for_direction = jnp.split(words, ends, axis=1)
    same = None
    if sampling.probabilities is None:
        tasks = distinct_tasks(for_tasks, m)
        weights = jnp.full(size, m / size, source.x0.dtype)
    else:
        tasks, p = sampling.weighted_tasks(source, for_tasks)
        weights = 1 / (size * p)
        same = tasks[:, None] == tasks[None, :] if size > 1 else None
    lower = _batches(source.lower_data, tasks, for_lower, sampling.batch_size)
    entries = numbers_of(lower)
    if same is not None and entries is not None:
        entries = jnp.broadcast_to(entries.reshape(1, -1), (size, entries.size))
    return Draw(
        tasks=tasks,
        weights=weights,
        upper=_batches(source.upper_data, tasks, for_upper, sampling.batch_size),
        lower=lower,
        direction_tasks=distinct_tasks(for_direction, m),
        same=same,
        entries=entries,
    )


def batches_of_all(
    source: Source, key: Key[Array, ""], upper: Sequence[int | None], lower: Sequence[int | None]
) -> tuple[list[Batches], list[Batches]]:
    """Independent batches of the given sizes for every task, of the upper and of the lower data; one call for bits."""
    tasks = jnp.arange(source.num_tasks, dtype=jnp.int32)
    requests = [(source.upper_data, size) for size in upper] + [(source.lower_data, size) for size in lower]
    counts = [len(tasks) * words_of_batch(data, size) for data, size in requests]
    words = jnp.split(random_words(key, (2, sum(counts))), np.cumsum(counts), axis=1)
    own = zip(requests, words[: len(requests)], strict=True)
    batches = [_batches(data, tasks, drawn, size) for (data, size), drawn in own]
    return batches[: len(upper)], batches[len(upper) :]


def batch_of_all(source: Source, key: Key[Array, ""], k: Any, size: int | None) -> Batches:
    """The k-th of any number of independent batches of every task, of the lower data."""
    return batches_of_all(source, key_of(key, k), (), (size,))[1][0]


class AtEntries(NamedTuple):
    """Numbers that belong to the samples of a batch, not to the task: one for each sample."""

    values: Float[Array, "*B batch"]


def merge(same: Bool[Array, "B B"], contributions: PyTree) -> PyTree:
    """Give every draw of a task the sum of the contributions of all draws of that task.

    Of `AtEntries` it gets those at all entries of the step: draws of other tasks have nothing to add there.
    """

    def add(leaf: Any) -> Any:
        if isinstance(leaf, AtEntries):
            spread = same.astype(leaf.values.dtype)[:, :, None] * leaf.values[None]
            return AtEntries(spread.reshape(len(same), -1))
        return jnp.tensordot(same.astype(leaf.dtype), leaf, axes=1)

    return jax.tree.map(add, contributions, is_leaf=lambda leaf: isinstance(leaf, AtEntries))
