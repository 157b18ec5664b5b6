"""The re-weighting problem is the one of its equation."""

import itertools
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression

import bilevax as bx
from bilevax import device
from bilevax.exact import evaluation
from bilevax.rows import SparseRows, dense

rng = np.random.default_rng(0)
A, b = rng.normal(size=(40, 3)), np.sign(rng.normal(size=(40, 2)))
GOOD = {"train_features": A[:30], "train_labels": b[:30], "trusted_features": A[30:], "trusted_labels": b[30:]}


def test_the_models_are_weighted_logistic_regressions():
    """Solved independently: scikit-learn minimises C·Σ weight·loss + ½‖w‖², the constant as a feature."""
    problem = bx.problems.reweighting(**GOOD, ridge=0.1)
    x = jnp.asarray(rng.normal(size=30))
    models = evaluation.exact(problem, x).y
    features = np.column_stack([A[:30], np.ones(30)])
    for i in range(2):
        peer = LogisticRegression(C=1 / (30 * 0.1), fit_intercept=False, tol=1e-10, max_iter=10_000)
        peer.fit(features, b[:30, i], sample_weight=1 / (1 + np.exp(-np.asarray(x))))
        np.testing.assert_allclose(models[i], peer.coef_[0], atol=1e-5)


@pytest.mark.parametrize("weights", ["sigmoid", "raw"])
def test_it_is_what_the_methods_assume(weights):
    assert bx.check(bx.problems.reweighting(**GOOD, ridge=0.1, weights=weights), points=1).ok


@pytest.mark.parametrize(
    ("loss", "rows"), [("logistic", "dense"), ("logistic", "sparse"), ("squared", "dense"), ("squared_hinge", "sparse")]
)
def test_the_gradient_of_every_loss_is_the_exact_hypergradient(loss, rows):
    """Finite differences of F along a random direction, with two temperatures that share one column of labels."""
    data = {**GOOD, "train_labels": b[:30, 0], "trusted_labels": b[30:, 0]}
    problem = bx.problems.reweighting(**data, ridge=0.2, loss=loss, temperatures=[0.7, 2.0], rows=rows)
    assert problem.num_tasks == 2
    x, along = jnp.asarray(rng.normal(size=30)), rng.normal(size=30)
    F = lambda step: float(bx.exact_objective(problem, x + step * along))
    slope = (F(1e-4) - F(-1e-4)) / 2e-4
    np.testing.assert_allclose(bx.exact_gradient(problem, x) @ along, slope, rtol=1e-5)


def test_a_temperature_divides_the_scores():
    """Model i on scores a·y/σ is the model with σ = 1 and features a/σ."""
    data = {**GOOD, "train_labels": b[:30, 0], "trusted_labels": b[30:, 0]}
    warm = evaluation.exact(problem := bx.problems.reweighting(**data, temperatures=[2.0]), problem.x0)
    scaled = {name: value / 2 if name.endswith("features") else value for name, value in data.items()}
    cold = bx.problems.reweighting(**scaled)
    halved = (
        cold.lower_data.arrays["features"].at[:, -1].set(0.5),
        cold.upper_data.arrays["features"].at[:, -1].set(0.5),
    )
    cold = cold.replace(
        lower_data=bx.shared({**cold.lower_data.arrays, "features": halved[0]}),
        upper_data=bx.shared({**cold.upper_data.arrays, "features": halved[1]}),
    )
    same = evaluation.exact(cold, cold.x0)
    np.testing.assert_allclose(warm.objective, same.objective, rtol=1e-12)
    np.testing.assert_allclose(warm.gradient, same.gradient, rtol=1e-9)


