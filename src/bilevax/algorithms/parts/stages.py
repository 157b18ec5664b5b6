"""Samples that grow, stage after stage: where a look at all of them would take long, a run begins with some.

A stage looks at some samples of each task, the same ones in every look, so that F is one function in it. Once in a
stage ∇F is looked at on as many others too: half the square of the difference tells the variance of ∇F. Where the noise
is more than half of ∇F, or x would stay, the next stage has eight times as many samples, the last one all.

A first stage has several samples for each variable, so weights on samples, which belong to one each, begin with all.
Byrd, Chin, Nocedal, Wu, Sample Size Selection in Optimization Methods for Machine Learning, 2012.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from bilevax import draw
from bilevax.problem import Problem
from bilevax.samples import Data, Indices

FIRST_SAMPLES, MORE_SAMPLES = 4096, 8  # of all tasks, and how many times as many each time more are asked for
SAMPLES_FOR_X, SAMPLES_FOR_Y = 8, 32  # for each variable, at least, of all tasks and of one
LARGE = 1e7  # numbers in a look at all samples from which on a run begins with some: else compiling takes longer
WORTHWHILE = 4  # times fewer samples than there are, at least: else a stage saves too little


class Stage(NamedTuple):
    """Which samples are looked at: those of a stage that the seed draws, or as many others for the noise of ∇F."""

    number: Int[Array, ""]
    seed: UInt32[Array, ""]
    is_probe: Bool[Array, ""]  # the next look is for the noise
    noise: Float[Array, ""]  # the square of it, zero as long as it is not known


def stage_sizes(problem: Problem) -> tuple[int | None, ...]:
    """How many samples of a task the stages of L-BFGS look at; `None`, at last: all of them."""
    m, longest = problem.num_tasks, max(problem.upper_data.max_length, problem.lower_data.max_length)
    is_large = m * longest * problem.dim_y >= LARGE
    together = max(FIRST_SAMPLES, SAMPLES_FOR_X * problem.dim_x)
    size, found = max(-(-together // m), SAMPLES_FOR_Y * problem.dim_y), []
    while is_large and WORTHWHILE * size <= longest:
        found.append(size)
        size *= MORE_SAMPLES
    return (*found, None)


def size_in(data: Data, size: int | None) -> int | None:
    """So many samples of these data, `None` where there are no more."""
    return None if size is None or data.max_length <= size else size


def samples_of(problem: Problem, stage: Stage, size: int | None, i: Any) -> tuple[Indices, Indices]:
    """ξ and ζ of task i in a stage with so many samples: the same in every look, others in a probe."""
    key = jax.random.fold_in(jax.random.key(stage.seed), 2 * stage.number + stage.is_probe.astype(jnp.int32))
    keys = jax.random.split(jax.random.fold_in(key, i))
    both = zip(keys, (problem.upper_data, problem.lower_data), strict=True)
    xi, zeta = (draw.batch_indices(key, data, i, size_in(data, size)) for key, data in both)
    return xi, zeta
