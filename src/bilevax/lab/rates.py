"""Table 1 of the paper, measured: samples to ‖∇F‖ ≤ ε on noisy quadratic problems, and the exponents of 1/ε and of m.

F and ∇F are known in closed form; f, g and their derivatives are sampled with noise of variance 1. Each method runs
with all settings of a grid and several seeds as one compiled program (`GRIDS` has the grids; steps follow the schedule
of the method's paper, the grid scales them). For each ε the best setting counts: the fewest samples after which
‖∇F(x_t)‖, averaged over seeds and over the steps since t/2, is at most ε. The exponent is fitted over all ε that the
method reaches within its budget (`BUDGETS`).

Table 1 bounds the worst case of non-convex F. This F is strongly convex, so that ∇F is known in closed form, and a
method can do better than its bound: in the long run the noise asks for ε⁻² of each, and at large ε, where the noise
does not matter yet, the fit is flatter still.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevax.algorithms.bsa import bsa
from bilevax.algorithms.contract import Algorithm
from bilevax.algorithms.rsvrb import rsvrb
from bilevax.algorithms.stable import stable
from bilevax.algorithms.stocbio import stocbio
from bilevax.algorithms.svrb import svrb
from bilevax.algorithms.ttsa import ttsa
from bilevax.problems import quadratic
from bilevax.schedule import power

EPSILONS = tuple(np.geomspace(0.8, 0.08, 9))
SEEDS, QUICK_SEEDS = 4, 2
BATCH = 4
SERIES: dict[str, Any] = {"neumann_step": 0.3, "neumann_terms": 24}  # a bias of (1 − ϑλ)^Q = 0.02
BUDGETS = {"svrb": 3e5, "stable": 4e5, "ttsa": 1.5e6, "stocbio": 1.5e6, "bsa": 1.5e6}  # samples, for one lower problem
BUDGETS_PER_TASK = {"rsvrb": 8e3, "stable": 1e4, "ttsa": 1.5e5, "stocbio": 1.5e5, "bsa": 1.5e5}  # for many


class Entrant(NamedTuple):
    """A method: how it is made from a point of its grid, the grid, its exponent in Table 1."""

    label: str
    make: Callable[..., Algorithm]
    grid: Mapping[str, tuple]
    theory: int
    batches: tuple[int, ...] = (BATCH,)


def _svrb(upper: Any, lower: Any, mixing: Any, batch: int) -> Algorithm:
    """SVRB with Theorem 1's schedules."""
    return svrb(
        upper_step=power(upper, 8, 1 / 3), lower_step=lower, relaxation=power(2, 8, 1 / 3),
        mixing=power(mixing, 8, 2 / 3), batch_size=batch, initialization="cheap",
    )  # fmt: skip


def _rsvrb(upper: Any, lower: Any, mixing: Any, batch: int, share: float) -> Algorithm:
    """RSVRB with the same schedules, scaled with the share of tasks that a step looks at: one."""
    return rsvrb(
        tasks_per_step=1,
        upper_step=power(upper * share, 8, 1 / 3), lower_step=lower * share, relaxation=power(2, 8, 1 / 3),
        mixing=power(mixing * share, 8, 2 / 3), batch_size=batch, initialization="cheap",
    )  # fmt: skip


def _stable(upper: Any, lower: Any, mixing: Any, batch: int) -> Algorithm:
    """STABLE: all steps ∝ t^(−1/2)."""
    return stable(
        upper_step=power(upper, 8, 1 / 2), lower_step=power(lower, 8, 1 / 2), mixing=power(mixing, 8, 1 / 2),
        batch_size=batch, initialization="cheap",
    )  # fmt: skip


def _ttsa(upper: Any, lower: Any, batch: int) -> Algorithm:
    """TTSA: x on the slower scale t^(−3/5), y on t^(−2/5)."""
    return ttsa(
        upper_step=power(upper, 8, 3 / 5), lower_step=power(lower, 8, 2 / 5), batch_size=batch,
        initialization="cheap", **SERIES,
    )  # fmt: skip


def _stocbio(upper: Any, lower: Any, batch: int) -> Algorithm:
    """StocBio: constant steps; the batch is what ε asks for, so it is part of the tuning."""
    return stocbio(
        upper_step=upper, lower_step=lower, inner_steps=4, batch_size=batch, initialization="cheap",
        neumann_shrink=0.85, **SERIES,
    )  # fmt: skip


def _bsa(upper: Any, lower: Any, batch: int) -> Algorithm:
    """BSA: x ∝ t^(−1/2), ⌈√t⌉ steps on y with steps ∝ t^(−1/4), about one over the root of their number."""
    return bsa(
        upper_step=power(upper, 8, 1 / 2), lower_step=power(lower, 8, 1 / 4), batch_size=batch,
        initialization="cheap", **SERIES,
    )  # fmt: skip


STEPS, LOWER, MIXING = (0.1, 0.3, 1.0), (0.1, 0.3), (0.3, 1.0, 3.0)
GRIDS = {
    "svrb": Entrant("SVRB", _svrb, {"upper": STEPS, "lower": LOWER, "mixing": MIXING}, 3),
    "stable": Entrant("STABLE", _stable, {"upper": (0.3, 1.0, 3.0), "lower": (0.5, 1.5), "mixing": (0.5, 1.0, 2.0)}, 4),
    "ttsa": Entrant("TTSA", _ttsa, {"upper": (0.1, 0.3, 1.0, 3.0), "lower": (0.3, 1.0)}, 5),
    "stocbio": Entrant("StocBio", _stocbio, {"upper": (0.03, 0.1, 0.3), "lower": (0.03, 0.1, 0.3)}, 4, (4, 16, 64)),
    "bsa": Entrant("BSA", _bsa, {"upper": (0.1, 0.3, 1.0, 3.0), "lower": (0.1, 0.3)}, 6),
}


