"""Implicit differentiation on all samples: a Newton step on every lower problem for each L-BFGS step on x.

At a trial point x' every lower problem goes on from where it was (`bilevax.exact.follow`),

    y_i ← y_i − H_i⁻¹∇y g_i,   h_i ← H_i⁻¹∇y f_i,   H_i = ∇²yy g_i(x', y_i)
    F(x') = mean_i f_i − h_iᵀ∇y g_i,   ∇F(x') = mean_i ∇x f_i − ∇²xy g_i·h_i

by conjugate gradients that a kept H_i of an earlier point preconditions (d'×d' for each task, its diagonal where that
would be too much). If F has fallen enough (Armijo), x ← x' and L-BFGS says where to look next, x' = x − B∇F(x); else
the next x' is on the way there. With an optax optimizer every x' is taken. There is no step size.

*Growing samples.* With many tasks a run begins with some of them, in random order. The variance of ∇F_i over the tasks
tells the noise of their mean: where it is more than half of ∇F, ‖∇F‖² < 4 Var/k, there are more from then on, as many
as it asks for, up to all.

Pedregosa, Hyperparameter Optimization with Approximate Gradient, 2016; Nocedal, Wright, Numerical Optimization, 2006,
Algorithms 7.4 and 7.5 for L-BFGS; Byrd, Chin, Nocedal, Wu, Sample Size Selection, 2012, for the growth.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key

from bilevax import arguments, chunks, draw
from bilevax.algorithms.contract import Algorithm, Cost, Variables, described
from bilevax.algorithms.frame import Change, Method, Move, Optimizer, RatesAt, Start, State, assemble
from bilevax.algorithms.registry.tuning import Tuning
from bilevax.algorithms.start import all_tasks
from bilevax.exact.follow import INVERSE_SHARE, Followed, follow, invert
from bilevax.problem import Problem
from bilevax.schedule import Rates, as_rates

LARGEST_MATRIX, MOST_NUMBERS = 512, 2**25  # variables, and numbers in all, up to which H_i are kept as matrices
FIRST_TASKS, GROWTH = 64, 4  # with at least so many times more tasks than that, a run begins with these
NOISE = 0.5  # of ∇F, up to which no more tasks are asked for
FIRST_FALL = 0.1  # of |F|: what the first step would bring were F linear; where x saturates, a longer one is for good
STEP_GROWTH = 10.0  # a step is at most so many times as long as the last one that was taken, for the same reason
ARMIJO = 1e-4  # of the fall that ∇F promises, what F must fall by
REJECTIONS = 12  # points in a row after which L-BFGS forgets what it knows, and again as many after which x stays
IDLE_STEPS = 4  # steps in a row that lower F by no more than rounding, after which x stays


class Pairs(NamedTuple):
    """What L-BFGS remembers, the last first: changes of x and of ∇F, and one over their product; zero: nothing."""

    steps: Float[Array, "k d"]
    changes: Float[Array, "k d"]
    weights: Float[Array, " k"]


class Search(NamedTuple):
    """The next point to look at, ∇F(x)·(trial − x), and for how long nothing good has come."""

    trial: Float[Array, " d"]
    slope: Float[Array, ""]
    rejections: Int[Array, ""]
    idle_steps: Int[Array, ""]


class Own(NamedTuple):
    """What is known at x: y_i, h_i and an earlier H_i⁻¹ in the order of looks, F and ∇F, and where to look next."""

    tasks: Followed
    order: Int[Array, " m"]  # the tasks, in the order in which they are looked at
    chunks: Int[Array, ""]  # of tasks that are looked at by now
    is_stale: Bool[Array, ""]  # the H_i⁻¹, so that they are made anew
    share: Float[Array, ""]  # of ∇y f that may be left where h is solved for: less, the closer ∇F is to zero
    objective: Float[Array, ""]
    gradient: Float[Array, " d"]
    pairs: Pairs
    search: Search


class Seen(NamedTuple):
    """Means over the tasks looked at: F, ∇F, ‖∇F_i‖², how long the parts of ∇F_i are, and products with H_i."""

    objective: Float[Array, ""]
    gradient: Float[Array, " d"]
    square: Float[Array, ""]
    size: Float[Array, ""]
    products: Float[Array, ""]


def remember(pairs: Pairs, step: Array, change: Array) -> Pairs:
    """The pairs with a new one, unless F curves the wrong way along it."""
    product = step @ change
    is_useful = product > 1e-6 * jnp.linalg.norm(step) * jnp.linalg.norm(change)
    push = lambda old, new: jnp.where(is_useful, jnp.concatenate([new[None], old[:-1]]), old)
    return Pairs(push(pairs.steps, step), push(pairs.changes, change), push(pairs.weights, 1 / product))


def direction(pairs: Pairs, gradient: Array, objective: Array) -> Array:
    """−B∇F by the two loops of L-BFGS; without pairs as long as would lower F by a tenth of |F| were F linear."""
    count = len(pairs.weights)

    def down(k: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        q, alphas = carry
        alpha = pairs.weights[k] * (pairs.steps[k] @ q)
        return q - alpha * pairs.changes[k], alphas.at[k].set(alpha)

    q, alphas = jax.lax.fori_loop(0, count, down, (gradient, jnp.zeros_like(pairs.weights)))
    last = pairs.weights[0] * (pairs.changes[0] @ pairs.changes[0])
    square = gradient @ gradient
    unknown = FIRST_FALL * jnp.where(objective == 0, 1, jnp.abs(objective)) / jnp.where(square == 0, 1, square)
    r = q * jnp.where(last > 0, 1 / jnp.where(last > 0, last, 1), unknown)

    def up(k: Array, r: Array) -> Array:
        k = count - 1 - k
        return r + (alphas[k] - pairs.weights[k] * (pairs.changes[k] @ r)) * pairs.steps[k]

    return -jax.lax.fori_loop(0, count, up, r)


@dataclass(frozen=True, eq=False)
class Implicit(Method):
    """Full-batch implicit differentiation with its settings."""

    rates: Rates
    optimizer: Optimizer
    memory: int

    def chunk(self, problem: Problem) -> int:
        """Tasks that are looked at side by side."""
        return chunks.chunk_of(problem.num_tasks, max(problem.work, problem.dim_y**2))

    def all_chunks(self, problem: Problem) -> int:
        """How many chunks there are."""
        return -(-problem.num_tasks // self.chunk(problem))

    def grows(self, problem: Problem) -> bool:
        """Whether a run begins with some of the tasks."""
        return problem.num_tasks >= GROWTH * FIRST_TASKS

    def start(self, problem: Problem, key: Key[Array, ""]) -> Start:
        """x_0 is looked at first: nothing is known of F yet."""
        x, dtype, m, n = problem.x0, problem.dtype, problem.num_tasks, problem.dim_y
        order = jnp.arange(m, dtype=jnp.int32)
        first = self.all_chunks(problem)
        if self.grows(problem):
            order, first = jax.random.permutation(key, order), -(-FIRST_TASKS // self.chunk(problem))
        y = jax.vmap(problem.y0_of)(order)
        as_matrix = n <= LARGEST_MATRIX and m * n**2 <= MOST_NUMBERS
        shape = (0,) if not problem.structure.estimates_hessian else (n, n) if as_matrix else (n,)
        none = jnp.zeros((self.memory, problem.dim_x), dtype)
        zero = jnp.zeros((), dtype)
        own = Own(
            tasks=Followed(y, jnp.zeros_like(y), jnp.zeros((m, *shape), dtype)), order=order, chunks=jnp.int32(first),
            is_stale=jnp.asarray(True), share=jnp.asarray(INVERSE_SHARE, dtype), objective=zero + jnp.inf,
            gradient=jnp.zeros_like(x), pairs=Pairs(none, none, jnp.zeros(self.memory, dtype)),
            search=Search(x, zero, jnp.int32(0), jnp.int32(0)),
        )  # fmt: skip
        nothing = jnp.asarray(0.0)
        return Start(own, (), Cost(nothing, nothing, nothing))

    def renew(self, problem: Problem, x: Array, own: Own) -> Followed:
        """H_i⁻¹ at x of every task that is looked at, or of the diagonals where matrices would be too much."""
        as_matrix = own.tasks.near.ndim == 3

        def of_task(k: Array, task: Followed) -> tuple[tuple[()], Followed]:
            return (), task._replace(near=invert(problem, x, task.y, own.order[k], as_matrix))

        return chunks.mean_of_first(of_task, own.tasks, own.chunks, self.chunk(problem))[1]

    def look(self, problem: Problem, x: Array, own: Own) -> tuple[Seen, Followed]:
        """F and ∇F at x, with the lower problems going on from where they were."""

        def of_task(k: Array, task: Followed) -> tuple[Seen, Followed]:
            term, y, h = follow(problem, x, task, own.order[k], share=own.share)
            square = term.gradient @ term.gradient
            return Seen(term.objective, term.gradient, square, term.size, term.products), task._replace(y=y, h=h)

        return chunks.mean_of_first(of_task, own.tasks, own.chunks, self.chunk(problem))

    def _cost(self, problem: Problem, own: Own, products: Array) -> Cost:
        """All samples of the tasks looked at, some gradients, and so many products with H_i of each."""
        part = jnp.minimum(own.chunks * self.chunk(problem), problem.num_tasks).astype(float) / problem.num_tasks
        tasks, least = all_tasks(problem), float(problem.num_tasks)
        upper, lower = (draw.count_samples(data, tasks, None) for data in (problem.upper_data, problem.lower_data))
        gradients = jnp.maximum(upper, least) + 3 * jnp.maximum(lower, least)
        return Cost(part * (upper + lower), part * gradients, part * jnp.maximum(lower, least) * products.astype(float))

    def chunks_asked_for(self, problem: Problem, own: Own, seen: Seen, ends: Bool[Array, ""]) -> Int[Array, ""]:
        """As many chunks of tasks as make the noise of ∇F small enough; four times as many where x `ends` to move."""
        whole = self.all_chunks(problem)
        if not self.grows(problem):
            return jnp.int32(whole)
        length = seen.gradient @ seen.gradient
        variance = jnp.maximum(seen.square - length, 0)
        asked = variance / (NOISE**2 * jnp.maximum(length, jnp.finfo(length.dtype).tiny)) / self.chunk(problem)
        more = jnp.clip(asked, 2 * own.chunks.astype(asked.dtype), float(whole)).astype(jnp.int32)
        grown = jnp.where(asked > own.chunks.astype(asked.dtype), more, own.chunks)
        return jnp.minimum(jnp.where(ends, jnp.maximum(grown, 4 * own.chunks), grown), whole)

    def step(
        self, problem: Problem, rates_at: RatesAt, state: State, key: Key[Array, ""], move: Callable[[Array], Move]
    ) -> Change:
        """F and ∇F at the trial point, which is taken or not, and the next one."""
        own, search, dtype = state.own, state.own.search, problem.dtype
        own = own._replace(
            tasks=jax.lax.cond(own.is_stale, lambda: self.renew(problem, state.x, own), lambda: own.tasks)
        )
        seen, tasks = self.look(problem, search.trial, own)
        cost = self._cost(problem, own, seen.products)
        eps = float(jnp.finfo(dtype).eps)
        length = jnp.linalg.norm(seen.gradient) / jnp.where(seen.size > 0, seen.size, 1)
        known = own._replace(
            tasks=tasks,
            is_stale=seen.products > 8 + problem.dim_y / 32,
            share=jnp.clip(0.01 * length, 10 * eps, INVERSE_SHARE),
            objective=seen.objective,
            gradient=seen.gradient,
        )
        if self.optimizer is not None:
            moved = move(seen.gradient)
            number = self.chunks_asked_for(problem, own, seen, jnp.asarray(False))
            known = known._replace(
                chunks=number, is_stale=known.is_stale | (number > own.chunks), search=search._replace(trial=moved.x)
            )
            return Change(moved, known, cost, (seen.objective, tasks.y))

        is_first = jnp.isinf(own.objective)
        is_finite = jnp.isfinite(seen.objective) & jnp.isfinite(seen.gradient @ seen.gradient)
        rounding = 10 * eps * jnp.abs(seen.objective)
        is_good = is_finite & (seen.objective <= own.objective + ARMIJO * search.slope + rounding)
        taken, refused = accept(known, own, state.x, is_first, rounding), reject(own, seen, state.x, is_finite)
        refused = refused._replace(is_stale=known.is_stale)
        after = jax.tree.map(lambda a, b: jnp.where(is_good, a, b), taken, refused)
        x = jnp.where(is_good, search.trial, state.x)
        ends = (after.search.rejections >= 2 * REJECTIONS) | (after.search.idle_steps >= IDLE_STEPS)
        ends |= is_good & (after.search.slope == 0)
        asked = self.chunks_asked_for(problem, own, seen, ends)
        grows = (asked > own.chunks) & (is_good | ends)
        anew = Search(x, jnp.zeros((), dtype), jnp.int32(0), jnp.int32(0))
        after = after._replace(
            chunks=jnp.where(grows, asked, own.chunks),
            is_stale=after.is_stale | grows,
            objective=jnp.where(grows, jnp.inf, after.objective),
            search=jax.tree.map(lambda a, b: jnp.where(grows, a, b), anew, after.search),
        )
        return Change(Move(x, state.optimizer, is_finite | ~is_first), after, cost, (), converged=ends & ~grows)

    def variables(self, problem: Problem, rates_at: RatesAt, state: State) -> Variables:
        """x, and y of every task; of one that was not looked at yet it is y_0."""
        return Variables(state.x, jnp.zeros_like(state.own.tasks.y).at[state.own.order].set(state.own.tasks.y))


def accept(known: Own, before: Own, x: Array, is_first: Bool[Array, ""], rounding: Array) -> Own:
    """The trial point is taken: L-BFGS learns from the step, and says where to look next."""
    trial, gradient = before.search.trial, known.gradient
    learned = remember(before.pairs, trial - x, gradient - before.gradient)
    pairs = jax.tree.map(lambda new, old: jnp.where(is_first, old, new), learned, before.pairs)
    toward = direction(pairs, gradient, known.objective)
    descends = gradient @ toward < 0  # else it forgets what it knows
    pairs = jax.tree.map(lambda leaf: jnp.where(descends, leaf, 0), pairs)
    steepest = direction(jax.tree.map(jnp.zeros_like, pairs), gradient, known.objective)
    toward = jnp.where(descends, toward, steepest)
    longest = STEP_GROWTH * jnp.linalg.norm(trial - x)
    length = jnp.linalg.norm(toward)
    toward = jnp.where(is_first | (length <= longest), toward, longest / jnp.where(length > 0, length, 1) * toward)
    is_idle = before.objective - known.objective <= rounding
    idle_steps = jnp.where(is_idle, before.search.idle_steps + 1, 0)
    return known._replace(pairs=pairs, search=Search(trial + toward, gradient @ toward, jnp.int32(0), idle_steps))


def reject(own: Own, seen: Seen, x: Array, is_finite: Bool[Array, ""]) -> Own:
    """The trial point is not taken: the next one is nearer, where a parabola says; in the end along −∇F."""
    search = own.search
    step, bend = search.trial - x, seen.objective - own.objective - search.slope
    shrink = jnp.where(is_finite, jnp.clip(-search.slope / (2 * jnp.where(bend > 0, bend, 1)), 0.1, 0.5), 0.1)
    forgets = search.rejections == REJECTIONS - 1
    steepness = jnp.linalg.norm(own.gradient)
    steepest = -jnp.linalg.norm(step) / jnp.where(steepness > 0, steepness, 1) * own.gradient
    back = jnp.where(forgets, steepest, shrink * step)
    return own._replace(
        pairs=jax.tree.map(lambda leaf: jnp.where(forgets, 0, leaf), own.pairs),
        search=Search(x + back, own.gradient @ back, search.rejections + 1, search.idle_steps),
    )


@described(
    paper="Pedregosa 2016",
    loops="single",
    batch="all",
    samples="all in every step",
    tasks="all",
    memory="d'², or 2d' for many variables",
    curvature="kept H, conjugate gradients",
    accepts="any",
    tuning=Tuning("Implicit", {}, lambda scale, memory: {"memory": memory}, {"memory": (5, 20)}, "no step size"),
)
@arguments.known_keywords
def implicit(*, upper_optimizer: optax.GradientTransformation | None = None, memory: int = 10) -> Algorithm:
    """Implicit differentiation on all samples: Newton steps on every y_i, L-BFGS on x, and no step size.

        x' = x − B∇F(x),   ∇F = mean_i ∇x f_i − ∇²xy g_i [∇²yy g_i]⁻¹ ∇y f_i,   taken where F falls

    The method to begin with where a look at all samples is affordable: it ends by itself where no step lowers F any
    more. A step is one look at all samples, at one point. With many tasks it begins with some of them, and takes more
    as the noise of their mean asks for it, up to all.

    - `upper_optimizer`: an optax transformation that takes ∇F and gives the change of x, at every step; by default
      L-BFGS with a line search that never takes a point at which F is larger.
    - `memory`: pairs of steps and changes that L-BFGS remembers, each of the size of two x.

    Source: Pedregosa, Hyperparameter Optimization with Approximate Gradient, ICML 2016.

    >>> result = bx.solve(problem, bx.implicit(), seconds=10)
    """
    settings = dict(locals())
    arguments.count("memory", memory, most=1000)
    rates = as_rates(1.0, 1.0, 1.0, 1.0, upper_optimizer)
    return assemble("implicit", Implicit(rates=rates, optimizer=upper_optimizer, memory=memory), settings)
