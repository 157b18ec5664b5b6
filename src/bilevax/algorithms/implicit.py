"""Implicit differentiation on all samples: a Newton step on every lower problem for each L-BFGS step on x.

At a trial point x' every lower problem goes on from where it was,

    y_i ← y_i − H_i⁻¹∇y g_i,   h_i ← H_i⁻¹∇y f_i,   H_i = ∇²yy g_i(x', y_i),

by conjugate gradients that a kept H_i of an earlier point preconditions (d'×d' for each task, its diagonal where that
would be too much); further Newton steps follow only where y_i has moved far. Then

    F(x') = mean_i f_i − h_iᵀ∇y g_i,   ∇F(x') = mean_i ∇x f_i − ∇²xy g_i·h_i

where −h_iᵀ∇y g_i is what f_i changes by on the way that y_i still lacks. If F has fallen enough (Armijo), x ← x' and
L-BFGS says where to look next, x' = x − B∇F(x); else the next x' is on the way there. With an optax optimizer every x'
is taken. Nothing is drawn: a step looks at all samples of all tasks, in chunks of tasks, and there is no step size.

Pedregosa, Hyperparameter Optimization with Approximate Gradient, 2016; Nocedal, Wright, Numerical Optimization, 2006,
Algorithms 7.4 and 7.5 for L-BFGS.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key

from bilevax import arguments, chunks, draw
from bilevax.algorithms.contract import Algorithm, Cost, described
from bilevax.algorithms.frame import Change, Method, Move, Optimizer, RatesAt, Start, State, assemble
from bilevax.algorithms.start import all_tasks
from bilevax.exact.follow import INVERSE_SHARE, Followed, follow_all, invert
from bilevax.problem import Problem
from bilevax.schedule import Rates, as_rates

LARGEST_MATRIX, MOST_NUMBERS = 512, 2**25  # variables, and numbers in all, up to which H_i are kept as matrices
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
    """y_i, h_i and an earlier H_i⁻¹, whether that is out of date, F and ∇F at x, and where to look next."""

    y: Float[Array, "m dy"]
    h: Float[Array, "m dy"]
    near: Float[Array, "m ..."]
    is_stale: Bool[Array, ""]
    share: Float[Array, ""]  # of ∇y f that may be left where h is solved for: less, the closer ∇F is to zero
    objective: Float[Array, ""]
    gradient: Float[Array, " d"]
    pairs: Pairs
    search: Search


def remember(pairs: Pairs, step: Array, change: Array) -> Pairs:
    """The pairs with a new one, unless F curves the wrong way along it."""
    product = step @ change
    is_useful = product > 1e-6 * jnp.linalg.norm(step) * jnp.linalg.norm(change)
    push = lambda old, new: jnp.where(is_useful, jnp.concatenate([new[None], old[:-1]]), old)
    return Pairs(push(pairs.steps, step), push(pairs.changes, change), push(pairs.weights, 1 / product))


def direction(pairs: Pairs, gradient: Array, objective: Array) -> Array:
    """−B∇F by the two loops of L-BFGS; without pairs as long as would bring F to zero were F linear."""
    count = len(pairs.weights)

    def down(k: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        q, alphas = carry
        alpha = pairs.weights[k] * (pairs.steps[k] @ q)
        return q - alpha * pairs.changes[k], alphas.at[k].set(alpha)

    q, alphas = jax.lax.fori_loop(0, count, down, (gradient, jnp.zeros_like(pairs.weights)))
    last = pairs.weights[0] * (pairs.changes[0] @ pairs.changes[0])
    square = gradient @ gradient
    unknown = jnp.where(objective == 0, 1, jnp.abs(objective)) / jnp.where(square == 0, 1, square)
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

    def start(self, problem: Problem, key: Key[Array, ""]) -> Start:
        """x_0 is looked at first: nothing is known of F yet."""
        x, dtype = problem.x0, problem.dtype
        y = chunks.for_all(problem.y0_of, problem.num_tasks)
        none = jnp.zeros((self.memory, problem.dim_x), dtype)
        pairs = Pairs(none, none, jnp.zeros(self.memory, dtype))
        near, products = self._invert_all(problem, x, y), float(problem.dim_y) * problem.structure.estimates_hessian
        search = Search(x, jnp.zeros((), dtype), jnp.int32(0), jnp.int32(0))
        lacks = jnp.asarray(jnp.inf, dtype)
        share = jnp.asarray(INVERSE_SHARE, dtype)
        own = Own(y, jnp.zeros_like(y), near, jnp.asarray(False), share, lacks, jnp.zeros_like(x), pairs, search)
        return Start(own, (), self._cost(problem, jnp.asarray(products)))

    def _invert_all(self, problem: Problem, x: Array, y: Float[Array, "m dy"]) -> Float[Array, "m ..."]:
        """H_i⁻¹ of every task, or of the diagonals where matrices would be too much."""
        m, n = problem.num_tasks, problem.dim_y
        as_matrix = n <= LARGEST_MATRIX and m * n**2 <= MOST_NUMBERS
        return chunks.for_all(lambda i: invert(problem, x, y[i], i, as_matrix), m, max(problem.work, n**2))

    def _cost(self, problem: Problem, products: Array) -> Cost:
        """All samples, a few gradients, and so many products with H_i of each task."""
        tasks = all_tasks(problem)
        upper, lower = (draw.count_samples(data, tasks, None) for data in (problem.upper_data, problem.lower_data))
        least = float(problem.num_tasks)
        evaluations = jnp.maximum(upper, least), jnp.maximum(lower, least)
        return Cost(upper + lower, evaluations[0] + 3 * evaluations[1], evaluations[1] * products.astype(float))

    def step(
        self, problem: Problem, rates_at: RatesAt, state: State, key: Key[Array, ""], move: Callable[[Array], Move]
    ) -> Change:
        """F and ∇F at the trial point, which is taken or not, and the next one."""
        own, search = state.own, state.own.search
        renew = lambda: self._invert_all(problem, state.x, own.y)
        own = own._replace(near=jax.lax.cond(own.is_stale, renew, lambda: own.near))
        seen, y, h = follow_all(problem, search.trial, Followed(own.y, own.h, own.near), own.share)
        cost = self._cost(problem, seen.products)
        is_stale = seen.products > 8 + problem.dim_y / 32
        eps = float(jnp.finfo(problem.dtype).eps)
        length = jnp.linalg.norm(seen.gradient) / jnp.where(seen.size > 0, seen.size, 1)
        share = jnp.clip(0.01 * length, 10 * eps, INVERSE_SHARE)
        is_finite = jnp.isfinite(seen.objective) & jnp.isfinite(seen.gradient @ seen.gradient)
        if self.optimizer is not None:
            after = own._replace(y=y, h=h, is_stale=is_stale, share=share, objective=seen.objective)
            moved = move(seen.gradient)
            after = after._replace(search=search._replace(trial=moved.x))
            return Change(moved, after, cost, (seen.objective, y))

        rounding = 10 * eps * jnp.abs(seen.objective)
        is_good = is_finite & (seen.objective <= own.objective + ARMIJO * search.slope + rounding)
        is_first = jnp.isinf(own.objective)

        step = search.trial - state.x
        known = remember(own.pairs, step, seen.gradient - own.gradient)
        pairs = jax.tree.map(lambda new, old: jnp.where(is_first, old, new), known, own.pairs)
        toward = direction(pairs, seen.gradient, seen.objective)
        slope = seen.gradient @ toward
        descends = slope < 0
        forgotten = jax.tree.map(jnp.zeros_like, pairs)
        plain = direction(forgotten, seen.gradient, seen.objective)
        pairs = jax.tree.map(lambda new, none: jnp.where(descends, new, none), pairs, forgotten)
        toward = jnp.where(descends, toward, plain)
        is_idle = own.objective - seen.objective <= rounding
        idle_steps = jnp.where(is_idle, search.idle_steps + 1, 0)
        onward = Search(search.trial + toward, seen.gradient @ toward, jnp.int32(0), idle_steps)

        bend = seen.objective - own.objective - search.slope
        shrink = jnp.where(is_finite, jnp.clip(-search.slope / (2 * jnp.where(bend > 0, bend, 1)), 0.1, 0.5), 0.1)
        forgets = search.rejections == REJECTIONS - 1
        length, steepness = jnp.linalg.norm(step), jnp.linalg.norm(own.gradient)
        back = jnp.where(forgets, -length / jnp.where(steepness > 0, steepness, 1) * own.gradient, shrink * step)
        backward = Search(state.x + back, own.gradient @ back, search.rejections + 1, search.idle_steps)
        back_pairs = jax.tree.map(lambda none, old: jnp.where(forgets, none, old), forgotten, own.pairs)

        taken = Own(y, h, own.near, is_stale, share, seen.objective, seen.gradient, pairs, onward)
        refused = own._replace(is_stale=is_stale, pairs=back_pairs, search=backward)
        after = jax.tree.map(lambda a, b: jnp.where(is_good, a, b), taken, refused)
        x = jnp.where(is_good, search.trial, state.x)
        ended = (after.search.rejections >= 2 * REJECTIONS) | (after.search.idle_steps >= IDLE_STEPS)
        move_made = Move(x, state.optimizer, is_finite | ~is_first)
        return Change(move_made, after, cost, (), converged=ended | (after.search.slope == 0))


@described(
    paper="Pedregosa 2016",
    loops="single",
    batch="all",
    samples="all in every step",
    tasks="all",
    memory="d'², or 2d' for many variables",
    curvature="kept H, conjugate gradients",
    accepts="any",
)
@arguments.known_keywords
def implicit(*, upper_optimizer: optax.GradientTransformation | None = None, memory: int = 10) -> Algorithm:
    """Implicit differentiation on all samples: Newton steps on every y_i, L-BFGS on x, and no step size.

        x' = x − B∇F(x),   ∇F = mean_i ∇x f_i − ∇²xy g_i [∇²yy g_i]⁻¹ ∇y f_i,   taken where F falls

    The method to begin with where a look at all samples is affordable: it ends by itself where no step lowers F any
    more. A step is one look at all samples of all tasks at one point.

    - `upper_optimizer`: an optax transformation that takes ∇F and gives the change of x, at every step; by default
      L-BFGS with a line search that never takes a point at which F is larger.
    - `memory`: pairs of steps and changes that L-BFGS remembers, each of the size of two x.

    Source: Pedregosa, Hyperparameter Optimization with Approximate Gradient, ICML 2016.

    >>> result = bx.solve(problem, bx.implicit(), seconds=10)
    """
    settings = dict(locals())
    arguments.count("memory", memory)
    rates = as_rates(1.0, 1.0, 1.0, 1.0, upper_optimizer)
    return assemble("implicit", Implicit(rates=rates, optimizer=upper_optimizer, memory=memory), settings)
