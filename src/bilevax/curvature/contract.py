"""The contract of what is kept of ∇²g for a task: one type for a sample, and what is asked of H⁻¹ and of V."""

import abc
from typing import NamedTuple

from jaxtyping import Array, Bool, Float, Int, PyTree

from bilevax.bounds import Bounds
from bilevax.problem import Problem, SecondOrder
from bilevax.samples import Indices
from bilevax.schedule import Mixing, Rates
from bilevax.tasks import Absence, Decay


class Sample(NamedTuple):
    """Samples of task i at a point (x, y): ∇y f on those of f, and the map h ↦ (∇²xy g·h, ∇²yy g·h) on those of g."""

    i: Int[Array, ""]
    indices: Indices  # of g
    x: Float[Array, " d"]
    y: Float[Array, " dy"]
    f_y: Float[Array, " dy"]
    second: SecondOrder


class Second(NamedTuple):
    """What a sample shows of ∇²xy g (`cross`) and of ∇²yy g (`hessian`), or what is new in it; `None`: nothing."""

    cross: PyTree
    hessian: PyTree


class Update(NamedTuple):
    """What a curvature is told beside its sample: the new v of the task, and the sets to project on.

    `entries` are the samples that any draw of the task looked at in this step (`None`: all of them).
    """

    v: Float[Array, "*B dy"]
    bounds: Bounds
    entries: Int[Array, "*B e"] | None


class Drift(NamedTuple):
    """How long a task was not drawn, v of its last visit (`None` where none is kept), and the sets that hold it."""

    absence: Absence
    v: Float[Array, " dy"] | None
    bounds: Bounds


class Sleepers(NamedTuple):
    """The tasks j of the direction: what is kept of them as it was read, their decays and v, before and after a step.

    Task k of them was drawn in this step as the `at[k]`-th where `hit[k]`.
    """

    kept: PyTree
    before: Decay
    after: Decay
    v_before: Float[Array, "J dy"]
    v_after: Float[Array, "J dy"]
    hit: Bool[Array, " J"]
    at: Int[Array, " J"]


class Visit(NamedTuple):
    """What is kept of the drawn tasks before and after their update, and at which entries."""

    tasks: Int[Array, " B"]
    entries: Int[Array, "B e"] | None
    before: PyTree
    after: PyTree


class Inverse(abc.ABC):
    """What stands for H_i⁻¹v of one task, H_i ≈ ∇²yy g_i: how it starts, ages and learns from samples.

    `kept` is the pytree that is kept of it. An estimator such as STORM or MSVR works on what `observe` returns.
    """

    name: str

    def check(self, problem: Problem) -> None:
        """Refuse a problem that cannot be served; any will do unless it says otherwise."""
        return

    @abc.abstractmethod
    def products(self, problem: Problem) -> int:
        """Products of second derivatives with a vector that it takes for a sample at a point."""

    @abc.abstractmethod
    def start(self, problem: Problem, sample: Sample, v: Float[Array, " dy"], bounds: Bounds) -> PyTree:
        """From the first batch of a task, and its first v."""

    @abc.abstractmethod
    def age(self, problem: Problem, kept: PyTree, decay: Decay, drift: Drift | None) -> PyTree:
        """After steps in which the task was not drawn: estimates fade, and what moves by itself drifts.

        Without a `drift` nobody asks for what moves by itself.
        """

    @abc.abstractmethod
    def observe(self, problem: Problem, kept: PyTree, now: Sample, before: Sample) -> tuple[Second, Second]:
        """What the same samples show at the current and at the previous point."""

    @abc.abstractmethod
    def update(self, problem: Problem, rates: Rates, kept: PyTree, new: Second, now: Update) -> PyTree:
        """(1 − β) of what was kept plus what is new, then the projections: lines 6 and 7 of Algorithm 2."""


class Curvature(Inverse):
    """V_i ≈ ∇²xy g_i as well, in whatever form.

    `long_rows` says that `kept` has `bilevax.tasks.ScaledRow`s, which are read and written only at the samples of a
    step.
    """

    long_rows: bool = False

    @abc.abstractmethod
    def correction(self, problem: Problem, kept: PyTree, v: Float[Array, " dy"]) -> Float[Array, " d"]:
        """V H⁻¹ v, what the hypergradient subtracts; from whole rows."""

    def pull(self, problem: Problem, kept: PyTree, dx: Float[Array, " d"]) -> Float[Array, " dy"]:
        """H⁻¹ Vᵀ dx, minus what y* moves by with x; from whole rows."""
        raise TypeError(
            f"stable needs V and H themselves: curvature must be bilevax.curvature.dense or linear_model; got {self!r}."
        )

    def factor(self, problem: Problem, kept: PyTree) -> PyTree:
        """`kept` for several corrections and pulls, H factorised once."""
        return kept

    def change(self, problem: Problem, sleepers: Sleepers, visit: Visit, mixing: Mixing) -> Float[Array, " d"]:
        """mean_j [V H⁻¹ v]_after − (1 − β)·[V H⁻¹ v]_before in one go; for curvatures with long rows alone."""
        raise TypeError(f"{self!r} keeps whole rows, its V H⁻¹ v is formed before and after a step.")

    def __repr__(self) -> str:
        return f"bilevax.curvature.{self.name}"
