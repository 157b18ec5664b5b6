"""What rates are made of that nobody gave: measured on some tasks and samples when a run starts.

- L_g: a few power iterations on ∇²yy g_i, on a batch of each of some tasks.
- How far x may go: F and ∇F of some tasks at x_0, and then F(x_0 − t∇F) for t = t_0, 4t_0, 16t_0, ... for as long as it
  falls by half of what the slope promises, or t_0/4, t_0/16, ... until it does; t_0 would bring a linear F to zero.
  For a quadratic F that is 1/L along ∇F, to a factor of four.

Both are free of units: f, g, x, y and the data may be multiplied by anything.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from bilevax import draw
from bilevax.exact.follow import LowerPoint, follow, invert
from bilevax.problem import Problem, X
from bilevax.samples import Indices, NoData
from bilevax.schedule import Scales
from bilevax.shards import COMMON, ROWS, spread
from bilevax.tasks import pick

TASKS, MOST_TASKS, SAMPLES = 16, 512, 512  # looked at for F, more than 16 tasks where samples of each are few
X_FOR_SAMPLE = 64  # so many variables of x count like a sample: each task has a gradient of its own
MATRIX = 64  # variables for which H_i is formed
SMOOTHNESS_TASKS, PRODUCTS = 64, 12  # looked at for L_g, and power iterations for each
GROWTH, MOST_STEPS_UP, MOST_STEPS_DOWN = 4.0, 14, 32
FALL = 0.5  # of what the slope promises


def count_tasks(problem: Problem, num_tasks: int) -> int:
    """How many of so many tasks are looked at for F: few tell little of the others, 16 large ones are work enough."""
    longest = max(problem.upper_data.max_length, problem.lower_data.max_length)
    size = max(longest, problem.dim_y, problem.dim_x // X_FOR_SAMPLE, 1)
    return min(num_tasks, MOST_TASKS, TASKS * SAMPLES // min(size, SAMPLES))


def evenly(count: int, most: int) -> Int[Array, " k"]:
    """At most so many of 0, ..., count − 1, spread evenly."""
    k = min(count, most)
    return jnp.asarray(np.arange(k) * count // k, jnp.int32)


def tasks_of_excerpt(problem: Problem, num_tasks: int) -> Int[Array, " k"]:
    """The tasks that are looked at for F, of so many: of all, or of those of a shard."""
    return evenly(num_tasks, count_tasks(problem, num_tasks))


class Excerpt:
    """F and ∇F of some tasks of a problem, on some of their samples: what a run is steered by."""

    def __init__(self, problem: Problem, key: Key[Array, ""]):
        self.problem, self.tasks = problem, tasks_of_excerpt(problem, problem.num_tasks)
        size_of = lambda data: None if data.max_length <= SAMPLES else SAMPLES

        def samples(i: Int[Array, ""]) -> tuple[Indices, Indices]:
            upper_key, lower_key = jax.random.split(jax.random.fold_in(key, i))
            xi = draw.batch_indices(upper_key, problem.upper_data, i, size_of(problem.upper_data))
            return xi, draw.batch_indices(lower_key, problem.lower_data, i, size_of(problem.lower_data))

        self.samples = jax.vmap(samples)(self.tasks)

    def start(self, x: X) -> LowerPoint:
        """Where the lower problems begin."""
        problem, as_matrix = self.problem, self.problem.dim_y <= MATRIX
        y = jax.vmap(problem.y0_of)(self.tasks)
        near = lambda y, i, zeta: invert(problem, x, y, i, as_matrix, zeta)
        return LowerPoint(y, jnp.zeros_like(y), jax.vmap(near)(y, self.tasks, self.samples[1]))

    def look(self, x: X, at: LowerPoint) -> tuple[Float[Array, ""], X, LowerPoint]:
        """F, ∇F and the lower problems at x."""
        one = lambda task, i, xi, zeta: follow(self.problem, x, task, i, xi, zeta)
        term, y, h = jax.vmap(one)(at, self.tasks, *self.samples)
        F, gradient = self.problem.shards.mean((term.objective.mean(), term.gradient.mean(0)))
        return F, gradient, LowerPoint(y, h, at.near)


@jax.jit
def excerpt_objective(problem: Problem, x: X, key: Key[Array, ""]) -> Float[Array, ""]:
    """F(x) of some tasks, on some of their samples: always the same for a key."""
    excerpt = Excerpt(problem, key)
    return excerpt.look(x, excerpt.start(x))[0]


@jax.jit
def excerpt_look(
    problem: Problem, x: X, y: Float[Array, "n dy"], key: Key[Array, ""]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """F(x) of an excerpt, as above, and how far f is from there at these y: mean |f_i(x, y_i) − f_i(x, y_i*)|.

    y is that of all tasks, or of those of the excerpt.
    """
    return spread(_look, (COMMON, ROWS, COMMON), COMMON)(problem, x, y, key)


def _look(problem: Problem, x: X, y: Float[Array, "n dy"], key: Key[Array, ""]) -> tuple[Array, Array]:
    excerpt = Excerpt(problem, key)
    loss = lambda y, i, xi: problem.upper_loss(x, y, i, xi)
    at = excerpt.look(x, excerpt.start(x))
    rows = pick(y, excerpt.tasks, problem.num_tasks)
    best, own = (jax.vmap(loss)(y, excerpt.tasks, excerpt.samples[0]) for y in (at[2].y, rows))
    return at[0], problem.shards.mean(jnp.abs(own - best).mean())


class _Search(NamedTuple):
    """F, its slope and the lower problems at x_0, the step looked at last and whether it was good, and all looks."""

    F: Float[Array, ""]
    gradient: X
    at: LowerPoint
    t: Float[Array, ""]
    first_is_good: Bool[Array, ""]
    is_good: Bool[Array, ""]
    looks: Int[Array, ""]


def _longest_step(excerpt: Excerpt, x: X) -> tuple[Float[Array, ""], Int[Array, ""]]:
    """How far F falls along −∇F as its slope promises, and at how many points F was looked at.

    One loop for all looks, that at x_0 included: what a look does is compiled once.
    """

    def look(now: _Search) -> _Search:
        square = now.gradient @ now.gradient
        first = jnp.where(now.F == 0, 1, jnp.abs(now.F)) / jnp.where(square == 0, 1, square)
        factor = jnp.where(now.first_is_good, GROWTH, 1 / GROWTH).astype(x.dtype)
        t = jnp.where(now.looks == 0, 0, jnp.where(now.looks == 1, first, factor * now.t))
        F, gradient, at = excerpt.look(x - t * now.gradient, now.at)
        is_good = now.F - FALL * t * square >= F
        is_start, was_first = now.looks == 0, now.looks == 1
        start = jax.tree.map(partial(jnp.where, is_start), (F, gradient, at), (now.F, now.gradient, now.at))
        first_is_good = jnp.where(was_first, is_good, now.first_is_good)
        return now._replace(
            F=start[0], gradient=start[1], at=start[2], t=t, first_is_good=first_is_good, is_good=is_good,
            looks=now.looks + 1,
        )  # fmt: skip

    def goes_on(now: _Search) -> Bool[Array, ""]:
        most = jnp.where(now.first_is_good, MOST_STEPS_UP, MOST_STEPS_DOWN)
        return (now.looks < 2) | ((now.is_good == now.first_is_good) & (now.looks < most))

    zero, yes = jnp.zeros((), x.dtype), jnp.asarray(True)
    first = _Search(zero, jnp.zeros_like(x), excerpt.start(x), zero, yes, yes, jnp.int32(0))
    end = jax.lax.while_loop(goes_on, look, first)
    return jnp.where(end.first_is_good, end.t / GROWTH, end.t), end.looks


def _smoothness(problem: Problem, key: Key[Array, ""], size: int | None) -> Float[Array, ""]:
    """The largest eigenvalue of ∇²yy g_i on a batch, of some tasks, at x_0 and y_0; at least λ."""
    if not problem.structure.estimates_hessian and problem.structure.needs_hessian:
        return jnp.asarray(problem.strong_convexity, problem.dtype)
    start = jax.random.normal(key, (problem.dim_y,), problem.dtype)

    def of_task(i: Int[Array, ""]) -> Array:
        zeta = draw.batch_indices(jax.random.fold_in(key, i), problem.lower_data, i, size)
        second = problem.lower_derivatives(problem.x0, problem.y0_of(i), i, zeta)[1]
        unit = lambda v: v / jnp.maximum(jnp.linalg.norm(v), jnp.finfo(v.dtype).tiny)
        v = jax.lax.fori_loop(0, PRODUCTS, lambda _, v: unit(second(v)[1]), unit(start))
        return jnp.linalg.norm(second(v)[1])

    each = jax.lax.map(of_task, evenly(problem.num_tasks, SMOOTHNESS_TASKS), batch_size=8)  # all samples may be many
    return jnp.maximum(each.max(), problem.strong_convexity)


def measure_scales(problem: Problem, key: Key[Array, ""], size: int | None, share: float) -> tuple[Scales, Any, Any]:
    """The scales of a problem for batches of this size, and about the samples and gradients that they took."""
    excerpt = Excerpt(problem, key)
    step, looks = _longest_step(excerpt, problem.x0)
    smoothness = problem.shards.largest(_smoothness(problem, key, size))
    good = lambda value: jnp.where(jnp.isfinite(value) & (value > 0), value, 1)
    parts = [data for data in (problem.upper_data, problem.lower_data) if not isinstance(data, NoData)]
    numbers = [min(data.max_length, SAMPLES) for data in parts]
    tasks = evenly(problem.num_tasks, SMOOTHNESS_TASKS)
    samples = float(len(excerpt.tasks) * sum(numbers)) + draw.count_samples(problem.lower_data, tasks, size)
    smoothness = good(smoothness)
    condition = jnp.minimum(problem.strong_convexity / smoothness, 1)
    scales = Scales(good(step), smoothness, jnp.asarray(share, problem.dtype), condition, jnp.ones((), problem.dtype))
    return scales, samples, samples * looks.astype(float)
