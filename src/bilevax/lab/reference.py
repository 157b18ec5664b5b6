"""F* as well as it is known: L-BFGS (scipy) on the exact F and ∇F."""

import contextlib
import time
from typing import Any

import jax.numpy as jnp
import numpy as np

from bilevax.exact import evaluation
from bilevax.problem import Problem
from bilevax.run.trace import Trace


def run_lbfgs(problem: Problem, seconds: float) -> Trace:
    """The exact F at every point that L-BFGS looks at within a given time, one at least.

    It goes on for as long as F falls. F is measured in units of its steepest slope at x_0: scipy takes small numbers
    for the end, and with x_j the weight of one of n samples all slopes are of order 1/n.
    """
    import scipy.optimize

    first = evaluation.exact(problem, problem.x0)
    first = evaluation.exact(problem, problem.x0, first.y)  # compiled with a start of its own before the clock starts
    unit, near = float(jnp.max(jnp.abs(first.gradient))) or 1.0, first.y
    start, trace = time.perf_counter(), Trace()

    def value_and_gradient(x: np.ndarray) -> tuple[float, Any]:
        nonlocal near
        if trace.rows and time.perf_counter() - start > seconds:
            raise StopIteration
        at = evaluation.exact(problem, jnp.asarray(x, problem.dtype), near)
        near = at.y
        now = time.perf_counter() - start
        trace.add({"step": len(trace), "samples": 0, "seconds": now, "objective": at.objective})
        return float(at.objective) / unit, np.asarray(at.gradient, float) / unit

    endless = {"ftol": 0.0, "gtol": 0.0, "maxiter": 10**6, "maxfun": 10**6}
    first_x = np.asarray(problem.x0, float)
    with contextlib.suppress(StopIteration):
        scipy.optimize.minimize(value_and_gradient, first_x, jac=True, method="L-BFGS-B", options=endless)
    return trace
