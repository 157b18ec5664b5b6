"""∇²yy g = λI is known, or not needed at all: nothing of it is estimated.

- `known`: z = u − V v/λ, so V (d × d') alone is kept. For the compositional problems of the paper, where g_i is
  ½‖y‖² − yᵀE[g_i(x; ζ)], and for any other problem that is seen to have such a ∇²yy g.
- `unneeded`: z = u. For min-max problems, where ∇y f_i(x, y_i*) = 0, or y_i* is held by its set.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bilevax import projection
from bilevax.bounds import Bounds
from bilevax.curvature.contract import Curvature, Drift, Sample, Second, Update
from bilevax.problem import Problem
from bilevax.schedule import Rates
from bilevax.structure import Hessian
from bilevax.tasks import Decay

Cross = Float[Array, "d dy"]


def _cross(problem: Problem, sample: Sample) -> Cross:
    """∇²xy g on the samples, column by column."""
    return jax.vmap(lambda h: sample.second(h)[0], out_axes=1)(jnp.eye(problem.dim_y, dtype=problem.dtype))


class KnownCurvature(Curvature):
    """V (d × d') alone, where ∇²yy g = λI."""

    name = "known"

    def check(self, problem: Problem) -> None:
        """Refuse a problem whose ∇²yy g is not λI."""
        if problem.structure.hessian is not Hessian.IDENTITY:
            raise TypeError(
                "curvature=known needs a lower loss whose ∇²yy g is strong_convexity times the identity, whatever x, y "
                "and the samples are, as bilevax.problems.compositional makes it; here it has to be "
                f"{problem.structure.hessian.value}."
            )

    def products(self, problem: Problem) -> int:
        """d' columns of ∇²xy g."""
        return problem.dim_y

    def start(self, problem: Problem, sample: Sample, v: Float[Array, " dy"], bounds: Bounds) -> Cross:
        """S^u_C[∇²xy g] of the first batch."""
        return projection.singular_ceiling(_cross(problem, sample), bounds.g_xy)

    def age(self, problem: Problem, kept: Cross, decay: Decay, drift: Drift | None) -> Cross:
        """(1−β)V over the steps since the task was last drawn."""
        return decay.g_xy * kept

    def observe(self, problem: Problem, kept: Cross, now: Sample, before: Sample) -> tuple[Second, Second]:
        """∇²xy g at both points."""
        return Second(_cross(problem, now), None), Second(_cross(problem, before), None)

    def update(self, problem: Problem, rates: Rates, kept: Cross, new: Second, now: Update) -> Cross:
        """Line 6 of Algorithm 2; line 7 has nothing to do."""
        raw = (1 - rates.mixing.g_xy) * kept + new.cross
        return projection.singular_ceiling(raw, now.bounds.g_xy)

    def correction(self, problem: Problem, kept: Cross, v: Float[Array, " dy"]) -> Float[Array, " d"]:
        """V v/λ."""
        return problem.structure.apply_inverse(problem.strong_convexity, kept @ v)

    def pull(self, problem: Problem, kept: Cross, dx: Float[Array, " d"]) -> Float[Array, " dy"]:
        """Vᵀ dx/λ."""
        return problem.structure.apply_inverse(problem.strong_convexity, dx @ kept)


known = KnownCurvature()
"""∇²yy g = λI is known, V (d × d') is kept: for compositional problems."""


class UnneededCurvature(Curvature):
    """Nothing of ∇²g, for min-max problems."""

    name = "unneeded"

    def check(self, problem: Problem) -> None:
        """Refuse anything but a min-max problem."""
        if problem.structure.needs_hessian:
            raise TypeError(
                "curvature=unneeded is for min-max problems, whose lower loss is minus the upper one, as "
                "bilevax.problems.minmax makes them; elsewhere the hypergradient needs ∇²g."
            )

    def products(self, problem: Problem) -> int:
        """None."""
        return 0

    def start(self, problem: Problem, sample: Sample, v: Float[Array, " dy"], bounds: Bounds) -> tuple[()]:
        """Nothing."""
        return ()

    def age(self, problem: Problem, kept: tuple[()], decay: Decay, drift: Drift | None) -> tuple[()]:
        """Nothing ages."""
        return ()

    def observe(self, problem: Problem, kept: tuple[()], now: Sample, before: Sample) -> tuple[Second, Second]:
        """Nothing is looked at."""
        return Second(None, None), Second(None, None)

    def update(self, problem: Problem, rates: Rates, kept: tuple[()], new: Second, now: Update) -> tuple[()]:
        """Nothing is learned."""
        return ()

    def correction(self, problem: Problem, kept: tuple[()], v: Array) -> Float[Array, " d"]:
        """Zero."""
        return jnp.zeros(problem.dim_x, problem.dtype)


unneeded = UnneededCurvature()
"""Nothing of ∇²g is kept: for min-max problems."""
