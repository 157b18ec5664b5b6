"""Ridge penalties by gradient: the gradient is right, and features that mislead are penalised."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from reference.problems.ridge import FEATURES, TARGETS, N, P, problem_of

import bilevax as bx


def closed_form(x):
    """F(x) of the squared loss, y* by its normal equations."""
    A, B = (np.column_stack([rows, np.ones(N)]) for rows in FEATURES)
    penalties = jnp.append(1e-3 + (1 - 1e-3) / (1 + jnp.exp(-x)), 1e-3)
    y = jnp.linalg.solve(A.T @ A / N + jnp.diag(penalties), A.T @ TARGETS[0] / N)
    return 0.5 * jnp.mean((B @ y - TARGETS[1]) ** 2)


value_and_gradient = jax.jit(jax.value_and_grad(closed_form))


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_the_objective_and_its_gradient_are_those_of_the_normal_equations(form):
    x = jnp.asarray(np.random.default_rng(1).normal(size=P))
    problem = problem_of(form=form, rows="sparse" if form is sp.csr_array else None)
    value, gradient = value_and_gradient(x)
    np.testing.assert_allclose(bx.exact_objective(problem, x), value, rtol=1e-10)
    np.testing.assert_allclose(bx.exact_gradient(problem, x), gradient, rtol=1e-7)


@pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])
def test_the_gradient_is_right_for_other_losses(loss):
    assert bx.check(problem_of(loss), points=2).ok


def test_penalties_go_from_floor_to_ceiling_and_begin_at_the_start():
    problem = problem_of(floor=0.1, ceiling=0.5, start=0.2)
    np.testing.assert_allclose(problem.lower.penalties(jnp.array([-60.0, 0.0, 60.0])), [0.1, 0.3, 0.5], rtol=1e-12)
    np.testing.assert_allclose(problem.lower.penalties(problem.x0), np.full(P, 0.2), rtol=1e-12)
    assert float(problem.strong_convexity) == 0.1


def test_every_model_has_its_own_column_of_labels_and_the_shift_has_the_floor():
    """f_i and g_i of both columns at one y, by their formulas."""
    both = np.stack([TARGETS, -2 * TARGETS], axis=2)
    problem = problem_of(train_labels=both[0], validation_labels=both[1], floor=0.1, ceiling=0.5, start=0.2)
    x, y = (jnp.asarray(np.random.default_rng(1).normal(size=size)) for size in (P, P + 1))
    penalties = np.append(0.1 + 0.4 / (1 + np.exp(-np.asarray(x))), 0.1)
    for i in range(2):
        mean = lambda part, i=i: 0.5 * np.mean((FEATURES[part] @ y[:-1] + y[-1] - both[part][:, i]) ** 2)
        f, g = (
            loss(x, y, problem.task(i), data.take(i, jnp.arange(N)))
            for loss, data in [(problem.upper, problem.upper_data), (problem.lower, problem.lower_data)]
        )
        np.testing.assert_allclose(f, mean(1), rtol=1e-12)
        np.testing.assert_allclose(g, mean(0) + 0.5 * np.sum(penalties * np.asarray(y) ** 2), rtol=1e-12)


def test_it_reaches_what_a_full_batch_method_finds():
    from scipy.optimize import minimize

    start = np.asarray(problem_of().x0)
    np.testing.assert_allclose(problem_of().lower.penalties(start), 1e-2)
    found = minimize(lambda x: tuple(map(np.asarray, value_and_gradient(x))), start, jac=True)
    algorithm = bx.svrb(upper_step=3.0, lower_step=0.3, mixing=0.3, batch_size=None)
    result = bx.solve(problem_of(), algorithm, steps=5000, metrics=None)
    assert closed_form(result.x) - found.fun < 0.05 * (closed_form(start) - found.fun)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="must agree on the number of features and tasks"):
        problem_of(validation_features=FEATURES[1][:, :3])
    with pytest.raises(ValueError, match="ceiling must be above floor"):
        problem_of(floor=2.0, ceiling=1.0)
    with pytest.raises(ValueError, match="floor must be"):
        problem_of(floor=0.0)
    with pytest.raises(ValueError, match=r"start must be between floor and ceiling, 0\.001 and 0\.5; got 1\.0"):
        problem_of(start=1.0, ceiling=0.5)
