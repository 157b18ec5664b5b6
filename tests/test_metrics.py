"""Exact values are exact: against closed forms, finite differences and an independent solver."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from logistic import Model

import bilevax as bx
from bilevax import lower, metrics, oracle


@pytest.mark.parametrize("m", [1, 70])
def test_exact_objective_and_gradient_equal_the_closed_form(m):
    truth = bx.problems.quadratic(num_tasks=m)
    x = truth.problem.x0
    np.testing.assert_allclose(bx.exact_objective(truth.problem, x), truth.objective(x), rtol=1e-12)
    np.testing.assert_allclose(bx.exact_gradient(truth.problem, x), truth.gradient(x), rtol=1e-10)
    np.testing.assert_allclose(metrics.exact(truth.problem, x).y, truth.lower_solution(x), rtol=1e-10)


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
        y, _ = lower.solve(problem, problem.x0, problem.y0, jnp.int32(i))
        own = lambda y, i=i: g(problem.x0, y, i, jnp.asarray(rows[offsets[i] : offsets[i + 1]]))
        assert jnp.linalg.norm(jax.grad(own)(y)) < 1e-13


def test_a_lower_problem_with_many_variables_is_solved_without_its_hessian(monkeypatch):
    monkeypatch.setattr(lower, "DENSE_UP_TO", 1)
    problem = Model(2, dim_y=4).problem()
    y, _ = lower.solve(problem, problem.x0, problem.y0_of(1), jnp.int32(1))
    assert jnp.linalg.norm(oracle.lower_gradient(problem, problem.x0, y, jnp.int32(1))) < 1e-13


@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1.0, 1e3])
@pytest.mark.parametrize("far", [0.0, 30.0])
def test_the_solution_does_not_depend_on_the_scale_of_the_loss_or_the_start(scale, far):
    rng = np.random.default_rng(1)
    rows, signs = jnp.asarray(rng.normal(size=(40, 5))), jnp.asarray(np.sign(rng.normal(size=40)))
    g = lambda x, y, i, batch: scale * (jnp.mean(jax.nn.softplus(-signs * (rows @ y))) + 5e-4 * jnp.sum((y - x) ** 2))
    problem = bx.Problem(
        upper=lambda x, y, i, batch: jnp.sum(y**2),
        lower=g,
        x0=jnp.zeros(5),
        y0=jnp.full(5, far),
        strong_convexity=1e-3 * scale,
    )
    y, _ = lower.solve(problem, problem.x0, problem.y0, jnp.int32(0))
    gradient = jax.grad(lambda y: g(problem.x0, y, 0, None) / scale)(y)
    assert jnp.linalg.norm(gradient) < 1e-12


@pytest.mark.parametrize("scale", [1e-3, 1.0])
@pytest.mark.parametrize("ridge", [1e-2, 1e-4])
def test_float32_reaches_the_solution_of_float64(scale, ridge):
    rng = np.random.default_rng(1)
    rows, signs = rng.normal(size=(40, 5)), np.sign(rng.normal(size=40))

    def solution(dtype):
        A, b = jnp.asarray(rows, dtype), jnp.asarray(signs, dtype)
        problem = bx.Problem(
            upper=lambda x, y, i, batch: jnp.sum(y**2),
            lower=lambda x, y, i, batch: scale * (jnp.mean(jax.nn.softplus(-b * (A @ y))) + ridge / 2 * jnp.sum(y**2)),
            x0=jnp.zeros(1, dtype),
            y0=jnp.full(5, 3.0, dtype),
            strong_convexity=ridge * scale,
        )
        return np.asarray(lower.solve(problem, problem.x0, problem.y0, jnp.int32(0))[0])

    truth = solution(np.float64)
    with jax.enable_x64(False):
        rounded = solution(np.float32)
    np.testing.assert_allclose(rounded, truth, atol=1e-3 * np.linalg.norm(truth))


def test_float32_solves_are_as_good_as_float32_allows():
    with jax.enable_x64(False):
        problem = Model(2).problem(np.float32)
        y, _ = lower.solve(problem, problem.x0, problem.y0_of(0), jnp.int32(0))
        assert y.dtype == np.float32
        assert jnp.linalg.norm(oracle.lower_gradient(problem, problem.x0, y, jnp.int32(0))) < 1e-6


def test_an_x_of_another_shape_is_refused():
    problem = Model(2).problem()
    with pytest.raises(ValueError, match=r"x must be a pytree like the x0 .*\(3,\); got \(4,\)"):
        bx.exact_objective(problem, jnp.zeros(4))
