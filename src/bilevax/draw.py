"""Which tasks and which samples a step looks at: unbiased, and never O(m)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, UInt32

from bilevax import arguments
from bilevax.data import Data, NoData
from bilevax.problem import Problem


class Block(NamedTuple):
    """Fixed samples of which the last counts with a weight of its own: (1 − share)·mean of `indices` + share·`last`.

    So blocks of n and of n + 1 samples have one shape.
    """

    indices: Int[Array, " n"]
    last: Int[Array, " 1"]
    share: Float[Array, ""]


Indices = Int[Array, " batch"] | None  # None: every sample there is
Samples = Indices | Block
Batches = Int[Array, "B batch"] | None  # the same for several tasks


class Draw(NamedTuple):
    """The draws of one step. `weights` are 1 / (expected number of times the task is drawn)."""

    tasks: Int[Array, " B"]
    weights: Float[Array, " B"]
    upper: Batches
    lower: Batches
    direction_tasks: Int[Array, " J"]


@dataclass(frozen=True, eq=False)
class Sampling:
    """How a step samples: B tasks (from p, or uniformly without replacement), a batch for each.

    With p the B draws are independent, a task can come up twice, and E[count_i] = B·p_i. Without p the
    tasks are distinct and E[count_i] = B/m. A batch is drawn uniformly with replacement from the samples
    of its task; `batch_size=None` takes them all.
    """

    tasks_per_step: int
    batch_size: int | None
    probabilities: Float[Array, " m"] | None = None

    def __post_init__(self) -> None:
        arguments.count("tasks_per_step", self.tasks_per_step)
        if self.batch_size is not None:
            arguments.count("batch_size", self.batch_size)
        if self.probabilities is not None:
            check_probabilities(self.probabilities)

    @property
    def with_replacement(self) -> bool:
        """Whether one step can draw a task more than once."""
        return self.probabilities is not None and self.tasks_per_step > 1

    def check(self, problem: Problem) -> None:
        """Refuse a problem with fewer tasks than a step draws, or with another number than p has."""
        m = problem.num_tasks
        if self.tasks_per_step > m:
            raise ValueError(f"tasks_per_step must be at most the number of tasks, {m}; got {self.tasks_per_step}.")
        if self.probabilities is not None and len(self.probabilities) != m:
            raise ValueError(
                f"task_probabilities must have one entry for each of the {m} tasks; got {len(self.probabilities)}."
            )


def check_probabilities(probabilities: Any) -> None:
    """Refuse probabilities that are not one for each task, positive, and of sum one."""
    try:
        p = np.asarray(probabilities, float)
    except (TypeError, ValueError):
        raise TypeError(f"task_probabilities must be a vector of numbers; got {probabilities!r}.") from None
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


Words = UInt32[Array, "2 *n"]  # two random words for each number to be drawn


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

    def choose(k: Array, chosen: Array) -> Array:
        taken = jnp.any(chosen == picks[k])
        return chosen.at[k].set(jnp.where(taken, tops[k], picks[k]))

    return jax.lax.fori_loop(0, size, choose, jnp.full(size, -1, jnp.int32))


def weighted_tasks(words: Words, probabilities: Float[Array, " m"]) -> Int[Array, " n"]:
    """Independent tasks with the given probabilities, by inverting their cumulative sums."""
    cumulative = np.cumsum(np.asarray(probabilities, float))
    # 32 random bits resolve small probabilities better than a float32 does.
    thresholds = np.floor(cumulative[:-1] / cumulative[-1] * 2.0**32).clip(0, 2.0**32 - 1).astype(np.uint32)
    return jnp.searchsorted(jnp.asarray(thresholds), words[0], side="right").astype(jnp.int32)


def _takes_all(data: Data, size: int | None) -> bool:
    return size is None or isinstance(data, NoData)


def batch_indices(key: Key[Array, ""], data: Data, i: Int[Array, ""], size: int | None) -> Indices:
    """`size` samples of task i, uniform with replacement; all of them for `None`."""
    if size is None or isinstance(data, NoData):
        return None
    return below(jax.random.bits(key, (2, size), np.uint32), data.length(i))


def count_samples(data: Data, tasks: Int[Array, " B"], size: int | None) -> Float[Array, ""]:
    """How many samples batches of the given size for the given tasks hold in all."""
    if isinstance(data, NoData):
        return jnp.asarray(0.0)
    if size is not None:
        return jnp.asarray(float(size * len(tasks)))
    return jnp.sum(jax.vmap(lambda i: jnp.asarray(data.length(i), float))(tasks))


def _batches(data: Data, tasks: Int[Array, " B"], size: int | None, words: Words) -> Batches:
    """`size` samples of each task, uniform with replacement, from as many words; all of them for `None`."""
    if _takes_all(data, size):
        return None
    lengths = jnp.broadcast_to(data.length(tasks), tasks.shape)
    return below(words.reshape(2, len(tasks), -1), lengths[:, None])


def draw_step(problem: Problem, sampling: Sampling, key: Key[Array, ""]) -> Draw:
    """The draws of one step: tasks i_t by p, their batches ξ and ζ, and tasks j_t uniformly.

    All from one call for random bits: a call costs more than its bits.
    """
    m, size = problem.num_tasks, sampling.tasks_per_step
    batches = [0 if _takes_all(data, sampling.batch_size) else size * (sampling.batch_size or 0)
               for data in (problem.upper_data, problem.lower_data)]  # fmt: skip
    ends = np.cumsum([size, *batches])
    words = jax.random.bits(key, (2, int(ends[-1]) + size), np.uint32)
    for_tasks, for_upper, for_lower, for_direction = jnp.split(words, ends, axis=1)
    if sampling.probabilities is None:
        tasks = distinct_tasks(for_tasks, m)
        weights = jnp.full(size, m / size, problem.dtype)
    else:
        tasks = weighted_tasks(for_tasks, sampling.probabilities)
        weights = 1 / (size * jnp.asarray(sampling.probabilities, problem.dtype)[tasks])

    return Draw(
        tasks=tasks,
        weights=weights,
        upper=_batches(problem.upper_data, tasks, sampling.batch_size, for_upper),
        lower=_batches(problem.lower_data, tasks, sampling.batch_size, for_lower),
        direction_tasks=distinct_tasks(for_direction, m),
    )


def batches_of_all(
    problem: Problem, key: Key[Array, ""], upper: Sequence[int | None], lower: Sequence[int | None]
) -> tuple[list[Batches], list[Batches]]:
    """Independent batches of the given sizes for every task, of the upper and of the lower data; one call for bits."""
    tasks = jnp.arange(problem.num_tasks, dtype=jnp.int32)
    wanted = [(problem.upper_data, size) for size in upper] + [(problem.lower_data, size) for size in lower]
    sizes = [0 if _takes_all(data, size) else len(tasks) * (size or 0) for data, size in wanted]
    words = jnp.split(jax.random.bits(key, (2, sum(sizes)), np.uint32), np.cumsum(sizes), axis=1)
    drawn = [_batches(data, tasks, size, own) for (data, size), own in zip(wanted, words[: len(wanted)], strict=True)]
    return drawn[: len(upper)], drawn[len(upper) :]


def batch_of_all(problem: Problem, key: Key[Array, ""], k: Any, size: int | None) -> Batches:
    """The k-th of any number of independent batches of every task, of the lower data."""
    return batches_of_all(problem, jax.random.fold_in(key, k), (), (size,))[1][0]


def same_task(left: Int[Array, " A"], right: Int[Array, " B"]) -> Bool[Array, "A B"]:
    """Where a task of `left` is a task of `right`."""
    return left[:, None] == right[None, :]


def repeats(sampling: Sampling, tasks: Int[Array, " B"]) -> Bool[Array, "B B"] | None:
    """Where two draws are of one task; `None` where that cannot happen."""
    return same_task(tasks, tasks) if sampling.with_replacement else None


def merged(same: Bool[Array, "B B"] | None, contributions: PyTree) -> PyTree:
    """Give every draw of a task the sum of the contributions of all draws of that task."""
    if same is None:
        return contributions
    add: Callable[[Array], Array] = lambda leaf: jnp.tensordot(same.astype(leaf.dtype), leaf, axes=1)
    return jax.tree.map(add, contributions)


def looked_at(same: Bool[Array, "B B"] | None, indices: Int[Array, "B batch"] | None) -> Int[Array, "B e"] | None:
    """The samples that any draw of a task looked at: its own batch, or all batches where tasks can repeat."""
    if same is None or indices is None:
        return indices
    return jnp.broadcast_to(indices.reshape(1, -1), (len(indices), indices.size))
