"""The re-weighting problem is the one of its equation."""

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import bilevax as bx
from bilevax import metrics

rng = np.random.default_rng(0)
A, b = rng.normal(size=(40, 3)), np.sign(rng.normal(size=(40, 2)))
GOOD = {"train_features": A[:30], "train_labels": b[:30], "trusted_features": A[30:], "trusted_labels": b[30:]}


def test_the_models_are_weighted_logistic_regressions():
    """Solved independently: scikit-learn minimises C·Σ weight·loss + ½‖w‖², the constant as a feature."""
    problem = bx.problems.reweighting(**GOOD, ridge=0.1)
    x = jnp.asarray(rng.normal(size=30))
    models = metrics.exact(problem, x).y
    features = np.column_stack([A[:30], np.ones(30)])
    for i in range(2):
        peer = LogisticRegression(C=1 / (30 * 0.1), fit_intercept=False, tol=1e-10, max_iter=10_000)
        peer.fit(features, b[:30, i], sample_weight=1 / (1 + np.exp(-np.asarray(x))))
        np.testing.assert_allclose(models[i], peer.coef_[0], atol=1e-5)


@pytest.mark.parametrize("weights", ["sigmoid", "raw"])
def test_it_is_what_the_methods_assume(weights):
    assert bx.check(bx.problems.reweighting(**GOOD, ridge=0.1, weights=weights), points=1).ok


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"train_labels": np.zeros((30, 2))}, r"train_labels must be -1 or \+1; got 0.0"),
        ({"train_labels": b[:20]}, r"train_features must be .*got shapes \(30, 3\) and \(20, 2\)"),
        ({"trusted_features": A[30:, :2]}, "agree on the number of features and tasks; got 3 and 2 features"),
        ({"weights": "softmax"}, "weights must be one of 'sigmoid', 'raw'"),
        ({"ridge": 0}, "ridge must be"),
    ],
)
def test_wrong_arguments_are_refused(changed, match):
    with pytest.raises(ValueError, match=match):
        bx.problems.reweighting(**{**GOOD, **changed})
