"""BSA (Ghadimi and Wang 2018): steps on y until it is close enough, then one step on x; a double loop.

    y_i ← y_i − β_k ∇y g_i(x, y_i; ζ)                         t_k times, t_k = ⌈√k⌉, from the last y_i
    h_i = Qϑ · Π_{q=1..p_i}(I − ϑ∇²yy g_i(x, y_i; ζ_q)) ∇y f_i(x, y_i; ξ),   p_i uniform on {0, ..., Q−1}
    x ← x − α_k mean_i(∇x f_i(x, y_i; ξ) − ∇²xy g_i(x, y_i; ζ')·h_i)

O(ε⁻⁶) samples of the lower problem to an ε-stationary point.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Key

from bilevax import arguments, draw
from bilevax.algorithms.contract import Algorithm, described
from bilevax.algorithms.frame import Change, Move, RatesAt, Start, State, assemble, count_cost
from bilevax.algorithms.parts.all_tasks import AllTasks, Rows, common, descend, upper_gradients
from bilevax.algorithms.parts.hypergradient import Points, hypergradient
from bilevax.algorithms.parts.neumann import NEUMANN_STEP, Series, random_length
from bilevax.algorithms.registry.tuning import FALLING_STEPS, NEUMANN_TERMS, TWO_SCALES, Tuning, two_scale_steps
from bilevax.algorithms.start import all_tasks, first_points
from bilevax.problem import Problem
from bilevax.schedule import RateRule, Step, check_count

UPPER_STEP, LOWER_STEP = RateRule(0.5, "step", 0, 100, 1 / 2), RateRule(0.5, "1/smoothness", 0, 1000, 1 / 4)


def _root(t: Step) -> Any:
    """⌈√t⌉."""
    return jnp.ceil(jnp.sqrt(jnp.asarray(t, jnp.float32)))


class Own(NamedTuple):
    """y of every task: nothing else is kept."""

    y: Rows


@dataclass(frozen=True, eq=False)
class BSA(AllTasks):
    """BSA with its settings; `inner_steps` is a number, or a function of the step.

    TTSA and StocBio are the same with other inner steps and another series.
    """

    inner_steps: Any
    series: Series

    def start(self, problem: Problem, key: Key[Array, ""]) -> Start:
        """y as the first batch says."""
        point_key, _ = jax.random.split(key)
        y, cost = first_points(problem, self.first, point_key)
        return Start(Own(y), (), cost)

    def step(
        self, problem: Problem, rates_at: RatesAt, state: State, key: Key[Array, ""], move: Callable[[Array], Move]
    ) -> Change:
        """Inner steps on y, h by the series where y has come to, and one step on x."""
        rates, x, size = rates_at(state.step), state.x, self.batch_size
        inner_key, series_key, key = jax.random.split(key, 3)
        steps = self.inner_steps(state.step) if callable(self.inner_steps) else self.inner_steps
        steps = jnp.asarray(steps, jnp.int32)
        y = descend(problem, x, state.own.y, inner_key, steps, rates.lower_step, size)  # y_i ← y_i − β_k ∇y g_i
        (xi,), (zeta,) = draw.batches_of_all(problem, key, (size,), (size,))
        factors, tasks = self.series.draw(problem, series_key), all_tasks(problem)
        h = self.series.apply(problem, rates.neumann_step, x, y, upper_gradients(problem, x, y, xi), factors)
        after = move(hypergradient(problem, Points(x, y, h), (tasks, xi, zeta)))  # x ← x − α_k(∇x f_i − ∇²xy g_i·h_i)
        cost = count_cost(problem.lower_data, tasks, size, times=steps.astype(float), gradients=1)
        cost += count_cost(problem.upper_data, tasks, size, gradients=1)
        cost += count_cost(problem.lower_data, tasks, size, products=1)
        cost += self.series.cost(problem, factors, 1)
        return Change(after, Own(y), cost, (y, after.optimizer))


@described(
    paper="Ghadimi, Wang 2018",
    loops="double",
    batch="O(1)",
    samples="ε⁻⁶",
    tasks="all",
    memory="nothing",
    curvature="Neumann series, random length",
    accepts="any",
    tuning=Tuning("BSA", FALLING_STEPS, two_scale_steps, NEUMANN_TERMS, TWO_SCALES),
)
@arguments.known_keywords
def bsa(
    *,
    upper_step: Any = UPPER_STEP,
    lower_step: Any = LOWER_STEP,
    inner_steps: Any = _root,
    neumann_step: Any = NEUMANN_STEP,
    neumann_terms: int = 10,
    batch_size: int | None = 32,
    upper_optimizer: optax.GradientTransformation | None = None,
    initialization: str = "theorem",
    initial_batch_size: int | None = None,
) -> Algorithm:
    """BSA: inner steps on y, h = Qϑ Π(I − ϑ∇²yy g)∇y f of random length, x ← x − α(∇x f − ∇²xy g·h).

    - `upper_step` (α_k), `lower_step` (β_k): numbers or schedules of the step; `inner_steps` (t_k): a whole number, or
      a function of the step, by default ⌈√k⌉.
    - `neumann_step` (ϑ): at most 1/L_g, found where not given; `neumann_terms` (Q): the bias is (1 − ϑλ)^Q.
    - `batch_size`: samples of every task for each gradient and each factor.

    All tasks are looked at in every step. Source: Ghadimi, Wang,
    Approximation Methods for Bilevel Programming, 2018.
    """
    settings = dict(locals())
    check_count("inner_steps", inner_steps)
    series = random_length("bsa", neumann_step, neumann_terms, batch_size)
    return assemble("bsa", BSA(**common(settings), inner_steps=inner_steps, series=series), settings)
