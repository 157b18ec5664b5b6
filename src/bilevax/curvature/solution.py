"""`tracked`: matrix-free, h_i ≈ H_i⁻¹ v_i is a variable of its own; for neural networks and large d'.

h minimises ½hᵀHh − hᵀv, and follows it by a variance-reduced recursion beside that of y. With the same sample at
the current and the previous point (x, y, h), and 1/p_i before each,

    s ← (1−β)(s − ∇²yy g(before; ζ) h_before) + ∇²yy g(now; ζ) h     estimate of ∇²yy g·h
    k ← (1−β)(k − ∇²xy g(before; ζ) h_before) + ∇²xy g(now; ζ) h     estimate of ∇²xy g·h, the correction
    h ← Π[h − τ_t τ (s − v)]                                        as y ← y − τ_t τ w

Both products are one reverse pass over ∇y g: nothing of size d'² or d·d' exists. While its task is not drawn, s and k
fade like H and V, and h drifts along −(s − v) of its last visit as y along −w. Π is the ball of radius C_fy/λ, which
holds H⁻¹v, where `Bounds.f_y` is given.

Where x_j is the weight of sample j (a `LinearModel`), entry j of ∇²xy g·h is q_j a_jᵀh, and zero for samples that were
not drawn: k is then a `ScaledRow`, of which a step changes the drawn entries and one number for the rest.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bilevax import projection
from bilevax.bounds import Bounds
from bilevax.curvature.contract import Curvature, Drift, Sample, Second, Sleepers, Update, Visit
from bilevax.draw import AtEntries
from bilevax.linear_model import factors_at, rows_at, sum_repeats
from bilevax.problem import Problem, SecondOrder
from bilevax.schedule import Mixing, Rates
from bilevax.tasks import Decay, ScaledRow


class Tracked(NamedTuple):
    """h_t, h_{t−1}, and the estimates s of ∇²yy g·h and k of ∇²xy g·h."""

    h: Float[Array, " dy"]
    h_before: Float[Array, " dy"]
    hessian: Float[Array, " dy"]
    cross: Any  # a vector of size d, or a `ScaledRow` of it


def radius_of(problem: Problem, bounds: Bounds) -> Any:
    """C_fy/λ, the radius of a ball that holds H⁻¹v; `None` without a bound."""
    return None if bounds.f_y is None else bounds.f_y / problem.strong_convexity


def first_solution(
    problem: Problem, second: SecondOrder, v: Float[Array, " dy"], radius: Any
) -> tuple[Array, Array, Array]:
    """h = a·v with the a that is best along v, one step of conjugate gradients from zero; ∇²xy g·h and ∇²yy g·h."""
    cross, hessian = second(v)
    square, tiny = v @ v, float(jnp.finfo(problem.dtype).tiny)
    best = square / jnp.maximum(v @ hessian, problem.strong_convexity * square + tiny)
    h = projection.ball(best * v, radius)
    scale = (h @ v) / (square + tiny)
    return h, scale * cross, scale * hessian


class TrackedCurvature(Curvature):
    """See the top of this file."""

    name = "tracked"

    def products(self, problem: Problem) -> int:
        """One with each of the two matrices."""
        return 2

    def start(self, problem: Problem, sample: Sample, v: Float[Array, " dy"], bounds: Bounds) -> Tracked:
        """The first h, and s and k to it."""
        h, cross, hessian = first_solution(problem, sample.second, v, radius_of(problem, bounds))
        return Tracked(h, h, hessian, cross)

    def age(self, problem: Problem, kept: Tracked, decay: Decay, drift: Drift | None) -> Tracked:
        """s and k fade, h drifts along −(s − v) as y along −w."""
        faded = kept._replace(hessian=decay.g_yy * kept.hessian, cross=decay.g_xy * kept.cross)
        if drift is None:
            return faded
        absence, residual = drift.absence, kept.hessian - drift.v  # type: ignore[operator]  # RSVRB keeps v
        length = absence.length if absence.known is None else jnp.where(absence.known, absence.length, 0)
        h = kept.h - length * residual
        last = absence.last_drift * decay.g_y * residual
        return faded._replace(h=h, h_before=jnp.where(absence.none, kept.h_before, h + last))

    def observe(self, problem: Problem, kept: Tracked, now: Sample, before: Sample) -> tuple[Second, Second]:
        """∇²g(now; ζ)·h and ∇²g(before; ζ)·h_before."""
        return Second(*now.second(kept.h)), Second(*before.second(kept.h_before))

    def update(self, problem: Problem, rates: Rates, kept: Tracked, new: Second, now: Update) -> Tracked:
        """The two estimates, then one step of h."""
        hessian = (1 - rates.mixing.g_yy) * kept.hessian + new.hessian
        cross = (1 - rates.mixing.g_xy) * kept.cross + new.cross
        step = rates.relaxation * rates.lower_step
        h = projection.ball(kept.h - step * (hessian - now.v), radius_of(problem, now.bounds))
        return Tracked(h, kept.h, hessian, cross)

    def correction(self, problem: Problem, kept: Tracked, v: Float[Array, " dy"]) -> Float[Array, " d"]:
        """k, the estimate of ∇²xy g·h."""
        return kept.cross


class TrackedRows(TrackedCurvature):
    """The same for many linear models that share the weights of their samples: k at the drawn samples alone."""

    long_rows = True

    def start(self, problem: Problem, sample: Sample, v: Float[Array, " dy"], bounds: Bounds) -> Tracked:
        """As for any problem; a whole k."""
        first = super().start(problem, sample, v, bounds)
        return first._replace(cross=ScaledRow(first.cross, jnp.ones((), problem.dtype)))

    def age(self, problem: Problem, kept: Tracked, decay: Decay, drift: Drift | None) -> Tracked:
        """k fades by one number."""
        others = super().age(problem, kept._replace(cross=0.0), decay, drift)
        return others._replace(cross=kept.cross.times(decay.g_xy))

    def observe(self, problem: Problem, kept: Tracked, now: Sample, before: Sample) -> tuple[Second, Second]:
        """q_j a_jᵀh of the samples, and ∇²yy g·h."""

        def of(at: Sample, h: Float[Array, " dy"]) -> Second:
            cross = factors_at(problem, at.i, at.indices, at.x, at.y).q * (rows_at(problem, at.indices) @ h)
            return Second(cross if at.indices is None else AtEntries(cross), at.second(h)[1])

        return of(now, kept.h), of(before, kept.h_before)

    def update(self, problem: Problem, rates: Rates, kept: Tracked, new: Second, now: Update) -> Tracked:
        """k of the drawn samples, the rest as for any problem."""
        gained = new.cross.values if isinstance(new.cross, AtEntries) else new.cross
        others = super().update(problem, rates, kept._replace(cross=0.0), new._replace(cross=0.0), now)
        k = kept.cross.times(1 - rates.mixing.g_xy)
        return others._replace(cross=k._replace(values=k.values + sum_repeats(now.entries, gained)[0]))

    def correction(self, problem: Problem, kept: Tracked, v: Float[Array, " dy"]) -> Float[Array, " d"]:
        """k, from a whole row."""
        return kept.cross.values

    def change(self, problem: Problem, sleepers: Sleepers, visit: Visit, mixing: Mixing) -> Float[Array, " d"]:
        """mean_j k_after − (1 − β) k_before: what fades in one product, and what the drawn entries gained."""
        step = sleepers.after.g_xy - (1 - mixing.direction) * sleepers.before.g_xy
        asleep = step @ sleepers.kept.cross.values
        hits = jnp.where(sleepers.hit, sleepers.at, -1)[:, None] == jnp.arange(len(visit.tasks))[None, :]  # (J, B)
        gains = visit.after.cross.values - (1 - mixing.g_xy) * visit.before.cross.values

        def once(entries: Any, gain: Array, is_hit: Array) -> Array:
            return jnp.where(is_hit, gain * sum_repeats(entries, gain)[1], 0)

        terms = jax.vmap(once)(visit.entries, gains, hits.any(axis=0))
        if visit.entries is None:
            return (asleep + terms.sum(0)) / len(step)
        return asleep.at[visit.entries.reshape(-1)].add(terms.reshape(-1)) / len(step)


tracked = TrackedCurvature()
"""Matrix-free: h_i ≈ H_i⁻¹ v_i as a variable of its own, for neural networks and large d'."""

tracked_rows = TrackedRows()
