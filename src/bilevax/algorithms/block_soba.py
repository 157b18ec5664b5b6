"""Block SOBA: SOBA's three directions for a few of m blocks in a step, and a moving average of the direction of x.

For the drawn i, so many times on the same samples ξ, ζ (ρ is the lower step, Y_i the set of `Bounds.y`):

    y_i ← Π_Y[y_i − ρ ∇y g_i(x, y_i; ζ)],   h_i ← Π[h_i − ρ(∇²yy g_i(x, y_i; ζ)·h_i − ∇y f_i(x, y_i; ξ))]

both from the same point, and then, where they have come to,

    D = mean over the drawn i of ∇x f_i − ∇²xy g_i·h_i,   d ← (1−θ)d + θD,   x ← x − γ d.

A block that is not drawn stays as it is: nothing is carried on, nothing is corrected by m/I, so the noise does not grow
with the number of blocks, and steps need not shrink with it. Where ∇²yy g = λI is known, h_i = ∇y f_i/λ: with g_i =
½‖y − g_i(x)‖² that is y_i ← (1−ρ)y_i + ρ g_i(x; ζ), the moving averages of SOAP and SOX. For min-max h_i = 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from bilevax import arguments, chunks, draw, projection, tasks
from bilevax.algorithms.contract import Algorithm, Cost, Variables, described
from bilevax.algorithms.frame import (
    Change,
    Method,
    Move,
    Optimizer,
    RatesAt,
    Some,
    Start,
    State,
    assemble,
    count_cost,
    rows_of,
)
from bilevax.algorithms.parts.block_inverse import KNOWN, PLAIN, BlockInverse, look
from bilevax.algorithms.parts.hypergradient import Points, hypergradient
from bilevax.algorithms.registry.tuning import MIXED_STEPS, Tuning, drawn_steps
from bilevax.algorithms.start import FirstBatch, cost_of_points, first_batch_of, first_point
from bilevax.curvature.contract import Update
from bilevax.draw import Sampling
from bilevax.problem import Problem
from bilevax.samples import Indices
from bilevax.schedule import RateRule, Rates, as_rates

UPPER_STEP, LOWER_STEP = RateRule(0.25, "step", 0.5, condition_power=0.5), RateRule(0.5, "1/smoothness")


class Block(NamedTuple):
    """y_i, and what is kept for h_i: nothing where it is known or not needed."""

    y: Float[Array, "*B dy"]
    inverse: PyTree


class Own(NamedTuple):
    """The moving average d."""

    d: Float[Array, " d"]


@dataclass(frozen=True, eq=False)
class BlockSOBA(Method):
    """Block SOBA with its settings; a table of one `Block` for each lower problem."""

    rates: Rates
    optimizer: Optimizer
    sampling: Sampling
    first: FirstBatch
    inner_steps: int

    def check(self, problem: Problem) -> None:
        """Refuse a problem with fewer tasks than a step draws."""
        self.sampling.check(problem)

    def portion(self, problem: Problem) -> tuple[int | None, float]:
        """A batch of each drawn task."""
        return self.sampling.portion(problem)

    def inverse(self, problem: Problem) -> BlockInverse:
        """h_i as a variable of its own where ∇²yy g has to be estimated, else what is known of it."""
        return PLAIN if problem.structure.estimates_hessian else KNOWN

    def start(self, problem: Problem, key: Key[Array, ""]) -> Start:
        """y_i as the first batch says, h_i = 0; d is the first sample."""
        inverse = self.inverse(problem)

        def first_block(i: Int[Array, ""]) -> tuple[Block, Array]:
            bounds = problem.bounds_of(i)
            point = first_point(problem, self.first, bounds.y, key, i)
            _, sample = look(problem, problem.x0, point.y, i, point.upper, point.lower)
            return Block(point.y, inverse.start(problem, sample, sample.f_y, bounds)), point.gradients

        blocks, gradients = chunks.start(first_block, problem.num_tasks, problem.work)
        return Start(Own(jnp.zeros_like(problem.x0)), blocks, cost_of_points(problem, self.first, gradients))

    def step(
        self, problem: Problem, rates_at: RatesAt, state: State, key: Key[Array, ""], move: Callable[[Array], Move]
    ) -> Change:
        """The drawn blocks are read before they are written, so that it can be in place."""
        rates, x, inverse = rates_at(state.step), state.x, self.inverse(problem)
        drawn = draw.draw_step(problem, self.sampling, key)
        samples = (drawn.tasks, drawn.upper, drawn.lower)

        def visit(block: Block, i: Array, xi: Indices, zeta: Indices) -> tuple[Block, Array]:
            bounds = problem.bounds_of(i)

            def inner_step(_: Any, block: Block) -> Block:
                g_y, sample = look(problem, x, block.y, i, xi, zeta)
                residual, _ = inverse.observe(problem, block.inverse, sample, sample)
                kept = inverse.update(problem, rates, block.inverse, residual, Update(sample.f_y, bounds, None))
                return Block(projection.onto(block.y - rates.lower_step * g_y, bounds.y), kept)

            block = jax.lax.fori_loop(0, self.inner_steps, inner_step, block)
            _, sample = look(problem, x, block.y, i, xi, zeta)
            return block, inverse.solutions(problem, block.inverse, sample, sample)[0]

        blocks, h = jax.vmap(visit)(tasks.read(state.tables, drawn.tasks), *samples)
        D = hypergradient(problem, Points(x, blocks.y, h if problem.structure.needs_hessian else None), samples)
        theta = jnp.where(state.step == 1, 1, rates.mixing.direction)
        d = (1 - theta) * state.own.d + theta * D
        return Change(
            move=move(d),
            own=Own(d),
            cost=self._cost(problem, drawn.tasks),
            watch=blocks,
            write=lambda keep: tasks.write(state.tables, drawn.tasks, blocks, keep),
        )

    def _cost(self, problem: Problem, numbers: Int[Array, " B"]) -> Cost:
        """Each inner step is ∇y g, and ∇y f and ∇²yy g·h where h is followed; D is ∇f and ∇²xy g·h."""
        size, of_direction = self.sampling.batch_size, int(problem.structure.needs_hessian)
        follows = self.inner_steps * (self.inverse(problem).products(problem) - of_direction)
        cost = count_cost(problem.upper_data, numbers, size, gradients=follows + 1)
        products = follows + of_direction
        return cost + count_cost(problem.lower_data, numbers, size, gradients=self.inner_steps, products=products)

    def variables(self, problem: Problem, rates_at: RatesAt, state: State, some: Some) -> Variables:
        """x, and y as each block was left."""
        return Variables(state.x, rows_of(state.tables.y, some))


@described(
    paper="Hu, Zhong, Yang 2022",
    loops="single",
    batch="O(1)",
    samples="ε⁻⁴",
    tasks="a few",
    memory="d'",
    curvature="h followed",
    accepts="any",
    tuning=Tuning("Block SOBA", MIXED_STEPS, drawn_steps),
)
@arguments.known_keywords
def block_soba(
    *,
    upper_step: Any = UPPER_STEP,
    lower_step: Any = LOWER_STEP,
    mixing: Any = 0.1,
    tasks_per_step: int | None = None,
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
    in the ball of radius C_fy/λ where `Bounds.f_y` is given. Sources: Hu, Zhong, Yang, Multi-block Min-max Bilevel
    Optimization, 2022; Wang, Yang, SOX, 2022, where ∇²yy g is known.
    """
    settings = dict(locals())
    arguments.count("inner_steps", inner_steps)
    method = BlockSOBA(
        rates=as_rates(upper_step, lower_step, 1.0, mixing, upper_optimizer),
        optimizer=upper_optimizer,
        sampling=Sampling(tasks_per_step, batch_size),
        first=first_batch_of(initialization, initial_batch_size, batch_size),
        inner_steps=inner_steps,
    )
    return assemble("block_soba", method, settings)
