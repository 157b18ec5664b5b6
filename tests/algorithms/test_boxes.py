"""The library equals a literal NumPy transcription of the paper's boxes, step by step, on the same draws.

Every combination of settings is a test. Those that differ in numbers alone, in rates or in λ, share a program.
"""

import functools
import itertools

import jax
import numpy as np
import pytest
from reference import boxes
from reference.logistic import Model
from reference.runs import (
    KEY,
    STEPS,
    Power,
    assert_same_path,
    draws_of,
    first_theta,
    library_run,
    schedules,
    shared_run,
)

import bilevax as bx
from bilevax import draw
from bilevax.curvature import tracked

ACTIVE = {"C_fx": 0.2, "C_fy": 0.6, "C_gxy": 0.15, "R_y": 0.35}
FIRST = {"initialization": "cheap", "initial_batch_size": 6}  # from y_0, and from all samples
START = {**FIRST, "batch_size": 3}

kinds = pytest.mark.parametrize("kind", ["constant", "decreasing"])
draws = pytest.mark.parametrize("drawn", ["uniform", "skewed"])


def bounded(**bounds):
    """With these projections and without them."""
    return pytest.mark.parametrize("bounds", [{}, bounds], ids=["free", "projected"])


def sizes(*pairs):
    """Numbers of tasks, and of those in a step."""
    return pytest.mark.parametrize(("m", "size"), pairs)


@functools.cache
def posed(m, **settings):
    """A model, and its problem."""
    model = Model(m, **settings)
    return model, model.problem()


def probabilities(drawn, m):
    """The last task is drawn four times as often as the first, or none more than another."""
    return tuple(np.linspace(1, 4, m) / np.linspace(1, 4, m).sum()) if drawn == "skewed" else None


@functools.cache
def drawn_in(m, size, p=None):
    """The draws of all steps."""
    return draws_of(posed(m)[1], draw.Sampling(size, 3, p))


def run(factory, problem, numbers, **settings):
    """The path of a run of the library."""
    return shared_run(factory, problem, numbers, FIRST, batch_size=3, **settings)


def assert_algorithm_2(m, size, kind="constant", drawn="uniform", **settings):
    """RSVRB takes the path of its box."""
    (model, problem), p, (numbers, rates) = posed(m, **settings), probabilities(drawn, m), schedules(kind, m, size)
    path = boxes.algorithm_2(model, first_theta(model), drawn_in(m, size, p), rates)
    assert_same_path(run(bx.rsvrb, problem, numbers, tasks_per_step=size, task_probabilities=p), path)


@kinds
@bounded(**ACTIVE)
@draws
@sizes((1, 1), (4, 1), (4, 3), (25, 1), (25, 5))
def test_rsvrb_equals_algorithm_2(m, size, drawn, bounds, kind):
    assert_algorithm_2(m, size, kind, drawn, **bounds)


def test_rsvrb_equals_algorithm_2_where_the_floor_binds():
    """λ above the true curvature: every update floors, not only every fading."""
    assert_algorithm_2(4, 3, lam=1.25)


def assert_algorithm_1(kind="constant", **settings):
    """SVRB takes the path of its box."""
    (model, problem), (numbers, rates) = posed(1, **settings), schedules(kind, 1, 1)
    path = boxes.algorithm_1(model, first_theta(model), drawn_in(1, 1), rates)
    assert_same_path(run(bx.svrb, problem, numbers), path)


@kinds
@bounded(C_fy=0.6, C_gxy=0.15)
def test_svrb_equals_algorithm_1(bounds, kind):
    assert_algorithm_1(kind, **bounds)


def test_svrb_equals_algorithm_1_where_the_floor_binds():
    """λ above the true curvature: every step floors."""
    assert_algorithm_1(lam=1.25)


