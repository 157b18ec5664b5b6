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
    """The exact F at every point that L-BFGS looks at within a given time, one at least."""
    import scipy.optimize

    near = metrics.exact(problem, problem.x0).y  # compiled before the clock starts
    begun, trace = time.perf_counter(), Trace()

    def value_and_gradient(x: np.ndarray) -> tuple[float, Any]:
        nonlocal near
        if trace.rows and time.perf_counter() - begun > seconds:
            raise StopIteration
        at = metrics.exact(problem, jnp.asarray(x, problem.dtype), near)
        near = at.y
        spent = time.perf_counter() - begun
        trace.add({"step": len(trace), "samples": 0, "seconds": spent, "objective": at.objective})
        return float(at.objective), np.asarray(at.gradient, float)

    with contextlib.suppress(StopIteration):
        scipy.optimize.minimize(value_and_gradient, np.asarray(problem.x0, float), jac=True, method="L-BFGS-B")
    return trace
