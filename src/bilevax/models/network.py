"""Small networks that score rows, and how they are trained on the logistic loss before anything else."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key

Layers = list[dict[str, Array]]


def representation(layers: Layers, rows: Any) -> Any:
    """tanh(W_k ... tanh(W_1 a + b_1) ... + b_k) of each row a; the rows themselves without layers."""
    for layer in layers:
        rows = jnp.tanh(rows @ layer["weights"] + layer["shift"][None, :])
    return rows


@jax.jit
def scores(layers: Layers, rows: Any) -> Float[Array, " n"]:
    """W_L tanh(... tanh(W_1 a + b_1) ...) + b_L of each row a: a linear model where there is one layer."""
    rows = representation(layers[:-1], rows)
    return (rows @ layers[-1]["weights"])[:, 0] + layers[-1]["shift"][0]


def random_layers(key: Key[Array, ""], sizes: Sequence[int], dtype: Any) -> Layers:
    """Weights of variance 1/inputs for each layer, shifts of zero; the last layer starts at zero."""
    spread = [inputs**-0.5 for inputs in sizes[:-2]] + [0.0]

    def layer(k: int, inputs: int, outputs: int) -> dict[str, Array]:
        weights = spread[k] * jax.random.normal(jax.random.fold_in(key, k), (inputs, outputs), dtype)
        return {"weights": weights, "shift": jnp.zeros(outputs, dtype)}

    return [layer(k, *pair) for k, pair in enumerate(pairwise(sizes))]


def half_squares(parameters: Any) -> Float[Array, ""]:
    """½ Σ of all squared weights; shifts, which are vectors, go free."""
    return 0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(parameters) if leaf.ndim > 1)  # type: ignore[return-value]


@partial(jax.jit, static_argnames=("score", "steps", "batch"))
def fit_logistic(
    parameters: Any, rows: Any, signs: Float[Array, " n *m"], ridge: Any, key: Key[Array, ""],
    *, score: Callable[[Any, Any], Any], steps: int, batch: int,
) -> Any:  # fmt: skip
    """Minimise mean log(1 + exp(−b·score(parameters, a))) + ridge/2 ‖weights‖² by Adam on batches."""
    optimizer = optax.adam(optax.cosine_decay_schedule(1e-2, steps))

    def loss(parameters: Any, rows: Any, signs: Array) -> Array:
        return jnp.mean(jax.nn.softplus(-signs * score(parameters, rows))) + ridge * half_squares(parameters)

    def step(t: Array, carry: tuple) -> tuple:
        parameters, state = carry
        places = jax.random.randint(jax.random.fold_in(key, t), (batch,), 0, len(signs))
        gradient = jax.grad(loss)(parameters, jax.tree.map(lambda leaf: leaf[places], rows), signs[places])
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(parameters, updates), state

    return jax.lax.fori_loop(0, steps, step, (parameters, optimizer.init(parameters)))[0]
