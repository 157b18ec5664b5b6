"""One visit to a drawn task: what its samples tell, and lines 4, 5, 8 and 15 of Algorithm 2."""

from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float, PyTree

from bilevax import delay, estimator, oracle, projection
from bilevax.algorithms.state import Settings, Task
from bilevax.curvature.base import At
from bilevax.problem import Problem
from bilevax.schedule import Mixing, Rates


class Innovation(NamedTuple):
    """What the samples of one task tell about its five estimates."""

    f_x: Float[Array, " d"] | None
    f_y: Float[Array, " dy"]
    g_y: Float[Array, " dy"]
    curvature: PyTree


def look(
    problem: Problem, settings: Settings, x: Array, x_before: Array, mixing: Mixing, task: Task, drawn: tuple
) -> Innovation:
    """Fresh derivatives of one task at (x_t, y_t) and (x_{t−1}, y_{t−1}) on the same samples."""
    i, weight, xi, zeta = drawn
    now, before = (x, task.y), (x_before, task.y_before)
    f_x, f_y = oracle.upper_gradients(problem, *now, i, xi)
    f_x_before, f_y_before = oracle.upper_gradients(problem, *before, i, xi)
    g_y, second = oracle.lower_derivatives(problem, *now, i, zeta)
    g_y_before, second_before = oracle.lower_derivatives(problem, *before, i, zeta)
    new = Innovation(
        f_x=estimator.innovation(f_x, f_x_before, mixing.f_x) if problem.upper_uses_x else None,
        f_y=estimator.innovation(f_y, f_y_before, mixing.f_y),
        g_y=estimator.innovation(g_y, g_y_before, mixing.g_y),
        curvature=settings.curvature.innovation(
            problem, i, zeta, task.curvature, At(*now, second), At(*before, second_before), mixing
        ),
    )
    return jax.tree.map(lambda leaf: weight * leaf, new)


def update_vectors(
    problem: Problem, settings: Settings, rates: Rates, visit: delay.Reading, i: Any, task: Task, new: Innovation
) -> Task:
    """Lines 4, 5, 8 and 15 for a drawn task."""
    mixing, bounds = rates.mixing, settings.bounds(problem.bounds).of(i)
    f_x = None
    if task.f_x is not None and new.f_x is not None:
        f_x = projection.ball(estimator.storm(task.f_x, new.f_x, mixing.f_x), bounds.f_x)  # line 4, u
    f_y = projection.ball(estimator.storm(task.f_y, new.f_y, mixing.f_y), bounds.f_y)  # line 5, v
    g_y = estimator.storm(task.g_y, new.g_y, mixing.g_y)  # line 8, w
    trial = projection.onto(task.y - rates.lower_step * g_y, bounds.y)
    y = task.y + rates.relaxation * (trial - task.y)  # line 15
    return Task(y, task.y, f_x, f_y, g_y, task.curvature, visit)
