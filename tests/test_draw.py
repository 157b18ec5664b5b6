"""Draws are unbiased, distinct where they should be, and count as they claim."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.counts import assert_frequencies
from reference.logistic import Model

import bilevax as bx
from bilevax import draw
from bilevax.samples import NoData

DRAWS = 40_000


def many(function, n=DRAWS):
    return np.asarray(jax.jit(jax.vmap(function))(jax.random.split(jax.random.key(3), n)))


def words(key, n):
    return jax.random.bits(key, (2, n), np.uint32)


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
    drawn = many(lambda key: draw.weighted_tasks(words(key, 4), draw.thresholds_of(p)))
    assert_frequencies(np.bincount(drawn.ravel(), minlength=5), 4 * DRAWS * p)


def test_weighted_tasks_resolve_probabilities_that_float32_does_not():
    p = np.full(200_000, 1 / 200_000)
    drawn = many(lambda key: draw.weighted_tasks(words(key, 50), draw.thresholds_of(p)))
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
    often = np.full(4, size / 4) if p is None else size * np.asarray(p)
    np.testing.assert_allclose(drawn.weights, 1 / often[np.asarray(drawn.tasks)], rtol=1e-14)


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
    same = tasks[:, None] == tasks[None, :]
    at_entries = draw.AtEntries(jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    merged, spread = draw.merge(same, (jnp.array([[1.0], [10.0], [100.0]]), at_entries))
    np.testing.assert_array_equal(merged[:, 0], [101, 10, 101])
    np.testing.assert_array_equal(spread.values, [[1, 2, 0, 0, 5, 6], [0, 0, 3, 4, 0, 0], [1, 2, 0, 0, 5, 6]])


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


def without(problem, *names):
    """The problem with no data for some losses."""
    return problem.replace(**{name: NoData() for name in names})


def test_losses_without_data_have_no_samples_and_leave_those_of_the_other_alone():
    """Also with all samples: `None`. The batch that is left has its shape, and is in range."""
    problem = Model(3).problem()

    @jax.jit
    def drawn(key):
        one = lambda problem, size: draw.draw_step(problem, draw.Sampling(2, size), key)
        lower_alone = without(problem, "lower_data")
        of_all = draw.batches_of_all(lower_alone, key, (2, None), (3,))
        return one(without(problem, "upper_data"), 4), one(lower_alone, 4), one(problem, None), of_all

    no_upper, no_lower, whole, ((xi, every), (zeta,)) = drawn(jax.random.key(0))
    assert (no_upper.upper, no_lower.lower, whole.upper, whole.lower, every, zeta) == (None,) * 6
    for batch, shape in [(no_upper.lower, (2, 4)), (no_lower.upper, (2, 4)), (xi, (3, 2))]:
        assert batch.shape == shape
        assert 0 <= int(batch.min()) <= int(batch.max()) < 6
    for tasks in (whole.tasks, whole.direction_tasks):
        assert sorted(set(np.asarray(tasks).tolist())) in ([0, 1], [0, 2], [1, 2])


def test_samples_are_counted_for_every_task():
    ragged = bx.ragged(jnp.zeros(10), np.array([0, 1, 4, 10]))
    count = lambda data, tasks, size: float(draw.count_samples(data, jnp.array(tasks), size))
    assert count(ragged, [0, 2], None) == 7
    assert count(ragged, [0, 2], 3) == 6
    assert count(NoData(), [0, 2], 3) == count(NoData(), [0, 2], None) == 0


def test_a_task_that_is_drawn_twice_looks_at_all_samples_of_the_step():
    """Where tasks can repeat each draw has the samples of all; elsewhere its own, or all there are."""
    problem = Model(4).problem()
    of = lambda *sampling: draw.draw_step(problem, draw.Sampling(*sampling), jax.random.key(3))
    repeated = of(3, 2, np.full(4, 0.25))
    np.testing.assert_array_equal(repeated.same, repeated.tasks[:, None] == repeated.tasks[None, :])
    np.testing.assert_array_equal(repeated.entries, np.tile(np.ravel(repeated.lower), (3, 1)))
    for alone in (of(3, 2), of(1, 2, np.full(4, 0.25))):
        assert alone.same is None
        np.testing.assert_array_equal(alone.entries, alone.lower)
    assert of(3, None, np.full(4, 0.25)).entries is None


def test_as_many_tasks_as_there_are_can_be_drawn_and_no_more():
    problem = Model(3).problem()
    draw.Sampling(3, 1).check(problem)
    draw.Sampling(3, 1, np.full(3, 1 / 3)).check(problem)
    with pytest.raises(ValueError, match="tasks_per_step must be at most"):
        draw.Sampling(4, 1).check(problem)
    with pytest.raises(ValueError, match="one entry for each of the 3 tasks; got 4"):
        draw.Sampling(1, 1, np.full(4, 1 / 4)).check(problem)


BLOCKS = {
    "shared": lambda: bx.shared(jnp.arange(9.0), draw="blocks"),
    "per task": lambda: bx.per_task(jnp.arange(18.0).reshape(2, 9), draw="blocks"),
    "ragged": lambda: bx.ragged(jnp.arange(33.0), np.array([0, 24, 33]), draw="blocks"),
}


@pytest.mark.parametrize("size", [4, 11])
@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_hold_every_row_equally_often_and_rows_that_follow_one_another(kind, size):
    """After the last row comes the first; a block that is longer than the data goes round."""
    data = BLOCKS[kind]()
    drawn = many(lambda key: draw.batch_indices(key, data, 1, size), 9_000)
    assert_frequencies(np.bincount(drawn[:, 0], minlength=9), np.full(9, 1000))
    np.testing.assert_array_equal(drawn, (drawn[:, :1] + np.arange(size)) % 9)


@pytest.mark.parametrize("kind", BLOCKS)
def test_rows_are_shuffled_once_for_blocks_each_among_those_of_its_task(kind):
    data = BLOCKS[kind]()
    rows = np.asarray(data.arrays).ravel()
    assert (rows != np.arange(len(rows))).any()
    ends = {"shared": [9], "per task": [9, 18], "ragged": [24, 33]}[kind]
    for part, own in zip(np.split(rows, ends), np.split(np.arange(len(rows)), ends), strict=True):
        np.testing.assert_array_equal(np.sort(part), own)


def test_a_step_draws_one_number_for_a_block_and_methods_take_it():
    """Also a method that keeps numbers of samples, and data on several tasks; two blocks of a step are independent."""
    problem = bx.problems.quadratic(num_tasks=3, num_samples=50).problem
    lower, upper = (bx.shared(data.arrays, draw="blocks") for data in (problem.lower_data, problem.upper_data))
    problem = problem.replace(lower_data=lower, upper_data=upper)
    assert draw.words_of_batch(lower, 32) == 1
    first = many(lambda key: draw.draw_step(problem, draw.Sampling(2, 4), key).lower[:, 0], 20_000)
    assert_frequencies(np.bincount(first @ [50, 1] // 25, minlength=100), np.full(100, 200))
    result = bx.solve(problem, bx.rsvrb(), steps=300, record_every=300)
    assert result.trace["objective"][-1] < result.trace["objective"][0]


@pytest.mark.parametrize("make", [bx.shared, bx.per_task, lambda rows, **more: bx.ragged(rows, [0, 2, 4], **more)])
def test_another_way_to_draw_is_refused(make):
    with pytest.raises(ValueError, match=r"draw must be one of 'independent', 'blocks'.*'epochs'"):
        make(jnp.ones((4, 2)), draw="epochs")
