"""Two vectors for a task are the paper's matrices: same draws, same path."""

import functools
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.sparse as sp
from reference import boxes
from reference.problems.reweighting import problem_of
from reference.runs import Power, draws_of, library_run, shared_run

import bilevax as bx
from bilevax import draw, rows
from bilevax.curvature import dense, linear, linear_model, tracked
from bilevax.curvature.linear import factors_at, features, solve_near, solve_ridges
from bilevax.curvature.solution import tracked_rows
from bilevax.structure import is_linear_model
from bilevax.tasks import ScaledRow

STEPS = 120


FALLING = Power(100 ** (1 / 3), 100.0, 1 / 3)  # the relaxation that SVRB would find by itself
ALL_SAMPLES = {"initialization": "cheap", "initial_batch_size": 10_000}
SGD = optax.sgd(3.0)


def settings_for(m, size):
    """Steps that shrink with the share of tasks; a long way for x, little floors."""
    share = size / m
    return {"upper_step": 3.0 * share, "lower_step": 0.3 * share, "mixing": 0.2 * share, "batch_size": 4}


def settings_of_one():
    """The same for SVRB, with nothing that it would have to find."""
    return {**settings_for(1, 1), "relaxation": bx.power(*FALLING)}


def numbers_for(m, size, **changed):
    """Those settings as numbers of a program, with a schedule wherever a test has one."""
    share = size / m
    beta = 0.2 * share
    mixing = bx.Mixing(f_x=beta, f_y=beta, g_y=beta, g_xy=Power(beta), g_yy=Power(beta), direction=beta)
    relaxation = FALLING if m == 1 else Power(1.0)
    steps = {"upper_step": Power(3.0 * share), "lower_step": 0.3 * share, "relaxation": relaxation}
    return {**steps, "mixing": mixing, **changed}


def probabilities(m, skewed):
    """The last task is drawn three times as often as the first, or none more than another."""
    return tuple(np.linspace(1, 3, m) / np.linspace(1, 3, m).sum()) if skewed else None


posed = functools.cache(problem_of)


def run(factory, curvature, problem, numbers, start=None, **settings):
    """The path of a run, of a program for all numbers."""
    settings = {"batch_size": 4, "curvature": curvature, **settings}
    return shared_run(factory, problem, numbers, {} if start is None else start, STEPS, **settings)


