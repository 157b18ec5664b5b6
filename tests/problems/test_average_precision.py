"""Average precision as a problem: what it is made of, and that its minimum ranks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from reference.problems.average_precision import FEATURES, LABELS, N, P, X, linear, problem_of
from sklearn.metrics import average_precision_score

import bilevax as bx
from bilevax.problems import average_precision


def surrogate_of(surrogate, width):
    """F, written down from the paper's equation."""
    smooth = {"sigmoid": lambda d: jax.nn.sigmoid(d / width), "squared_hinge": lambda d: jnp.maximum(0, width + d) ** 2}

    def objective(x):
        scores = FEATURES @ x
        losses = smooth[surrogate](scores[None, :] - scores[LABELS > 0][:, None])
        return -jnp.mean(jnp.sum(losses * (LABELS > 0).astype(float)[None, :], 1) / jnp.sum(losses, 1))

    return objective


@pytest.mark.parametrize(
    ("surrogate", "group", "rows"),
    [
        ("sigmoid", 1, np.asarray), ("sigmoid", np.int64(4), sp.csr_array), ("sigmoid", 100, sp.csr_array),
        ("squared_hinge", 1, sp.csr_array), ("squared_hinge", np.int64(4), np.asarray),
        ("squared_hinge", 100, np.asarray),
    ],
)  # fmt: skip
def test_the_objective_and_its_gradient_are_those_of_the_papers_equation(surrogate, group, rows):
    """Every pair of a surrogate, a size of groups and a kind of rows."""
    width = {"sigmoid": 0.5, "squared_hinge": 1.0}[surrogate]
    problem = problem_of(rows(FEATURES), surrogate=surrogate, width=width, group=group)
    value, gradient = jax.jit(jax.value_and_grad(surrogate_of(surrogate, width)))(X)
    np.testing.assert_allclose(bx.exact_objective(problem, X), value, rtol=1e-12)
    np.testing.assert_allclose(bx.exact_gradient(problem, X), gradient, rtol=1e-9)
    assert problem.structure.hessian.value == "known"


def test_one_lower_problem_for_each_positive_sample():
    assert problem_of().num_tasks == (LABELS > 0).sum()
    assert problem_of().dim_y == 2


def test_a_narrow_sigmoid_is_the_average_precision():
    """Up to ties: a positive sample with itself counts one half where the average precision counts it whole."""
    problem = problem_of(width=1e-4)
    scores = FEATURES @ np.asarray(X)
    losses = (scores[None, :] > scores[LABELS > 0][:, None]) + 0.5 * (scores[None, :] == scores[LABELS > 0][:, None])
    wanted = np.mean((losses * (LABELS > 0)).sum(1) / losses.sum(1))
    np.testing.assert_allclose(bx.exact_objective(problem, X), -wanted, rtol=1e-6)


@pytest.mark.parametrize(("surrogate", "alone"), [("sigmoid", 0.5), ("squared_hinge", 0.04)])
def test_the_floor_is_what_a_sample_adds_to_its_own_expectation(surrogate, alone):
    """E_j[ℓ(s_j − s_i)] ≥ ℓ(0)/n, for j = i: reached where i is far above all others, so that F = −1 there."""
    rows = np.array([[1.0], [0.5], [-0.5], [-1.0], [-1.5]])
    labels = np.array([1.0, 1.0, -1.0, -1.0, -1.0])
    problem = problem_of(rows, labels, surrogate=surrogate, width=0.2, x0=jnp.zeros(1))
    np.testing.assert_allclose(bx.exact_objective(problem, jnp.array([100.0])), -1, rtol=1e-12)
    given = lambda below: (jnp.zeros(1), jnp.array([[0.01, below]]), problem.task(jnp.int32(0)), None)
    upper = lambda below: float(
        problem.upper(*(g if g is None else jax.tree.map(jnp.asarray, g) for g in given(below)))
    )
    floor = alone / 5
    np.testing.assert_allclose([upper(floor / 2), upper(0.0), upper(-3.0)], -0.01 / floor, rtol=1e-12)
    np.testing.assert_allclose(upper(floor * 1.01), -0.01 / (floor * 1.01), rtol=1e-12)


