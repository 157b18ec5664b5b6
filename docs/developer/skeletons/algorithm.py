"""Alternating steps: y first, then h ≈ [∇²yy g]⁻¹∇y f, then x. A skeleton: copy it and put your own box here.

    1  y_i ← y_i − ρ ∇y g_i(x, y_i; ζ)
    2  h_i ← h_i − ρ (∇²yy g_i(x, y_i; ζ)·h_i − ∇y f_i(x, y_i; ξ))
    3  x ← x − γ mean_i (∇x f_i(x, y_i; ξ) − ∇²xy g_i(x, y_i; ζ)·h_i)

for every task i, each line at what the line before it gave. SOBA takes all three at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key

import bilevax as bx
from bilevax import arguments, draw
from bilevax.algorithms.frame import Change, Method, Move, Optimizer, RatesAt, Start, State, assemble, count_cost
from bilevax.algorithms.registry.tuning import STEPS, constant_steps
from bilevax.algorithms.start import FirstBatch, all_tasks, first_batch_of, first_points
from bilevax.samples import Indices
from bilevax.schedule import Rates, as_rates


class Own(NamedTuple):
    """What is carried beside x: y and h of every task."""

    y: Float[Array, "m dy"]
    h: Float[Array, "m dy"]


@dataclass(frozen=True, eq=False)
class Alternating(Method):
    """The method with its settings; the frame needs `rates` and `optimizer`."""

    rates: Rates
    optimizer: Optimizer
    batch_size: int | None
    first: FirstBatch

    def start(self, problem: bx.Problem, key: Key[Array, ""]) -> Start:
        """y as the first batch says, h = 0."""
        y, cost = first_points(problem, self.first, key)
        return Start(own=Own(y, jnp.zeros_like(y)), tables=(), cost=cost)

    def step(
        self, problem: bx.Problem, rates_at: RatesAt, state: State, key: Key[Array, ""], move: Callable[[Array], Move]
    ) -> Change:
        """Lines 1 to 3."""
        rho, x, tasks = rates_at(state.step).lower_step, state.x, all_tasks(problem)
        (xi,), (zeta,) = draw.batches_of_all(problem, key, (self.batch_size,), (self.batch_size,))

        def of_task(i: Array, y: Array, h: Array, xi: Indices, zeta: Indices) -> tuple[Array, Array, Array]:
            y = y - rho * problem.lower_gradient(x, y, i, zeta)  # line 1
            f_x, f_y = problem.upper_gradients(x, y, i, xi)
            _, second = problem.lower_derivatives(x, y, i, zeta)  # h ↦ (∇²xy g·h, ∇²yy g·h)
            h = h - rho * (second(h)[1] - f_y)  # line 2
            return y, h, f_x - second(h)[0]

        y, h, z = jax.vmap(of_task)(tasks, *state.own, xi, zeta)
        x_after, own = move(z.mean(0)), Own(y, h)  # line 3
        cost = count_cost(problem.upper_data, tasks, self.batch_size, gradients=1)
        cost += count_cost(problem.lower_data, tasks, self.batch_size, gradients=2, products=2)
        return Change(move=x_after, own=own, cost=cost, watch=(own, x_after.optimizer))


@bx.described(
    paper="a skeleton",
    loops="single",
    batch="O(1)",
    samples="unknown",
    tasks="all",
    memory="d'",
    curvature="h followed",
    accepts="any",
    tuning=bx.Tuning("Alternating", STEPS, constant_steps),
)
@arguments.known_keywords
def alternating(
    *,
    upper_step: Any = 0.05,
    lower_step: Any = 0.2,
    batch_size: int | None = 32,
    upper_optimizer: optax.GradientTransformation | None = None,
    initialization: str = "theorem",
    initial_batch_size: int | None = None,
) -> bx.Algorithm:
    """Alternating steps: y, then h, then x, each at what the one before gave.

    `upper_step` (γ) and `lower_step` (ρ) are numbers or schedules of the step. All tasks are looked at in every step.
    """
    settings = dict(locals())
    method = Alternating(
        rates=as_rates(upper_step, lower_step, 1.0, 1.0, upper_optimizer),
        optimizer=upper_optimizer,
        batch_size=batch_size,
        first=first_batch_of(initialization, initial_batch_size, batch_size),
    )
    return assemble("alternating", method, settings)


if __name__ == "__main__":
    from bilevax.testing import check_algorithm

    check_algorithm(alternating)
    truth = bx.problems.quadratic(num_tasks=3, noise=0.05)
    result = bx.solve(truth.problem, alternating(), steps=2000)
    print(result)
    print("‖x − x*‖ =", float(jnp.linalg.norm(result.x - truth.solution)))
