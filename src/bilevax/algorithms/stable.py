"""STABLE (Chen, Sun, Xiao, Yin 2021): one loop on one time scale, with recursive estimates of ∇²g.

    V_i ← S^u_C[(1−τ)(V_i − ∇²xy g_i(before; ζ)) + ∇²xy g_i(now; ζ)],   H_i with S^l_λ likewise
    x⁺ = x − α mean_i(∇x f_i(x, y_i; ξ) − V_i H_i⁻¹ ∇y f_i(x, y_i; ξ))
    y_i ← y_i − β ∇y g_i(x, y_i; ζ') − H_i⁻¹V_iᵀ(x⁺ − x)

The last term is where y_i* goes when x moves. α, β and τ of the same order, ∝ t^(−1/2); O(ε⁻⁴) samples to an
ε-stationary point. V and H are what a `bilevax.curvature` keeps of ∇²g.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, PyTree

from bilevax import arguments, draw, memory, oracle
from bilevax import curvature as curvatures
from bilevax.algorithms.base import Algorithm, described
from bilevax.algorithms.cost import total, work
from bilevax.algorithms.first import as_beginning, first_batch
from bilevax.algorithms.nested import lower_gradients
from bilevax.algorithms.neumann import Rows
from bilevax.algorithms.together import Begun, Box, Move, Stepped, Together, all_tasks, assemble
from bilevax.curvature import Curvature
from bilevax.curvature.base import At, Fresh
from bilevax.draw import Indices
from bilevax.problem import Problem
from bilevax.schedule import Rates, power

UPPER_STEP, LOWER_STEP, MIXING = power(0.3, 8, 1 / 2), power(1, 8, 1 / 2), power(1, 0, 1 / 2)


class Followed(NamedTuple):
    """The previous point, and what is kept of ∇²g for every task."""

    x_before: Float[Array, " d"]
    y_before: Rows
    curvature: PyTree


def _at(problem: Problem, x: Array, y: Array, i: Array, zeta: Indices) -> At:
    return At(x, y, oracle.lower_derivatives(problem, x, y, i, zeta)[1])


def _box(given: Curvature | None, chosen: dict[str, Any]) -> Box:
    size = chosen["batch_size"]
    beginning = as_beginning(chosen["initialization"], chosen["initial_batch_size"], size)

    def start(problem: Problem, x: Array, y: Rows, key: Key[Array, ""]) -> Begun:
        curvature = curvatures.chosen(given, problem, pulls=True)

        def first(i: Array) -> PyTree:
            _, zeta = first_batch(problem, beginning, key, i)
            at, unused = _at(problem, x, y[i], i, zeta), jnp.zeros_like(y[i])  # neither V nor H starts from ∇y f
            return curvature.start(problem, i, zeta, at, unused, problem.bounds.of(i))

        rows = memory.start(first, problem.num_tasks, problem.work)
        products = curvature.products(problem)
        cost = work(problem.lower_data, all_tasks(problem), beginning.sizes(problem).lower, products=products)
        return Begun(Followed(x, y, rows), (), cost)

    def step(problem: Problem, rates: Rates, state: Together, key: Key[Array, ""], move: Move) -> Stepped:
        curvature, tasks = curvatures.chosen(given, problem, pulls=True), all_tasks(problem)
        x, y, (x_before, y_before, rows) = state.x, state.y, state.kept
        (xi,), (zeta, fresh_zeta) = draw.batches_of_all(problem, key, (size,), (size, size))
        f_x, f_y = jax.vmap(lambda y, i, xi: oracle.upper_gradients(problem, x, y, i, xi))(y, tasks, xi)

        def look(y: Array, y_before: Array, i: Array, zeta: Indices, own: PyTree) -> PyTree:
            now, before = _at(problem, x, y, i, zeta), _at(problem, x_before, y_before, i, zeta)
            return curvature.innovation(problem, i, zeta, own, now, before, rates.mixing)

        current = memory.read(rows, tasks, zeta)
        new = jax.vmap(look)(y, y_before, tasks, zeta, current)
        updated = curvature.update(problem, current, new, Fresh(tasks, None, zeta, f_y, rates, problem.bounds))
        rows = memory.write(rows, tasks, updated, jnp.asarray(False), zeta)
        whole = jax.vmap(lambda own: curvature.factored(problem, own))(memory.read(rows, tasks))
        corrections = jax.vmap(lambda own, v: curvature.correction(problem, own, v))(whole, f_y)
        x_after, optimizer = move(jnp.mean(f_x - corrections, axis=0))
        pulls = jax.vmap(lambda own: _pull(curvature)(problem, own, x_after - x))(whole)
        y_after = y - rates.lower_step * lower_gradients(problem, x, y, fresh_zeta) - pulls
        cost = total(
            work(problem.upper_data, tasks, size, gradients=1),
            work(problem.lower_data, tasks, size, products=2 * curvature.products(problem)),
            work(problem.lower_data, tasks, size, gradients=1),
        )
        return Stepped(x_after, optimizer, y_after, Followed(x, y, rows), cost)

    return Box(step, start, lambda problem: None)


def _pull(curvature: Any) -> Any:
    """The `pull` of a curvature; refuse one that does not keep V and H."""
    if not isinstance(curvature, Curvature) or curvature.pull is None:
        raise TypeError(
            "stable needs V and H themselves: curvature must be bilevax.curvature.dense or linear_model; "
            f"got {curvature!r}."
        )
    return curvature.pull


@described(
    paper="Chen, Sun, Xiao, Yin 2021",
    loops="single",
    batch="O(1)",
    samples="ε⁻⁴",
    tasks="all",
    memory="d·d' + d'², or 2n + d'² for a linear model",
    curvature="dense or linear_model",
    accepts="any with small d'",
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

    V and H are projected as those of `bilevax.rsvrb`, whose other arguments these are; all tasks are looked at in every
    step. Source: Chen, Sun, Xiao, Yin, A Single-Timescale Method for Stochastic Bilevel Optimization, 2021.
    """
    chosen = dict(locals())
    if curvature is not None:
        _pull(curvature)
    return assemble("stable", _box(curvature, chosen), chosen)
