"""The three ways to hold data agree where they overlap."""

import jax.numpy as jnp
import numpy as np

import bilevax as bx

ROWS = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 2)))


def loss(batch):
    return jnp.mean(jnp.sum(batch**2, axis=-1))


def test_ragged_data_of_equal_lengths_are_per_task_data():
    block, ragged = bx.per_task(ROWS), bx.ragged(ROWS.reshape(12, 2), np.arange(0, 13, 4))
    for i in map(jnp.int32, range(3)):
        np.testing.assert_array_equal(
            block.take(i, jnp.array([3, 0], jnp.int32)), ragged.take(i, jnp.array([3, 0], jnp.int32))
        )
        np.testing.assert_allclose(block.mean(loss, i), ragged.mean(loss, i), rtol=1e-14)


def test_the_mean_over_ragged_data_is_over_the_samples_of_the_task_alone():
    data = bx.ragged(jnp.array([1.0, 5.0, 7.0, 100.0]), np.array([0, 1, 3, 4]))
    np.testing.assert_allclose([data.mean(jnp.mean, jnp.int32(i)) for i in range(3)], [1, 6, 100])


def test_a_masked_sample_cannot_spoil_the_mean():
    data = bx.ragged(jnp.array([1.0, 2.0, 0.0]), np.array([0, 2, 3]))
    inverse = lambda batch: jnp.mean(1 / batch)
    np.testing.assert_allclose(data.mean(inverse, 0), 0.75)
    assert np.isinf(data.mean(inverse, 1))


def test_shared_data_are_the_same_for_every_task():
    data = bx.shared(ROWS[0])
    np.testing.assert_array_equal(data.take(0, jnp.array([1])), data.take(2, jnp.array([1])))
    np.testing.assert_allclose(data.mean(loss, 1), loss(ROWS[0]))
