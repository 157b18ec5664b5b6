"""Which method to run where nobody says: by what a look at all samples costs, next to the budget."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from bilevax.algorithms.block_soba import block_soba
from bilevax.algorithms.contract import Algorithm
from bilevax.algorithms.implicit import implicit
from bilevax.algorithms.ma_soba import ma_soba
from bilevax.algorithms.parts.stages import stage_sizes
from bilevax.problem import Problem
from bilevax.run.plan import Budget
from bilevax.samples import Data, DrawnAhead, NoData, Sampler, Shared, Stored

LOOKS = 20  # at all samples, that a run by full looks should be able to afford
PASSES = 20  # over all numbers, in one look
NUMBERS_A_SECOND = 2e9  # that a processor gets through, about


METHODS: dict[str, Callable[[], Algorithm]] = {"implicit": implicit, "block_soba": block_soba, "ma_soba": ma_soba}


class Choice(NamedTuple):
    """An algorithm, and why it was chosen, in words."""

    algorithm: Algorithm
    reasons: tuple[str, ...]


@functools.cache
def method_of(name: str) -> Algorithm:
    """One object for each, so that the next run on such a problem compiles nothing.

    Made when it is asked for: processes must find one another before anything runs on JAX.
    """
    return METHODS[name]()


def _numbers(problem: Problem, data: Data) -> float:
    """Numbers that all tasks look at in a pass over their samples; no end where not all are ever seen."""
    if isinstance(data, NoData):
        return float(problem.num_tasks * problem.dim_y)
    if isinstance(data, (Sampler, DrawnAhead)) or data.is_partly_seen:
        return math.inf
    if isinstance(data, Stored):
        return float(data.reader.total * sum(np.prod(kind.shape) for kind in data.reader.kinds)) * (
            problem.num_tasks if data.num_tasks is None else 1
        )
    numbers = float(sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(data.arrays)))
    return numbers * (problem.num_tasks if isinstance(data, Shared) else 1)


def _samples(problem: Problem, data: Data) -> float:
    """Samples of all tasks; no end where not all are ever seen."""
    if isinstance(data, NoData):
        return 0.0
    if isinstance(data, (Sampler, DrawnAhead)) or data.is_partly_seen:
        return math.inf
    if isinstance(data, Stored):
        return float(data.reader.total * (problem.num_tasks if data.num_tasks is None else 1))
    first = float(jax.tree.leaves(data.arrays)[0].shape[0])
    if isinstance(data, Shared):
        return first * problem.num_tasks
    return first if data.num_tasks is None or hasattr(data, "offsets") else first * data.max_length


def _words_on_samples(problem: Problem) -> tuple[str, ...]:
    """What is said where a run begins with some samples."""
    first = stage_sizes(problem)[0]
    if first is None:
        return ()
    return (f"It begins with {first:,} samples of each lower problem, and takes more as the noise of ∇F asks for it.",)


def choose_method(problem: Problem, budget: Budget) -> Choice:
    """Full looks with L-BFGS where the budget allows some of them, else a few tasks and samples in a step."""
    parts = problem.upper_data, problem.lower_data
    samples = sum(_samples(problem, data) for data in parts)
    seconds = PASSES * sum(_numbers(problem, data) for data in parts) / NUMBERS_A_SECOND
    count = "one lower problem" if problem.num_tasks == 1 else f"{problem.num_tasks:,} lower problems"
    size = f"{count} with {samples:,.0f} samples in all" if samples else f"{count} without samples"
    is_endless = math.isinf(samples)
    affordable = (budget.seconds is None or LOOKS * seconds <= budget.seconds) and (
        budget.samples is None or LOOKS * samples <= budget.samples
    )
    if affordable and not is_endless:
        reason = (
            f"The problem has {size}: a look at all of it takes about {seconds:.2g} s. So every step looks at all of "
            "it: Newton steps on the lower problems, L-BFGS on x, and no step sizes (bilevax.implicit)."
        )
        return Choice(method_of("implicit"), (reason, *_words_on_samples(problem)))
    few = f"The problem has {size}: a look at all of it takes about {seconds:.2g} s, too long for {LOOKS} of them."
    if is_endless:
        few = f"The problem has {count} with samples that are made when they are drawn, or too many on a disk."
    if problem.num_tasks > 1:
        method = "So a step looks at a few tasks and samples, and its steps are found (bilevax.block_soba)."
        return Choice(method_of("block_soba"), (few, method))
    return Choice(
        method_of("ma_soba"), (few, "So a step looks at a few samples, and its steps are found (bilevax.ma_soba).")
    )
