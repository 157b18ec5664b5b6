"""Block SOBA: SOBA's three directions for a few of m blocks in a step, and a moving average of the direction of x.

For the drawn i, so many times on the same samples ξ, ζ (ρ is the lower step, Y_i the set of `Bounds.y`):

    y_i ← Π_Y[y_i − ρ ∇y g_i(x, y_i; ζ)],   h_i ← Π[h_i − ρ(∇²yy g_i(x, y_i; ζ)·h_i − ∇y f_i(x, y_i; ξ))]

both from the same point, and then, where they have come to,

    D = mean over the drawn i of ∇x f_i − ∇²xy g_i·h_i,   d ← (1−θ)d + θD,   x ← x − γ d.

A block that is not drawn stays as it is: nothing is carried on, nothing is corrected by m/I, so the noise does not grow
with the number of blocks, and steps need not shrink with it. Where ∇²yy g = λI is known, h_i = ∇y f_i/λ: with g_i =
½‖y − g_i(x)‖² that is y_i ← (1−ρ)y_i + ρ g_i(x; ζ), the moving averages of SOAP and SOX. For min-max h_i = 0.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from bilevax import arguments, draw, memory, oracle, projection
from bilevax.algorithms.base import Algorithm, Cost, Info, Variables, described
from bilevax.algorithms.cost import total, work
from bilevax.algorithms.first import Beginning, as_beginning, first_point, solving_cost
from bilevax.algorithms.move import all_finite, check_optimizer, finite_move, move, start_optimizer, unless_diverged
from bilevax.curvature.tracked import radius_of
from bilevax.draw import Sampling
from bilevax.oracle import Points
from bilevax.problem import Problem
from bilevax.schedule import Rates, Step, as_rates


class Block(NamedTuple):
    """y_i and h_i; h_i has no entries where it is known or not needed."""

    y: Float[Array, " dy"]
    h: Float[Array, " dh"]


class BlockState(NamedTuple):
    """x_t, d_t, and one `Block` for each lower problem."""

    step: Step
    x: Float[Array, " d"]
    direction: Float[Array, " d"]
    blocks: Any  # Block, each leaf with a leading axis m
    optimizer: PyTree
    initial_cost: Cost


class Settings(NamedTuple):
    """All that the method is made of."""

    rates: Rates
    sampling: Sampling
    inner_steps: int
    optimizer: optax.GradientTransformation | None
    beginning: Beginning


def _descend(problem: Problem, x: Array, lower_step: Any, count: int, block: Block, sample: tuple) -> Block:
    """`count` steps of y_i and h_i on the samples of a drawn block."""
    i, xi, zeta = sample
    bounds = problem.bounds.of(i)

    def step(_: Array, block: Block) -> Block:
        if problem.hessian == "estimated":
            g_y, second = oracle.lower_derivatives(problem, x, block.y, i, zeta)
            residual = second(block.h)[1] - oracle.upper_gradients(problem, x, block.y, i, xi)[1]
            h = projection.ball(block.h - lower_step * residual, radius_of(problem, bounds))
        else:
            g_y, h = oracle.lower_gradient(problem, x, block.y, i, zeta), block.h
        return Block(projection.onto(block.y - lower_step * g_y, bounds.y), h)

    return jax.lax.fori_loop(0, count, step, block)


def _direction(problem: Problem, x: Array, blocks: Block, samples: tuple) -> Float[Array, " d"]:
    """D, the mean over the drawn blocks of ∇x f_i − ∇²xy g_i·h_i."""
    if problem.hessian == "unneeded":
        gradient = lambda y, i, xi: oracle.upper_gradients(problem, x, y, i, xi)[0]
        return jax.vmap(gradient)(blocks.y, *samples[:2]).mean(0)
    h = blocks.h
    if problem.hessian == "known":
        gradient = lambda y, i, xi: oracle.upper_gradients(problem, x, y, i, xi)[1]
        h = jax.vmap(gradient)(blocks.y, *samples[:2]) / problem.strong_convexity
    return oracle.hypergradient(problem, Points(x, blocks.y, h), samples)


def _step_cost(problem: Problem, settings: Settings, tasks: Int[Array, " B"]) -> Cost:
    """Each inner step is ∇y g, and ∇y f and ∇²yy g·h where h is followed; D is ∇f and ∇²xy g·h."""
    size, inner = settings.sampling.batch_size, settings.inner_steps
    followed = inner if problem.hessian == "estimated" else 0
    crossed = int(problem.hessian != "unneeded")
    return total(
        work(problem.upper_data, tasks, size, gradients=followed + 1),
        work(problem.lower_data, tasks, size, gradients=inner, products=followed + crossed),
    )


def _step(settings: Settings, problem: Problem, state: BlockState, key: Key[Array, ""]) -> tuple[BlockState, Info]:
    """One step; the drawn blocks are read before they are written, so that it can be in place."""
    rates = settings.rates.at(state.step, problem.dtype)
    drawn = draw.draw_step(problem, settings.sampling, key)
    samples = (drawn.tasks, drawn.upper, drawn.lower)
    visit = lambda block, *sample: _descend(problem, state.x, rates.lower_step, settings.inner_steps, block, sample)
    updated = jax.vmap(visit)(memory.read(state.blocks, drawn.tasks), *samples)
    theta = jnp.where(state.step == 1, 1, rates.mixing.direction)
    direction = (1 - theta) * state.direction + theta * _direction(problem, state.x, updated, samples)
    x, optimizer = move(problem, settings.optimizer, state.optimizer, state.x, rates.upper_step, direction)

    finite = all_finite(updated) & finite_move(settings.optimizer, x, rates.upper_step, direction)
    blocks = memory.write(state.blocks, drawn.tasks, updated, ~finite)
    moved = BlockState(state.step + 1, x, direction, (), optimizer, state.initial_cost)
    after = unless_diverged(finite, moved, state._replace(blocks=()))._replace(blocks=blocks)
    return after, Info(_step_cost(problem, settings, drawn.tasks), finite)


def _start(settings: Settings, problem: Problem, key: Key[Array, ""]) -> BlockState:
    """y_i as the beginning says, h_i = 0; d is the first sample."""
    settings.sampling.check(problem)
    beginning, x = settings.beginning, problem.x0
    width = problem.dim_y if problem.hessian == "estimated" else 0

    def first_block(i: Int[Array, ""]) -> tuple[Block, Array]:
        first = first_point(problem, beginning, problem.bounds.of(i).y, key, i)
        return Block(first.y, jnp.zeros(width, problem.dtype)), first.solves

    blocks, solves = memory.start(first_block, problem.num_tasks, problem.work)
    solved, tasks = float(beginning.initialization == "theorem"), jnp.arange(problem.num_tasks, dtype=jnp.int32)
    cost = total(
        solving_cost(problem, beginning, solves),
        work(problem.lower_data, tasks, beginning.sizes(problem).lower, times=solved),
    )
    return BlockState(jnp.int32(1), x, jnp.zeros_like(x), blocks, start_optimizer(problem, settings.optimizer), cost)


def _assemble(chosen: Mapping[str, Any]) -> Algorithm:
    check_optimizer(chosen["upper_optimizer"])
    arguments.count("inner_steps", chosen["inner_steps"])
    settings = Settings(
        rates=as_rates(chosen["upper_step"], chosen["lower_step"], 1.0, chosen["mixing"]),
        sampling=Sampling(chosen["tasks_per_step"], chosen["batch_size"]),
        inner_steps=chosen["inner_steps"],
        optimizer=chosen["upper_optimizer"],
        beginning=as_beginning(chosen["initialization"], chosen["initial_batch_size"], chosen["batch_size"]),
    )
    return Algorithm(
        name="block_soba",
        init=lambda problem, key: _start(settings, problem, key),
        step=lambda problem, state, key: _step(settings, problem, state, key),
        variables=lambda problem, state: Variables(state.x, state.blocks.y),
        settings=chosen,
    )


@described(
    paper="Hu, Zhong, Yang 2022",
    loops="single",
    batch="O(1)",
    samples="ε⁻⁴",
    tasks="a few",
    memory="d'",
    curvature="h followed",
    accepts="any",
)
@arguments.known_keywords
def block_soba(
    *,
    upper_step: Any = 0.1,
    lower_step: Any = 0.5,
    mixing: Any = 0.1,
    tasks_per_step: int = 1,
    batch_size: int | None = 32,
    inner_steps: int = 1,
    upper_optimizer: optax.GradientTransformation | None = None,
    initialization: str = "theorem",
    initial_batch_size: int | None = None,
) -> Algorithm:
    """Block SOBA: d ← (1−θ)d + θ mean_i(∇x f_i − ∇²xy g_i·h_i) over a few drawn i, x ← x − γ d.

    Matrix-free, for any d and d'; y_i and h_i are all that is kept of a task, and a task that is not drawn does not
    move. Its steps do not shrink with the number of tasks: the method for very many tasks, each seen a few times.
    `upper_step` (γ), `lower_step` (ρ) and `mixing` (θ, as `Mixing.direction`) are numbers or schedules of the step.
    `inner_steps` of y_i and h_i are made in a visit, all on the same samples. y_i stays in the set of `Bounds.y`, h_i
    in the ball of radius C_fy/λ where `Bounds.f_y` is given. The other arguments are those of `bilevax.rsvrb`.
    Sources: Hu, Zhong, Yang, Multi-block Min-max Bilevel Optimization, 2022; Wang, Yang, SOX, 2022, where ∇²yy g is
    known.
    """
    return _assemble(dict(locals()))