def entrants(num_tasks: int) -> dict[str, Entrant]:
    """The methods for so many lower problems: RSVRB takes the place of SVRB beyond one."""
    if num_tasks == 1:
        return GRIDS
    own = GRIDS["svrb"]
    few = Entrant("RSVRB", lambda **point: _rsvrb(share=1 / num_tasks, **point), own.grid, own.theory)
    return {"rsvrb": few, **{name: entrant for name, entrant in GRIDS.items() if name != "svrb"}}


class Course(NamedTuple):
    """Windows of steps: the samples used at their ends, and the mean of ‖∇F‖ since half of that (settings, windows)."""

    samples: np.ndarray
    gradients: np.ndarray
    settings: list[dict[str, Any]]


def edges_of(steps: int) -> np.ndarray:
    """The ends of windows, four in each doubling."""
    return np.unique(np.geomspace(8, steps, 1 + int(4 * np.log2(steps / 8))).astype(int))


def run_entrant(truth: Any, entrant: Entrant, batch: int, edges: np.ndarray, seeds: int) -> Course:
    """All settings and seeds of a method as one program."""
    names, points = list(entrant.grid), list(itertools.product(*entrant.grid.values()))
    ends = jnp.asarray(np.stack([np.concatenate([[0], edges[:-1]]), edges], axis=1), jnp.int32)

    def run(values: Any, key: Any) -> tuple:
        algorithm = entrant.make(batch=batch, **dict(zip(names, values, strict=True)))
        state = algorithm.init(truth.problem, key)

        def step(t: Any, carry: tuple) -> tuple:
            state, samples, total = carry
            state, info = algorithm.step(truth.problem, state, jax.random.fold_in(key, t))
            norm = jnp.linalg.norm(truth.gradient(algorithm.variables(truth.problem, state).x))
            return state, samples + info.cost.samples, total + jnp.where(info.finite, norm, jnp.inf)

        def window(carry: tuple, ends: Any) -> tuple:
            zero = jnp.asarray(0, truth.problem.dtype)
            state, samples, total = jax.lax.fori_loop(ends[0] + 1, ends[1] + 1, step, (*carry, zero))
            return (state, samples), (samples, total)

        return jax.lax.scan(window, (state, jnp.asarray(state.initial_cost.samples, float)), ends)[1]

    grid = jax.jit(jax.vmap(jax.vmap(run, (None, 0)), (0, None)))
    samples, totals = jax.tree.map(np.asarray, grid(jnp.asarray(points), jax.random.split(jax.random.key(0), seeds)))
    settings = [{**dict(zip(names, point, strict=True)), "batch": batch} for point in points]
    return Course(samples.mean(axis=1), halves(edges, totals.mean(axis=1)), settings)


def halves(edges: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """The mean over the steps since half of each edge, from the sums over windows; infinite where a run ended."""
    first = np.searchsorted(edges, edges / 2)
    begins = np.concatenate([[0], edges[:-1]])
    with np.errstate(invalid="ignore"):
        sums = np.stack([totals[:, a : k + 1].sum(axis=1) for k, a in enumerate(first)], axis=1)
    return np.where(np.isfinite(sums), sums / (edges - begins[first]), np.inf)


class Fewest(NamedTuple):
    """Samples to reach an ε, and the setting that did; infinite and none where no setting gets there."""

    samples: float
    setting: dict[str, Any]


def fewest(courses: Sequence[Course], epsilon: float) -> Fewest:
    """The fewest samples of any setting."""
    ends = [Fewest(np.inf, {})]
    for course in courses:
        for samples, gradients, setting in zip(*course, strict=True):
            inside = np.flatnonzero(gradients <= epsilon)
            if len(inside):
                ends.append(Fewest(float(samples[inside[0]]), setting))
    return min(ends, key=lambda one: one.samples)


def exponent(sizes: Sequence[float], counts: Sequence[float]) -> float:
    """The slope of log counts over log sizes, where counts are finite; NaN for fewer than three."""
    size, count = np.asarray(sizes, float), np.asarray(counts, float)
    finite = np.isfinite(count)
    return float(np.polyfit(np.log(size[finite]), np.log(count[finite]), 1)[0]) if finite.sum() >= 3 else float("nan")


def steps_for(name: str, num_tasks: int, batch: int, budget: float) -> int:
    """About as many steps as use up a budget of samples."""
    terms, m = SERIES["neumann_terms"], num_tasks
    each = {
        "svrb": 2 * batch, "rsvrb": 2 * batch, "stable": 3 * batch * m, "ttsa": (3 + terms / 2) * batch * m,
        "stocbio": (6 + terms) * batch * m, "bsa": (12 + terms / 2 + 0.02 * np.sqrt(budget)) * batch * m,
    }[name]  # fmt: skip
    return int(max(64, budget / each))


def budget_of(name: str, num_tasks: int, share: float = 1.0) -> float:
    """Samples that a method may use, or a share of them."""
    return share * (BUDGETS[name] if num_tasks == 1 else BUDGETS_PER_TASK[name] * num_tasks)


def measure(name: str, num_tasks: int, seeds: int, share: float = 1.0) -> list[Fewest]:
    """The fewest samples of a method for each of `EPSILONS`, on the problem with so many tasks."""
    truth, entrant = quadratic(num_tasks=num_tasks, noise=1.0), entrants(num_tasks)[name]
    budget = budget_of(name, num_tasks, share)
    courses = [
        run_entrant(truth, entrant, batch, edges_of(steps_for(name, num_tasks, batch, budget)), seeds)
        for batch in entrant.batches
    ]
    return [fewest(courses, epsilon) for epsilon in EPSILONS]
