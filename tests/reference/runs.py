"""Runs of the library and of the transcriptions on the same draws, and how they are compared."""

import jax
import jax.numpy as jnp
import numpy as np
from reference import boxes

import bilevax as bx
from bilevax import draw

STEPS = 250
KEY = jax.random.key(7)


def library_run(problem, algorithm, steps=STEPS):
    """x (steps, d) and y (steps, m, d') after every step, and the final state."""

    @jax.jit
    def run(problem):
        def body(state, t):
            state, info = algorithm.step(problem, state, jax.random.fold_in(KEY, t))
            return state, (algorithm.variables(problem, state), info.finite)

        return jax.lax.scan(body, algorithm.init(problem, KEY), jnp.arange(1, steps + 1))

    state, (variables, finite) = run(problem)
    assert finite.all()
    return variables.x, variables.y, state


def draws_of(problem, sampling, steps=STEPS):
    """The draws that the library makes in the same steps, for the transcription."""
    one = jax.jit(lambda t: draw.draw_step(problem, sampling, jax.random.fold_in(KEY, t)))
    for t in range(1, steps + 1):
        d = jax.tree.map(np.asarray, one(t))
        yield boxes.Drawn(d.tasks, d.weights, d.upper, d.lower, d.direction_tasks)


def first_theta(model):
    """Θ_0 with y_0 as given and the estimates from all samples (a cheap start with whole batches)."""
    everything = range(model.a.shape[1])
    y0 = [boxes.project_ball(y, model.R_y) for y in model.y0]
    return boxes.Theta(model, model.x0, y0, [(everything, everything)] * model.m)


def schedules(kind, m, tasks_per_step):
    """Rates as the library takes them and as the box takes them; steps shrink with m/B as the theorem's."""
    scale = tasks_per_step / m
    eta = 0.1 * scale
    if kind == "constant":
        library = {"upper_step": eta, "lower_step": 0.6 * scale, "relaxation": 0.8, "mixing": 0.2 * scale}
        b = 0.2 * scale
        return library, [boxes.Rates(eta, 0.6 * scale, 0.8, b, b, b, b, b, b)] * STEPS
    betas = {"f_x": 0.3, "f_y": 0.35, "g_y": 0.4, "g_xy": 0.45, "g_yy": 0.5, "direction": 0.55}
    library = {
        "upper_step": bx.power(2 * eta, 8, 1 / 3),
        "lower_step": 0.6 * scale,
        "relaxation": bx.power(2, 8, 1 / 3),
        "mixing": bx.Mixing(**{name: bx.power(4 * b * scale, 8, 2 / 3) for name, b in betas.items()}),
    }
    box = []
    for t in range(1, STEPS + 1):
        fx, fy, gy, gxy, gyy, d = (4 * b * scale / (8 + t) ** (2 / 3) for b in betas.values())
        root = 2 / (8 + t) ** (1 / 3)
        box.append(boxes.Rates(eta * root, 0.6 * scale, root, fx, fy, gy, gxy, gyy, d))
    return library, box


def assert_same_path(library, box):
    """Every step of two runs agrees to relative 1e-9."""
    xs, ys, _ = library
    for t, (x, y) in enumerate(box):
        np.testing.assert_allclose(xs[t], x, rtol=1e-9, atol=1e-11, err_msg=f"x at step {t + 1}")
        np.testing.assert_allclose(ys[t], np.stack(y), rtol=1e-9, atol=1e-11, err_msg=f"y at step {t + 1}")
