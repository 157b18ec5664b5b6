"""The library equals a literal NumPy transcription of the paper's boxes, step by step, on the same draws."""

import jax
import numpy as np
import pytest
from reference import boxes
from reference.logistic import Model
from reference.runs import KEY, STEPS, assert_same_path, draws_of, first_theta, library_run, schedules

import bilevax as bx
from bilevax import draw
from bilevax.curvature import tracked

ACTIVE = {"C_fx": 0.2, "C_fy": 0.6, "C_gxy": 0.15, "R_y": 0.35}


def start(**settings):
    """Start from y_0, and from all samples."""
    return {"initialization": "cheap", "initial_batch_size": 6, "batch_size": 3, **settings}


def skewed_probabilities(m):
    """The last task is drawn four times as often as the first."""
    return np.linspace(1, 4, m) / np.linspace(1, 4, m).sum()


def settings_of_algorithm_2():
    """Several tasks a step with every pair of rates, projections and probabilities; the others with each of them."""
    pairs = [
        ("constant", "free", "skewed"),
        ("constant", "projected", "uniform"),
        ("decreasing", "projected", "skewed"),
        ("decreasing", "free", "uniform"),
    ]
    chosen = {(4, 3): pairs, (1, 1): pairs[1::2], (4, 1): pairs[::2], (25, 1): pairs[2:3], (25, 5): pairs[1::2]}
    return [(*sizes, *setting) for sizes, settings in chosen.items() for setting in settings]


@pytest.mark.parametrize(("m", "size", "kind", "bounds", "drawn"), settings_of_algorithm_2())
def test_rsvrb_equals_algorithm_2(m, size, kind, bounds, drawn):
    model, skewed = Model(m, **(ACTIVE if bounds == "projected" else {})), drawn == "skewed"
    problem = model.problem()
    p = skewed_probabilities(m) if skewed else None
    library, box = schedules(kind, m, size)
    algorithm = bx.rsvrb(tasks_per_step=size, task_probabilities=p, **start(), **library)
    draws = draws_of(problem, draw.Sampling(size, 3, p))
    path = boxes.algorithm_2(model, first_theta(model), draws, box)
    assert_same_path(library_run(problem, algorithm), path)


@pytest.mark.parametrize("kind", ["constant", "decreasing"])
@pytest.mark.parametrize("bounds", [{}, {"C_fy": 0.6, "C_gxy": 0.15}], ids=["free", "projected"])
def test_svrb_equals_algorithm_1(bounds, kind):
    model = Model(1, **bounds)
    problem = model.problem()
    library, box = schedules(kind, 1, 1)
    draws = draws_of(problem, draw.Sampling(1, 3))
    path = boxes.algorithm_1(model, first_theta(model), draws, box)
    assert_same_path(library_run(problem, bx.svrb(**start(), **library)), path)


@pytest.mark.parametrize("restart_from", ["last", "random"])
def test_re_rsvrb_equals_algorithm_3(restart_from):
    model = Model(4, **ACTIVE)
    problem = model.problem()
    algorithm = bx.re_rsvrb(
        upper_step=0.05, lower_step=0.3, relaxation=0.8, mixing=0.1, first_stage=40, tasks_per_step=2,
        restart_from=restart_from, **start(),
    )  # fmt: skip
    xs, ys, state = library_run(problem, algorithm)
    ends = np.concatenate([[0], np.asarray(state.own.stages)])
    lengths = np.diff(np.minimum(ends, STEPS))
    if restart_from == "last":
        np.testing.assert_array_equal(lengths[:3], [40, 80, 130])  # the third of 160 steps is cut short
    else:
        assert all(0 <= length <= 40 * 2**k for k, length in enumerate(lengths))
    first = boxes.Rates(0.05, 0.3, 0.8, *[0.1] * 6)
    draws = draws_of(problem, draw.Sampling(2, 3))
    assert_same_path((xs, ys, state), boxes.algorithm_3(model, first_theta(model), draws, first, lengths))


