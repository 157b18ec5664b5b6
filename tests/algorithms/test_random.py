"""What is random reaches its whole range, is uniform where it should be, and independent of what else is drawn."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.counts import assert_frequencies

import bilevax as bx
from bilevax import draw
from bilevax.algorithms.contract import Algorithm, Cost, Info, Variables
from bilevax.algorithms.re_rsvrb import ReRSVRB
from bilevax.algorithms.start import FirstBatch
from bilevax.schedule import as_rates

M, N_F, N_G = 3, 4, 5  # tasks, and samples of each for both losses
KEYS = jax.random.split(jax.random.key(11), 20_000)


def small_problem():
    """Losses on numbers, some for each of three tasks."""
    upper_data, lower_data = (bx.per_task(np.zeros((M, n))) for n in (N_F, N_G))
    return bx.Problem(
        upper=lambda x, y, i, batch: jnp.mean(batch) + jnp.sum(y),
        lower=lambda x, y, i, batch: jnp.sum((y - x) ** 2) + jnp.mean(batch),
        x0=jnp.zeros(1), y0=jnp.zeros(1), upper_data=upper_data, lower_data=lower_data, strong_convexity=1.0,
    )  # fmt: skip


def drawn(function):
    """A compiled function of the key, for many keys."""
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(function))(KEYS))


def uniform(n):
    """Equal probabilities."""
    return np.full(n, 1 / n)


def assert_independent(columns, laws):
    """Every pair of columns is as often seen as the product of their laws says, in every cell."""
    for (one, p), (other, q) in itertools.combinations(zip(columns, laws, strict=True), 2):
        counts = np.zeros((len(p), len(q)))
        np.add.at(counts, (one, other), 1)
        assert_frequencies(counts, len(one) * np.outer(p, q))


@pytest.mark.parametrize("p", [None, (0.6, 0.3, 0.1)], ids=["uniform", "by p"])
def test_tasks_samples_and_direction_tasks_of_a_step_are_independent(p):
    """i by p, ξ, ζ and j uniformly; every pair of them independent, in particular ξ and ζ, and i and j."""
    sampling = draw.Sampling(1, 1, p)
    step = drawn(lambda key: draw.draw_step(small_problem(), sampling, key))
    columns = step.tasks[:, 0], step.upper[:, 0, 0], step.lower[:, 0, 0], step.direction_tasks[:, 0]
    assert_independent(columns, [uniform(M) if p is None else np.asarray(p), *map(uniform, (N_F, N_G, M))])


def test_batches_of_several_tasks_of_a_step_are_independent():
    """All samples of ξ and ζ of two tasks with batches of two: eight numbers, each pair independent."""
    step = drawn(lambda key: draw.draw_step(small_problem(), draw.Sampling(2, 2), key))
    columns = np.concatenate([step.upper.reshape(-1, 4), step.lower.reshape(-1, 4)], axis=1).T
    assert_independent(columns, [uniform(N_F)] * 4 + [uniform(N_G)] * 4)


def test_first_batches_of_tasks_and_of_both_losses_are_independent():
    problem = small_problem()
    one = FirstBatch("cheap", 1)
    first = drawn(lambda key: jax.vmap(lambda i: one.indices(problem, key, i))(jnp.arange(M)))
    columns = [batch[:, i, 0] for batch in first for i in range(M)]
    assert_independent(columns, [uniform(N_F)] * M + [uniform(N_G)] * M)


def staged(first_stage, restart_from):
    """Algorithm 3 with stages that start so."""
    rates, sampling = as_rates(0.1, 0.5, 1.0, 0.1), draw.Sampling(1, 1)
    first = FirstBatch("cheap", 1)
    return ReRSVRB(rates, sampling, first, first_stage=first_stage, restart_from=restart_from)


def test_random_stages_have_every_length_up_to_the_whole_stage_equally_often():
    """t̃ uniform on 0..T_k, and one for each stage."""
    lengths = np.diff(drawn(staged(2, "random").start_stages)[:, :3], axis=1, prepend=0)
    assert_independent(lengths.T, [uniform(T + 1) for T in (2, 4, 8)])


def test_stages_that_are_not_random_double():
    ends = np.asarray(staged(3, "last").start_stages(jax.random.key(0)))
    np.testing.assert_array_equal(ends[:5], [3, 9, 21, 45, 93])
    assert ends[-1] > 1e9
    assert np.all(np.diff(ends) > 0)


class Nothing(NamedTuple):
    """All that a method that does nothing carries."""

    initial_cost: Cost


def test_a_random_iterate_is_uniform_over_the_start_and_all_steps():
    """By the steps that runs of many seeds take; a method that does nothing, so that it is quick."""
    free = Cost(*(jnp.asarray(0.0),) * 3)
    method = Algorithm(
        name="nothing",
        init=lambda problem, key: Nothing(free),
        step=lambda problem, state, key: (state, Info(free, jnp.asarray(True))),
        variables=lambda problem, state: Variables(problem.x0, jnp.zeros((M, 1))),
        settings={},
    )
    run = lambda seed: bx.solve(small, method, steps=3, iterate="random", seed=seed, metrics=None)
    small = small_problem()
    assert_frequencies(np.bincount([run(seed).steps for seed in range(200)], minlength=4), np.full(4, 50))
