"""The library equals a literal NumPy transcription of the paper's boxes, step by step, on the same draws."""

import boxes
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from logistic import Model

import bilevax as bx
from bilevax import draw

STEPS = 250
KEY = jax.random.key(7)
ACTIVE = {"C_fx": 0.2, "C_fy": 0.6, "C_gxy": 0.15, "R_y": 0.35}


def library_run(problem, algorithm, steps=STEPS):
    """x (steps, d) and y (steps, m, d') after every step, and the final state."""

    @jax.jit
    def run(problem, state):
        def body(state, t):
            state, info = algorithm.step(problem, state, jax.random.fold_in(KEY, t))
            return state, (algorithm.variables(problem, state), info.finite)

        return jax.lax.scan(body, state, jnp.arange(1, steps + 1))

    state, (variables, finite) = run(problem, jax.jit(algorithm.init)(problem, KEY))
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
    betas = dict(f_x=0.30, f_y=0.35, g_y=0.40, g_xy=0.45, g_yy=0.5, direction=0.55)
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


def cheap(**settings):
    """Start from y_0 with the whole data, but draw batches in the steps."""
    return {"initialization": "cheap", **settings}


@pytest.mark.parametrize("kind", ["constant", "decreasing"])
@pytest.mark.parametrize("bounds", [{}, ACTIVE], ids=["free", "projected"])
@pytest.mark.parametrize(("m", "size"), [(1, 1), (4, 1), (4, 3), (25, 1), (25, 5)])
@pytest.mark.parametrize("skewed", [False, True], ids=["uniform", "skewed"])
def test_rsvrb_equals_algorithm_2(m, size, skewed, bounds, kind):
    model = Model(m, **bounds)
    problem = model.problem()
    p = np.linspace(1, 4, m) / np.linspace(1, 4, m).sum() if skewed else None
    library, box = schedules(kind, m, size)
    algorithm = bx.rsvrb(tasks_per_step=size, batch_size=3, task_probabilities=p, initial_batch_size=6, **cheap(), **library)
    draws = draws_of(problem, draw.Sampling(size, 3, p))
    assert_same_path(library_run(problem, algorithm), boxes.algorithm_2(model, first_theta(model), draws, box))
