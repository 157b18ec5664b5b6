"""The contract of what is kept of ∇²g for a task."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from bilevax import estimator
from bilevax.bounds import Bounds
from bilevax.delay import Decay
from bilevax.oracle import SecondOrder
from bilevax.problem import Problem
from bilevax.schedule import Rates


class At(NamedTuple):
    """A point (x, y) and the map h ↦ (∇²xy g·h, ∇²yy g·h) on the drawn samples there."""

    x: Float[Array, " d"]
    y: Float[Array, " dy"]
    second: SecondOrder


class Fresh(NamedTuple):
    """What a curvature is told when the samples of drawn tasks are to be built in; B tasks at once.

    `entries` are the samples that any of a task's draws looked at (`None`: all of them), `f_y` the new v.
    `same[k, l]` says that draws k and l are of one task (`None`: no two are).
    """

    tasks: Int[Array, " B"]
    same: Bool[Array, "B B"] | None
    entries: Int[Array, "B e"] | None
    f_y: Float[Array, "B dy"]
    rates: Rates
    bounds: Bounds


class Drawn(NamedTuple):
    """What is kept of the drawn tasks before and after they were updated, and at which entries."""

    tasks: Int[Array, " B"]
    entries: Int[Array, "B e"] | None
    current: PyTree
    updated: PyTree


class Asked(NamedTuple):
    """The tasks j of the direction: what is kept of them as it was read, their decays and v, before and now.

    Task k of them was drawn in this step as the `at[k]`-th where `hit[k]`.
    """

    kept: PyTree
    before: Decay
    now: Decay
    v_before: Float[Array, "J dy"]
    v_now: Float[Array, "J dy"]
    hit: Bool[Array, " J"]
    at: Int[Array, " J"]


class Curvature(NamedTuple):
    """V_i H_i⁻¹ v_i and what it takes to follow it: functions on the pytree that is kept for one task.

    - `start(problem, i, indices, at, f_y, bounds)`: from the first batch of task i.
    - `age(problem, kept, passed, f_y)`: after steps in which the task was not drawn (`delay.Elapsed`); f_y is v
      as it was after the last visit.
    - `innovation(problem, i, indices, kept, now, before, mixing)`: what one batch tells.
    - `update(problem, kept, new, fresh)`: STORM, then the projections, for B drawn tasks.
    - `correction(problem, kept, v)`: V H⁻¹ v, what the hypergradient subtracts.
    - `change(problem, asked, drawn, mixing)`: the innovation mean_j [V H⁻¹ v]_now − (1 − β)·[V H⁻¹ v]_before for
      the direction.
    - `pull(problem, kept, dx)`: H⁻¹ Vᵀ dx, minus what y* moves by with x; `None` where V and H are not there.
    - `products(problem)`: products of second derivatives with a vector that it takes for a sample at a point.
    - `check(problem)`: refuses a problem that it cannot serve.
    - `factored(problem, kept)`: kept for several corrections and pulls, H factorised once.

    The entries of a `bilevax.rows.ScaledRow` are read and written only at the drawn samples.
    """

    name: str
    start: Callable[..., PyTree]
    age: Callable[..., PyTree]
    innovation: Callable[..., PyTree]
    update: Callable[..., PyTree]
    correction: Callable[..., Array]
    change: Callable[..., Array]
    pull: Callable[..., Array] | None
    products: Callable[[Problem], int]
    check: Callable[[Problem], None]
    factored: Callable[..., PyTree] = lambda problem, kept: kept

    def __repr__(self) -> str:
        return f"bilevax.curvature.{self.name}"


def accept_all(problem: Problem) -> None:
    """Any problem will do."""


def chosen_now(hit: Bool[Array, " J"], at: Int[Array, " J"], aged: PyTree, updated: PyTree) -> PyTree:
    """What is kept of the tasks j after this step: updated where they were drawn, else aged."""

    def choose(aged: Array, updated: Array) -> Array:
        return jnp.where(hit.reshape(-1, *[1] * (aged.ndim - 1)), updated[at], aged)

    return jax.tree.map(choose, aged, updated)


def change_of_rows(age: Callable, correction: Callable) -> Callable[..., Float[Array, " d"]]:
    """`change` for whatever is kept in whole rows, by two corrections for each task."""

    def change(problem: Problem, asked: Asked, drawn: Drawn, mixing: Any) -> Float[Array, " d"]:
        aged = lambda decay: jax.vmap(lambda kept, decay: age(problem, kept, decay))(asked.kept, decay)
        corrections = jax.vmap(lambda kept, v: correction(problem, kept, v))
        before = corrections(aged(asked.before), asked.v_before)
        now = corrections(chosen_now(asked.hit, asked.at, aged(asked.now), drawn.updated), asked.v_now)
        return estimator.innovation(now.mean(0), before.mean(0), mixing.direction)

    return change
