"""The scikit-learn models keep scikit-learn's contract, and are what they say."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from bilevax.models import AveragePrecisionClassifier

pytestmark = pytest.mark.filterwarnings("ignore")


@parametrize_with_checks([AveragePrecisionClassifier(steps=20, batch_size=16)])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def rare(n, seed):
    """Rows of which few are positive, and those not by a linear rule alone."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6))
    odds = 2 * X[:, 0] + 1.5 * np.abs(X[:, 1]) - 5 + rng.logistic(size=n) * 0.5
    return X, np.where(odds > 0, "rare", "common")


def test_it_ranks_better_than_logistic_regression_where_that_is_misled():
    X, y = rare(2000, 0)
    new, labels = rare(4000, 1)
    ours = AveragePrecisionClassifier((8,), steps=1500, random_state=0).fit(X, y)
    plain = LogisticRegression(C=1.0).fit(X, y == "rare")
    precision = lambda scores: average_precision_score(labels == "rare", scores)
    assert list(ours.classes_) == ["common", "rare"]
    assert precision(ours.decision_function(new)) > precision(plain.decision_function(new)) + 0.03
    probabilities = ours.predict_proba(new)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    np.testing.assert_allclose(probabilities[:, 1].mean(), np.mean(y == "rare"), atol=0.02)
    assert set(ours.predict(new)) == {"common", "rare"}


def test_sparse_rows_give_the_same_model():
    X, y = rare(300, 2)
    X = X * (np.abs(X) > 0.5)
    dense, sparse = (
        AveragePrecisionClassifier(steps=50, random_state=3).fit(form(X), y) for form in (np.asarray, sp.csr_matrix)
    )
    np.testing.assert_allclose(sparse.decision_function(sp.csr_matrix(X)), dense.decision_function(X), rtol=1e-6)


def test_three_classes_are_refused():
    X, _ = rare(30, 0)
    with pytest.raises(ValueError, match="Only binary classification is supported"):
        AveragePrecisionClassifier().fit(X, np.arange(30) % 3)


@pytest.mark.parametrize(("name", "value"), [("C", 0.0), ("steps", 0), ("learning_rate", -1.0), ("surrogate", "hinge")])
def test_bad_settings_are_named(name, value):
    X, _y = rare(30, 5)
    with pytest.raises((ValueError, TypeError), match=f"{name} must be"):
        AveragePrecisionClassifier(**{name: value}).fit(X, np.where(np.arange(30) % 3, "a", "b"))
