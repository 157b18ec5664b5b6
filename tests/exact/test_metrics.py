"""Exact values are exact: against closed forms, finite differences and an independent solver."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.logistic import Model

import bilevax as bx
from bilevax.exact import evaluation, lower
from bilevax.run import metrics

solve_lower = jax.jit(lower.solve_lower)


@pytest.fixture
def own_programs():
    """Programs of exact values that are compiled for this test, and that no other one meets."""
    evaluation._evaluate.clear_cache()
    yield
    evaluation._evaluate.clear_cache()


@pytest.mark.parametrize("m", [1, 70])
def test_exact_objective_and_gradient_equal_the_closed_form(m):
    truth = bx.problems.quadratic(num_tasks=m)
    x = truth.problem.x0
    np.testing.assert_allclose(bx.exact_objective(truth.problem, x), truth.objective(x), rtol=1e-12)
    np.testing.assert_allclose(bx.exact_gradient(truth.problem, x), truth.gradient(x), rtol=1e-10)
    np.testing.assert_allclose(evaluation.exact(truth.problem, x).y, truth.lower_solution(x), rtol=1e-10)


def test_the_closed_form_agrees_with_itself():
    truth = bx.problems.quadratic(num_tasks=5)
    x = truth.problem.x0
    np.testing.assert_allclose(jax.grad(truth.objective)(x), truth.gradient(x), rtol=1e-12)
    np.testing.assert_allclose(truth.gradient(truth.solution), 0, atol=1e-12)


def test_the_noise_has_mean_zero_and_the_variance_that_was_asked_for():
    truth = bx.problems.quadratic(noise=0.7, num_samples=50)
    for data in (truth.problem.upper_data, truth.problem.lower_data):
        for values in data.arrays.values():
            np.testing.assert_allclose(np.mean(values, axis=0), 0, atol=1e-14)
            np.testing.assert_allclose(np.var(values, axis=0), 0.7, rtol=1e-12)


def test_the_exact_gradient_is_the_slope_of_the_exact_objective():
    problem = Model(4).problem()
    x, e = problem.x0, jnp.array([0.6, -0.2, 0.3])
    slope = (bx.exact_objective(problem, x + 1e-5 * e) - bx.exact_objective(problem, x - 1e-5 * e)) / 2e-5
    np.testing.assert_allclose(bx.exact_gradient(problem, x) @ e, slope, rtol=1e-8)


def test_lower_problems_are_solved_to_rounding_on_ragged_data():
    rng = np.random.default_rng(0)
    rows, offsets = rng.normal(size=(30, 3)), np.array([0, 2, 11, 30])
    g = lambda x, y, i, batch: jnp.mean(jax.nn.softplus(batch @ y)) + 0.05 * jnp.sum((y - x) ** 2)
    problem = bx.Problem(
        upper=lambda x, y, i, batch: jnp.sum(y**2),
        lower=g,
        x0=jnp.ones(3),
        y0=jnp.zeros(3),
        y0_per_task=False,
        lower_data=bx.ragged(rows, offsets),
        strong_convexity=0.1,
    )
    for i in range(3):
        y, _ = solve_lower(problem, problem.x0, problem.y0, jnp.int32(i))
        own = lambda y, i=i: g(problem.x0, y, i, jnp.asarray(rows[offsets[i] : offsets[i + 1]]))
        assert jnp.linalg.norm(jax.grad(own)(y)) < 1e-13


def test_a_lower_problem_with_many_variables_is_solved_without_its_hessian(monkeypatch, own_programs):
    monkeypatch.setattr(lower, "DENSE_UP_TO", 1)
    monkeypatch.setattr(lower, "FEW", 1)
    problem = Model(2, dim_y=4).problem()
    y, _ = jax.jit(lambda i: lower.solve_lower(problem, problem.x0, problem.y0_of(1), i))(jnp.int32(1))
    assert jnp.linalg.norm(problem.lower_gradient(problem.x0, y, jnp.int32(1))) < 1e-13
    stiff_problem, truth = stiff(20, 1e5)
    np.testing.assert_allclose(bx.exact_gradient(stiff_problem, stiff_problem.x0), truth, rtol=1e-7)


def test_conjugate_gradients_that_do_not_get_there_say_so():
    H = jnp.asarray(np.diag(np.geomspace(1, 1e14, 40)))
    v = jnp.ones(40)
    assert not lower._iterative_inverse(lambda h: H @ h, jnp.ones(40), 1e-16)(v).found
    found = lower._iterative_inverse(lambda h: H @ h, jnp.diagonal(H), 1e-16)(v)
    assert found.found
    np.testing.assert_allclose(H @ found.h, v, rtol=1e-12)


def test_conjugate_gradients_begin_again_until_they_are_there():
    """One round ends at √ε, which is not there yet."""
    H, _ = hessian_of(40, 100)
    v = jnp.ones(40)
    found = lower._iterative_inverse(lambda h: H @ h, jnp.ones(40), 1e-15)(v)
    assert found.found
    assert jnp.linalg.norm(v - H @ found.h) < 1e-13 * jnp.linalg.norm(v)
    sloppy = lower._iterative_inverse(lambda h: H @ h, jnp.ones(40), 0.01)(1e-200 * v)  # of any size
    assert sloppy.found
    assert 1e-10 < jnp.linalg.norm(v - H @ (1e200 * sloppy.h)) / jnp.linalg.norm(v) < 0.01


ROWS, SIGNS = np.random.default_rng(1).normal(size=(40, 5)), np.sign(np.random.default_rng(2).normal(size=40))


def square(x, y, task, batch):
    """An upper loss."""
    return jnp.sum(y**2)


def scaled_regression(x, y, task, batch):
    """A logistic regression with a ridge, times a number; one function, to be compiled once."""
    A, b = (jnp.asarray(values, y.dtype) for values in (ROWS, SIGNS))
    return task["scale"] * (jnp.mean(jax.nn.softplus(-b * (A @ y))) + task["ridge"] / 2 * jnp.sum((y - x) ** 2))


def scaled_problem(scale, ridge, start, dtype=float):
    """One lower problem of that loss."""
    tasks = {"scale": jnp.full(1, scale, dtype), "ridge": jnp.full(1, ridge, dtype)}
    return bx.Problem(
        upper=square, lower=scaled_regression, x0=jnp.zeros(5, dtype), y0=jnp.full(5, start, dtype), y0_per_task=False,
        tasks=tasks, strong_convexity=ridge * scale,
    )  # fmt: skip


@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1.0, 1e3])
@pytest.mark.parametrize("far", [0.0, 30.0])
def test_the_solution_does_not_depend_on_the_scale_of_the_loss_or_the_start(scale, far):
    problem = scaled_problem(scale, 1e-3, far)
    y = np.asarray(solve_lower(problem, problem.x0, problem.y0, jnp.int32(0))[0])
    gradient = ROWS.T @ (-SIGNS / (1 + np.exp(SIGNS * (ROWS @ y)))) / 40 + 1e-3 * y
    assert np.linalg.norm(gradient) < 1e-12


@pytest.mark.parametrize("scale", [1e-3, 1.0])
@pytest.mark.parametrize("ridge", [1e-2, 1e-4])
def test_float32_reaches_the_solution_of_float64(scale, ridge):
    def solution(dtype):
        problem = scaled_problem(scale, ridge, 3.0, dtype)
        return np.asarray(solve_lower(problem, problem.x0, problem.y0, jnp.int32(0))[0])

    truth = solution(np.float64)
    with jax.enable_x64(False):
        rounded = solution(np.float32)
    np.testing.assert_allclose(rounded, truth, atol=1e-3 * np.linalg.norm(truth))


def test_float32_solves_are_as_good_as_float32_allows():
    with jax.enable_x64(False):
        problem = Model(2).problem(np.float32)
        y, _ = solve_lower(problem, problem.x0, problem.y0_of(0), jnp.int32(0))
        assert y.dtype == np.float32
        assert jnp.linalg.norm(problem.lower_gradient(problem.x0, y, jnp.int32(0))) < 1e-6


def test_an_x_of_another_shape_is_refused():
    problem = Model(2).problem()
    with pytest.raises(ValueError, match=r"x must be a pytree like the x0 .*\(3,\); got \(4,\)"):
        bx.exact_objective(problem, jnp.zeros(4))


def badly_scaled(own):
    """A logistic regression on columns of scales from 1 to 300, as a loss of one's own or as re-weighting."""
    rng = np.random.default_rng(0)
    scales = np.geomspace(1, 300, 12)
    A, w = rng.normal(size=(400, 12)) * scales, rng.normal(size=12) / scales
    b = np.sign(A @ w + 0.5 * rng.normal(size=400))
    if not own:
        return bx.problems.reweighting(
            train_features=A[::2], train_labels=b[::2], trusted_features=A[1::2], trusted_labels=b[1::2],
            ridge=1e-4,
        )  # fmt: skip
    A = np.c_[A, np.ones(400)]
    loss = lambda y, batch: jnp.mean(jax.nn.softplus(-batch[1] * (batch[0] @ y)))
    return bx.Problem(
        upper=lambda x, y, i, batch: loss(y, batch),
        lower=lambda x, y, i, batch: jax.nn.sigmoid(x[0]) * loss(y, batch) + 0.5e-4 * jnp.sum(y**2),
        x0=jnp.zeros(1), y0=jnp.zeros(13), strong_convexity=1e-4,
        lower_data=bx.shared((A[::2], b[::2])), upper_data=bx.shared((A[1::2], b[1::2])),
    )  # fmt: skip


