"""Which tasks and which samples a step looks at: unbiased, and never O(m)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from bilevax import arguments
from bilevax.data import Data, NoData
from bilevax.problem import Problem

Indices = Int[Array, " batch"] | None  # None: every sample there is


class Draw(NamedTuple):
    """The draws of one step. `weights` are 1 / (expected number of times the task is drawn)."""

    tasks: Int[Array, " B"]
    weights: Float[Array, " B"]
    upper: Int[Array, "B batch"] | None
    lower: Int[Array, "B batch"] | None
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


def distinct_tasks(key: Key[Array, ""], num_tasks: int, size: int) -> Int[Array, " size"]:
    """`size` distinct tasks, every subset equally likely, in O(size²) (Floyd 1987)."""
    tops = jnp.arange(num_tasks - size, num_tasks, dtype=jnp.int32)
    picks = jax.random.randint(key, (size,), 0, tops + 1, jnp.int32)

    def choose(k: Array, chosen: Array) -> Array:
        taken = jnp.any(chosen == picks[k])
        return chosen.at[k].set(jnp.where(taken, tops[k], picks[k]))

    return jax.lax.fori_loop(0, size, choose, jnp.full(size, -1, jnp.int32))


def weighted_tasks(key: Key[Array, ""], probabilities: Float[Array, " m"], size: int) -> Int[Array, " size"]:
    """`size` independent tasks with the given probabilities, by inverting their cumulative sums."""
    cumulative = np.cumsum(np.asarray(probabilities, float))
    # 32 random bits resolve small probabilities better than a float32 does.
    thresholds = np.floor(cumulative[:-1] / cumulative[-1] * 2.0**32).clip(0, 2.0**32 - 1).astype(np.uint32)
    points = jax.random.bits(key, (size,), np.uint32)
    return jnp.searchsorted(jnp.asarray(thresholds), points, side="right").astype(jnp.int32)


def batch_indices(key: Key[Array, ""], data: Data, i: Int[Array, ""], size: int | None) -> Indices:
    """`size` samples of task i, uniform with replacement; all of them for `None`."""
    if size is None or isinstance(data, NoData):
        return None
    return jax.random.randint(key, (size,), 0, data.length(i), jnp.int32)


def count_samples(data: Data, tasks: Int[Array, " B"], size: int | None) -> Float[Array, ""]:
    """How many samples batches of the given size for the given tasks hold in all."""
    if isinstance(data, NoData):
        return jnp.asarray(0.0)
    if size is not None:
        return jnp.asarray(float(size * len(tasks)))
    return jnp.sum(jax.vmap(lambda i: jnp.asarray(data.length(i), float))(tasks))


def draw_step(problem: Problem, sampling: Sampling, key: Key[Array, ""]) -> Draw:
    """The draws of one step: tasks i_t by p, their batches ξ and ζ, and tasks j_t uniformly."""
    m, size = problem.num_tasks, sampling.tasks_per_step
    task_key, upper_key, lower_key, direction_key = jax.random.split(key, 4)
    if sampling.probabilities is None:
        tasks = distinct_tasks(task_key, m, size)
        weights = jnp.full(size, m / size, problem.dtype)
    else:
        tasks = weighted_tasks(task_key, sampling.probabilities, size)
        weights = 1 / (size * jnp.asarray(sampling.probabilities, problem.dtype)[tasks])

    def batches(key: Key[Array, ""], data: Data) -> Int[Array, "B batch"] | None:
        keys = jax.random.split(key, size)
        return jax.vmap(lambda k, i: batch_indices(k, data, i, sampling.batch_size))(keys, tasks)

    return Draw(
        tasks=tasks,
        weights=weights,
        upper=batches(upper_key, problem.upper_data),
        lower=batches(lower_key, problem.lower_data),
        direction_tasks=distinct_tasks(direction_key, m, size),
    )


def same_task(left: Int[Array, " A"], right: Int[Array, " B"]) -> Bool[Array, "A B"]:
    """Where a task of `left` is a task of `right`."""
    return left[:, None] == right[None, :]


def merge_repeats(sampling: Sampling, tasks: Int[Array, " B"], contributions: PyTree) -> PyTree:
    """Give every draw of a task the sum of the contributions of all draws of that task."""
    if not sampling.with_replacement:
        return contributions
    same = same_task(tasks, tasks)
    add: Callable[[Array], Array] = lambda leaf: jnp.tensordot(same.astype(leaf.dtype), leaf, axes=1)
    return jax.tree.map(add, contributions)
