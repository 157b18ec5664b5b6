"""tune(problem, factory): rates found by trying many side by side, for any algorithm and any problem.

What an algorithm finds for itself is the middle of the field: its steps on x, its steps on y and its mixing are each
multiplied by factors that are spread evenly over ranges (a Halton sequence). All settings run as one compiled program,
side by side in groups that fit in memory, on the same draws; the best four go on from where they are. What falls
fastest at first may diverge later: where all four do, the next four take their place.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bilevax import arguments, device, files
from bilevax.algorithms.contract import Algorithm
from bilevax.algorithms.frame import rate_at
from bilevax.problem import Problem
from bilevax.run import terminal
from bilevax.scales import excerpt_objective
from bilevax.schedule import RateRule, Scales
from bilevax.words import key_of

SURVIVORS = 4
LARGE_STATE = 2**18  # bytes from which on it is worth a compilation to know what a step needs
RANGES = {"upper": (2.0**-6, 2.0**6), "lower": (0.25, 3.0), "mixing": (0.2, 4.0)}  # what is found is multiplied by
FIELD_SHARE = 0.4  # of the time, for the whole field


class Multipliers(NamedTuple):
    """What the steps on x, the steps on y and the mixing that were found are multiplied by."""

    upper: float
    lower: float
    mixing: float

    def apply(self, scales: Scales) -> Scales:
        """The scales that make such rates."""
        return scales._replace(
            step=scales.step * self.upper, smoothness=scales.smoothness / self.lower, one=scales.one * self.mixing
        )

    def of(self, rate: RateRule) -> RateRule:
        """A rule that gives such a rate."""
        factor = {"step": self.upper, "1/smoothness": self.lower, "1": self.mixing}[rate.unit]
        return replace(rate, factor=rate.factor * factor)


@dataclass
class TuneResult:
    """What `tune` found: the `algorithm`, and a `table` of what was tried, the best first; prints as text.

    A row has the factors, the rates that they make in the first step, F (of some tasks) at the start, after the first
    round and, for those that went on, at the end.
    """

    algorithm: Algorithm
    table: list[dict[str, float]]

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame (extra `bilevax[pandas]`)."""
        import pandas

        return pandas.DataFrame(self.table)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """A matplotlib figure: F after the first round and at the end against the step on x; also as a file."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4), layout="constrained")
        axis = figure.subplots()
        for column, words in [("first_round", "after the first round"), ("last_round", "at the end")]:
            rows = [row for row in self.table if np.isfinite(row[column])]
            axis.plot([row["upper_factor"] for row in rows], [row[column] for row in rows], "o", label=words)
        axis.axhline(self.table[0]["start"], color="gray", lw=1, label="at the start")
        axis.set(xscale="log", xlabel="step on x, over that which is found", ylabel="F of some tasks")
        axis.set_title(self.algorithm.name)
        axis.legend()
        if path is not None:
            files.write_figure(path, figure)
        return figure

    def __repr__(self) -> str:
        names = list(self.table[0])
        lines = ["  ".join(f"{name:>12}" for name in names)]
        lines += ["  ".join(f"{row[name]:12.4g}" for name in names) for row in self.table]
        return "\n".join([f"best of {len(self.table)} settings: {self.algorithm!r}", *lines])


def _field(size: int) -> list[Multipliers]:
    """What is found itself, and settings that are evenly spread over the logarithms of the ranges."""
    from scipy.stats import qmc

    points = qmc.Halton(len(RANGES), seed=0).random(size - 1)
    ends = np.log(np.array(list(RANGES.values())))
    spread = np.exp(ends[:, 0] + points * (ends[:, 1] - ends[:, 0]))
    return [Multipliers(1.0, 1.0, 1.0), *(Multipliers(*map(float, row)) for row in spread)]


class _Contest:
    """States of several settings of one algorithm, side by side."""

    def __init__(self, problem: Problem, algorithm: Algorithm, seed: int, group: int):
        self.problem, self.key = problem, jax.random.key(seed)

        def advance(problem: Problem, states: Any, finite: Array, key: Array, begin: Array, end: Array) -> Any:
            def one(carry: Any) -> Any:
                def step(t: Array, carry: Any) -> Any:
                    state, info = algorithm.step(problem, carry[0], key_of(key, t))
                    return state, carry[1] & info.finite

                return jax.lax.fori_loop(begin, end, step, carry)

            return jax.lax.map(one, (states, finite), batch_size=min(group, len(finite)))

        self.advance = jax.jit(advance)
        x_of = lambda problem, state: algorithm.variables(problem, state).x
        self.objective = jax.jit(
            jax.vmap(lambda problem, state, key: excerpt_objective(problem, x_of(problem, state), key), (None, 0, None))
        )

    def run(self, states: Any, finite: Array, begin: int, seconds: float, tell: Callable[[int], None]) -> Any:
        """All states as far as they get in so many seconds, while one is finite.

        They, whether they are finite, their F, the step, and the seconds.
        """
        at, n, spent = begin, 1, 0.0
        self.advance(self.problem, states, finite, self.key, jnp.int32(at), jnp.int32(at))  # compiled, not timed
        while spent < seconds and bool(finite.any()):
            begun = time.perf_counter()
            states, finite = jax.block_until_ready(
                self.advance(self.problem, states, finite, self.key, jnp.int32(at), jnp.int32(at + n))
            )
            took = time.perf_counter() - begun
            at, spent = at + n, spent + took
            n = max(1, min(2 * n, int(n * (seconds - spent) / max(took, 1e-9))))
            tell(at)
        F = np.asarray(self.objective(self.problem, states, self.key), float)
        return states, finite, np.where(np.asarray(finite) & np.isfinite(F), F, np.inf), at, spent


@arguments.known_keywords
def tune(
    problem: Problem,
    factory: Callable[..., Algorithm],
    *,
    seconds: float = 60.0,
    tries: int = 16,
    seed: int = 0,
    progress: bool | None = None,
    settings: dict[str, Any] | None = None,
) -> TuneResult:
    """The rates of an algorithm that bring F down furthest in so many seconds, of sixteen tries.

    - `factory`: such as `bilevax.rsvrb`; `settings` are handed to it, and rates among them are not tuned.
    - `seconds`: of all steps together, without compilation: two fifths for all tries, the rest for the best four,
      which go on from where they are. Each takes a step a round at least; where all four diverge the next four go on,
      in what is left, or half of that time.
    - `tries`: how many combinations of rates, four at least; fewer only where their states do not fit in memory.
    - `seed`: of the draws, the same for all tries; `progress`: a bar on stderr, by default on a terminal.

    >>> tuned = bx.tune(problem, bx.rsvrb, seconds=60)
    >>> result = bx.solve(problem, tuned.algorithm, seconds=600)
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a bilevax.Problem; got {type(problem).__name__}.")
    if not callable(factory):
        raise TypeError(f"factory must be a function that makes an algorithm, such as bilevax.rsvrb; got {factory!r}.")
    arguments.positive("seconds", seconds)
    arguments.count("tries", tries, least=SURVIVORS, most=10_000)
    arguments.count("seed", seed, least=0)
    arguments.flag("progress", progress, none=True)
    given = {} if settings is None else settings
    algorithm = _make(factory, given)
    rates = {name: value for name, value in algorithm.settings.items() if isinstance(value, RateRule)}
    if not rates:
        raise ValueError(f"there is nothing to tune: {algorithm.name} finds no rate, or settings gives all of them.")
    init_key, _ = jax.random.split(jax.random.key(seed))
    state = jax.jit(algorithm.init)(problem, init_key)
    own, beside = _bytes_of_try(problem, algorithm, state)
    field = _field(_affordable(own, SURVIVORS, tries))
    stack = lambda factors: state._replace(scales=factors.apply(state.scales))
    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(stack, field))
    contest = _Contest(problem, algorithm, seed, _affordable(own + beside, 1, tries))
    start = float(excerpt_objective(problem, problem.x0, contest.key))
    finite = jnp.ones(len(field), bool)
    ends, left = np.full(len(field), np.inf), (1 - FIELD_SHARE) * seconds
    with terminal.progress(progress) as report:
        tell = lambda part: lambda at: report(at, part, {})
        states, finite, first, at, _ = contest.run(states, finite, 1, FIELD_SHARE * seconds, tell(FIELD_SHARE))
        ranking = np.argsort(first, kind="stable")
        for k in range(0, len(field), SURVIVORS):
            best = ranking[k : k + SURVIVORS]
            kept = jax.tree.map(lambda leaf: leaf[best], (states, finite))  # noqa: B023
            _, _, ends[best], _, spent = contest.run(kept[0], kept[1], at, left, tell(1.0))
            if ends[best].min() <= start:
                break
            left = max(left - spent, left / 2)
    if not np.isfinite(ends).any():
        raise RuntimeError(f"every setting of {algorithm.name} diverged, also with steps 64 times smaller than found.")
    order = np.lexsort([first, ends])
    rows = [_row(rates, state.scales, field[k], start, first[k], ends[k]) for k in order]
    winner = field[int(order[0])]
    return TuneResult(factory(**given, **{name: winner.of(rate) for name, rate in rates.items()}), rows)


