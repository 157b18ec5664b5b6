"""Exact values of linear models, all tasks at once, are those of the solver for any loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax.exact import linear_lower


def weighted(loss="logistic", tasks=5, ridge=1e-3, n=60, p=7, spread=1.0, **more):
    rng = np.random.default_rng(0)
    A, B = spread * rng.normal(size=(n, p)), rng.normal(size=(20, p))
    w = rng.normal(size=p)
    return bx.problems.reweighting(
        train_features=A, train_labels=np.sign(A @ w + rng.normal(size=n)), trusted_features=B,
        trusted_labels=np.sign(B @ w), loss=loss, ridge=ridge,
        temperatures=rng.uniform(0.5, 11, tasks), **more,
    )  # fmt: skip


def starts(problem, far):
    rng = np.random.default_rng(1)
    return jnp.asarray(far * rng.normal(size=(problem.num_tasks, problem.dim_y)))


@jax.jit
def solutions(problem, x, begin):
    solve = linear_lower.solver(problem, x, begin).solve
    return jax.vmap(lambda i, start: solve(i, start)[0])(jnp.arange(problem.num_tasks), begin)


@jax.jit
def left_over(problem, x, y):
    """‖∇y g_i‖ for every task."""
    gradient = lambda y, i: problem.lower_gradient(x, y, i)
    return jnp.linalg.norm(jax.vmap(gradient)(y, jnp.arange(problem.num_tasks)), axis=1)


@pytest.mark.parametrize("loss", ["logistic", "squared", "squared_hinge"])
@pytest.mark.parametrize("far", [0.0, 30.0])
def test_lower_problems_are_solved_to_rounding_from_near_and_far(loss, far):
    problem = weighted(loss)
    x = jnp.asarray(np.random.default_rng(2).normal(size=problem.dim_x))
    assert jnp.max(left_over(problem, x, solutions(problem, x, starts(problem, far)))) < 1e-13


@pytest.mark.parametrize("tasks", [1, 5])
def test_objective_gradient_and_solutions_equal_those_of_the_general_solver(tasks, monkeypatch):
    problem = weighted(tasks=tasks)
    x = jnp.asarray(np.random.default_rng(2).normal(size=problem.dim_x))
    from bilevax.exact import evaluation

    assert linear_lower.serves(problem)
    quick = evaluation.exact(problem, x)
    monkeypatch.setattr(linear_lower, "serves", lambda problem: False)
    general = evaluation.exact(problem, x)
    for one, other in zip(quick[:3], general[:3], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    assert quick.accurate
    assert general.accurate


def test_a_solve_with_the_hessian_is_exact():
    problem = weighted()
    x, y = problem.x0, starts(problem, 0.3)
    v = jnp.arange(1.0, problem.dim_y + 1)

    @jax.jit
    def there_and_back(problem, i):
        h = linear_lower.solver(problem, x, 2 * y).inverse(y[i], i)(v).h
        return problem.lower_derivatives(x, y[i], i)[1](h)[1]

    for i in range(problem.num_tasks):
        np.testing.assert_allclose(there_and_back(problem, jnp.int32(i)), v, rtol=1e-9)


def test_sparse_rows_and_other_losses_are_left_to_the_general_solver():
    assert not linear_lower.serves(weighted(rows="sparse"))
    assert not linear_lower.serves(bx.problems.quadratic(num_tasks=2).problem)
    assert not linear_lower.serves(weighted(p=linear_lower.COMMON_UP_TO + 1))


def test_saturated_starts_in_float32_end_at_the_solution_of_float64():
    with jax.enable_x64(False):
        single = weighted(spread=3.0)
        found = solutions(single, single.x0, starts(single, 20.0).astype(np.float32))
        assert found.dtype == np.float32
    double = weighted(spread=3.0)
    truth = solutions(double, double.x0, starts(double, 0.0))
    np.testing.assert_allclose(found, truth, atol=1e-4 * np.linalg.norm(truth))


def test_tasks_share_one_factorisation():
    """With P_i = H_i conjugate gradients need one product: the metric of one task is its Hessian where it begins."""
    problem = weighted(tasks=1)
    x, y = problem.x0, starts(problem, 0.5)
    shared = linear_lower.common_factors_at(problem, x, y)
    v = jnp.arange(1.0, problem.dim_y + 1)
    _, product = problem.lower_derivatives(x, y[0], 0)
    np.testing.assert_allclose(product(linear_lower._precondition(problem, shared, 0, v))[1], v, rtol=1e-9)


@pytest.mark.parametrize("size", [1, 20, 100])
def test_a_problem_on_samples_of_its_own_is_solved_to_rounding(size):
    problem = weighted()
    x, indices = problem.x0, jnp.asarray(np.random.default_rng(3).integers(0, problem.dim_x, size))
    y, gradients = jax.jit(linear_lower.solve_lower)(problem, x, starts(problem, 5.0)[0], 0, indices)
    assert jnp.linalg.norm(problem.lower_gradient(x, y, 0, indices)) < 1e-13
    assert 2 <= gradients < 100


def test_the_theorems_start_of_a_linear_model_solves_every_lower_problem():
    problem = weighted()
    algorithm = bx.rsvrb(tasks_per_step=2)
    y = algorithm.variables(problem, jax.jit(algorithm.init)(problem, jax.random.key(0))).y
    assert jnp.max(left_over(problem, problem.x0, y)) < 1e-13
