"""What a run records of itself by default, with lower problems solved."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bilevax import arguments
from bilevax.algorithms.contract import Variables
from bilevax.exact.evaluation import exact
from bilevax.problem import Problem
from bilevax.run.reached import MANY
from bilevax.shards import COMMON, ROWS, spread

EXCERPT = 128  # tasks that are looked at where there are many


def exact_metrics(
    problem: Problem, variables: Variables, *, all_tasks: bool = False
) -> dict[str, Float[Array, ""] | float]:
    """What `solve` records by default: F(x) and its error, ‖∇F(x)‖ and the mean of ‖y_i − y_i*(x)‖².

    With more than 20,000 tasks these are of 128 of them, drawn once, always the same: solving all lower problems
    takes longer than most runs. `objective_error` then holds the standard error of F, and the noise of ∇F is part of
    `grad_norm`, so it does not fall to zero. `metrics=partial(bx.exact_metrics, all_tasks=True)` looks at all.
    """
    for name, value, kind in [("problem", problem, Problem), ("variables", variables, Variables)]:
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be a bilevax.{kind.__name__}; got {type(value).__name__}.")
    arguments.flag("all_tasks", all_tasks)
    some = None if all_tasks else tasks_of_metrics(problem)
    y = variables.y_of(problem, some)
    truth = exact(problem, variables.x, y, some)
    return {
        "objective": truth.objective,
        "grad_norm": jnp.linalg.norm(truth.gradient),
        "lower_gap": _lower_gap(problem, y, truth.y),
        "objective_error": truth.objective_error,
    }


def _lower_gap(problem: Problem, y: Float[Array, "n dy"], solutions: Float[Array, "n dy"]) -> Float[Array, ""]:
    """The mean of ‖y_i − y_i*‖², over these tasks."""
    mean = lambda problem, y, truth: problem.shards.mean(jnp.mean(jnp.sum((y - truth) ** 2, axis=1)))
    return spread(mean, (ROWS, ROWS), COMMON)(problem, y, solutions)


def tasks_of_metrics(problem: Problem) -> Int[Array, " k"] | None:
    """The tasks that are looked at by default, on shards the same numbers in each; None where it is all of them."""
    shards = problem.shards.count
    return None if problem.num_tasks <= MANY else _draw(problem.num_tasks // shards, -(-EXCERPT // shards))


@lru_cache(maxsize=8)
def _draw(num_tasks: int, count: int) -> Int[Array, " k"]:
    with jax.ensure_compile_time_eval():
        return jnp.asarray(np.sort(np.random.default_rng(0).choice(num_tasks, count, replace=False)), jnp.int32)


def words_on_metrics(problem: Problem) -> tuple[str, ...]:
    """What is said where not all tasks, or not all samples, are looked at."""
    told = []
    if tasks_of_metrics(problem) is not None:
        some = f"{EXCERPT:,} of {problem.num_tasks:,} tasks, drawn once"
        told.append(f"What is recorded of F is of {some}; objective_error holds its standard error.")
    seen = [data.max_length for data in (problem.upper_data, problem.lower_data) if data.is_partly_seen]
    if seen:
        told.append(f"What is recorded of F is of {min(seen):,} samples, always the same ones; many= asks for more.")
    return tuple(told)
