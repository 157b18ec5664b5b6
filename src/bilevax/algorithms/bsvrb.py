"""BSVRB v1 and v2: the blockwise successors of RSVRB (Hu, Qiu, Guo, Zhang, Yang, ICML 2023).

I of the m blocks are drawn in a step, with B samples each; estimates of the other blocks stay as they are. For a
drawn block i, with the same sample at the current and the previous point, MSVR (`bilevax.estimator`) estimates

    s_i ← (1−α)s_i + α ∇y g_i(now; ζ) + γ(∇y g_i(now; ζ) − ∇y g_i(before; ζ)),   γ = (m−I)/(I(1−α)) + (1−α)

and y_i ← y_i − τ s_i in every step for all blocks, delayed until a block is next drawn. What stands for H_i⁻¹∇y f_i:

    v1:  H_i by MSVR, its eigenvalues floored at λ; h_i = H_i⁻¹∇y f_i on the fresh sample
    v2:  h_i is a variable; r_i estimates ∇²yy g_i h_i − ∇y f_i by MSVR; h_i ← Π[h_i − τ r_i] in every step, as y_i

and with G the mean over the drawn i of ∇x f_i − ∇²xy g_i h_i on the fresh samples,

    z ← (1−β)(z − G(before)) + G(now),   x ← x − η z.

Where ∇²yy g is known to be λI (`Problem.hessian`) both are h_i = ∇y f_i/λ on the fresh sample, and for min-max h_i = 0.
Estimates come before the direction: v1 takes the new H_i for `now` and the old one for `before`. Nothing of size d is
kept for a block, and nothing of size d'² either in v2. Of the bounds only `f_y` is used, by v2; where h_i leans on its
ball, the steps since the last visit are replayed, which costs more with more tasks. O(m ε⁻³/(I√I) + m ε⁻³/(I√B))
samples to an ε-stationary point.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from bilevax import arguments, delay, draw, estimator, memory, oracle
from bilevax.algorithms.base import Algorithm, Cost, Info, Variables, described
from bilevax.algorithms.block_inverse import FLOORED, FOLLOWED, Inverse, Seen, served
from bilevax.algorithms.cost import Sizes, count_cost
from bilevax.algorithms.first import Beginning, as_beginning, first_batch, first_point, initial_cost
from bilevax.algorithms.move import all_finite, check_optimizer, finite_move, move, start_optimizer, unless_diverged
from bilevax.curvature.base import At
from bilevax.curvature.tracked import radius_of
from bilevax.draw import Indices, Sampling
from bilevax.oracle import Points
from bilevax.problem import Problem
from bilevax.schedule import Mixing, Rates, Step, as_rates, as_schedule


class Block(NamedTuple):
    """What is kept of one lower problem, as it was right after its last visit."""

    y: Float[Array, " dy"]
    y_before: Float[Array, " dy"]
    g_y: Float[Array, " dy"]
    inverse: PyTree
    visit: tuple[delay.Reading, ...]


class BlockState(NamedTuple):
    """x_t, x_{t−1}, z_t, and one `Block` for each lower problem.

    `clocks` count the steps of y, and those of h where they have a size of their own.
    """

    x: Float[Array, " d"]
    x_before: Float[Array, " d"]
    direction: Float[Array, " d"]
    blocks: Any  # Block, each leaf with a leading axis m
    clocks: tuple[delay.Clock, ...]
    optimizer: PyTree
    initial_cost: Cost


class BlockSettings(NamedTuple):
    """All that BSVRB is made of; `rates` are those of y, and those of h where they are others."""

    inverse: Inverse
    rates: tuple[Rates, ...]
    sampling: Sampling
    optimizer: optax.GradientTransformation | None
    beginning: Beginning


def _asleep(problem: Problem, rates: Rates) -> Callable[[Step], Rates]:
    """The rates for a block that is not drawn: it moves on, but its estimates do not fade."""
    still = Mixing(*[jnp.zeros((), problem.dtype)] * len(Mixing._fields))
    return lambda t: rates.at(t, problem.dtype)._replace(mixing=still)


def _look(problem: Problem, x: Array, y: Array, i: Array, xi: Indices, zeta: Indices) -> Seen:
    g_y, second = oracle.lower_derivatives(problem, x, y, i, zeta)
    return Seen(oracle.upper_gradients(problem, x, y, i, xi)[1], g_y, At(x, y, second))


def _bring(problem: Problem, settings: BlockSettings, state: BlockState, i: Array, block: Block) -> Block:
    """The block as it is now: y_i ← y_i − τ s_i for all the steps in which it was not drawn, and h_i likewise."""

    def mover(which: int, radius: Any) -> Callable:
        clock, visit, asleep = state.clocks[which], block.visit[which], _asleep(problem, settings.rates[which])
        passed = delay.elapsed(clock, visit, asleep)
        return lambda kept: delay.bring_lower(clock, visit, passed, kept, radius, asleep)

    y, y_before, _ = mover(0, None)(delay.Lower(block.y, block.y_before, block.g_y))
    move_h = mover(-1, radius_of(problem, problem.bounds.of(i)))
    return block._replace(y=y, y_before=y_before, inverse=settings.inverse.bring(block.inverse, move_h))


class Visited(NamedTuple):
    """A drawn block before and after its update, and h for the current and for the previous point."""

    current: Block
    updated: Block
    h: Float[Array, " dy"]
    h_before: Float[Array, " dy"]


def _visit(
    problem: Problem, settings: BlockSettings, state: BlockState, visit: tuple, block: Block, drawn: tuple
) -> Visited:
    """The estimates of a drawn block, and its steps."""
    i, xi, zeta = drawn
    inverse, t = settings.inverse, state.clocks[0].now.step
    rates, inverse_rates = (settings.rates[which].at(t, problem.dtype) for which in (0, -1))
    share = settings.sampling.tasks_per_step / problem.num_tasks
    current = _bring(problem, settings, state, i, block)
    now = _look(problem, state.x, current.y, i, xi, zeta)
    before = _look(problem, state.x_before, current.y_before, i, xi, zeta)

    def msvr(estimate: Array, fresh: Array, old: Array, mixing: Any) -> Array:
        return estimator.storm(estimate, estimator.msvr_innovation(fresh, old, mixing, share), mixing)

    g_y = msvr(current.g_y, now.g_y, before.g_y, rates.mixing.g_y)
    h, h_before = inverse.points(current.inverse)
    samples = inverse.sample(problem, now, h), inverse.sample(problem, before, h_before)
    estimate = msvr(inverse.estimate(current.inverse), *samples, rates.mixing.g_yy)
    kept = inverse.update(problem, current.inverse, estimate, inverse_rates, problem.bounds.of(i))
    updated = Block(current.y - rates.lower_step * g_y, current.y, g_y, kept, visit)
    return Visited(current, updated, *inverse.solve(problem, current.inverse, kept, now.f_y, before.f_y))


def _step(settings: BlockSettings, problem: Problem, state: BlockState, key: Key[Array, ""]) -> tuple[BlockState, Info]:
    """One step; all reads of per-block state come before its one write, so that it can be in place."""
    t, drawn = state.clocks[0].now.step, draw.draw_step(problem, settings.sampling, key)
    ticked = zip(state.clocks, settings.rates, strict=True)
    clocks = tuple(delay.tick(clock, _asleep(problem, rates)(t)) for clock, rates in ticked)
    readings = tuple(clock.now for clock in clocks)

    visit = lambda block, *drawn: _visit(problem, settings, state, readings, block, drawn)
    samples = (drawn.tasks, drawn.upper, drawn.lower)
    current, updated, h, h_before = jax.vmap(visit)(memory.read(state.blocks, drawn.tasks), *samples)
    now, before = Points(state.x, current.y, h), Points(state.x_before, current.y_before, h_before)
    rates = settings.rates[0].at(t, problem.dtype)
    beta = rates.mixing.direction
    new = oracle.hypergradient_innovation(problem, now, before, samples, beta)
    direction = estimator.storm(state.direction, new, beta)
    x, optimizer = move(problem, settings.optimizer, state.optimizer, state.x, rates.upper_step, direction)

    finite = all_finite(updated) & finite_move(settings.optimizer, x, rates.upper_step, direction)
    blocks = memory.write(state.blocks, drawn.tasks, updated, ~finite)
    moved = BlockState(x, state.x, direction, (), clocks, optimizer, state.initial_cost)
    after = unless_diverged(finite, moved, state._replace(blocks=()))._replace(blocks=blocks)
    batch = settings.sampling.batch_size
    cost = count_cost(problem, settings.inverse.products(problem), drawn.tasks, Sizes(batch, batch), points=2)
    return after, Info(cost, finite)


def _start(settings: BlockSettings, problem: Problem, key: Key[Array, ""]) -> BlockState:
    """x_1 = x_0 and y_1 = y_0, the first estimates of every block, z_0 the mean over all blocks."""
    settings.sampling.check(problem)
    clocks = (delay.start(problem.dtype, eras=1),) * len(settings.rates)  # nothing fades, so no era ever ends
    x = problem.x0

    def first_block(i: Int[Array, ""]) -> tuple[Block, Array]:
        first = first_point(problem, settings.beginning, None, key, i)
        seen = _look(problem, x, first.y, i, first.upper, first.lower)
        kept = settings.inverse.start(problem, seen, problem.bounds.of(i))
        return Block(first.y, first.y, seen.g_y, kept, tuple(clock.now for clock in clocks)), first.solves

    def first_hypergradient(i: Int[Array, ""]) -> Float[Array, " d"]:
        block = jax.tree.map(lambda leaf: leaf[i], blocks)
        xi, zeta = first_batch(problem, settings.beginning, key, i)
        seen = _look(problem, x, block.y, i, xi, zeta)
        h, _ = settings.inverse.solve(problem, block.inverse, block.inverse, seen.f_y, seen.f_y)
        return oracle.upper_gradients(problem, x, block.y, i, xi)[0] - seen.at.second(h)[0]

    blocks, solves = memory.start(first_block, problem.num_tasks, problem.work)
    return BlockState(
        x=x,
        x_before=x,
        direction=memory.mean_of_all(first_hypergradient, problem.num_tasks, problem.work),
        blocks=blocks,
        clocks=clocks,
        optimizer=start_optimizer(problem, settings.optimizer),
        initial_cost=initial_cost(problem, settings.beginning, settings.inverse.products(problem), solves),
    )


def _variables(settings: BlockSettings, problem: Problem, state: BlockState) -> Variables:
    bring = lambda i, block: _bring(problem, settings, state, i, block).y
    return Variables(state.x, jax.vmap(bring)(jnp.arange(problem.num_tasks), state.blocks))


def _below_one(mixing: Any) -> None:
    """Refuse a mixing of one: MSVR divides by 1 − α."""
    named = mixing._asdict() if isinstance(mixing, Mixing) else {"": mixing}
    for field, beta in named.items():
        value = beta(jnp.int32(1)) if callable(beta) else beta
        name = f"mixing.{field}".rstrip(".")
        arguments.number(name, value, "in (0, 1), MSVR divides by 1 - mixing", lambda v: 0 < v < 1)


def _assemble(name: str, inverse: Inverse, chosen: Mapping[str, Any]) -> Algorithm:
    """BSVRB with the given way to H⁻¹∇y f."""
    _below_one(chosen["mixing"])
    check_optimizer(chosen["upper_optimizer"])
    steps = [chosen["lower_step"], chosen.get("inverse_step")]
    if steps[1] is not None:
        as_schedule("inverse_step", steps[1], arguments.positive)
    settings = BlockSettings(
        inverse=inverse,
        rates=tuple(as_rates(chosen["upper_step"], s, 1.0, chosen["mixing"]) for s in steps if s is not None),
        sampling=Sampling(chosen["tasks_per_step"], chosen["batch_size"]),
        optimizer=chosen["upper_optimizer"],
        beginning=as_beginning(chosen["initialization"], chosen["initial_batch_size"], chosen["batch_size"]),
    )
    own = lambda problem: settings._replace(inverse=served(inverse, problem))
    return Algorithm(
        name=name,
        init=lambda problem, key: _start(own(problem), problem, key),
        step=lambda problem, state, key: _step(own(problem), problem, state, key),
        variables=lambda problem, state: _variables(own(problem), problem, state),
        settings=chosen,
    )


@described(
    paper="Hu, Qiu, Guo, Zhang, Yang 2023",
    loops="single",
    batch="O(1)",
    samples="ε⁻³",
    tasks="a few",
    memory="d'²",
    curvature="H by MSVR",
    accepts="any with small d'",
)
@arguments.known_keywords
def bsvrb_v1(
    *,
    upper_step: Any = 0.1,
    lower_step: Any = 0.5,
    mixing: Any = 0.1,
    tasks_per_step: int = 1,
    batch_size: int | None = 32,
    upper_optimizer: optax.GradientTransformation | None = None,
    initialization: str = "theorem",
    initial_batch_size: int | None = None,
) -> Algorithm:
    """BSVRB v1: G = mean_i ∇x f_i − ∇²xy g_i H_i⁻¹∇y f_i, z ← (1−β)(z − G_before) + G_now, x ← x − η z.

    H_i (d' × d') is estimated by MSVR, ∇x f_i, ∇y f_i and ∇²xy g_i are fresh: for small d' and any d. `mixing` is α
    for ∇y g_i (as `Mixing.g_y`) and H_i (`g_yy`), and β (`direction`). The other arguments are those of
    `bilevax.rsvrb`. Source: Hu, Qiu, Guo, Zhang, Yang, ICML 2023, Algorithm BSVRB^{v1}.
    """
    return _assemble("bsvrb_v1", FLOORED, dict(locals()))


@described(
    paper="Hu, Qiu, Guo, Zhang, Yang 2023",
    loops="single",
    batch="O(1)",
    samples="ε⁻³",
    tasks="a few",
    memory="d'",
    curvature="h followed",
    accepts="any",
)
@arguments.known_keywords
def bsvrb_v2(
    *,
    upper_step: Any = 0.1,
    lower_step: Any = 0.5,
    inverse_step: Any = None,
    mixing: Any = 0.1,
    tasks_per_step: int = 1,
    batch_size: int | None = 32,
    upper_optimizer: optax.GradientTransformation | None = None,
    initialization: str = "theorem",
    initial_batch_size: int | None = None,
) -> Algorithm:
    """BSVRB v2: h_i ← Π[h_i − τ r_i], G = mean_i ∇x f_i − ∇²xy g_i h_i, z ← (1−β)(z − G_before) + G_now, x ← x − η z.

    Matrix-free, for any d and d'; only vectors of size d' are kept for a task. `inverse_step` is the step of h_i, by
    default that of y_i; Π is the ball of radius C_fy/λ where `Bounds.f_y` is given. `mixing` is α for ∇y g_i (as
    `Mixing.g_y`) and ∇²yy g_i h_i − ∇y f_i (`g_yy`), and β (`direction`). The other arguments are those of
    `bilevax.rsvrb`. Source: Hu, Qiu, Guo, Zhang, Yang, ICML 2023, Algorithm BSVRB^{v2}.
    """
    return _assemble("bsvrb_v2", FOLLOWED, dict(locals()))
