"""Draws are unbiased, distinct where they should be, and count as they claim."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from logistic import Model

import bilevax as bx
from bilevax import draw

DRAWS = 40_000


def many(function, n=DRAWS):
    return np.asarray(jax.jit(jax.vmap(function))(jax.random.split(jax.random.key(3), n)))


def words(key, n):
    return jax.random.bits(key, (2, n), np.uint32)


def assert_frequencies(counts, expected):
    """Within five standard deviations of a Poisson count, everywhere."""
    counts, expected = np.asarray(counts), np.asarray(expected)
    assert np.all(np.abs(counts - expected) <= 5 * np.sqrt(expected)), (counts, expected)


@pytest.mark.parametrize(("m", "size"), [(7, 1), (7, 3), (7, 7), (1, 1)])
def test_distinct_tasks_draw_every_subset_equally_often(m, size):
    drawn = many(lambda key: draw.distinct_tasks(words(key, size), m))
    assert all(len(set(row)) == size for row in drawn[:500])
    subsets = list(itertools.combinations(range(m), size))
    weights = 2.0 ** np.arange(m)
    counts = [np.sum((weights[drawn]).sum(1) == weights[list(s)].sum()) for s in subsets]
    assert_frequencies(counts, np.full(len(subsets), DRAWS / len(subsets)))


def test_weighted_tasks_fit_their_probabilities():
    p = np.array([0.5, 0.25, 0.15, 0.07, 0.03])
    drawn = many(lambda key: draw.weighted_tasks(words(key, 4), p))
    assert_frequencies(np.bincount(drawn.ravel(), minlength=5), 4 * DRAWS * p)


def test_weighted_tasks_resolve_probabilities_that_float32_does_not():
    p = np.full(200_000, 1 / 200_000)
    drawn = many(lambda key: draw.weighted_tasks(words(key, 50), p))
    halves = np.bincount(drawn.ravel() % 2, minlength=2)
    assert_frequencies(halves, np.full(2, 50 * DRAWS / 2))


@pytest.mark.parametrize(("p", "size"), [(None, 1), (None, 3), ([0.1, 0.2, 0.3, 0.4], 1), ([0.1, 0.2, 0.3, 0.4], 3)])
def test_weights_are_one_over_the_expected_number_of_draws(p, size):
    problem = Model(4).problem()
    one = lambda key: draw.draw_step(problem, draw.Sampling(size, 2, p), key)
    drawn = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), DRAWS))
    total = np.zeros(4)
    np.add.at(total, np.asarray(drawn.tasks).ravel(), np.asarray(drawn.weights).ravel())
    np.testing.assert_allclose(total / DRAWS, 1, atol=0.06)


def test_batches_reach_every_sample_of_ragged_data_and_no_other():
    data = bx.ragged(jnp.arange(10.0), np.array([0, 1, 4, 10]))
    for i, (first, last) in enumerate([(0, 1), (1, 4), (4, 10)]):
        seen = many(lambda key, i=i: data.take(i, draw.batch_indices(key, data, i, 3)), 2000)
        assert_frequencies(np.bincount(seen.ravel().astype(int), minlength=10)[first:last], 6000 / (last - first))
        assert set(seen.ravel()) == set(range(first, last))


@pytest.mark.parametrize("span", [1, 3, 65_535, 65_537, 10**6, 2**31 - 1])
def test_numbers_below_a_span_are_uniform(span):
    """The mean and the parity of many of them, and their values for small spans."""
    drawn = many(lambda key: draw.below(words(key, 5), span)).astype(float).ravel()
    assert drawn.min() >= 0
    assert drawn.max() < span
    if span > 3:
        np.testing.assert_allclose(drawn.mean() / span, 0.5, atol=5 * 0.29 / np.sqrt(drawn.size))
        assert_frequencies(np.bincount(drawn.astype(int) % 2), np.full(2, drawn.size / 2))
    else:
        assert_frequencies(np.bincount(drawn.astype(int), minlength=span), np.full(span, drawn.size / span))


def test_merged_repeats_add_up():
    tasks = jnp.array([2, 0, 2])
    same = draw.repeats(draw.Sampling(3, 1, np.full(4, 0.25)), tasks)
    merged = draw.merged(same, jnp.array([[1.0], [10.0], [100.0]]))
    np.testing.assert_array_equal(merged[:, 0], [101, 10, 101])
    assert draw.repeats(draw.Sampling(3, 1), tasks) is None


def test_a_step_draws_in_time_that_does_not_depend_on_the_number_of_tasks():
    """No array of length m appears in the compiled draw of distinct tasks."""
    text = jax.jit(lambda key: draw.distinct_tasks(words(key, 10), 123_457)).lower(jax.random.key(0)).as_text()
    assert "123457x" not in text


@pytest.mark.parametrize("span", [1, 3, 1000, 65_535, 65_536])
def test_numbers_below_a_small_span_are_64_bits_modulo_the_span(span):
    drawn = np.asarray(words(jax.random.key(1), 1000)).astype(np.uint64)
    want = ((drawn[0] << np.uint64(32)) | drawn[1]) % np.uint64(span)
    np.testing.assert_array_equal(draw.below(words(jax.random.key(1), 1000), span), want)


@pytest.mark.parametrize("data", ["per task", "ragged"])
def test_batches_of_all_tasks_are_uniform_and_independent(data):
    """Over many keys: each pair of two batches, of two tasks, of both losses or of two numbers k is equally likely."""
    lengths = (3, 3) if data == "per task" else (2, 3)
    held = bx.per_task(np.zeros((2, 3))) if data == "per task" else bx.ragged(np.zeros(5), offsets=np.array([0, 2, 5]))
    problem = bx.Problem(
        upper=lambda x, y, i, batch: jnp.mean(batch) + jnp.sum(y), lower=lambda x, y, i, batch: jnp.sum((y - x) ** 2),
        x0=jnp.zeros(1), y0=jnp.zeros(1), upper_data=held, lower_data=held, strong_convexity=1.0,
    )  # fmt: skip

    def drawn(key):
        (xi,), (zeta, other) = draw.batches_of_all(problem, key, (1,), (1, 1))
        numbered = [draw.batch_of_all(problem, key, k, 1) for k in (0, 1)]
        return jnp.stack([xi, zeta, other, *numbered])[:, :, 0]

    samples = np.asarray(jax.jit(jax.vmap(drawn))(jax.random.split(jax.random.key(0), 4000)))  # (keys, 5, tasks)
    for one, other in itertools.combinations(itertools.product(range(5), range(2)), 2):
        if {one[0], other[0]} <= {0, 1, 2} or {one[0], other[0]} <= {3, 4}:
            shape = lengths[one[1]], lengths[other[1]]
            counts = np.zeros(shape)
            np.add.at(counts, (samples[:, *one], samples[:, *other]), 1)
            expected = 4000 / np.prod(shape)
            assert np.sum((counts - expected) ** 2 / expected) < 35, (
                one,
                other,
            )  # χ², at most 8 degrees of freedom
