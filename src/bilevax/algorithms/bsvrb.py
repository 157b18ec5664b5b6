"""BSVRB v1 and v2: the blockwise successors of RSVRB (Hu, Qiu, Guo, Zhang, Yang, ICML 2023).

I of the m blocks are drawn in a step, with B samples each; estimates of the other blocks stay as they are. For a
drawn block i, with the same sample at the current and the previous point, MSVR (`bilevax.estimator`) estimates

    s_i ← (1−α)s_i + α ∇y g_i(now; ζ) + γ(∇y g_i(now; ζ) − ∇y g_i(before; ζ)),   γ = (m−I)/(I(1−α)) + (1−α)

and y_i ← y_i − τ s_i in every step for all blocks, delayed until a block is next drawn. What stands for H_i⁻¹∇y f_i:

    v1:  H_i by MSVR, its eigenvalues floored at λ; h_i = H_i⁻¹∇y f_i, ∇y f_i on the fresh sample
    v2:  h_i is a variable; r_i estimates ∇²yy g_i h_i − ∇y f_i by MSVR; h_i ← Π[h_i − τ r_i] in every step, as y_i

and with G the mean over the drawn i of ∇x f_i − ∇²xy g_i h_i on the fresh samples,

    z ← (1−β)(z − G(before)) + G(now),   x ← x − η z.

Where ∇²yy g is known to be λI both are h_i = ∇y f_i/λ on the fresh sample, and for min-max h_i = 0.
The direction comes before the estimates: G takes H_i, or h_i, of step t for `now` and of step t − 1 for `before`. An
H_i that had already seen ζ would share its noise with ∇²xy g_i(ζ), and G would be biased. A drawn block first makes the
steps that it missed, along the estimate of its last visit; its authors' code makes them along the new one.

Nothing of size d is kept for a block, and nothing of size d'² either in v2. Of the bounds only `f_y` is used, by v2;
where h_i leans on its ball, the steps since the last visit are replayed, which costs more with more tasks.
O(m ε⁻³/(I√I) + m ε⁻³/(I√B)) samples to an ε-stationary point.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from bilevax import arguments, chunks, draw, estimator, tasks
from bilevax.algorithms.contract import Algorithm, Variables, described
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
    count_both,
    rows_of,
)
from bilevax.algorithms.parts.block_inverse import FLOORED, KNOWN, VARIABLE, BlockInverse, look
from bilevax.algorithms.parts.hypergradient import Points, hypergradient_innovation
from bilevax.algorithms.registry.tuning import MIXED_STEPS, Tuning, block_steps
from bilevax.algorithms.start import FirstBatch, cost_of_estimates, first_batch_of, first_point
from bilevax.curvature.contract import Drift, Second, Update
from bilevax.draw import Sampling
from bilevax.problem import Problem
from bilevax.samples import Indices
from bilevax.schedule import Mixing, RateRule, Rates, as_rates, as_schedule
from bilevax.tasks import Clock, Lower

UPPER_STEP, LOWER_STEP = RateRule(0.25, "step", 1, condition_power=0.5), RateRule(0.25, "1/smoothness", 1)


class BlockEstimates(NamedTuple):
    """What is kept of one lower problem, as it was right after its last visit; or of several."""

    y: Float[Array, "*B dy"]
    y_before: Float[Array, "*B dy"]
    s: Float[Array, "*B dy"]
    inverse: PyTree
    visit: Any  # the readings of the clocks at that visit


class Own(NamedTuple):
    """x_{t−1}, z_t, and the clocks: of the steps of y, and of those of h where they have a size of their own."""

    x_before: Float[Array, " d"]
    z: Float[Array, " d"]
    clocks: tuple[Clock, ...]


class BlockVisit(NamedTuple):
    """A drawn block before and after its update, and h for the current and for the previous point."""

    before: BlockEstimates
    after: BlockEstimates
    h: Float[Array, " dy"]
    h_before: Float[Array, " dy"]


@dataclass(frozen=True, eq=False)
class BSVRB(Method):
    """BSVRB with its settings and its way to H⁻¹∇y f; a table of one `BlockEstimates` for each lower problem."""

    rates: Rates
    optimizer: Optimizer
    sampling: Sampling
    first: FirstBatch
    estimate: BlockInverse
    inverse_step: Any = None

    def check(self, problem: Problem) -> None:
        """Refuse a problem with fewer tasks than a step draws."""
        self.sampling.check(problem)

    def portion(self, problem: Problem) -> tuple[int | None, float]:
        """A batch of each drawn task."""
        return self.sampling.portion(problem)

    def inverse(self, problem: Problem) -> BlockInverse:
        """The given way where ∇²yy g has to be estimated, else what is known of it."""
        return self.estimate if problem.structure.estimates_hessian else KNOWN

    def clock_rates(self, problem: Problem, rates_at: RatesAt) -> tuple[RatesAt, ...]:
        """The rates of blocks that are not drawn, for each clock: they move on, but their estimates do not fade."""
        still = Mixing(*[jnp.zeros((), problem.dtype)] * len(Mixing._fields))
        of_y = lambda t: rates_at(t)._replace(mixing=still)
        if self.inverse_step is None:
            return (of_y,)
        return of_y, lambda t: self.of_h(problem, of_y(t), t)

    def of_h(self, problem: Problem, rates: Rates, t: Any) -> Rates:
        """The rates of h: those of y, but for a step of its own."""
        if self.inverse_step is None:
            return rates
        step = self.inverse_step(t) if callable(self.inverse_step) else self.inverse_step
        return rates._replace(lower_step=jnp.asarray(step, problem.dtype))

    def start(self, problem: Problem, key: Key[Array, ""]) -> Start:
        """x_1 = x_0 and y_1 = y_0, the first estimates of every block, z_0 the mean over all blocks."""
        clock, x, inverse = tasks.start_clock(problem.dtype), problem.x0, self.inverse(problem)
        clocks = (clock,) * (1 if self.inverse_step is None else 2)

        def first_block(i: Int[Array, ""]) -> tuple[BlockEstimates, Array]:
            point = first_point(problem, self.first, None, key, i)
            g_y, sample = look(problem, x, point.y, i, point.upper, point.lower)
            kept = inverse.start(problem, sample, sample.f_y, problem.bounds_of(i))
            return BlockEstimates(point.y, point.y, g_y, kept, tuple(clock.now for clock in clocks)), point.gradients

        def first_z(i: Int[Array, ""]) -> Float[Array, " d"]:
            block = jax.tree.map(lambda leaf: leaf[i], blocks)
            xi, zeta = self.first.indices(problem, key, i)
            _, sample = look(problem, x, block.y, i, xi, zeta)
            h, _ = inverse.solutions(problem, block.inverse, sample, sample)
            return problem.upper_gradients(x, block.y, i, xi)[0] - sample.second(h)[0]

        blocks, gradients = chunks.start(first_block, problem.num_tasks, problem.work)
        z = chunks.mean_of_all(first_z, problem.num_tasks, problem.work)
        cost = cost_of_estimates(problem, self.first, inverse.products(problem), gradients)
        return Start(Own(x, z, clocks), blocks, cost)

    def step(
        self, problem: Problem, rates_at: RatesAt, state: State, key: Key[Array, ""], move: Callable[[Array], Move]
    ) -> Change:
        """One step; all reads of per-block state come before its one write, so that it can be in place."""
        t, x, own, inverse = state.step, state.x, state.own, self.inverse(problem)
        rates, drawn = rates_at(t), draw.draw_step(problem, self.sampling, key)
        asleep = self.clock_rates(problem, rates_at)
        eras = tasks.start_eras(problem.dtype, fades=False)
        clocks = tuple(tasks.tick(clock, eras, at(t))[0] for clock, at in zip(own.clocks, asleep, strict=True))
        readings = tuple(clock.now for clock in clocks)
        share, alpha = self.portion(problem)[1], rates.mixing

        def visit(block: BlockEstimates, i: Array, xi: Indices, zeta: Indices) -> BlockVisit:
            block = self.catch_up(problem, asleep, own, i, block)
            g_y, now = look(problem, x, block.y, i, xi, zeta)
            g_y_before, before = look(problem, own.x_before, block.y_before, i, xi, zeta)
            h, h_before = inverse.solutions(problem, block.inverse, now, before)
            msvr = lambda alpha: lambda new, old: estimator.msvr_innovation(new, old, alpha, share)
            s = estimator.storm(block.s, msvr(alpha.g_y)(g_y, g_y_before), alpha.g_y)
            fresh, old = inverse.observe(problem, block.inverse, now, before)
            new = Second(None, jax.tree.map(msvr(alpha.g_yy), fresh.hessian, old.hessian))
            of_h = self.of_h(problem, rates, t)
            kept = inverse.update(problem, of_h, block.inverse, new, Update(now.f_y, problem.bounds_of(i), None))
            return BlockVisit(
                block, BlockEstimates(block.y - rates.lower_step * s, block.y, s, kept, readings), h, h_before
            )

        samples = (drawn.tasks, drawn.upper, drawn.lower)
        block, after, h, h_before = jax.vmap(visit)(tasks.read(state.tables, drawn.tasks), *samples)
        now, before = Points(x, block.y, h), Points(own.x_before, block.y_before, h_before)
        new = hypergradient_innovation(problem, now, before, samples, alpha.direction)
        z = estimator.storm(own.z, new, alpha.direction)
        batch = self.sampling.batch_size
        cost = count_both(problem, drawn.tasks, batch, points=2, products=inverse.products(problem))
        return Change(
            move=move(z),
            own=Own(x, z, clocks),
            cost=cost,
            watch=after,
            write=lambda keep: tasks.write(state.tables, drawn.tasks, after, keep),
        )

    def catch_up(
        self, problem: Problem, asleep: tuple[RatesAt, ...], own: Own, i: Array, block: BlockEstimates
    ) -> BlockEstimates:
        """The block as it is now: y_i ← y_i − τ s_i for all the steps in which it was not drawn, and h_i likewise."""
        eras = tasks.start_eras(problem.dtype, fades=False)  # nothing fades, so no era ever ends
        absences = [
            tasks.absence_since(clock, eras, visit, at)
            for clock, visit, at in zip(own.clocks, block.visit, asleep, strict=True)
        ]
        y, y_before, _ = tasks.catch_up(absences[0], Lower(block.y, block.y_before, block.s), None)
        drift = Drift(absences[-1], None, problem.bounds_of(i))
        kept = self.inverse(problem).age(problem, block.inverse, absences[-1].decay, drift)
        return block._replace(y=y, y_before=y_before, inverse=kept)

    def variables(self, problem: Problem, rates_at: RatesAt, state: State, some: Some) -> Variables:
        """x, and y of every block, or of some, up to date."""
        asleep = self.clock_rates(problem, rates_at)
        y_of = lambda i, block: self.catch_up(problem, asleep, state.own, i, block).y
        numbers = jnp.arange(problem.num_tasks) if some is None else some
        return Variables(state.x, jax.vmap(y_of)(numbers, rows_of(state.tables, some)))


def _check_below_one(mixing: Any) -> None:
    """Refuse a mixing of one: MSVR divides by 1 − α."""
    named = mixing._asdict() if isinstance(mixing, Mixing) else {"": mixing}
    for field, beta in named.items():
        as_schedule(f"mixing.{field}".rstrip("."), beta, arguments.below_one)


def _assemble(name: str, estimate: BlockInverse, settings: Mapping[str, Any]) -> Algorithm:
    """BSVRB with the given way to H⁻¹∇y f."""
    _check_below_one(settings["mixing"])
    upper_step, lower_step, optimizer = (settings[key] for key in ("upper_step", "lower_step", "upper_optimizer"))
    inverse_step, size = settings.get("inverse_step"), settings["batch_size"]
    if inverse_step is not None:
        as_schedule("inverse_step", inverse_step, arguments.positive)
    method = BSVRB(
        rates=as_rates(upper_step, lower_step, 1.0, settings["mixing"], optimizer),
        optimizer=optimizer,
        sampling=Sampling(settings["tasks_per_step"], size),
        first=first_batch_of(settings["initialization"], settings["initial_batch_size"], size),
        estimate=estimate,
        inverse_step=inverse_step,
    )
    return assemble(name, method, settings)


@described(
    paper="Hu, Qiu, Guo, Zhang, Yang 2023",
    loops="single",
    batch="O(1)",
    samples="ε⁻³",
    tasks="a few",
    memory="2d'²",
    curvature="H by MSVR",
    accepts="any with small d'",
    tuning=Tuning("BSVRB v1", {**MIXED_STEPS, "mixing": (3e-3, 0.9)}, block_steps),
)
@arguments.known_keywords
def bsvrb_v1(
    *,
    upper_step: Any = UPPER_STEP,
    lower_step: Any = LOWER_STEP,
    mixing: Any = 0.1,
    tasks_per_step: int | None = None,
    batch_size: int | None = 32,
    upper_optimizer: optax.GradientTransformation | None = None,
    initialization: str = "theorem",
    initial_batch_size: int | None = None,
) -> Algorithm:
    """BSVRB v1: G = mean_i ∇x f_i − ∇²xy g_i H_i⁻¹∇y f_i, z ← (1−β)(z − G_before) + G_now, x ← x − η z.

    H_i (d' × d') is estimated by MSVR, ∇x f_i, ∇y f_i and ∇²xy g_i are fresh: for small d' and any d. G_now takes the
    H_i of before this step's samples, G_before the one of the step before. `mixing` is α for ∇y g_i (as `Mixing.g_y`)
    and H_i (`g_yy`), and β (`direction`). Source: Hu, Qiu, Guo, Zhang, Yang, ICML 2023, Algorithm BSVRB^{v1}.
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
    tuning=Tuning("BSVRB v2", {**MIXED_STEPS, "mixing": (3e-3, 0.9)}, block_steps),
)
@arguments.known_keywords
def bsvrb_v2(
    *,
    upper_step: Any = UPPER_STEP,
    lower_step: Any = LOWER_STEP,
    inverse_step: Any = None,
    mixing: Any = 0.1,
    tasks_per_step: int | None = None,
    batch_size: int | None = 32,
    upper_optimizer: optax.GradientTransformation | None = None,
    initialization: str = "theorem",
    initial_batch_size: int | None = None,
) -> Algorithm:
    """BSVRB v2: h_i ← Π[h_i − τ r_i], G = mean_i ∇x f_i − ∇²xy g_i h_i, z ← (1−β)(z − G_before) + G_now, x ← x − η z.

    Matrix-free, for any d and d'; only vectors of size d' are kept for a task. `inverse_step` is the step of h_i, by
    default that of y_i; Π is the ball of radius C_fy/λ where `Bounds.f_y` is given. `mixing` is α for ∇y g_i (as
    `Mixing.g_y`) and ∇²yy g_i h_i − ∇y f_i (`g_yy`), and β (`direction`). Source: Hu, Qiu, Guo, Zhang, Yang, ICML 2023,
    Algorithm BSVRB^{v2}.
    """
    return _assemble("bsvrb_v2", VARIABLE, dict(locals()))