def assert_same(one, other, tolerance=1e-8):
    np.testing.assert_allclose(one[0], other[0], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(one[1], other[1], rtol=tolerance, atol=tolerance)
    assert np.abs(one[0][-1] - one[0][0]).max() > 0.01  # x has moved


@pytest.mark.parametrize(
    ("loss", "weights", "form"),
    [
        *(
            (loss, weights, "dense")
            for loss in ("logistic", "squared", "squared_hinge")
            for weights in ("sigmoid", "raw")
        ),
        *((loss, weights, "sparse") for loss in ("logistic", "squared") for weights in ("sigmoid", "raw")),
    ],
)
def test_one_linear_model_row_by_row_equals_the_dense_matrices(loss, weights, form):
    """By rows against V and H in full; β = 0.2 makes every row come up to date several times."""
    numbers = numbers_for(1, 1, upper_step=Power(3.0 if weights == "sigmoid" else 0.3))
    by_rows, in_full = (posed(1, form=rows, loss=loss, weights=weights) for rows in (form, "dense"))
    assert_same(
        run(bx.svrb, linear_model, by_rows, numbers, ALL_SAMPLES), run(bx.svrb, dense, in_full, numbers, ALL_SAMPLES)
    )


@pytest.mark.parametrize("kind", ["schedules", "theorem", "all samples", "first batch", "β = 1"])
def test_rows_come_up_to_date_under_all_settings(kind):
    """Numbers, the samples of a step, and the start, which is on all samples where nothing else is said."""
    numbers = {
        "schedules": {
            "upper_step": Power(6.0, 8.0, 1 / 3),
            "relaxation": Power(2.0, 8.0, 1 / 3),
            "mixing": bx.Mixing(0.1, 0.2, 0.3, Power(2.0, 8.0, 2 / 3), Power(1.0, 8.0, 2 / 3), 0.2),
        },
        "β = 1": {"mixing": bx.Mixing(1.0, 1.0, 1.0, Power(1.0), Power(1.0), 1.0), "upper_step": Power(0.1)},
    }.get(kind, {})
    settings = {"batch_size": None} if kind == "all samples" else {}
    start = {"theorem": {}, "first batch": {"initialization": "cheap"}}.get(kind, ALL_SAMPLES)
    assert_same(
        *(
            run(bx.svrb, curvature, posed(1), numbers_for(1, 1, **numbers), start, **settings)
            for curvature in (linear_model, dense)
        )
    )


def many(curvature, m, size, skewed, form="dense", start=ALL_SAMPLES, **numbers):
    """A run with many linear models; m = 1 goes the same way, since an optimizer needs the whole direction."""
    settings = {"tasks_per_step": size, "task_probabilities": probabilities(m, skewed)}
    if m == 1:
        settings["upper_optimizer"] = SGD
    return run(bx.rsvrb, curvature, posed(m, form=form), numbers_for(m, size, **numbers), start, **settings)


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize(("m", "size", "skewed"), [(1, 1, False), (4, 1, False), (4, 3, True), (12, 5, False)])
def test_many_linear_models_equal_the_dense_matrices_with_the_ridge_apart(m, size, skewed, form):
    assert_same(many(linear_model, m, size, skewed, form), many(dense, m, size, skewed))


@pytest.mark.parametrize(("size", "skewed"), [(1, False), (3, True)])
def test_many_linear_models_equal_the_dense_matrices_with_a_schedule_for_each_estimate(size, skewed):
    """q fades with β of V, c and M with β of H: with one β for all nobody could tell. From the start of the theorem."""
    share = size / 4
    f_x, f_y, g_y, g_yy, direction = (beta * share for beta in (0.1, 0.2, 0.3, 0.05, 0.15))
    mixing = bx.Mixing(f_x, f_y, g_y, Power(2 * share, 8.0, 2 / 3), Power(g_yy), direction)
    assert_same(*(many(curvature, 4, size, skewed, start={}, mixing=mixing) for curvature in (linear_model, dense)))


class Matrices:
    """The derivatives of a re-weighting problem as the boxes ask for them; the ridge is known and kept apart."""

    def __init__(self, problem):
        self.m, self.problem, self.lam = problem.num_tasks, problem, float(problem.strong_convexity)
        self.C_fx = self.C_fy = self.C_gxy = self.R_y = None
        self.f, self.g = jax.jit(problem.upper_gradients), jax.jit(problem.lower_gradient)
        eye = jnp.eye(problem.dim_y)
        self.second = jax.jit(lambda x, y, i, s: jax.vmap(problem.lower_derivatives(x, y, i, s)[1])(eye))

    def fx(self, i, x, y, xi):
        return np.asarray(self.f(x, y, i, np.asarray(xi))[0])

    def fy(self, i, x, y, xi):
        return np.asarray(self.f(x, y, i, np.asarray(xi))[1])

    def gy(self, i, x, y, zeta):
        return np.asarray(self.g(x, y, i, np.asarray(zeta)))

    def gxy(self, i, x, y, zeta):
        return np.asarray(self.second(x, y, i, np.asarray(zeta))[0]).T

    def gyy(self, i, x, y, zeta):
        return np.asarray(self.second(x, y, i, np.asarray(zeta))[1])


def test_for_one_task_it_is_the_papers_estimate_itself():
    """Against the literal Algorithm 1, λI within H and all."""
    problem = problem_of(1)
    given = settings_for(1, 1)
    model = Matrices(problem)
    first = [(range(problem.upper_data.max_length), range(problem.lower_data.max_length))]
    theta = boxes.Theta(model, np.asarray(problem.x0), [np.asarray(problem.y0)], first)
    rates = [boxes.Rates(3.0, 0.3, 1.0, *[0.2] * 6)] * STEPS
    draws = draws_of(problem, draw.Sampling(1, 4), STEPS)
    box = list(boxes.algorithm_1(model, theta, draws, rates))
    algorithm = bx.svrb(initialization="cheap", initial_batch_size=10_000, relaxation=1.0, **given)
    xs, ys, _ = library_run(problem, algorithm, STEPS)
    np.testing.assert_allclose(xs, [x for x, _ in box], rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(ys, [y for _, y in box], rtol=1e-8, atol=1e-8)


def test_a_floor_that_binds_keeps_the_entries_of_c_from_falling_below_zero():
    """With a huge step curvatures shrink faster than they fade: without the floor c would be negative."""
    problem = problem_of(4)
    algorithm = bx.rsvrb(tasks_per_step=2, batch_size=4, upper_step=300.0, lower_step=0.5, mixing=0.02)
    _, _, state = library_run(problem, algorithm, STEPS)
    c = np.asarray(state.tables.tasks.VH.c.values)
    assert c.min() == 0.0
    A = np.asarray(features(problem))
    kept = np.asarray(state.tables.tasks.VH.hessian)
    scale = np.asarray(state.tables.tasks.VH.c.scale)
    np.testing.assert_allclose(kept, np.einsum("nd,mn,ne->mde", A, scale[:, None] * c, A), atol=1e-12)


def test_the_ceiling_binds_row_by_row():
    C = 0.01
    problem = problem_of(3, bounds=bx.Bounds(g_xy=C))
    algorithm = bx.rsvrb(tasks_per_step=2, **settings_for(3, 2))
    _, _, state = library_run(problem, algorithm, STEPS)
    q = np.asarray(state.tables.tasks.VH.q.values * state.tables.tasks.VH.q.scale[:, None])
    lengths = np.abs(q) * np.linalg.norm(np.asarray(features(problem)), axis=1)
    assert lengths.max() <= C * (1 + 1e-12)
    assert (lengths > 0.5 * C).any()


@pytest.mark.parametrize("loss", ["logistic", "squared", "squared_hinge"])
def test_the_factors_are_the_second_derivatives(loss):
    """diag(q)·A and Aᵀ diag(c) A + λI equal what automatic differentiation says."""
    problem = problem_of(3, loss=loss)
    rng = np.random.default_rng(0)
    x, y = jnp.asarray(rng.normal(size=problem.dim_x)), jnp.asarray(rng.normal(size=problem.dim_y))
    _, second = problem.lower_derivatives(x, y, 2)
    cross, hessian = jax.vmap(second)(jnp.eye(problem.dim_y))
    q, c = factors_at(problem, 2, None, x, y)
    A = features(problem)
    np.testing.assert_allclose(q[:, None] * A, cross.T, atol=1e-14)
    np.testing.assert_allclose(A.T @ (c[:, None] * A) + 0.2 * jnp.eye(problem.dim_y), hessian, atol=1e-14)


def test_float32_follows_float64():
    """Thousands of steps in float32 with many restarts of ρ end where float64 does."""
    make = lambda: bx.svrb(**ALL_SAMPLES, **{**settings_of_one(), "mixing": 0.05, "upper_step": 1.0})
    wide = library_run(problem_of(1), make(), 3000)[0][-1]
    with jax.enable_x64(False):
        narrow = library_run(problem_of(1), make(), 3000)[0][-1]
        assert narrow.dtype == np.float32
    np.testing.assert_allclose(narrow, wide, atol=2e-3)


def test_a_problem_that_is_no_linear_model_is_refused():
    truth = bx.problems.quadratic(num_tasks=3)
    with pytest.raises(
        TypeError, match="needs a problem whose lower loss is a bilevax.curvature.LinearModel".replace(".", r"\.")
    ):
        bx.solve(truth.problem, bx.rsvrb(curvature=linear_model), steps=1)


def test_a_loop_of_steps_copies_no_row():
    """What the compiled loop needs beside its arguments does not grow with the number of tasks."""

    def temporary(m):
        problem = problem_of(m, n=400)
        algorithm = bx.rsvrb(tasks_per_step=2, initialization="cheap", **settings_for(m, 2))
        state = jax.eval_shape(algorithm.init, problem, jax.random.key(0))
        body = lambda problem, state, key: jax.lax.fori_loop(
            0, 10, lambda t, state: algorithm.step(problem, state, jax.random.fold_in(key, t))[0], state
        )
        loop = jax.jit(body, donate_argnums=1)
        return loop.lower(problem, state, jax.random.key(0)).compile().memory_analysis().temp_size_in_bytes

    assert temporary(2000) <= temporary(50) + 4096


def test_one_model_makes_a_step_without_an_array_of_size_n_times_d():
    """The only arrays of n entries in a step are the ones that are kept; A is read at the drawn rows."""
    problem = problem_of(1, n=1009)
    algorithm = bx.svrb(initialization="cheap", **settings_of_one())
    state = jax.eval_shape(algorithm.init, problem, jax.random.key(0))
    loop = lambda problem, state, key: jax.lax.fori_loop(
        0, 10, lambda t, state: algorithm.step(problem, state, jax.random.fold_in(key, t))[0], state
    )
    compiled = jax.jit(loop, donate_argnums=1).lower(problem, state, jax.random.key(0)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 8 * 1009 * problem.dim_y


@pytest.mark.parametrize("shape", [(6,), (6, 3)])
def test_sparse_rows_are_the_matrix(shape):
    matrix = sp.random(9, 6, density=0.4, random_state=0, format="csr")
    held = rows.sparse_rows(matrix, float)
    right = jnp.asarray(np.random.default_rng(1).normal(size=shape))
    np.testing.assert_allclose(rows.dense(held), matrix.toarray())
    np.testing.assert_allclose(held @ right, matrix @ np.asarray(right), atol=1e-14)
    assert held.shape == matrix.shape


@functools.cache
def step_of_one_model():
    """A compiled step of SVRB as a function of its rates, good or bad."""

    def step(rates, problem, state, key):
        upper_step, lower_step = rates
        algorithm = bx.svrb(**{**settings_of_one(), "upper_step": upper_step, "lower_step": lower_step})
        return algorithm.step(problem, state, key)

    return jax.jit(step)


@pytest.mark.parametrize("name", ["upper_step", "lower_step"])
def test_a_step_of_one_model_that_is_not_finite_leaves_everything_as_it_was(name):
    """The run goes on from there as if the step had not been tried."""
    problem, key = problem_of(1), jax.random.key(3)
    good, step = bx.svrb(**settings_of_one()), step_of_one_model()
    rates = {name: good.settings[name] for name in ("upper_step", "lower_step")}
    good_rates, bad_rates = (jnp.array([*{**rates, **changed}.values()]) for changed in ({}, {name: 1e300}))

    def run(state, steps):
        for t in steps:
            state, _ = step(good_rates, problem, state, jax.random.fold_in(key, t))
        return state

    before = run(jax.jit(good.init)(problem, key), range(10))
    after, info = step(bad_rates, problem, before, jax.random.fold_in(key, 99))
    assert not info.finite
    whole = lambda state: (*good.variables(problem, state), state.hessian, state.h, state.last_step, state.lower.v,
                           state.step, state.q.scale * state.q.values, state.c.scale * state.c.values)  # fmt: skip
    for old, new in zip(whole(before), whole(after), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-12, atol=1e-14)
    one, other = (good.variables(problem, run(state, range(10, 60))) for state in (before, after))
    np.testing.assert_allclose(other.x, one.x, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(other.y, one.y, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("bounds", [{"g_xy": 0.01}, {"f_y": 0.02}], ids=["g_xy", "f_y"])
def test_bounds_bind_row_by_row_as_in_the_form_for_many(bounds):
    problem, numbers = posed(1, bounds=bx.Bounds(**bounds)), numbers_for(1, 1)
    by_rows, free = (run(bx.svrb, linear_model, given, numbers, ALL_SAMPLES) for given in (problem, posed(1)))
    assert_same(by_rows, run(bx.svrb, linear_model, problem, numbers, ALL_SAMPLES, upper_optimizer=SGD))
    assert np.abs(by_rows[0] - free[0]).max() > 1e-4  # the bounds are active


def test_an_upper_loss_that_looks_at_x_moves_x_by_its_gradient_too():
    """A linear model whose upper loss is not of y alone is no matter of rows."""
    plain = problem_of(1)
    loss = lambda x, y, task, batch: plain.upper(x, y, task, batch) + 0.05 * jnp.sum((x - 1) ** 2)
    problem = plain.replace(upper=loss, structure=replace(plain.structure, upper_uses_x=True))
    make = lambda curvature: bx.svrb(curvature=curvature, **ALL_SAMPLES, **{**settings_of_one(), "upper_step": 0.3})
    assert_same(*(library_run(problem, make(curvature), 60) for curvature in (linear_model, dense)))


def test_the_first_factors_are_projected():
    """Raw weights below zero make the first c negative, and the first batch makes q too long for a small C."""
    C, given = 0.001, {**settings_for(3, 3), "initialization": "cheap", "initial_batch_size": 100}
    problem = problem_of(3, weights="raw", bounds=bx.Bounds(g_xy=C))
    problem = problem.replace(x0=jnp.where(jnp.arange(problem.dim_x) % 2 == 0, 1.0, -1.0))
    kept = jax.jit(bx.rsvrb(**given).init)(problem, jax.random.key(0)).tables.tasks.VH
    A = np.asarray(features(problem))
    assert kept.c.values.min() == 0
    assert kept.c.values.max() > 0
    np.testing.assert_allclose(kept.hessian, np.einsum("nd,mn,ne->mde", A, kept.c.values, A), atol=1e-14)
    np.testing.assert_allclose((np.abs(kept.q.values) * np.linalg.norm(A, axis=1)).max(), C)


@pytest.mark.parametrize("changed", [{"ridge": False}, {"lower_data": None}, {"lower": lambda *given: 0.0}])
def test_a_problem_that_is_almost_a_linear_model_is_refused(changed):
    problem = problem_of(1)
    parts = {"lower": problem.lower, "lower_data": problem.lower_data, "ridge": True}
    assert is_linear_model(**parts)
    almost = is_linear_model(**{**parts, **changed})
    assert not almost
    with pytest.raises(TypeError, match="curvature=linear_model needs a problem"):
        linear_model.check(problem.replace(structure=replace(problem.structure, linear_model=almost)))


def test_an_empty_matrix_is_sparse_rows_as_well():
    np.testing.assert_array_equal(rows.dense(rows.sparse_rows(sp.csr_array((3, 2)), float)), np.zeros((3, 2)))


def own_problem(rows=None, ridge=True, strong_convexity=0.3, weights=8, **parts):
    """A problem that a user puts together from a LinearModel."""
    from bilevax.problems.labelled import logistic
    from bilevax.problems.sample_weights import TrustedLoss

    A, b = np.random.default_rng(0).normal(size=(8, 2)), np.ones((8, 1))
    data = {"features": A, "labels": b, "row": np.arange(8) if rows is None else rows}
    model = {"loss": logistic, "weight": jax.nn.sigmoid, "ridge": 0.3, **parts}
    return bx.Problem(
        upper=TrustedLoss(logistic), lower=bx.curvature.LinearModel(**model),
        x0=np.zeros(weights), y0=np.zeros(2), y0_per_task=False,
        tasks={"temperature": np.ones(1), "column": np.zeros(1, int)},
        upper_data=bx.shared(data), lower_data=bx.shared(data), strong_convexity=strong_convexity, ridge=ridge,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"rows": np.arange(8)[::-1]}, r"one weight for each sample, and the data's \"row\" must be 0, 1, 2"),
        ({"rows": np.arange(8) // 2, "weights": 4}, "got 4 weights for 8 samples"),
        ({"strong_convexity": 0.1}, r"must be the ridge of the LinearModel, 0\.3; got 0\.1"),
    ],
)
def test_a_linear_model_whose_weights_are_not_those_of_its_samples_is_refused(changed, match):
    with pytest.raises(ValueError, match=match):
        own_problem(**changed)


@pytest.mark.parametrize("name", ["loss", "weight"])
def test_a_linear_model_of_functions_without_a_slope_is_refused(name):
    """The mean of whole numbers is a real number, and its derivative is zero without a word."""
    whole = lambda *numbers: (numbers[0] > 0).astype(jnp.int32)
    with (
        jax.numpy_dtype_promotion("standard"),
        pytest.raises(TypeError, match=rf"{name} of a LinearModel must return one real number.* \(\) of int32"),
    ):
        own_problem(**{name: whole})


def test_a_linear_model_without_its_ridge_declared_goes_to_the_dense_matrices():
    assert bx.curvature.choose(None, own_problem()) is linear_model
    assert bx.curvature.choose(None, own_problem(ridge=False, strong_convexity=0.1)) is dense


def test_a_solve_near_a_guess_is_as_exact_as_it_says():
    """‖(M + λI)h − v‖ ≤ ε^{0.6} ‖v‖, from any guess, for a matrix with eigenvalues from λ to 10."""
    problem = problem_of(1, p=30)
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(31, 31)))[0]
    M = jnp.asarray((rotation * np.geomspace(1e-1, 10, 31)) @ rotation.T)
    v, guess = jnp.asarray(rng.normal(size=(2, 31)))
    h = jax.jit(lambda guess: solve_near(problem, M, v, guess))(guess)
    error = jnp.linalg.norm(M @ h + problem.strong_convexity * h - v) / jnp.linalg.norm(v)
    assert error <= 2 * jnp.finfo(float).eps ** 0.6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("condition", [10.0, 1e6])
def test_solves_of_several_tasks_leave_no_more_than_a_factorisation(condition, dtype):
    """Where conjugate gradients get there, and where they do not; also for v = 0."""
    rng, d = np.random.default_rng(0), 30
    rotations = np.linalg.qr(rng.normal(size=(3, d, d)))[0]
    M = jnp.asarray((rotations * np.geomspace(1, condition, d)) @ rotations.transpose(0, 2, 1), dtype)
    v = jnp.asarray(rng.normal(size=(3, d)), dtype).at[2].set(0)
    problem = SimpleNamespace(strong_convexity=jnp.asarray(1e-3, dtype), dim_y=d, dtype=jnp.dtype(dtype))
    h = solve_ridges(problem, M, v, jnp.zeros_like(v))
    M, v, h = (np.asarray(part, float) for part in (M, v, h))
    left = v - np.einsum("jab,jb->ja", M, h) - 1e-3 * h
    allowed = 10 * np.finfo(dtype).eps * (np.linalg.norm(M, axis=(1, 2)) * np.linalg.norm(h, axis=1) + 1)
    assert (np.linalg.norm(left, axis=1) <= allowed).all()
    np.testing.assert_array_equal(h[2], 0)


def test_where_conjugate_gradients_do_not_get_there_a_factorisation_does(monkeypatch):
    problem = SimpleNamespace(strong_convexity=jnp.asarray(0.5), dim_y=3, dtype=jnp.dtype(float))
    monkeypatch.setattr(linear, "solve_near", lambda problem, hessian, v, guess, **more: guess)
    M, v = jnp.diag(jnp.array([1.0, 2.0, 3.0]))[None], jnp.ones((1, 3))
    np.testing.assert_allclose(linear.solve_ridges(problem, M, v, jnp.zeros((1, 3)))[0], 1 / np.array([1.5, 2.5, 3.5]))


@pytest.mark.parametrize("size", [1e-30, 1e-200, 0.0])
def test_a_solve_for_a_vanishing_v_stays_finite(size):
    problem = problem_of(1, p=30)
    v, guess = size * jnp.ones(31), size * jnp.ones(31)
    h = solve_near(problem, jnp.eye(31), v, guess)
    np.testing.assert_allclose(h, v / 1.2, rtol=1e-6, atol=1e-150)


@pytest.mark.parametrize("m", [1, 3])
def test_a_run_goes_on_when_the_upper_gradient_has_vanished(m):
    """Squared hinge with all trusted margins above one: v shrinks to nothing, and x stops."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(30, 3)) + 4.0
    with jax.enable_x64(False):
        problem = bx.problems.reweighting(
            train_features=A, train_labels=np.ones(30), trusted_features=9 * A, trusted_labels=np.ones(30),
            loss="squared_hinge", temperatures=np.ones(m), ridge=1e-3,
        )  # fmt: skip
        rates = {"upper_step": 1e6, "lower_step": 0.01, "mixing": 0.3}  # a step as it would be found
        algorithm = bx.rsvrb(batch_size=8, initialization="cheap", initial_batch_size=2, **rates)
        result = bx.solve(problem, algorithm, steps=1500, metrics=None)
    assert result.status == "done"
    assert np.isfinite(result.x).all()


@pytest.mark.parametrize("m", [1, 4])
def test_a_grid_of_steps_and_seeds_is_one_program(m):
    problem = problem_of(m)

    def last(step, seed):
        algorithm = bx.rsvrb(**{**settings_for(m, 1), "upper_step": step, "initialization": "cheap"})
        key = jax.random.key(seed)
        body = lambda t, state: algorithm.step(problem, state, jax.random.fold_in(key, t))[0]
        return algorithm.variables(problem, jax.lax.fori_loop(1, 40, body, algorithm.init(problem, key))).x

    steps, seeds = jnp.array([0.5, 0.5, 1.0, 1.0]), jnp.array([0, 1, 0, 1])
    alone = jax.jit(last)
    grid = jax.jit(jax.vmap(alone))(steps, seeds)
    np.testing.assert_allclose(grid[2], alone(steps[2], seeds[2]), rtol=1e-9, atol=1e-11)
    assert not np.array_equal(grid[0], grid[2])


TRACKED = {
    "repeated tasks": {"batch_size": 4, "tasks_per_step": 3, "task_probabilities": np.array([0.5, 0.2, 0.1, 0.1, 0.1])},
    "all samples": {"batch_size": None, "tasks_per_step": 2},
    "repeated samples": {"batch_size": 40, "tasks_per_step": 5},
}


@pytest.mark.parametrize("case", TRACKED)
def test_tracked_at_the_drawn_samples_is_tracked_in_whole_rows(case):
    """The same draws give the same path."""
    problem, runs = problem_of(5, p=3), []
    for curvature in (tracked_rows, tracked):
        algorithm = bx.rsvrb(upper_step=1.0, lower_step=0.1, mixing=0.2, curvature=curvature, **TRACKED[case])
        runs.append(bx.solve(problem, algorithm, steps=STEPS, metrics=None, progress=False))
    rows, whole = runs
    assert isinstance(rows.state.tables.tasks.VH.cross, ScaledRow)
    assert not isinstance(whole.state.tables.tasks.VH.cross, ScaledRow)
    many = SimpleNamespace(structure=problem.structure, num_tasks=2, dim_x=5000)
    assert bx.curvature.choose(tracked, many) is tracked_rows
    np.testing.assert_allclose(rows.x, whole.x, rtol=0, atol=1e-13)
    np.testing.assert_allclose(rows.y, whole.y, rtol=0, atol=1e-13)
    assert np.abs(rows.x - problem.x0).max() > 0.1
