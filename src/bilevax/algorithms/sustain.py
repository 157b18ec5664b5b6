"""SUSTAIN (Khanduri et al. 2021): momentum on both levels, STORM on ∇y g and on the hypergradient; a single loop.

    G(x, y) = mean_i ∇x f_i(x, y_i; ξ) − ∇²xy g_i(x, y_i; ζ')·h_i,
    h_i = Qϑ · Π_{k=1..p_i}(I − ϑ∇²yy g_i(x, y_i; ζ_k)) ∇y f_i(x, y_i; ξ),   p_i uniform on {0, ..., Q−1}
    w_i ← (1−β_g)(w_i − ∇y g_i(before; ζ)) + ∇y g_i(now; ζ),   z ← (1−β_f)(z − G(before)) + G(now)
    y_i ← y_i − β w_i,   x ← x − α z

Õ(ε⁻³) samples to an ε-stationary point, with α_t ∝ t^(−1/3) and both mixings ∝ α_t².
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key

from bilevax import arguments, draw, estimator
from bilevax.algorithms.contract import Algorithm, described
from bilevax.algorithms.frame import Change, Move, RatesAt, Start, State, assemble, count_cost
from bilevax.algorithms.parts.all_tasks import AllTasks, Rows, common, lower_gradients, upper_gradients
from bilevax.algorithms.parts.hypergradient import Points, hypergradient
from bilevax.algorithms.parts.neumann import NEUMANN_STEP, Series, random_length
from bilevax.algorithms.registry.tuning import MIXED_STEPS, NEUMANN_TERMS, SERIES, Tuning, constant_steps
from bilevax.algorithms.start import all_tasks, first_points
from bilevax.problem import Problem
from bilevax.schedule import RateRule

UPPER_STEP, LOWER_STEP = RateRule(0.5, "step", 0, 100, 1 / 3), RateRule(0.5, "1/smoothness", 0, 1000, 1 / 3)
MIXING = RateRule(0.5, "1", 0, 100, 2 / 3)


class Own(NamedTuple):
    """y of every task, the previous point, and the estimates z of ∇F and w of every ∇y g_i."""

    y: Rows
    x_before: Float[Array, " d"]
    y_before: Rows
    z: Float[Array, " d"]
    w: Rows


@dataclass(frozen=True, eq=False)
class SUSTAIN(AllTasks):
    """SUSTAIN with its settings; MRBO is the same with another series for h."""

    series: Series

    def start(self, problem: Problem, key: Key[Array, ""]) -> Start:
        """y as the first batch says; the first sample makes the estimates."""
        point_key, _ = jax.random.split(key)
        y, cost = first_points(problem, self.first, point_key)
        return Start(Own(y, problem.x0, y, jnp.zeros_like(problem.x0), jnp.zeros_like(y)), (), cost)

    def step(
        self, problem: Problem, rates_at: RatesAt, state: State, key: Key[Array, ""], move: Callable[[Array], Move]
    ) -> Change:
        """STORM on both estimates, then a step along each; β_g = β_f = 1 at t = 1 starts them from the first sample."""
        rates, own, size, tasks = rates_at(state.step), state.own, self.batch_size, all_tasks(problem)
        series_key, key = jax.random.split(key)
        (xi,), (zeta, cross) = draw.batches_of_all(problem, key, (size,), (size, size))
        factors = self.series.draw(problem, series_key)

        def sample(x: Array, y: Rows) -> Array:
            h = self.series.apply(problem, rates.neumann_step, x, y, upper_gradients(problem, x, y, xi), factors)
            return hypergradient(problem, Points(x, y, h), (tasks, xi, cross))

        def storm(estimate: Array, of: Callable[[Array, Rows], Array], mixing: Array) -> Array:
            mixing = jnp.where(state.step == 1, 1, mixing)
            new = estimator.innovation(of(state.x, own.y), of(own.x_before, own.y_before), mixing)
            return estimator.storm(estimate, new, mixing)

        w = storm(own.w, lambda x, y: lower_gradients(problem, x, y, zeta), rates.mixing.g_y)
        z = storm(own.z, sample, rates.mixing.direction)
        x = move(z)
        y = own.y - rates.lower_step * w
        cost = count_cost(problem.upper_data, tasks, size, gradients=2)
        cost += count_cost(problem.lower_data, tasks, size, gradients=2)
        cost += count_cost(problem.lower_data, tasks, size, products=2)
        cost += self.series.cost(problem, factors, 2)
        after = Own(y, state.x, own.y, z, w)
        return Change(x, after, cost, ((y, z, w), x.optimizer))


@described(
    paper="Khanduri et al. 2021",
    loops="single",
    batch="O(1)",
    samples="ε⁻³",
    tasks="all",
    memory="d'",
    curvature="Neumann series, random length",
    accepts="any",
    tuning=Tuning("SUSTAIN", {**MIXED_STEPS, "series": SERIES}, constant_steps, NEUMANN_TERMS),
)
@arguments.known_keywords
def sustain(
    *,
    upper_step: Any = UPPER_STEP,
    lower_step: Any = LOWER_STEP,
    mixing: Any = MIXING,
    neumann_step: Any = NEUMANN_STEP,
    neumann_terms: int = 10,
    batch_size: int | None = 32,
    upper_optimizer: optax.GradientTransformation | None = None,
    initialization: str = "theorem",
    initial_batch_size: int | None = None,
) -> Algorithm:
    """SUSTAIN: STORM on ∇y g and on ∇x f − ∇²xy g·h, h = Qϑ Π(I − ϑ∇²yy g)∇y f; x ← x − α z, y ← y − β w.

    - `upper_step` (α), `lower_step` (β): numbers or schedules of the step. `mixing`: β_g for ∇y g (as `Mixing.g_y`) and
      β_f for the hypergradient (`direction`).
    - `neumann_step` (ϑ): at most 1/L_g, found where not given; `neumann_terms` (Q): the bias is (1 − ϑλ)^Q.
    - `batch_size`: samples of every task for each gradient and each factor.

    All tasks are looked at in every step. Source: Khanduri, Zeng,
    Hong, Wai, Wang, Yang, A Near-Optimal Algorithm for Stochastic Bilevel Optimization via Double-Momentum, NeurIPS
    2021, Algorithm 1.
    """
    settings = dict(locals())
    series = random_length("sustain", neumann_step, neumann_terms, batch_size)
    return assemble("sustain", SUSTAIN(**common(settings), series=series), settings)
