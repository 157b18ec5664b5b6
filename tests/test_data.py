"""The three ways to hold data agree where they overlap."""

import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax import device

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


LONG = np.broadcast_to(np.float32(0), (2**31 + 64, 1))  # one number, repeated without memory
HOLDERS = {
    "shared": bx.shared,
    "per_task": lambda arrays: bx.per_task({name: leaf[None] for name, leaf in arrays.items()}),
    "ragged": lambda arrays: bx.ragged(arrays, np.array([0, 1, len(arrays["a"])])),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_more_samples_than_indices_of_32_bits_reach_are_refused(holder):
    with pytest.raises(ValueError, match=rf"{holder}\(arrays\) must have at most 2147483647 entries .* got 2147483712"):
        HOLDERS[holder]({"a": LONG})


@pytest.mark.parametrize("holder", HOLDERS)
def test_data_that_do_not_fit_are_refused_before_they_are_copied(holder, monkeypatch):
    arrays = {"a": np.ones((100, 20)), "b": np.ones(100)}
    monkeypatch.setattr(device, "available_bytes", lambda: 16_800)
    HOLDERS[holder](arrays)
    monkeypatch.setattr(device, "available_bytes", lambda: 16_799)
    with pytest.raises(MemoryError, match=rf"{holder}\(arrays\) needs 16.8 kB and 16.8 kB .* \['a'\] 16 kB"):
        HOLDERS[holder](arrays)
    HOLDERS[holder]({name: jnp.asarray(leaf) for name, leaf in arrays.items()})  # they are there already


@pytest.mark.parametrize("holder", HOLDERS)
def test_masked_arrays_are_refused(holder):
    with pytest.raises(TypeError, match=r"arrays\)\['a'\] must not be a masked array"):
        HOLDERS[holder]({"a": np.ma.array(np.ones((4, 2)), mask=[[0, 1]] * 4)})


@pytest.mark.parametrize(
    "offsets", [[0, [1]], "0 4", None, np.array([0.0, 4.0]), np.ma.array([0, 2, 4], mask=[0, 1, 0]), np.array([4]), 4]
)
def test_offsets_that_are_no_whole_numbers_are_refused(offsets):
    with pytest.raises(ValueError, match=r"ragged\(offsets\) must be a one-dimensional integer array"):
        bx.ragged(np.ones(4), offsets)
