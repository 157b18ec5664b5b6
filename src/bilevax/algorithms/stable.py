"""STABLE (Chen, Sun, Xiao, Yin 2021): one loop on one time scale, with recursive estimates of ∇²g.

    V_i ← S^u_C[(1−τ)(V_i − ∇²xy g_i(before; ζ)) + ∇²xy g_i(now; ζ)],   H_i with S^l_λ likewise
    x⁺ = x − α mean_i(∇x f_i(x, y_i; ξ) − V_i H_i⁻¹ ∇y f_i(x, y_i; ξ))
    y_i ← y_i − β ∇y g_i(x, y_i; ζ) − H_i⁻¹V_iᵀ(x⁺ − x)

One batch ζ of a task serves V, H and ∇y g, as in the public implementation: a batch of its own for ∇y g would take half
as many samples again. The last term is where y_i* goes when x moves. α, β and τ of the same order, ∝ t^(−1/2); O(ε⁻⁴)
samples to an ε-stationary point. V and H are what a `bilevax.curvature` keeps of ∇²g.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, PyTree

from bilevax import arguments, chunks, draw, estimator, tasks
from bilevax import curvature as curvatures
from bilevax.algorithms.contract import Algorithm, described
from bilevax.algorithms.frame import Change, Move, RatesAt, Start, State, assemble, count_cost
from bilevax.algorithms.parts.all_tasks import AllTasks, Rows, common, lower_gradients
from bilevax.algorithms.registry.tuning import FALLING_MIXED_STEPS, ROOT, Tuning, root_steps
from bilevax.algorithms.start import all_tasks, first_points
from bilevax.curvature.contract import Curvature, Sample, Second, Update
from bilevax.problem import Problem
from bilevax.samples import Indices, numbers_of
from bilevax.schedule import RateRule, power

UPPER_STEP, LOWER_STEP = RateRule(0.5, "step", 0, 100, 1 / 2), RateRule(0.5, "1/smoothness", 0, 1000, 1 / 2)
MIXING = power(1, 0, 1 / 2)


class Own(NamedTuple):
    """y of every task, the previous point, and what is kept of ∇²g for every task."""

    y: Rows
    x_before: Float[Array, " d"]
    y_before: Rows
    VH: PyTree


def _sample(problem: Problem, x: Array, y: Array, i: Array, zeta: Indices) -> Sample:
    """What V and H look at; they do not look at ∇y f."""
    return Sample(i, zeta, x, y, jnp.zeros_like(y), problem.lower_derivatives(x, y, i, zeta)[1])


@dataclass(frozen=True, eq=False)
class STABLE(AllTasks):
    """STABLE with its settings."""

    curvature: Curvature | None = None

    def start(self, problem: Problem, key: Key[Array, ""]) -> Start:
        """y as the first batch says, V and H from a first batch of their own."""
        curvature = curvatures.choose(self.curvature, problem, pulls=True)
        point_key, own_key = jax.random.split(key)
        y, cost = first_points(problem, self.first, point_key)

        def first_matrices(i: Array) -> PyTree:
            _, zeta = self.first.indices(problem, own_key, i)
            sample = _sample(problem, problem.x0, y[i], i, zeta)
            return curvature.start(problem, sample, sample.f_y, problem.bounds_of(i))

        VH = chunks.start(first_matrices, problem.num_tasks, problem.work)
        size, products = self.first.size_of(problem.lower_data), curvature.products(problem)
        cost += count_cost(problem.lower_data, all_tasks(problem), size, products=products)
        return Start(Own(y, problem.x0, y, VH), (), cost)

    def step(
        self, problem: Problem, rates_at: RatesAt, state: State, key: Key[Array, ""], move: Callable[[Array], Move]
    ) -> Change:
        """V and H by STORM, x along u − V H⁻¹ v, y along −∇y g and to where y* goes with x."""
        curvature, numbers = curvatures.choose(self.curvature, problem, pulls=True), all_tasks(problem)
        rates, x, own, size = rates_at(state.step), state.x, state.own, self.batch_size
        (xi,), (zeta,) = draw.batches_of_all(problem, key, (size,), (size,))
        f_x, f_y = jax.vmap(lambda y, i, xi: problem.upper_gradients(x, y, i, xi))(own.y, numbers, xi)

        def learn(i: Array, y: Array, y_before: Array, v: Array, zeta: Indices, VH: PyTree) -> PyTree:
            now, before = _sample(problem, x, y, i, zeta), _sample(problem, own.x_before, y_before, i, zeta)
            fresh, old = curvature.observe(problem, VH, now, before)
            storm = lambda beta: lambda now, before: estimator.innovation(now, before, beta)
            new = Second(
                jax.tree.map(storm(rates.mixing.g_xy), fresh.cross, old.cross),
                jax.tree.map(storm(rates.mixing.g_yy), fresh.hessian, old.hessian),
            )
            return curvature.update(problem, rates, VH, new, Update(v, problem.bounds_of(i), numbers_of(zeta)))

        current = tasks.read(own.VH, numbers, numbers_of(zeta))
        after = jax.vmap(learn)(numbers, own.y, own.y_before, f_y, zeta, current)
        VH = tasks.write(own.VH, numbers, after, jnp.asarray(False), numbers_of(zeta))
        whole = jax.vmap(lambda own: curvature.factor(problem, own))(tasks.read(VH, numbers))
        corrections = jax.vmap(lambda own, v: curvature.correction(problem, own, v))(whole, f_y)
        x_after = move(jnp.mean(f_x - corrections, axis=0))
        pulls = jax.vmap(lambda own: curvature.pull(problem, own, x_after.x - x))(whole)
        y = own.y - rates.lower_step * lower_gradients(problem, x, own.y, zeta) - pulls
        cost = count_cost(problem.upper_data, numbers, size, gradients=1)
        cost += count_cost(problem.lower_data, numbers, size, gradients=1, products=2 * curvature.products(problem))
        after_step = Own(y, x, own.y, VH)
        return Change(x_after, after_step, cost, (y, VH, x_after.optimizer))


def _check_pull(curvature: Any) -> None:
    """Refuse a curvature that does not keep V and H."""
    if not isinstance(curvature, Curvature) or type(curvature).pull is Curvature.pull:
        raise TypeError(
            "stable needs V and H themselves: curvature must be bilevax.curvature.dense or linear_model; "
            f"got {curvature!r}."
        )


@described(
    paper="Chen, Sun, Xiao, Yin 2021",
    loops="single",
    batch="O(1)",
    samples="ε⁻⁴",
    tasks="all",
    memory="d·d' + d'², or 2n + d'² for a linear model",
    curvature="dense or linear_model",
    accepts="any with small d'",
    tuning=Tuning("STABLE", FALLING_MIXED_STEPS, root_steps, rule=ROOT),
)
@arguments.known_keywords
def stable(
    *,
    upper_step: Any = UPPER_STEP,
    lower_step: Any = LOWER_STEP,
    mixing: Any = MIXING,
    curvature: Curvature | None = None,
    batch_size: int | None = 32,
    upper_optimizer: optax.GradientTransformation | None = None,
    initialization: str = "theorem",
    initial_batch_size: int | None = None,
) -> Algorithm:
    """STABLE: x⁺ = x − α(∇x f − V H⁻¹∇y f), y ← y − β ∇y g − H⁻¹Vᵀ(x⁺ − x), with V and H by STORM.

    - `upper_step` (α), `lower_step` (β) and `mixing` (τ; as `Mixing.g_xy` for V and `g_yy` for H): numbers or schedules
      of the step, by default ∝ t^(−1/2).
    - `curvature`: `bilevax.curvature.dense`, or `linear_model` where the lower problem is one (then the default).

    V and H are projected as those of `bilevax.rsvrb`. All tasks are looked at in every step. Source: Chen, Sun, Xiao,
    Yin, A Single-Timescale Method for Stochastic Bilevel Optimization, 2021.
    """
    settings = dict(locals())
    if curvature is not None:
        _check_pull(curvature)
    return assemble("stable", STABLE(**common(settings), curvature=curvature), settings)