def _make(factory: Callable[..., Algorithm], settings: Any) -> Algorithm:
    """What the factory makes of the settings, if it is an algorithm; whatever it raises says where it comes from."""
    if not isinstance(settings, dict) or not all(isinstance(name, str) for name in settings):
        raise TypeError(f"settings must be a dictionary of arguments of the factory, by name; got {settings!r}.")
    try:
        algorithm = factory(**settings)
    except Exception as error:
        error.add_note(f"raised by factory(**settings), called by tune with settings={settings!r}")
        raise
    if not isinstance(algorithm, Algorithm):
        raise TypeError(
            f"factory must be a function that makes a bilevax.Algorithm; it made {type(algorithm).__name__}."
        )
    return algorithm


def _row(
    rates: dict[str, RateRule], scales: Scales, factors: Multipliers, start: float, first: Any, last: Any
) -> dict[str, Any]:
    """One setting in the table."""
    named = {f"{name}_factor": value for name, value in factors._asdict().items()}
    values = {name: float(rate_at(float, scales, 1, factors.of(rate))) for name, rate in rates.items()}
    end = float(last) if np.isfinite(last) else np.nan
    return {**named, **values, "start": start, "first_round": float(first), "last_round": end}


def _bytes_of_try(problem: Problem, algorithm: Algorithm, state: Any) -> tuple[int, int]:
    """What the state of one try takes, and where that is large what a step needs beside it, else nothing.

    A step on all tasks gathers a batch of each: many times its state.
    """
    own = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    if own < LARGE_STATE:
        return own, 0
    memory = jax.jit(algorithm.step).lower(problem, state, jax.random.key(0)).compile().memory_analysis()
    return own, memory.temp_size_in_bytes if memory is not None else 0


def _affordable(each: int, least: int, tries: int) -> int:
    """How many tries of so many bytes fit in an eighth of the memory, at least so many."""
    available = device.available_bytes()
    if available is None:
        return tries
    return int(np.clip(available // 8 // max(each, 1), least, tries))