@pytest.mark.parametrize("restart_from", ["last", "random"])
def test_re_rsvrb_equals_algorithm_3(restart_from):
    model, problem = posed(4, **ACTIVE)
    algorithm = bx.re_rsvrb(
        upper_step=0.05, lower_step=0.3, relaxation=0.8, mixing=0.1, first_stage=40, tasks_per_step=2,
        restart_from=restart_from, **START,
    )  # fmt: skip
    xs, ys, state = library_run(problem, algorithm)
    ends = np.concatenate([[0], np.asarray(state.own.stages)])
    lengths = np.diff(np.minimum(ends, STEPS))
    if restart_from == "last":
        np.testing.assert_array_equal(lengths[:3], [40, 80, 130])  # the third of 160 steps is cut short
    else:
        assert all(0 <= length <= 40 * 2**k for k, length in enumerate(lengths))
    first = boxes.Rates(0.05, 0.3, 0.8, *[0.1] * 6)
    assert_same_path((xs, ys, state), boxes.algorithm_3(model, first_theta(model), drawn_in(4, 2), first, lengths))


rsvrb_by_tracking = functools.partial(bx.rsvrb, curvature=tracked)


def whole_batches(model):
    """All samples of both losses, for each task."""
    everything = range(model.a.shape[1])
    return [(everything, everything)] * model.m


def assert_tracked(m, size, kind="constant", drawn="uniform", **settings):
    """RSVRB with tracked curvature takes the path of its transcription; its last Θ."""
    (model, problem), p, (numbers, rates) = posed(m, **settings), probabilities(drawn, m), schedules(kind, m, size)
    theta = boxes.tracked_theta(model, model.x0, model.y0, whole_batches(model))
    path = boxes.tracked_rsvrb(model, theta, drawn_in(m, size, p), rates)
    assert_same_path(run(rsvrb_by_tracking, problem, numbers, tasks_per_step=size, task_probabilities=p), path)
    return theta


@kinds
@bounded(C_fx=0.2, C_fy=0.6)
@pytest.mark.parametrize(
    ("m", "size", "drawn"),
    [(1, 1, "uniform"), *((m, size, drawn) for m, size in [(4, 3), (25, 5)] for drawn in ("uniform", "skewed"))],
)
def test_rsvrb_with_tracked_curvature_equals_its_transcription(m, size, drawn, bounds, kind):
    assert_tracked(m, size, kind, drawn, **bounds)


def test_tracked_equals_its_transcription_where_the_ball_binds():
    """λ above the true curvature makes the ball small."""
    theta = assert_tracked(4, 3, lam=2.0, C_fx=0.2, C_fy=0.6)
    assert any(np.linalg.norm(h) > 0.3 - 1e-12 for h in theta.h)


def block_schedules(kind, m, size):
    """Rates of BSVRB as numbers and as the box takes them."""
    scale = size / m
    if kind == "constant":
        steps, alpha, alpha_h, beta = [Power(c * scale) for c in (0.1, 0.3, 0.2)], Power(0.1), 0.1, 0.1
    else:
        steps = [Power(c * scale, 8.0, 1 / 3) for c in (0.2, 0.6, 0.4)]
        alpha, alpha_h, beta = Power(1.0, 8.0, 2 / 3), 0.15, 0.2
    numbers = dict(zip(("upper_step", "lower_step", "inverse_step"), steps, strict=True))
    numbers["mixing"] = bx.Mixing(f_x=0.1, f_y=0.1, g_y=alpha, g_xy=0.1, g_yy=alpha_h, direction=beta)
    return numbers, [(*(s.at(t) for s in steps), alpha.at(t), alpha_h, beta) for t in range(1, STEPS + 1)]


def bsvrb_path(model, size, rates, version):
    """The path of BSVRB's box."""
    theta = boxes.BlockTheta(model, model.x0, model.y0, whole_batches(model), version)
    return boxes.bsvrb(model, theta, drawn_in(model.m, size), rates, version)


def assert_bsvrb(version, m, size, kind="constant", **settings):
    """BSVRB takes the path of its box."""
    (model, problem), (numbers, rates) = posed(m, **settings), block_schedules(kind, m, size)
    factory = bx.bsvrb_v2 if version == 2 else bx.bsvrb_v1
    if version == 1:
        del numbers["inverse_step"]
    path = bsvrb_path(model, size, rates, version)
    assert_same_path(run(factory, problem, numbers, tasks_per_step=size), path)