@pytest.mark.parametrize(
    ("m", "size", "skewed", "kind"),
    [(1, 1, False, "decreasing"), (4, 3, False, "constant"), (4, 3, True, "decreasing"), (25, 5, True, "constant")],
)
def test_rsvrb_with_tracked_curvature_equals_its_transcription(m, size, skewed, kind):
    model = Model(m, **({"C_fx": 0.2, "C_fy": 0.6} if kind == "constant" else {}))
    problem = model.problem()
    p = skewed_probabilities(m) if skewed else None
    library, box = schedules(kind, m, size)
    algorithm = bx.rsvrb(
        tasks_per_step=size, task_probabilities=p, curvature=bx.curvature.tracked, **start(), **library
    )
    everything = range(model.a.shape[1])
    theta = boxes.tracked_theta(model, model.x0, list(model.y0), [(everything, everything)] * m)
    path = boxes.tracked_rsvrb(model, theta, draws_of(problem, draw.Sampling(size, 3, p)), box)
    assert_same_path(library_run(problem, algorithm), path)


def block_schedules(kind, m, size):
    """Rates of BSVRB as the library takes them and as the box does."""
    scale = size / m
    if kind == "constant":
        library = {"upper_step": 0.1 * scale, "lower_step": 0.3 * scale, "inverse_step": 0.2 * scale, "mixing": 0.1}
        return library, [(0.1 * scale, 0.3 * scale, 0.2 * scale, 0.1, 0.1, 0.1)] * STEPS
    library = {
        "upper_step": bx.power(0.2 * scale, 8, 1 / 3),
        "lower_step": bx.power(0.6 * scale, 8, 1 / 3),
        "inverse_step": bx.power(0.4 * scale, 8, 1 / 3),
        "mixing": bx.Mixing(f_x=0.1, f_y=0.1, g_y=bx.power(1, 8, 2 / 3), g_xy=0.1, g_yy=0.15, direction=0.2),
    }
    steps = [(np.array([0.2, 0.6, 0.4]) * scale / (8 + t) ** (1 / 3), (8 + t) ** (-2 / 3)) for t in range(1, STEPS + 1)]
    return library, [(*rates, alpha, 0.15, 0.2) for rates, alpha in steps]


@pytest.mark.parametrize(
    ("m", "size", "kind"), [(1, 1, "constant"), (4, 1, "decreasing"), (4, 3, "constant"), (25, 5, "decreasing")]
)
@pytest.mark.parametrize("version", [1, 2])
def test_bsvrb_equals_its_box(version, m, size, kind):
    model = Model(m, **({"C_fy": 0.3} if kind == "decreasing" else {}))
    problem = model.problem()
    library, box = block_schedules(kind, m, size)
    if version == 1:
        library.pop("inverse_step")
    factory = bx.bsvrb_v1 if version == 1 else bx.bsvrb_v2
    everything = range(model.a.shape[1])
    theta = boxes.BlockTheta(model, model.x0, list(model.y0), [(everything, everything)] * m, version)
    path = boxes.bsvrb(model, theta, draws_of(problem, draw.Sampling(size, 3)), box, version)
    assert_same_path(library_run(problem, factory(tasks_per_step=size, **start(), **library)), path)


@pytest.mark.parametrize(
    ("m", "size", "inner_steps", "bounds"),
    [(1, 1, 1, "balls"), (1, 1, 3, "free"), (4, 1, 1, "free"), (4, 1, 3, "balls"), (25, 5, 3, "balls")],
)
def test_block_soba_equals_its_box(m, size, inner_steps, bounds):
    model = Model(m, **({"C_fy": 0.3, "R_y": 0.35} if bounds == "balls" else {}))
    problem = model.problem()
    mixing = bx.Mixing(*[0.9] * 5, direction=bx.power(1, 1, 0.4))
    rates = {"upper_step": bx.power(0.3, 8, 0.5), "lower_step": bx.power(0.9, 8, 0.3), "mixing": mixing}
    box = [(0.3 / (8 + t) ** 0.5, 0.9 / (8 + t) ** 0.3, 1 / (1 + t) ** 0.4) for t in range(1, STEPS + 1)]
    path = boxes.block_soba(model, draws_of(problem, draw.Sampling(size, 3)), box, inner_steps)
    algorithm = bx.block_soba(tasks_per_step=size, inner_steps=inner_steps, **start(), **rates)
    assert_same_path(library_run(problem, algorithm), path)


def test_the_balls_of_block_soba_are_active_in_these_tests():
    run = lambda **bounds: library_run(Model(4, **bounds).problem(), bx.block_soba(**start()), 100)[0]
    free = run()
    assert all(np.abs(run(**bound) - free).max() > 1e-6 for bound in ({"C_fy": 0.3}, {"R_y": 0.35}))