def test_sparse_features_become_an_array_while_that_is_small(monkeypatch):
    make = lambda **more: bx.problems.reweighting(**{**GOOD, "train_features": sp.csr_array(A[:30])}, **more)
    assert isinstance(make().lower_data.arrays["features"], jnp.ndarray)
    assert isinstance(make(rows="sparse").lower_data.arrays["features"], SparseRows)
    monkeypatch.setattr(import_module("bilevax.problems.labelled"), "LARGEST_ARRAY", 100)
    assert isinstance(make().lower_data.arrays["features"], SparseRows)
    np.testing.assert_allclose(dense(make().lower_data.arrays["features"])[:, :3], A[:30])


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"train_labels": np.zeros((30, 2))}, r"train_labels must be -1 or \+1; got 0.0"),
        ({"train_labels": b[:20]}, r"train_features must be .*got shapes \(30, 3\) and \(20, 2\)"),
        ({"trusted_features": A[30:, :2]}, "agree on the number of features and tasks; got 3 and 2 features"),
        ({"weights": "softmax"}, "weights must be one of 'sigmoid', 'raw'"),
        ({"loss": "hinge"}, "loss must be one of 'logistic', 'squared', 'squared_hinge'"),
        ({"rows": "csr"}, "rows must be one of 'dense', 'sparse'"),
        ({"temperatures": [1.0, 0.0]}, "temperatures must be a vector of numbers > 0"),
        ({"temperatures": [1.0, 2.0, 3.0]}, "one entry for each of the 2 columns of labels; got 3"),
        ({"train_features": np.full((30, 3), np.nan)}, "train_features must be finite; 90 of its values are not"),
        ({"train_features": sp.csr_array(np.full((30, 3), np.inf))}, "train_features must be finite; 90 of"),
        ({"temperatures": ["warm", "cold"]}, "temperatures must be an array of real numbers; got <U4"),
        ({"temperatures": np.ma.array([1.0, 2.0], mask=[1, 0])}, "temperatures must be .* without masked ones"),
        ({"train_labels": ["cat"] * 30}, "train_labels must be an array of real numbers; got <U3"),
        ({"train_labels": b[:30].astype(complex)}, "train_labels must be an array of real numbers; got complex128"),
        ({"train_labels": np.ma.array(b[:30], mask=b[:30] > 0)}, "train_labels must be .* without masked ones"),
        ({"train_features": [["a"] * 3] * 30}, "train_features must be an array of real numbers; got <U1"),
        ({"train_features": A[:30].astype(str)}, "train_features must be an array of real numbers; got <U"),
        ({"train_features": A[:30] + 0j}, "train_features must be an array of real numbers; got complex128"),
        (
            {"train_features": sp.csr_array(A[:30] + 0j)},
            "train_features must hold real numbers; got a sparse",
        ),
        ({"trusted_features": np.ma.array(A[30:], mask=A[30:] > 0)}, "trusted_features must be .* without masked ones"),
        ({"trusted_features": [[1.0, 2.0], [3.0]]}, "trusted_features must be .* all rows of one length"),
        ({"ridge": 0}, "ridge must be"),
    ],
)
def test_wrong_arguments_are_refused(changed, match):
    with pytest.raises((ValueError, TypeError), match=match):
        bx.problems.reweighting(**{**GOOD, **changed})


def test_sparse_features_that_do_not_fit_as_an_array_are_refused_before_they_are_written_out(monkeypatch):
    monkeypatch.setattr(device, "available_bytes", lambda: 900)
    sparse = {**GOOD, "train_features": sp.csr_array(A[:30])}
    with pytest.raises(MemoryError, match=r"train_features needs 960 bytes and 900 bytes .* rows='sparse'"):
        bx.problems.reweighting(**sparse, rows="dense")


FORMULAS = {
    "logistic": lambda score, label: np.log(1 + np.exp(-label * score)),
    "squared": lambda score, label: (score - label) ** 2 / 2,
    "squared_hinge": lambda score, label: np.maximum(0, 1 - label * score) ** 2 / 2,
}


@pytest.mark.parametrize(("form", "given"), list(itertools.product(["dense", "sparse"], [np.asarray, sp.csr_array])))
@pytest.mark.parametrize(
    ("loss", "weights"),
    [("logistic", "sigmoid"), ("logistic", "raw"), ("squared", "raw"), ("squared_hinge", "sigmoid")],
)
def test_both_losses_are_those_of_the_equation(loss, weights, form, given):
    sigma, generator = np.array([0.5, 2.0]), np.random.default_rng(3)
    data = {name: given(value) if "features" in name else value for name, value in GOOD.items()}
    problem = bx.problems.reweighting(**data, loss=loss, weights=weights, rows=form, ridge=0.1, temperatures=sigma)
    x, y = generator.normal(size=30), generator.normal(size=4)
    weight = x if weights == "raw" else 1 / (1 + np.exp(-x))
    scores = lambda part: GOOD[f"{part}_features"] @ y[:-1] + y[-1]
    both = jax.jit(lambda *at: (problem.upper_loss(*at), problem.lower_loss(*at)))
    for i in range(2):
        of = lambda part, i=i: FORMULAS[loss](scores(part) / sigma[i], GOOD[f"{part}_labels"][:, i])
        upper, lower = both(x, y, i)
        np.testing.assert_allclose(upper, np.mean(of("trusted")))
        np.testing.assert_allclose(lower, np.mean(weight * of("train")) + 0.05 * y @ y)


@pytest.mark.parametrize(("weights", "first"), [("sigmoid", 0.5), ("raw", 1.0)])
def test_every_weight_starts_as_documented(weights, first):
    problem = bx.problems.reweighting(**GOOD, weights=weights)
    np.testing.assert_array_equal(problem.lower.weight(problem.x0), np.full(30, first))


def test_blocks_of_rows_are_refused_where_labels_are_in_order():
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(200, 2)), np.where(rng.random(200) < 0.4, 1.0, -1.0)
    parts = {"train_features": A, "trusted_features": A, "trusted_labels": b, "draw": "blocks"}
    problem = bx.problems.reweighting(train_labels=b, **parts)
    assert problem.lower_data.draw == problem.upper_data.draw == "blocks"
    np.testing.assert_array_equal(problem.lower_data.arrays["features"][:, :2], A)  # x_j is the weight of row j
    with pytest.raises(ValueError, match="train_labels must be in random order for draw='blocks'; column 0 changes 1"):
        bx.problems.reweighting(train_labels=np.sort(b), **parts)
