"""What stands for H_i⁻¹∇y f_i of a block: H_i itself, or h_i as a variable of its own.

BSVRB's are estimated by MSVR, H_i floored at λ (v1) or h_i (v2), and are as they were before the samples of a step were
seen: ∇²xy g_i and an H_i that share their noise would make the direction biased. Block SOBA's h_i takes plain steps on
the samples at hand. Where a problem's ∇²yy g is λI, or not needed, nothing is estimated.
"""

import abc
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from bilevax import lapack, projection, tasks
from bilevax.bounds import Bounds
from bilevax.curvature.contract import Inverse, Sample, Second, Update
from bilevax.curvature.solution import first_solution, radius_of
from bilevax.problem import Problem
from bilevax.samples import Indices
from bilevax.schedule import Rates
from bilevax.tasks import Decay, Lower

Pair = tuple[Float[Array, " dy"], Float[Array, " dy"]]


class BlockInverse(Inverse):
    """What stands for H_i⁻¹∇y f_i of a block, as it was before the samples of a step were seen."""

    @abc.abstractmethod
    def solutions(self, problem: Problem, kept: PyTree, now: Sample, before: Sample) -> Pair:
        """h for the current and for the previous point."""


class Matrices(NamedTuple):
    """H_t and H_{t−1}."""

    now: Float[Array, "dy dy"]
    before: Float[Array, "dy dy"]


class FlooredHessian(BlockInverse):
    """v1: H_i by MSVR, floored at λ; H_t for the current point, H_{t−1} for the previous one."""

    name = "H by MSVR"

    def products(self, problem: Problem) -> int:
        """d' columns of ∇²yy g, and one product with ∇²xy g."""
        return problem.dim_y + 1

    def _floor(self, problem: Problem, hessian: Float[Array, "dy dy"]) -> Float[Array, "dy dy"]:
        return projection.matrix_floor(hessian, problem.strong_convexity, problem.strong_convexity / 100)

    def start(self, problem: Problem, sample: Sample, v: Float[Array, " dy"], bounds: Bounds) -> Matrices:
        """∇²yy g of the first batch."""
        first = self._floor(problem, self._hessian(sample))
        return Matrices(first, first)

    def _hessian(self, sample: Sample) -> Float[Array, "dy dy"]:
        return jax.vmap(lambda h: sample.second(h)[1])(jnp.eye(sample.y.shape[0], dtype=sample.y.dtype))

    def age(self, problem: Problem, kept: Matrices, decay: Decay, drift: Any) -> Matrices:
        """H stays as it is, so that it is also the one of the step before."""
        return kept._replace(before=jnp.where(drift.absence.none, kept.before, kept.now))

    def observe(self, problem: Problem, kept: Matrices, now: Sample, before: Sample) -> tuple[Second, Second]:
        """∇²yy g at both points."""
        return Second(None, self._hessian(now)), Second(None, self._hessian(before))

    def update(self, problem: Problem, rates: Rates, kept: Matrices, new: Second, now: Update) -> Matrices:
        """H_{t+1}, floored."""
        estimate = (1 - rates.mixing.g_yy) * kept.now + new.hessian
        return Matrices(self._floor(problem, estimate), kept.now)

    def solutions(self, problem: Problem, kept: Matrices, now: Sample, before: Sample) -> Pair:
        """H_t⁻¹∇y f(now) and H_{t−1}⁻¹∇y f(before)."""
        return lapack.solve_positive(kept.now, now.f_y), lapack.solve_positive(kept.before, before.f_y)


class FollowedSolution(NamedTuple):
    """h_t, h_{t−1} and the estimate r of ∇²yy g·h − ∇y f."""

    h: Float[Array, " dy"]
    h_before: Float[Array, " dy"]
    residual: Float[Array, " dy"]


