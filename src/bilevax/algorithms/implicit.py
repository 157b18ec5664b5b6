"""Implicit differentiation on all samples: a Newton step on every lower problem for each L-BFGS step on x.

At a trial point x' every lower problem goes on from where it was (`bilevax.exact.follow`),

    y_i ← y_i − H_i⁻¹∇y g_i,   h_i ← H_i⁻¹∇y f_i,   H_i = ∇²yy g_i(x', y_i)
    F(x') = mean_i f_i − h_iᵀ∇y g_i,   ∇F(x') = mean_i ∇x f_i − ∇²xy g_i·h_i

by conjugate gradients that a kept H_i of an earlier point preconditions (d'×d' for each task, its diagonal where that
would be too much). If F has fallen enough (Armijo), x ← x' and L-BFGS says where to look next, x' = x − B∇F(x); else
the next x' is on the way there. With an optax optimizer every x' is taken. There is no step size.

*Growing samples.* With many tasks a run begins with some of them, in random order. The variance of ∇F_i over the tasks
tells the noise of their mean: where it is more than half of ∇F, ‖∇F‖² < 4 Var/k, there are more from then on, as many
as it asks for, up to all. Where a look at all samples of a task would take long they grow as well (`parts/stages.py`).

*Several minima.* Where a tangent of F was seen to lie above it, or a second descent (where the first was cheap) ended
elsewhere, F is not convex. Then a run that has come to its end goes down again: from random points around x_0, as far
away as the best end is or half, a quarter, an eighth as far, and once from x_0 with a first step ten times shorter. The
best end counts.

Pedregosa, Hyperparameter Optimization with Approximate Gradient, 2016; Nocedal, Wright, Numerical Optimization, 2006,
Algorithms 7.4 and 7.5 for L-BFGS; Byrd, Chin, Nocedal, Wu, Sample Size Selection, 2012, for the growth.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Key

from bilevax import arguments, chunks, draw
from bilevax.algorithms.contract import Algorithm, Cost, Variables, described
from bilevax.algorithms.frame import Change, Method, Move, Optimizer, RatesAt, Some, Start, State, assemble, rows_of
from bilevax.algorithms.parts.lbfgs import (
    ROUGHLY,
    Descent,
    accept,
    falls_enough,
    is_above,
    is_over,
    look_again,
    reject,
    start_descent,
)
from bilevax.algorithms.parts.stages import Stage, samples_of, size_in, stage_sizes
from bilevax.algorithms.registry.tuning import Tuning
from bilevax.algorithms.start import all_tasks
from bilevax.exact.follow import INVERSE_SHARE, LowerPoint, follow, invert
from bilevax.problem import Problem
from bilevax.schedule import Rates, as_rates

LARGEST_MATRIX, MOST_NUMBERS = 512, 2**25  # variables, and numbers in all, up to which H_i are kept as matrices
FIRST_TASKS, GROWTH = 64, 4  # with at least so many times more tasks than that, a run begins with these
NOISE = 0.5  # of ∇F, up to which no more tasks or samples are asked for
FIRST_FALL = 0.01  # of |F|: what the first step would bring were F linear; where x saturates, a longer one is for good
SHORTER = 0.1  # times as long as the first step of other descents is that of the third one, from x_0 again
CHEAP = 1e8  # numbers looked at, about a second: a first descent that took less is followed by another one in any case


class Best(NamedTuple):
    """The best end of a descent so far, y in the order of looks, F there (∞: none), and how many have ended."""

    x: Float[Array, " d"]
    y: Float[Array, "m dy"]
    objective: Float[Array, ""]
    descents: Int[Array, ""]


class Own(NamedTuple):
    """What is known at x: y_i, h_i and an earlier H_i⁻¹ in the order of looks, F and ∇F, and where to look next."""

    tasks: LowerPoint
    order: Int[Array, " m"]  # the tasks, in the order in which they are looked at
    chunks: Int[Array, ""]  # of tasks that are looked at by now
    stage: Stage
    is_stale: Bool[Array, ""]  # the H_i⁻¹, so that they are made anew
    share: Float[Array, ""]  # of ∇y f that may be left where h is solved for: less, the closer ∇F is to zero
    descent: Descent
    bends: Bool[Array, ""]  # whether F was seen not to be convex, so that there may be several minima
    best: Best


class Means(NamedTuple):
    """Means over the tasks looked at: F, ∇F, ‖∇F_i‖², length of its parts, products with H_i, and doubt of F."""

    objective: Float[Array, ""]
    gradient: Float[Array, " d"]
    square: Float[Array, ""]
    size: Float[Array, ""]
    products: Float[Array, ""]
    doubt: Float[Array, ""]


@dataclass(frozen=True, eq=False)
class Implicit(Method):
    """Full-batch implicit differentiation with its settings."""

    rates: Rates
    optimizer: Optimizer
    memory: int
    descents: int

    def chunk(self, problem: Problem) -> int:
        """Tasks that are looked at side by side."""
        return chunks.chunk_of(problem.num_tasks, max(problem.work, problem.dim_y**2))

    def all_chunks(self, problem: Problem) -> int:
        """How many chunks there are."""
        return -(-problem.num_tasks // self.chunk(problem))

    def grows(self, problem: Problem) -> bool:
        """Whether a run begins with some of the tasks."""
        return problem.num_tasks >= GROWTH * FIRST_TASKS

    def sizes(self, problem: Problem) -> tuple[int | None, ...]:
        """How many samples of a task the stages look at; an optimizer, which takes every point, has one stage."""
        return stage_sizes(problem) if self.optimizer is None else (None,)

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
        zero, seed = jnp.zeros((), dtype), jax.random.bits(jax.random.fold_in(key, 1), (), np.uint32)
        own = Own(
            tasks=LowerPoint(y, jnp.zeros_like(y), jnp.zeros((m, *shape), dtype)), order=order, chunks=jnp.int32(first),
            stage=Stage(jnp.int32(0), seed, jnp.asarray(False), zero), is_stale=jnp.asarray(True),
            share=jnp.asarray(INVERSE_SHARE, dtype), descent=start_descent(x, self.memory),
            bends=jnp.asarray(False),
            best=Best(x, y, zero + jnp.inf, jnp.int32(0)),
        )  # fmt: skip
        nothing = jnp.asarray(0.0)
        return Start(own, (), Cost(nothing, nothing, nothing))

    def renew(self, problem: Problem, x: Array, own: Own) -> LowerPoint:
        """H_i⁻¹ at x of every task that is looked at, or of the diagonals where matrices would be too much."""
        as_matrix = own.tasks.near.ndim == 3

        def with_samples(size: int | None) -> LowerPoint:
            def of_task(k: Array, task: LowerPoint) -> tuple[tuple[()], LowerPoint]:
                zeta = samples_of(problem, own.stage, size, own.order[k])[1]
                return (), task._replace(near=invert(problem, x, task.y, own.order[k], as_matrix, zeta))

            return chunks.mean_of_first(of_task, own.tasks, own.chunks, self.chunk(problem))[1]

        return self.in_stage(problem, own.stage, with_samples)

    def look(self, problem: Problem, x: Array, own: Own) -> tuple[Means, LowerPoint]:
        """F and ∇F at x, with the lower problems going on from where they were; on shards the means of all."""

        def with_samples(size: int | None) -> tuple[Means, LowerPoint]:
            def of_task(k: Array, task: LowerPoint) -> tuple[Means, LowerPoint]:
                samples = samples_of(problem, own.stage, size, own.order[k])
                term, y, h = follow(problem, x, task, own.order[k], *samples, share=own.share)
                square = term.gradient @ term.gradient
                means = Means(term.objective, term.gradient, square, term.size, term.products, term.doubt)
                return means, task._replace(y=y, h=h)

            return chunks.mean_of_first(of_task, own.tasks, own.chunks, self.chunk(problem))

        means, tasks = self.in_stage(problem, own.stage, with_samples)
        return problem.shards.mean(means), tasks

    def in_stage(self, problem: Problem, stage: Stage, act: Callable[[int | None], Any]) -> Any:
        """What `act` returns for the number of samples of this stage; a program for each."""
        return jax.lax.switch(stage.number, [functools.partial(act, size) for size in self.sizes(problem)])

    def _cost(self, problem: Problem, own: Own, products: Array) -> Cost:
        """All samples of the tasks looked at, some gradients, and so many products with H_i of each."""
        part = jnp.minimum(own.chunks * self.chunk(problem), problem.num_tasks).astype(float) / problem.num_tasks
        tasks, least = all_tasks(problem), float(problem.num_tasks)
        count = lambda data, size: draw.count_samples(data, tasks, size_in(data, size))
        upper, lower = (
            jnp.stack([count(data, size) for size in self.sizes(problem)])[own.stage.number]
            for data in (problem.upper_data, problem.lower_data)
        )
        gradients = jnp.maximum(upper, least) + 3 * jnp.maximum(lower, least)
        return Cost(part * (upper + lower), part * gradients, part * jnp.maximum(lower, least) * products.astype(float))

    def chunks_asked_for(self, problem: Problem, own: Own, seen: Means, ends: Bool[Array, ""]) -> Int[Array, ""]:
        """As many chunks of tasks as make the noise of ∇F small enough; four times as many where x `ends` to move."""
        whole = self.all_chunks(problem)
        if not self.grows(problem):
            return jnp.int32(whole)
        length = seen.gradient @ seen.gradient
        variance = jnp.maximum(seen.square - length, 0)
        side_by_side = self.chunk(problem) * problem.shards.count
        asked = variance / (NOISE**2 * jnp.maximum(length, jnp.finfo(length.dtype).tiny)) / side_by_side
        more = jnp.clip(asked, 2 * own.chunks.astype(asked.dtype), float(whole)).astype(jnp.int32)
        grown = jnp.where(asked > own.chunks.astype(asked.dtype), more, own.chunks)
        return jnp.minimum(jnp.where(ends, jnp.maximum(grown, 4 * own.chunks), grown), whole)

    def step(
        self, problem: Problem, rates_at: RatesAt, state: State, key: Key[Array, ""], move: Callable[[Array], Move]
    ) -> Change:
        """F and ∇F at the trial point, which is taken or not, and the next one."""
        own, descent = state.own, state.own.descent
        own = own._replace(
            tasks=jax.lax.cond(own.is_stale, lambda: self.renew(problem, state.x, own), lambda: own.tasks)
        )
        seen, tasks = self.look(problem, jnp.where(own.stage.is_probe, state.x, descent.trial), own)
        cost = self._cost(problem, own, seen.products)
        eps = float(jnp.finfo(problem.dtype).eps)
        length = jnp.linalg.norm(seen.gradient) / jnp.where(seen.size > 0, seen.size, 1)
        known = own._replace(
            tasks=tasks,
            is_stale=seen.products > 8 + problem.dim_y / 32,
            share=jnp.clip(0.01 * length, 10 * eps, INVERSE_SHARE),
        )
        if self.optimizer is not None:
            return self.take(problem, own, known, seen, move(seen.gradient), cost)
        is_first = jnp.isinf(descent.objective)
        is_finite = jnp.isfinite(seen.objective) & jnp.isfinite(seen.gradient @ seen.gradient)
        rounding = 10 * eps * jnp.abs(seen.objective)
        is_told = is_finite & (is_first | ~(seen.doubt > 0))
        is_good = is_told & falls_enough(descent, seen.objective, rounding)
        can_tell = is_told & ~is_first & ~own.stage.is_probe
        bends = own.bends | (can_tell & is_above(descent, state.x, seen.objective, seen.gradient, rounding))
        own = own._replace(bends=bends)
        fall = FIRST_FALL * jnp.where(own.best.descents == 2, SHORTER, 1.0).astype(problem.dtype)
        taken = accept(descent, state.x, seen.objective, seen.gradient, fall, rounding)
        refused = reject(descent, state.x, seen.objective, is_told)
        after = jax.tree.map(
            lambda new, old: jnp.where(is_good, new, old), known._replace(descent=taken, bends=bends),
            own._replace(descent=refused, is_stale=known.is_stale),
        )  # fmt: skip
        x = jnp.where(is_good, descent.trial, state.x)
        ends = is_over(after.descent) | (is_good & (after.descent.slope == 0))
        is_lost = is_first & ~is_finite & (own.best.descents > 0)  # a start of this method's own
        ends |= is_lost
        after, grows = self.grow(problem, x, after, seen, is_good, ends)
        after = after._replace(
            stage=after.stage._replace(is_probe=is_first & is_good & ~grows & ~self.sees_all(problem, after))
        )
        x, after, ends = jax.tree.map(
            lambda probe, other: jnp.where(own.stage.is_probe, probe, other),
            (state.x, learn_noise(own, seen), jnp.asarray(False)), (x, after, ends),
        )  # fmt: skip
        ends &= ~grows
        x, after, again = jax.lax.cond(
            ends, lambda: self.conclude(problem, x, after, key, state.step), lambda: (x, after, jnp.asarray(False))
        )
        is_valid = is_finite | ~is_first | is_lost
        return Change(Move(x, state.optimizer, is_valid), after, cost, (), converged=ends & ~again)

    def take(self, problem: Problem, own: Own, known: Own, seen: Means, moved: Move, cost: Cost) -> Change:
        """The step of an optimizer, which takes every point."""
        number = self.chunks_asked_for(problem, own, seen, jnp.asarray(False))
        is_stale = known.is_stale | (number > own.chunks)
        descent = own.descent._replace(objective=seen.objective, gradient=seen.gradient, trial=moved.x)
        after = known._replace(chunks=number, is_stale=is_stale, descent=descent)
        return Change(moved, after, cost, (seen.objective, known.tasks.y))

    def sees_all(self, problem: Problem, own: Own) -> Bool[Array, ""]:
        """Whether it is the last stage, with all samples of a task."""
        return own.stage.number == len(self.sizes(problem)) - 1

    def grow(
        self, problem: Problem, x: Array, own: Own, seen: Means, is_good: Bool[Array, ""], ends: Bool[Array, ""]
    ) -> tuple[Own, Bool[Array, ""]]:
        """More tasks or samples from the next look on, at x again, where noise asks for it; and whether it does."""
        asked, stage = self.chunks_asked_for(problem, own, seen, ends), own.stage
        is_noisy = stage.noise > NOISE**2 * (seen.gradient @ seen.gradient)
        more_samples = (is_noisy | ends) & ~self.sees_all(problem, own) & (is_good | ends)
        grows = ((asked > own.chunks) & (is_good | ends)) | more_samples
        put = lambda new, old: jnp.where(grows, new, old)
        noise = jnp.where(more_samples, 0, stage.noise)
        return own._replace(
            chunks=put(asked, own.chunks), is_stale=own.is_stale | grows,
            stage=stage._replace(number=stage.number + more_samples.astype(jnp.int32), noise=noise),
            descent=jax.tree.map(put, look_again(own.descent, x), own.descent),
        ), grows  # fmt: skip

    def conclude(
        self, problem: Problem, x: Array, own: Own, key: Key[Array, ""], looks: Int[Array, ""]
    ) -> tuple[Array, Own, Bool[Array, ""]]:
        """A descent has ended: keep the better end; then a start anew, or that end where no further descent is due.

        The second one is due as well where the first was cheap; if it ends elsewhere, F is not convex.
        """
        F, number = own.descent.objective, own.best.descents + 1
        is_better = own.best.objective > F
        keep = lambda new, old: jnp.where(is_better, new, old)
        best = Best(keep(x, own.best.x), keep(own.tasks.y, own.best.y), keep(F, own.best.objective), number)
        is_elsewhere = (number == 2) & (jnp.abs(F - own.best.objective) > ROUGHLY * jnp.abs(best.objective))
        is_cheap = (number == 1) & (looks.astype(x.dtype) < CHEAP / (problem.num_tasks * problem.work))
        bends = own.bends | is_elsewhere
        again = (bends | is_cheap) & (number < self.descents)
        distance = jnp.linalg.norm(best.x - problem.x0) / problem.dim_x**0.5
        around = problem.shards.first(jax.random.normal(key, best.x.shape, best.x.dtype))
        spread = jnp.where(number == 2, 0, 0.5 ** (number % 4).astype(distance.dtype))
        start = problem.x0 + spread * distance * around
        y0 = jax.vmap(problem.y0_of)(own.order)
        put = lambda new, old: jnp.where(again, new, old)
        tasks = own.tasks._replace(y=put(y0, best.y), h=put(jnp.zeros_like(y0), own.tasks.h))
        descent = jax.tree.map(put, start_descent(start, self.memory), own.descent._replace(objective=best.objective))
        return put(start, best.x), own._replace(
            tasks=tasks, is_stale=own.is_stale | again, share=put(INVERSE_SHARE, own.share).astype(x.dtype),
            descent=descent, best=best, bends=bends,
        ), again  # fmt: skip

    def variables(self, problem: Problem, rates_at: RatesAt, state: State, some: Some) -> Variables:
        """x, and y of every task, or the end of an earlier descent that is better; a task not looked at has y_0."""
        own = state.own
        is_behind = own.best.objective < own.descent.objective
        x, y = jnp.where(is_behind, own.best.x, state.x), jnp.where(is_behind, own.best.y, own.tasks.y)
        return Variables(x, rows_of(jnp.zeros_like(y).at[own.order].set(y), some))


def learn_noise(own: Own, seen: Means) -> Own:
    """After a look at x with other samples, whose ∇F differs by noise alone: nothing else changes."""
    difference = seen.gradient - own.descent.gradient
    noise = jnp.where(jnp.isfinite(seen.objective), difference @ difference / 2, jnp.inf)
    return own._replace(stage=own.stage._replace(is_probe=jnp.asarray(False), noise=noise))


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
def implicit(
    *, upper_optimizer: optax.GradientTransformation | None = None, memory: int = 10, descents: int = 8
) -> Algorithm:
    """Implicit differentiation on all samples: Newton steps on every y_i, L-BFGS on x, and no step size.

        x' = x − B∇F(x),   ∇F = mean_i ∇x f_i − ∇²xy g_i [∇²yy g_i]⁻¹ ∇y f_i,   taken where F falls

    The method to begin with where a look at all samples is affordable: it ends by itself where no step lowers F any
    more. A step is one look at all samples, at one point. With many tasks, or many samples of a task, it begins with
    some of them, and takes more as the noise of ∇F asks for it, up to all.

    - `upper_optimizer`: an optax transformation that takes ∇F and gives the change of x, at every step; by default
      L-BFGS with a line search that never takes a point at which F is larger.
    - `memory`: pairs of steps and changes that L-BFGS remembers, each of the size of two x.
    - `descents`: how often L-BFGS goes down at most, where F was seen not to be convex and so may have several
      minima: from x_0, from there with a first step ten times shorter, and from random points around it. The best
      end counts. Two are made in any case where the first takes no more than about a second.

    Source: Pedregosa, Hyperparameter Optimization with Approximate Gradient, ICML 2016.

    >>> result = bx.solve(problem, bx.implicit(), seconds=10)
    """
    settings = dict(locals())
    arguments.count("memory", memory, most=1000)
    arguments.count("descents", descents, most=100)
    rates = as_rates(1.0, 1.0, 1.0, 1.0, upper_optimizer)
    method = Implicit(rates=rates, optimizer=upper_optimizer, memory=memory, descents=descents)
    return assemble("implicit", method, settings)
