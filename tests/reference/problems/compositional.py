"""Four compositions of waves and squares, on shared rows."""

import jax.numpy as jnp
import numpy as np

import bilevax as bx
from bilevax.problems import compositional

M, N, D = 4, 6, 3
RNG = np.random.default_rng(0)
ROWS, SHIFTS = RNG.normal(size=(N, D)), RNG.normal(size=(M, 2))


def inner(x, task, batch):
    """g_i: two numbers of different shapes."""
    scores = batch @ x
    return {"wave": jnp.mean(jnp.sin(scores)) + task[0], "square": jnp.mean(scores**2, keepdims=True)}


def outer(u, task):
    """f_i."""
    return (u["wave"] - task[1]) ** 2 + jnp.sum(jnp.log1p(u["square"]))


def waves(**more):
    """The problem."""
    return compositional(outer=outer, inner=inner, x0=jnp.full(D, 0.5), tasks=SHIFTS, data=bx.shared(ROWS), **more)
