"""What a run records of itself by default, with every lower problem solved."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from bilevax.algorithms.contract import Variables
from bilevax.exact.evaluation import exact
from bilevax.problem import Problem


def exact_metrics(problem: Problem, variables: Variables) -> dict[str, Float[Array, ""]]:
    """What `solve` records by default: F(x) and its error, ‖∇F(x)‖ and the mean of ‖y_i − y_i*(x)‖²."""
    for name, value, kind in [("problem", problem, Problem), ("variables", variables, Variables)]:
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be a bilevax.{kind.__name__}; got {type(value).__name__}.")
    truth = exact(problem, variables.x, variables.y)
    gaps = jnp.sum((variables.y - truth.y) ** 2, axis=1)
    return {
        "objective": truth.objective,
        "grad_norm": jnp.linalg.norm(truth.gradient),
        "lower_gap": jnp.mean(gaps),
        "objective_error": truth.objective_error,
    }
