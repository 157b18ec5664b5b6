"""Small networks that score rows, and how they are trained on the logistic loss before anything else."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key
from scipy.linalg import block_diag

Layers = list[dict[str, Any]]


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


def score_columns(layers: Any, rows: Any) -> np.ndarray:
    """All outputs by NumPy in float64, for any number of rows without compilation; rows may be scipy.sparse."""
    for layer in layers[:-1]:
        rows = np.tanh(rows @ np.asarray(layer["weights"], float) + np.asarray(layer["shift"], float))
    return np.asarray(rows @ np.asarray(layers[-1]["weights"], float)) + np.asarray(layers[-1]["shift"], float)


def score_rows(layers: Any, rows: Any) -> np.ndarray:
    """The scores of a network with one output, as `score_columns` has them."""
    return score_columns(layers, rows)[:, 0]


def join(networks: Sequence[Any], scale: float) -> Any:
    """One network whose score is `scale` times the sum of the scores of several: their units stand side by side."""
    joined = []
    depth = len(networks[0])
    for k in range(depth):
        weights = [np.asarray(own[k]["weights"], float) for own in networks]
        shifts = [np.asarray(own[k]["shift"], float) for own in networks]
        if k == depth - 1:
            together = np.concatenate(weights) if depth > 1 else sum(weights)
            joined.append({"weights": scale * together, "shift": scale * sum(shifts)})
        else:
            beside = np.concatenate(weights, axis=1) if k == 0 else block_diag(*weights)
            joined.append({"weights": beside, "shift": np.concatenate(shifts)})
    return joined


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