class VariableSolution(BlockInverse):
    """v2: h_i is a variable of its own; r_i by MSVR, h_i ← Π[h_i − τ r_i]."""

    name = "h followed"

    def products(self, problem: Problem) -> int:
        """One with each of ∇²yy g and ∇²xy g."""
        return 2

    def start(self, problem: Problem, sample: Sample, v: Float[Array, " dy"], bounds: Bounds) -> FollowedSolution:
        """The first h, and its residual."""
        h, _, hessian = first_solution(problem, sample.second, v, radius_of(problem, bounds))
        return FollowedSolution(h, h, hessian - v)

    def age(self, problem: Problem, kept: FollowedSolution, decay: Decay, drift: Any) -> FollowedSolution:
        """h moves on along −r, as y along −s."""
        return FollowedSolution(*tasks.catch_up(drift.absence, Lower(*kept), radius_of(problem, drift.bounds)))

    def observe(self, problem: Problem, kept: FollowedSolution, now: Sample, before: Sample) -> tuple[Second, Second]:
        """∇²yy g·h − ∇y f at both points."""
        of = lambda sample, h: Second(None, sample.second(h)[1] - sample.f_y)
        return of(now, kept.h), of(before, kept.h_before)

    def update(
        self, problem: Problem, rates: Rates, kept: FollowedSolution, new: Second, now: Update
    ) -> FollowedSolution:
        """r_{t+1}, and one step of h along it."""
        residual = (1 - rates.mixing.g_yy) * kept.residual + new.hessian
        h = projection.ball(kept.h - rates.lower_step * residual, radius_of(problem, now.bounds))
        return FollowedSolution(h, kept.h, residual)

    def solutions(self, problem: Problem, kept: FollowedSolution, now: Sample, before: Sample) -> Pair:
        """h_t and h_{t−1}."""
        return kept.h, kept.h_before


class PlainSolution(BlockInverse):
    """Block SOBA: h_i is a variable of its own, h_i ← Π[h_i − ρ(∇²yy g_i·h_i − ∇y f_i)] on the samples at hand."""

    name = "h followed"

    def products(self, problem: Problem) -> int:
        """One with each of ∇²yy g and ∇²xy g."""
        return 2

    def start(self, problem: Problem, sample: Sample, v: Float[Array, " dy"], bounds: Bounds) -> Float[Array, " dy"]:
        """Zero."""
        return jnp.zeros_like(v)

    def age(self, problem: Problem, kept: Float[Array, " dy"], decay: Decay, drift: Any) -> Float[Array, " dy"]:
        """A block that is not drawn stays as it is."""
        return kept

    def observe(
        self, problem: Problem, kept: Float[Array, " dy"], now: Sample, before: Sample
    ) -> tuple[Second, Second]:
        """∇²yy g·h − ∇y f; there is no previous point."""
        residual = Second(None, now.second(kept)[1] - now.f_y)
        return residual, residual

    def update(
        self, problem: Problem, rates: Rates, kept: Float[Array, " dy"], new: Second, now: Update
    ) -> Float[Array, " dy"]:
        """One step along it."""
        return projection.ball(kept - rates.lower_step * new.hessian, radius_of(problem, now.bounds))

    def solutions(self, problem: Problem, kept: Float[Array, " dy"], now: Sample, before: Sample) -> Pair:
        """h."""
        return kept, kept


class KnownInverse(BlockInverse):
    """h_i from ∇y f_i on the fresh sample alone, where ∇²yy g = λI or is not needed: MSVR has nothing to follow."""

    name = "known"

    def products(self, problem: Problem) -> int:
        """One with ∇²xy g; none for min-max."""
        return int(problem.structure.needs_hessian)

    def start(self, problem: Problem, sample: Sample, v: Array, bounds: Bounds) -> tuple[()]:
        """Nothing."""
        return ()

    def age(self, problem: Problem, kept: tuple[()], decay: Decay, drift: Any) -> tuple[()]:
        """Nothing."""
        return ()

    def observe(self, problem: Problem, kept: tuple[()], now: Sample, before: Sample) -> tuple[Second, Second]:
        """Nothing."""
        return Second(None, None), Second(None, None)

    def update(self, problem: Problem, rates: Rates, kept: tuple[()], new: Second, now: Update) -> tuple[()]:
        """Nothing."""
        return ()

    def solutions(self, problem: Problem, kept: tuple[()], now: Sample, before: Sample) -> Pair:
        """∇y f/λ at both points, or zero for min-max."""
        solve = lambda sample: problem.structure.apply_inverse(problem.strong_convexity, sample.f_y)
        return solve(now), solve(before)


FLOORED, VARIABLE, PLAIN, KNOWN = FlooredHessian(), VariableSolution(), PlainSolution(), KnownInverse()


def look(
    problem: Problem, x: Array, y: Array, i: Any, xi: Indices, zeta: Indices
) -> tuple[Float[Array, " dy"], Sample]:
    """∇y g_i on ζ, and the sample of both losses, at a point."""
    g_y, second = problem.lower_derivatives(x, y, i, zeta)
    return g_y, Sample(i, zeta, x, y, problem.upper_gradients(x, y, i, xi)[1], second)
