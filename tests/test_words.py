"""Random words are those of `jax.random`, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bilevax.words import FEW, key_of, random_words

KEY = jax.random.key(12)


@pytest.mark.parametrize("shape", [(2, 5), (3,), (), (2, FEW // 2), (2, FEW)])
def test_words_are_the_bits_of_jax(shape):
    np.testing.assert_array_equal(random_words(KEY, shape), jax.random.bits(KEY, shape, np.uint32))


@pytest.mark.parametrize("number", [0, 7, 2**31 - 1])
def test_keys_are_those_that_jax_folds_in(number):
    for key in (KEY, jax.random.key(12, impl="rbg")):
        one, other = key_of(key, jnp.int32(number)), jax.random.fold_in(key, number)
        np.testing.assert_array_equal(jax.random.key_data(one), jax.random.key_data(other))


def test_keys_of_another_kind_give_their_own_words():
    key = jax.random.key(12, impl="rbg")
    np.testing.assert_array_equal(random_words(key, (2, 3)), jax.random.bits(key, (2, 3), np.uint32))