def test_columns_of_very_different_scales_are_solved_to_rounding():
    """By the general solver and by that of linear models, which is no good here and is followed by the other."""
    values = bx.exact_values(own := badly_scaled(own=True), own.x0)
    A, b = map(np.asarray, own.lower_data.arrays)
    margin = b * (A @ np.asarray(values.y))
    gradient = A.T @ (-0.5 * b / (1 + np.exp(margin))) / len(b) + 1e-4 * np.asarray(values.y)
    assert np.linalg.norm(gradient) < 1e-10
    assert values.residual < 1e-10
    assert values.accurate
    weighted = badly_scaled(own=False)
    np.testing.assert_allclose(bx.exact_objective(weighted, weighted.x0), values.objective, rtol=1e-9)


def hessian_of(n, condition, dtype=float):
    """A symmetric matrix with eigenvalues from 1 to `condition`, and the generator that drew it."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    return np.asarray((Q * np.geomspace(1, condition, n)) @ Q.T, dtype), rng


def stiff(n, condition, dtype=float):
    """A quadratic lower problem with eigenvalues from 1 to `condition`, and its ∇F in closed form."""
    H, rng = hessian_of(n, condition, dtype)
    C, goal = np.asarray(rng.normal(size=(n, 2)), dtype), np.asarray(rng.normal(size=n), dtype)
    problem = bx.Problem(
        upper=lambda x, y, i, batch: 0.5 * jnp.sum((y - goal) ** 2),
        lower=lambda x, y, i, batch: 0.5 * y @ (H @ y) - y @ (C @ x),
        x0=jnp.ones(2, dtype), y0=jnp.zeros(n, dtype), y0_per_task=False, strong_convexity=1.0,
    )  # fmt: skip
    slope = np.linalg.solve(H.astype(float), C.astype(float))
    return problem, slope.T @ (slope @ np.ones(2) - goal)


@pytest.mark.parametrize(("n", "condition"), [(50, 1e9), (600, 1e8)])
def test_an_exact_gradient_is_exact_also_where_the_lower_problem_is_stiff(n, condition):
    problem, truth = stiff(n, condition)
    found = bx.exact_values(problem, problem.x0)
    np.testing.assert_allclose(found.gradient, truth, rtol=1e-6)
    assert found.gradient_error < 1e-6 * np.linalg.norm(truth)


def test_a_stiff_problem_in_float32_is_solved_in_float64():
    with jax.enable_x64(False):
        problem, truth = stiff(50, 1e6, np.float32)
        gradient = bx.exact_gradient(problem, problem.x0)
        assert gradient.dtype == np.float32
    np.testing.assert_allclose(gradient, truth, rtol=1e-5)


def test_what_cannot_be_solved_is_said_with_its_error():
    """λ = 1 is claimed, but g is linear in one direction: it has no minimum."""
    problem = bx.Problem(
        upper=lambda x, y, i, batch: jnp.sum(y**2), lower=lambda x, y, i, batch: y[0] ** 2 - y[1] * jnp.cos(x[0]),
        x0=jnp.zeros(1), y0=jnp.zeros(2), strong_convexity=1.0,
    )  # fmt: skip
    with pytest.warns(bx.InexactWarning, match="exact values of .* are not exact at this x"):
        values = bx.exact_values(problem, problem.x0)
    assert not values.accurate
    with pytest.warns(bx.InexactWarning), pytest.warns(bx.AssumptionWarning):
        result = bx.solve(problem, bx.svrb(initialization="cheap"), steps=1)
    assert not result.trace["objective_error"][0] < 1


def test_the_error_that_is_told_is_the_error():
    """At a point beside y*, what one more Newton step shows is what is missing, to first order."""
    problem = badly_scaled(own=True)
    x, truth = problem.x0, bx.exact_values(problem, problem.x0)

    @jax.jit
    def beside(y):
        invert = lower.inverse_at(problem, x, y, 0)
        delta = -invert(problem.lower_gradient(x, y, 0)).h
        return (
            evaluation._objective_of(problem, x, y, delta, 0),
            evaluation._gradient_of(problem, x, y, delta, 0, invert),
        )

    F, gradient = beside((1 + 1e-4) * truth.y)
    np.testing.assert_allclose(-F.error, F.value - truth.objective, rtol=0.02)
    np.testing.assert_allclose(-gradient.error, gradient.value - truth.gradient, rtol=0.02)


def test_what_a_solver_says_of_one_task_is_said_of_all(monkeypatch, own_programs):
    """A solver that ends at y0, thinks that it is there, and cannot solve with ∇²yy g."""
    model = Model(3)
    problem = model.problem()
    stuck = lower.Solver(
        solve=lambda i, start: (problem.y0_of(i), jnp.zeros(problem.dim_y)),
        inverse=lambda y, i: lambda v: lower.Solution(v, i != 1),
    )
    monkeypatch.setattr(lower, "solver", lambda problem, x: stuck)
    with pytest.warns(bx.InexactWarning):
        values = bx.exact_values(problem, problem.x0)
    assert values.objective_error == 0
    assert values.gradient_error == np.inf
    assert not values.accurate
    left = [np.linalg.norm(model.gy(i, model.x0, model.y0[i], range(6))) for i in range(3)]
    np.testing.assert_allclose(values.residual, max(left), rtol=1e-12)


def test_of_very_many_tasks_some_are_looked_at_and_their_spread_is_told(monkeypatch):
    truth = bx.problems.quadratic(num_tasks=30, noise=1.0)
    problem, x = truth.problem, truth.problem.x0 + 0.3
    y = jnp.asarray(np.random.default_rng(0).normal(size=(30, problem.dim_y)))
    everything = bx.exact_metrics(problem, bx.Variables(x, y))
    monkeypatch.setattr(metrics, "MANY", 29)
    monkeypatch.setattr(metrics, "EXCERPT", 12)
    metrics._draw.cache_clear()
    found, some = bx.exact_metrics(problem, bx.Variables(x, y)), np.asarray(metrics.tasks_of_metrics(problem))
    metrics._draw.cache_clear()
    assert len(set(some)) == 12
    best = truth.lower_solution(x)
    each = np.array([problem.upper_loss(x, best[i], i) for i in range(30)])
    np.testing.assert_allclose(found["objective"], each[some].mean(), rtol=1e-9)
    error = np.sqrt(np.sum((each[some] - each[some].mean()) ** 2) / 11 / 12 * (30 - 12) / 30)
    np.testing.assert_allclose(found["objective_error"], error, rtol=1e-6)
    gaps = np.sum((np.asarray(y) - np.asarray(best)) ** 2, axis=1)
    np.testing.assert_allclose(found["lower_gap"], gaps[some].mean(), rtol=1e-9)
    assert bx.exact_metrics(problem, bx.Variables(x, y), all_tasks=True) == everything
    result = bx.solve(problem, bx.soba(), steps=1)
    assert "of 12 of 30 tasks, drawn once" in result.explain()


def test_the_metrics_of_a_run_are_those_of_the_closed_form(monkeypatch):
    truth = bx.problems.quadratic(num_tasks=5)
    x, best = truth.problem.x0, truth.lower_solution(truth.problem.x0)
    y, given = jnp.asarray(np.random.default_rng(0).normal(size=best.shape)), []
    values = evaluation.Exact(truth.objective(x), truth.gradient(x), best, 0.0, 1e-9, 1e-8, True)
    monkeypatch.setattr(metrics, "exact", lambda *point: given.append(point) or values)
    found = bx.exact_metrics(truth.problem, bx.Variables(x, y))
    assert given == [(truth.problem, x, y, None)]  # from y on, which is close to y* in a run
    wanted = {
        "objective": truth.objective(x), "grad_norm": np.sqrt(np.sum(np.square(truth.gradient(x)))),
        "lower_gap": np.sum((np.asarray(best) - np.asarray(y)) ** 2) / 5, "objective_error": 1e-9,
    }  # fmt: skip
    assert found.keys() == wanted.keys()
    np.testing.assert_allclose([found[name] for name in wanted], list(wanted.values()), rtol=1e-12)


def test_the_diagonal_of_a_hessian_is_guessed_from_products():
    """Exactly where there is nothing beside it; in the mean where there is; never below λ."""
    values = jnp.geomspace(1e-3, 1e6, 30)
    found = lower.diagonal(lambda h: values * h, values, 0.1)
    np.testing.assert_allclose(found, np.maximum(values, 0.1), rtol=1e-12)
    pairs = jnp.kron(jnp.eye(200), jnp.array([[1.0, 0.9], [0.9, 1.0]]))
    found = lower.diagonal(lambda h: pairs @ h, pairs[0], 0.1)
    assert abs(found.mean() - 1) < 0.1
    assert found.max() <= np.hypot(1, 0.9) * (1 + 1e-12) * np.sqrt(2)


def test_values_are_exact_also_where_the_gradient_has_vanished():
    """f is least at y*(x_0): ∇F is rounding, and so is its error, beside what it is made of."""
    rng = np.random.default_rng(0)
    A = jnp.asarray(rng.normal(size=(20, 3)) * [1.0, 7.0, 50.0])

    def lower(x, y, i, batch):
        return jnp.mean(jax.nn.sigmoid(x) * jax.nn.softplus(A @ y)) + 0.05 * jnp.sum(y**2)

    def values(target):
        upper = lambda x, y, i, batch: 0.5 * jnp.sum((y - target) ** 2)
        x0 = jnp.asarray(np.random.default_rng(1).normal(size=20))
        problem = bx.Problem(upper=upper, lower=lower, x0=x0, y0=jnp.zeros(3), strong_convexity=0.1)
        return bx.exact_values(problem, x0)

    best = values(jnp.zeros(3)).y
    found = values(best * (1 + 4e-16))
    assert found.accurate
    assert jnp.linalg.norm(found.gradient) < 1e-14
