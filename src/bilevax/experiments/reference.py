"""F* as well as it is known: L-BFGS (scipy) on the exact F and ∇F."""

import contextlib
import time
from typing import Any

import jax.numpy as jnp
import numpy as np

from bilevax import metrics
from bilevax.problem import Problem
from bilevax.trace import Trace


def descend(problem: Problem, seconds: float) -> Trace:
    """The exact F at every point that L-BFGS looks at within a given time, one at least.

    It goes on for as long as F falls. F is measured in units of its steepest slope at x_0: scipy takes small numbers
    for the end, and with x_j the weight of one of n samples all slopes are of order 1/n.
    """
    import scipy.optimize

    first = metrics.exact(problem, problem.x0)  # compiled before the clock starts
    unit, near = float(jnp.max(jnp.abs(first.gradient))) or 1.0, first.y
    begun, trace = time.perf_counter(), Trace()

    def value_and_gradient(x: np.ndarray) -> tuple[float, Any]:
        nonlocal near
        if trace.rows and time.perf_counter() - begun > seconds:
            raise StopIteration
        at = metrics.exact(problem, jnp.asarray(x, problem.dtype), near)
        near = at.y
        spent = time.perf_counter() - begun
        trace.add({"step": len(trace), "samples": 0, "seconds": spent, "objective": at.objective})
        return float(at.objective) / unit, np.asarray(at.gradient, float) / unit

    endless = {"ftol": 0.0, "gtol": 0.0, "maxiter": 10**6, "maxfun": 10**6}
    start = np.asarray(problem.x0, float)
    with contextlib.suppress(StopIteration):
        scipy.optimize.minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", options=endless)
    return trace
