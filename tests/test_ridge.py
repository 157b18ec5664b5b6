"""Ridge penalties by gradient: the gradient is right, and features that mislead are penalised."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import bilevax as bx
from bilevax.problems import ridge

RNG = np.random.default_rng(0)
P, N = 6, 40


def data(loss):
    """Two features that tell, the rest noise."""
    features = RNG.normal(size=(2, N, P))
    scores = features @ np.array([2.0, -1.0] + [0.0] * (P - 2)) + 0.5 * RNG.normal(size=(2, N))
    return features, scores if loss == "squared" else np.where(scores > 0, 1.0, -1.0)


FEATURES, TARGETS = data("squared")


def problem_of(loss="squared", form=np.asarray, **changed):
    labels = TARGETS if loss == "squared" else np.where(TARGETS > 0, 1.0, -1.0)
    given = {
        "train_features": form(FEATURES[0]), "train_labels": labels[0], "validation_features": form(FEATURES[1]),
        "validation_labels": labels[1], "loss": loss, "floor": 1e-3,
    }  # fmt: skip
    return ridge(**{**given, **changed})


def closed_form(x):
    """F(x) of the squared loss, y* by its normal equations."""
    A, B = (np.column_stack([rows, np.ones(N)]) for rows in FEATURES)
    penalties = jnp.append(1e-3 + (1 - 1e-3) / (1 + jnp.exp(-x)), 1e-3)
    y = jnp.linalg.solve(A.T @ A / N + jnp.diag(penalties), A.T @ TARGETS[0] / N)
    return 0.5 * jnp.mean((B @ y - TARGETS[1]) ** 2)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_the_objective_and_its_gradient_are_those_of_the_normal_equations(form):
    x = jnp.asarray(RNG.normal(size=P))
    problem = problem_of(form=form, rows="sparse" if form is sp.csr_array else None)
    np.testing.assert_allclose(bx.exact_objective(problem, x), closed_form(x), rtol=1e-10)
    np.testing.assert_allclose(bx.exact_gradient(problem, x), jax.grad(closed_form)(x), rtol=1e-7)


@pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])
def test_the_gradient_is_right_for_other_losses(loss):
    assert bx.check(problem_of(loss), points=2).ok


def test_it_reaches_what_a_full_batch_method_finds():
    from scipy.optimize import minimize

    start = np.asarray(problem_of().x0)
    np.testing.assert_allclose(problem_of().lower.penalties(start), 1e-2)
    found = minimize(lambda x: float(closed_form(x)), start, jac=lambda x: np.asarray(jax.grad(closed_form)(x)))
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