def test_the_ball_of_bsvrb_is_active_in_these_tests():
    library, _ = block_schedules("constant", 4, 1)
    runs = [library_run(Model(4, C_fy=c).problem(), bx.bsvrb_v2(**start(), **library), 100)[0] for c in (0.3, None)]
    assert np.abs(runs[0] - runs[1]).max() > 1e-6


def test_the_projections_of_these_tests_are_active():
    """Each of them, that is. Without this the comparisons with projections might compare nothing."""
    library, _ = schedules("constant", 4, 1)
    run = lambda **bounds: library_run(
        Model(4, **{**ACTIVE, **bounds}).problem(), bx.rsvrb(**start(), **library), steps=100
    )
    xs, ys, _ = run()
    for bound in ACTIVE:
        without_x, without_y, _ = run(**{bound: None})
        assert np.abs(xs - without_x).max() + np.abs(ys - without_y).max() > 1e-6, bound


def test_svrb_equals_algorithm_1_where_the_floor_binds():
    """λ above the true curvature: every step floors."""
    model = Model(1)
    model.lam = 1.25
    problem = model.problem()
    library, box = schedules("constant", 1, 1)
    path = boxes.algorithm_1(model, first_theta(model), draws_of(problem, draw.Sampling(1, 3)), box)
    assert_same_path(library_run(problem, bx.svrb(**start(), **library)), path)


def test_bsvrb_v1_equals_its_box_where_the_floor_binds():
    model = Model(4)
    model.lam = 1.25
    problem = model.problem()
    library, box = block_schedules("constant", 4, 3)
    library.pop("inverse_step")
    theta = boxes.BlockTheta(model, model.x0, list(model.y0), [(range(6), range(6))] * 4, 1)
    path = boxes.bsvrb(model, theta, draws_of(problem, draw.Sampling(3, 3)), box, 1)
    assert_same_path(library_run(problem, bx.bsvrb_v1(tasks_per_step=3, **start(), **library)), path)


def test_tracked_equals_its_transcription_where_the_ball_binds():
    """λ above the true curvature makes the ball small."""
    model = Model(4, C_fy=0.6)
    model.lam, model.R_h = 2.0, 0.3
    problem = model.problem()
    library, box = schedules("constant", 4, 3)
    algorithm = bx.rsvrb(tasks_per_step=3, curvature=tracked, **start(), **library)
    theta = boxes.tracked_theta(model, model.x0, list(model.y0), [(range(6), range(6))] * 4)
    path = list(boxes.tracked_rsvrb(model, theta, draws_of(problem, draw.Sampling(3, 3)), box))
    assert_same_path(library_run(problem, algorithm), path)
    assert any(np.linalg.norm(h) > 0.3 - 1e-12 for h in theta.h)


def test_rsvrb_equals_algorithm_2_where_the_floor_binds():
    """λ above the true curvature: every update floors, not only every fading."""
    model = Model(4)
    model.lam = 1.25
    problem = model.problem()
    library, box = schedules("constant", 4, 3)
    path = boxes.algorithm_2(model, first_theta(model), draws_of(problem, draw.Sampling(3, 3)), box)
    assert_same_path(library_run(problem, bx.rsvrb(tasks_per_step=3, **start(), **library)), path)


def test_the_direction_of_bsvrb_v1_is_unbiased_also_on_single_samples():
    """E[∇²xy g(ζ)]·H⁻¹·E[∇y f(ξ)], which is z_0 where H is of all samples: H has not seen ζ."""
    problem = Model(7).problem()
    mixing = bx.Mixing(*[0.9] * 5, direction=1 - 1e-9)
    algorithm = bx.bsvrb_v1(mixing=mixing, batch_size=1, initialization="cheap", initial_batch_size=6, tasks_per_step=3)
    state = algorithm.init(problem, KEY)
    step = lambda key: algorithm.step(problem, state, key)[0].own.z
    directions = np.asarray(jax.jit(jax.vmap(step))(jax.random.split(KEY, 20_000)))
    error = directions.std(0) / np.sqrt(len(directions))
    assert (np.abs(directions.mean(0) - state.own.z) < 4 * error).all()
