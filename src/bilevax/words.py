"""Random words of a key: those of `jax.random`, as one operation instead of a loop.

Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror, Shaw, Parallel random numbers: as easy as 1, 2, 3, 2011). On a CPU
JAX compiles its rounds as a loop, which takes more than 1 µs however few the words.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key, UInt32

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = np.uint32(0x1BD11BDA)
FEW = 256  # words, above which the loop's own cost no longer counts


def _threefry(key: UInt32[Array, " 2"], first: Array, second: Array) -> tuple[Array, Array]:
    """Two words from two."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ PARITY)
    first, second = first + keys[0], second + keys[1]
    for k in range(5):
        for bits in ROTATIONS[k % 2]:
            first = first + second
            second = first ^ (second << np.uint32(bits) | second >> np.uint32(32 - bits))
        first, second = first + keys[(k + 1) % 3], second + keys[(k + 2) % 3] + np.uint32(k + 1)
    return first, second


def _is_threefry(key: Key[Array, ""]) -> bool:
    return str(jax.random.key_impl(key)) == "threefry2x32"


def random_words(key: Key[Array, ""], shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """32 random bits for each entry: `jax.random.bits(key, shape, uint32)`."""
    if not _is_threefry(key) or np.prod(shape) > FEW:
        return jax.random.bits(key, shape, np.uint32)
    numbers = jnp.arange(np.prod(shape), dtype=np.uint32).reshape(shape)
    first, second = _threefry(jax.random.key_data(key), jnp.zeros_like(numbers), numbers)
    return first ^ second


def key_of(key: Key[Array, ""], number: Int[Array, ""]) -> Key[Array, ""]:
    """A key for each number: `jax.random.fold_in(key, number)`."""
    if not _is_threefry(key):
        return jax.random.fold_in(key, number)
    words = _threefry(jax.random.key_data(key), jnp.uint32(0), jnp.asarray(number).astype(np.uint32))
    return jax.random.wrap_key_data(jnp.stack(words))
