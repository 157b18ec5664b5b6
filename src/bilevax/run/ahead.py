"""Samples on a disk, read before they are needed: draws follow from the key, so those of later steps are known.

A step is traced once more, with data that only note which samples it draws; compiled, nothing is left of it but these
draws, for a window of steps at once. A thread reads the next window while steps of this one are taken, and the compiled
loop gets rows instead of numbers. Draws and bits are those of data in memory. Where a step draws in a way that cannot
be known before (inside a loop of its own), the host is asked in the middle of the step instead, which is slower.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from bilevax.algorithms.contract import Algorithm
from bilevax.problem import Problem
from bilevax.samples import DrawnAhead, Fetched, NotAheadError, Stored
from bilevax.words import key_of

STEPS, BYTES = 256, 2**26  # in a window, at most
NAMES = ("upper_data", "lower_data")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Window:
    """The samples of some steps: of each draw of a step its rows, with a leading axis of steps."""

    draws: list[PyTree]
    first: Int[Array, ""]  # the number of the first step
    data: Stored = field(metadata={"static": True})
    num_tasks: int | None = field(metadata={"static": True})
    max_length: int = field(metadata={"static": True})

    def at(self, step: Int[Array, ""]) -> DrawnAhead:
        """The data of one step."""
        left = iter(self.draws)
        hand_out = lambda tasks, indices: Fetched(jax.tree.map(lambda leaf: leaf[step - self.first], next(left)))
        return DrawnAhead(self.data, hand_out)


def at_step(problem: Problem, step: Int[Array, ""]) -> Problem:
    """The problem of one step, where its samples were read ahead."""
    held = {name: getattr(problem, name) for name in NAMES}
    return problem.replace(**{name: data.at(step) for name, data in held.items() if isinstance(data, Window)})


class ReadAhead:
    """Windows of the samples that an algorithm draws from a problem; the next one is read in a thread."""

    def __init__(self, problem: Problem, algorithm: Algorithm, key: Array, state: PyTree):
        self.problem, self.key = problem, key
        self.stored = [name for name in NAMES if isinstance(getattr(problem, name), Stored)]
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)

        def draws_of(problem: Problem, key: Array, step: Array) -> dict[str, list[Any]]:
            drawn: dict[str, list[Any]] = {name: [] for name in self.stored}
            zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)

            def scout(name: str) -> DrawnAhead:
                data: Stored = getattr(problem, name)

                def note(tasks: Array, indices: Array) -> Fetched:
                    drawn[name].append((tasks, indices))
                    kinds = data.reader.kinds
                    rows = [jnp.zeros((*indices.shape, *kind.shape), kind.dtype) for kind in kinds]
                    return Fetched(jax.tree.unflatten(data.reader.structure, rows))

                return DrawnAhead(data, note)

            seen = problem.replace(**{name: scout(name) for name in self.stored})
            algorithm.step(seen, zeros, key_of(key, step))
            return drawn

        self.draws_of = draws_of
        shapes = jax.eval_shape(draws_of, problem, key, jnp.int32(1))
        size = 0
        for name, drawn in shapes.items():
            row = sum(int(np.prod(kind.shape)) * kind.dtype.itemsize for kind in getattr(problem, name).reader.kinds)
            size += sum(int(np.prod(indices.shape)) for _, indices in drawn) * row
        self.steps = max(1, min(STEPS, BYTES // max(1, size)))
        self.compiled = jax.jit(
            lambda problem, key, first: jax.lax.map(
                lambda k: draws_of(problem, key, first + k), jnp.arange(self.steps, dtype=jnp.int32)
            )
        )
        self.compiled(problem, key, jnp.int32(1))  # raises where draws are made inside a loop
        self.thread = ThreadPoolExecutor(1, "bilevax-read-ahead")
        self.windows: dict[int, Future[dict[str, list[PyTree]]]] = {}

    def _window_of(self, step: int) -> int:
        return (step - 1) // self.steps

    def _ask(self, number: int) -> None:
        """Have a window read, unless it is already: its draws are found here, its rows in the thread."""
        if number in self.windows:
            return
        drawn = self.compiled(self.problem, self.key, jnp.int32(number * self.steps + 1))
        self.windows[number] = self.thread.submit(self._read, jax.tree.map(np.asarray, drawn))

    def _read(self, drawn: dict[str, list[Any]]) -> dict[str, list[PyTree]]:
        readers = {name: getattr(self.problem, name).reader for name in drawn}
        return {
            name: [jax.tree.unflatten(readers[name].structure, readers[name].read(*draw)) for draw in draws]
            for name, draws in drawn.items()
        }

    def problem_at(self, step: int) -> Problem:
        """The problem with the window in which a step lies; the one after it is read meanwhile."""
        number = self._window_of(step)
        self._ask(number)
        found = self.windows[number].result()
        self.windows = {known: window for known, window in self.windows.items() if known in (number, number + 1)}
        self._ask(number + 1)
        first, fields = jnp.int32(number * self.steps + 1), {}
        for name, draws in found.items():
            data = getattr(self.problem, name)
            fields[name] = Window(jax.tree.map(jnp.asarray, draws), first, data, data.num_tasks, data.max_length)
        return self.problem.replace(**fields)

    def steps_left(self, taken: int) -> int:
        """Steps after these that are in the same window."""
        return (self._window_of(taken + 1) + 1) * self.steps - taken

    def close(self) -> None:
        """End the thread."""
        self.thread.shutdown(wait=False, cancel_futures=True)


def read_ahead(problem: Problem, algorithm: Algorithm, key: Array, state: PyTree) -> ReadAhead | None:
    """What reads ahead for a run; None where all samples are in memory, or draws cannot be known before."""
    if not any(isinstance(getattr(problem, name), Stored) for name in NAMES):
        return None
    try:
        return ReadAhead(problem, algorithm, key, state)
    except (NotAheadError, jax.errors.UnexpectedTracerError):
        return None