@kinds
@bounded(C_fy=0.3)
@sizes((1, 1), (4, 1), (4, 3), (25, 5))
@pytest.mark.parametrize("version", [1, 2])
def test_bsvrb_equals_its_box(version, m, size, bounds, kind):
    assert_bsvrb(version, m, size, kind, **bounds)


def test_bsvrb_v1_equals_its_box_where_the_floor_binds():
    assert_bsvrb(1, 4, 3, lam=1.25)


STEPS_OF_BLOCK_SOBA = {"upper_step": Power(0.3, 8.0, 0.5), "lower_step": Power(0.9, 8.0, 0.3)}
AVERAGE_OF_BLOCK_SOBA = Power(1.0, 1.0, 0.4)


def block_soba_path(model, size, inner_steps):
    """The path of block SOBA's box."""
    every = (*STEPS_OF_BLOCK_SOBA.values(), AVERAGE_OF_BLOCK_SOBA)
    rates = [tuple(rate.at(t) for rate in every) for t in range(1, STEPS + 1)]
    return boxes.block_soba(model, drawn_in(model.m, size), rates, inner_steps)


@pytest.mark.parametrize("inner_steps", [1, 3])
@bounded(C_fy=0.3, R_y=0.35)
@sizes((1, 1), (4, 1), (25, 5))
def test_block_soba_equals_its_box(m, size, bounds, inner_steps):
    model, problem = posed(m, **bounds)
    numbers = {**STEPS_OF_BLOCK_SOBA, "mixing": bx.Mixing(*[0.9] * 5, direction=AVERAGE_OF_BLOCK_SOBA)}
    path = run(bx.block_soba, problem, numbers, tasks_per_step=size, inner_steps=inner_steps)
    assert_same_path(path, block_soba_path(model, size, inner_steps))


def rsvrb_path(model):
    """The path of Algorithm 2."""
    return boxes.algorithm_2(model, first_theta(model), drawn_in(4, 1), schedules("constant", 4, 1)[1])


PROJECTED = {
    "rsvrb": (rsvrb_path, ACTIVE),
    "bsvrb_v2": (lambda model: bsvrb_path(model, 1, block_schedules("constant", 4, 1)[1], 2), {"C_fy": 0.3}),
    "block_soba": (lambda model: block_soba_path(model, 1, 1), {"C_fy": 0.3, "R_y": 0.35}),
}


@pytest.mark.parametrize(
    ("name", "bound"), [(name, bound) for name, (_, bounds) in PROJECTED.items() for bound in bounds]
)
def test_each_projection_of_these_tests_is_active(name, bound):
    """Without it x takes another way in the box. Else the comparisons with projections might compare nothing."""
    path, bounds = PROJECTED[name]
    first = lambda **bounds: np.stack([x for x, _ in itertools.islice(path(Model(4, **bounds)), 100)])
    assert np.abs(first(**bounds) - first(**{**bounds, bound: None})).max() > 1e-6


def test_the_direction_of_bsvrb_v1_is_unbiased_also_on_single_samples():
    """E[∇²xy g(ζ)]·H⁻¹·E[∇y f(ξ)], which is z_0 where H is of all samples: H has not seen ζ."""
    problem = posed(7)[1]
    rates = {"upper_step": 0.1, "lower_step": 0.1, "mixing": bx.Mixing(*[0.9] * 5, direction=1 - 1e-9)}
    algorithm = bx.bsvrb_v1(**{**START, "batch_size": 1}, tasks_per_step=3, **rates)
    state = jax.jit(algorithm.init)(problem, KEY)
    step = lambda key: algorithm.step(problem, state, key)[0].own.z
    directions = np.asarray(jax.jit(jax.vmap(step))(jax.random.split(KEY, 20_000)))
    error = directions.std(0) / np.sqrt(len(directions))
    assert (np.abs(directions.mean(0) - state.own.z) < 4 * error).all()