def test_the_ridge_is_added():
    with_ridge, without = (bx.exact_objective(problem_of(ridge=r), X) for r in (0.3, 0.0))
    np.testing.assert_allclose(with_ridge - without, 0.15 * np.sum(np.asarray(X) ** 2), rtol=1e-12)


def test_it_reaches_the_minimum_that_a_full_batch_method_finds():
    from scipy.optimize import minimize

    problem = problem_of(ridge=0.1, width=0.5, group=8)
    F = lambda x: surrogate_of("sigmoid", 0.5)(x) + 0.05 * jnp.sum(x**2)
    both = jax.jit(jax.value_and_grad(F))
    truth = minimize(lambda x: tuple(map(np.asarray, both(x))), np.zeros(P), jac=True)
    algorithm = bx.bsvrb_v2(upper_step=bx.power(5.0, 100.0, 0.7), lower_step=0.5, mixing=0.1, batch_size=8)
    result = bx.solve(problem, algorithm, steps=4000, metrics=None)
    assert float(F(result.x)) < truth.fun + 2e-3 < float(F(jnp.zeros(P))) - 0.05


def test_problems_of_nearly_the_same_size_are_one_program():
    sizes = lambda n: [leaf.shape for leaf in jax.tree.leaves(problem_of(FEATURES[:n], LABELS[:n], group=100))]
    assert sizes(22) == sizes(21)


BAD = {
    "a third label": ({"labels": np.where(np.arange(N) == 5, 3.0, LABELS)}, "labels must be -1 or .1; got 3"),
    "one class": ({"labels": np.ones(N)}, "labels must hold both"),
    "too few labels": ({"labels": LABELS[:5]}, "got shapes"),
    "infinite": ({"features": np.where(FEATURES == 0, np.inf, FEATURES)}, "features must be finite"),
    "no surrogate": ({"surrogate": "hinge"}, "surrogate must be one of"),
    "no width": ({"width": 0.0}, "width must be"),
    "no group": ({"group": 0}, "group must be"),
    "no ridge": ({"ridge": -1.0}, "ridge must be"),
    "infinite ridge": ({"ridge": np.inf}, "ridge must be a finite number"),
    "no score": ({"score": 3}, "score must be a function of .x, rows."),
    "one score": (
        {"score": lambda x, rows: jnp.sum(rows @ x)},
        r"score must return one float for each row; .* shape \(\)",
    ),
    "two scores": ({"score": lambda x, rows: jnp.ones(2)}, r"for 1 of them it returned shape \(2,\)"),
    "no penalty": ({"penalty": None}, "penalty must be a function of .x."),
    "no start": ({"x0": np.full(3, np.nan)}, "x0 must be finite"),
    "text": ({"labels": LABELS.astype(str)}, "labels must be an array of real numbers"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_named(case):
    changed, message = BAD[case]
    with pytest.raises((ValueError, TypeError), match=message):
        problem_of(**changed)


def test_ranking_gets_better_than_that_of_its_start():
    rng = np.random.default_rng(3)
    features = rng.normal(size=(400, 5))
    labels = np.where(features[:, 0] - 0.5 * features[:, 1] ** 2 + 0.3 * rng.normal(size=400) > 1.0, 1.0, -1.0)
    problem = average_precision(features=features, labels=labels, score=linear, x0=jnp.full(5, 0.5), group=100)
    algorithm = bx.bsvrb_v2(upper_step=0.3, lower_step=0.5, mixing=0.3, batch_size=32)
    x = np.asarray(bx.solve(problem, algorithm, steps=800, metrics=None).x)
    start = average_precision_score(labels, features.sum(1))
    assert average_precision_score(labels, features @ x) > start + 0.1
