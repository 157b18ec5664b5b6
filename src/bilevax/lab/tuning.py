"""Settings found by trying many, the same effort for every algorithm.

A field of settings is spread evenly (a Halton sequence) over an algorithm's ranges and choices. All settings with the
same choices and all seeds run side by side as one compiled program, the settings of a seed on the same draws; in groups
of fewer settings where memory does not allow more. The better part goes on to a round with more steps. What counts is
the mean over seeds of F at a quarter, half and the whole of a round's steps: a setting should be good early and late. F
is exact, on an excerpt of the tasks where there are many.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from bilevax.exact import evaluation
from bilevax.lab.contenders import Contender
from bilevax.problem import Problem
from bilevax.run.solve import solve

Options = dict[str, Any]
Tell = Callable[[str], None]

FIELD = 48
ROUNDS = ((48, 1 / 16), (12, 1 / 4), (4, 1 / 2))  # how many settings, with which part of the steps
SEEDS = (100, 101)  # others than those of the runs that are shown
LOOKS = (0.25, 0.5, 1.0)  # when F is looked at
STATE_BYTES = 2**30  # of the runs that go side by side; a step takes a few times as much
PACE = 0.25  # the part of the time in which steps are counted
PACE_STEPS = 64  # of which the samples are counted
EFFORT = (
    f"{FIELD} settings for each method and problem, spread evenly over its ranges; rounds of "
    + ", ".join(f"{count} settings with {part:.2g} of the steps" for count, part in ROUNDS)
    + f"; {len(SEEDS)} seeds that are not shown; the smallest mean of F at a quarter, half and all of the steps"
)


@dataclass(frozen=True)
class TuningResult:
    """The settings found, the mean of F that they had, and the number of steps that fit in the time."""

    options: Options
    score: float
    steps: int


def field_of(contender: Contender, size: int) -> list[Options]:
    """So many settings, evenly over the logarithms of the ranges and over the choices."""
    from scipy.stats import qmc

    names = [*contender.tuning.ranges, *contender.tuning.choices]
    points = qmc.Halton(len(names), seed=0).random(size)
    return [_setting(contender, dict(zip(names, point, strict=True))) for point in points]


def _setting(contender: Contender, point: Mapping[str, float]) -> Options:
    """The setting at a point of the unit cube."""
    values = {name: float(f"{a * (b / a) ** point[name]:.3g}") for name, (a, b) in contender.tuning.ranges.items()}
    choice = {name: options[int(point[name] * len(options))] for name, options in contender.tuning.choices.items()}
    return {**values, **choice}


def steps_within(problem: Problem, contender: Contender, budget: Mapping[str, Any]) -> int:
    """About how many steps a setting in the middle of the ranges takes in a budget, its start apart if that is time."""
    ((measure, amount),) = budget.items()
    if measure == "steps":
        return max(len(LOOKS), amount)
    middle = _setting(contender, dict.fromkeys([*contender.tuning.ranges, *contender.tuning.choices], 0.5))
    algorithm = contender.algorithm(problem, middle)
    first = solve(problem, algorithm, steps=1, metrics=None, progress=False)
    if measure == "samples":
        more = solve(problem, algorithm, steps=1 + PACE_STEPS, resume=first, metrics=None, progress=False)
        each = (more.cost.samples - first.cost.samples) / PACE_STEPS
        return max(len(LOOKS), int((amount - first.cost.samples) / each))
    until = first.seconds + PACE * amount
    result = solve(problem, algorithm, seconds=until, resume=first, metrics=None, progress=False)
    return max(len(LOOKS), int(result.steps / PACE))


def _one_run(
    contender: Contender,
    choice: Options,
    problem: Problem,
    excerpt: Problem,
    values: Array,
    key: Key[Array, ""],
    ends: Array,
) -> Array:
    """F after each of `ends` steps with the ranged options `values`; infinite once the run has diverged."""
    algorithm = contender.algorithm(problem, {**dict(zip(contender.tuning.ranges, values, strict=True)), **choice})
    init_key, step_key = jax.random.split(key)

    def step(t: Array, carry: tuple) -> tuple:
        state, finite = carry
        state, info = algorithm.step(problem, state, jax.random.fold_in(step_key, t))
        return state, finite & info.finite

    def stretch(carry: tuple, ends: Array) -> tuple[tuple, Array]:
        state, finite = carry = jax.lax.fori_loop(ends[0], ends[1], step, carry)
        F = evaluation.objective(excerpt, algorithm.variables(problem, state).x)
        return carry, jnp.where(finite & jnp.isfinite(F), F, jnp.inf)

    begins = jnp.concatenate([jnp.zeros(1, ends.dtype), ends[:-1]])
    first = algorithm.init(problem, init_key), jnp.asarray(True)
    return jax.lax.scan(stretch, first, jnp.stack([begins, ends], axis=1))[1]


class Contest:
    """The compiled programs of one algorithm on one problem, one for each combination of its choices."""

    def __init__(self, problem: Problem, excerpt: Problem, contender: Contender):
        self.problem, self.excerpt, self.contender = problem, excerpt, contender
        self.programs: dict[tuple, Callable] = {}

    def _program(self, choice: Options) -> Callable:
        """F of every seed, setting and look, as one program."""
        key = tuple(choice.values())
        if key not in self.programs:
            run = partial(_one_run, self.contender, choice)
            settings = jax.vmap(run, in_axes=(None, None, 0, None, None))
            self.programs[key] = jax.jit(jax.vmap(settings, in_axes=(None, None, None, 0, None)))
        return self.programs[key]

    def _together(self, options: Options) -> int:
        """How many settings can go side by side, with all seeds."""
        algorithm = self.contender.algorithm(self.problem, options)
        state = jax.eval_shape(algorithm.init, self.problem, jax.random.key(0))
        each = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
        return max(1, STATE_BYTES // max(each * len(SEEDS), 1))

    def scores(self, settings: Sequence[Options], steps: int, tell: Tell) -> np.ndarray:
        """The mean over seeds and looks of F, for each setting."""
        ends = jnp.asarray([max(k + 1, int(share * steps)) for k, share in enumerate(LOOKS)], jnp.int32)
        seeds = jax.vmap(jax.random.key)(jnp.asarray(SEEDS))
        scores = np.full(len(settings), np.inf)
        for choice, alike in _alike(self.contender, settings):
            program = self._program(choice)
            groups = -(-len(alike) // self._together(settings[alike[0]]))
            size = -(-len(alike) // groups)
            for begin in range(0, len(alike), size):
                part = alike[begin : begin + size]
                full = part + part[-1:] * (size - len(part))  # groups of one size are one program
                values = jnp.asarray([[settings[k][name] for name in self.contender.tuning.ranges] for k in full])
                F = program(self.problem, self.excerpt, values, seeds, ends)
                scores[part] = np.mean(F, axis=(0, 2))[: len(part)]
                tell(f"{len(settings)} settings, {steps:,} steps each")
        return scores


def _alike(contender: Contender, settings: Sequence[Options]) -> list[tuple[Options, list[int]]]:
    """The numbers of the settings that have the same choices, with these choices."""
    groups: dict[tuple, list[int]] = {}
    for k, options in enumerate(settings):
        groups.setdefault(tuple(options[name] for name in contender.tuning.choices), []).append(k)
    return [(dict(zip(contender.tuning.choices, choice, strict=True)), alike) for choice, alike in groups.items()]


def tune(
    problem: Problem, excerpt: Problem, contender: Contender, budget: Mapping[str, Any], tell: Tell = lambda line: None
) -> TuningResult:
    """The best setting of the field for runs of so many seconds, steps or samples."""
    steps = steps_within(problem, contender, budget)
    contest, settings = Contest(problem, excerpt, contender), field_of(contender, FIELD)
    scores = np.zeros(len(settings))
    for count, part in ROUNDS:
        best = np.argsort(scores, kind="stable")[:count]
        settings = [settings[k] for k in best]
        scores = contest.scores(settings, max(len(LOOKS), int(part * steps)), tell)
    winner = int(np.argmin(scores))
    if not np.isfinite(scores[winner]):
        ranges = dict(contender.tuning.ranges)
        raise RuntimeError(f"every setting of {contender.label} diverged; its ranges are {ranges}.")
    return TuningResult(settings[winner], float(scores[winner]), steps)
