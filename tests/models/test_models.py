"""The scikit-learn models keep scikit-learn's contract, and are what they say."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.utils.estimator_checks import estimator_checks_generator

from bilevax.models import AveragePrecisionClassifier, MultiTaskAUCClassifier, TrustedReweighter

pytestmark = pytest.mark.filterwarnings("ignore")


ALL_CHECKS = AveragePrecisionClassifier(steps=20, batch_size=16, folds=2)
SOME_CHECKS = [MultiTaskAUCClassifier((4,), steps=100, batch_size=16, folds=1), TrustedReweighter(folds=2)]
BY_ROWS = "sample_weight_equivalence"  # folds are drawn row by row: a row that stands twice is in two of them
SOME = (  # a fit of another size is another program: all checks of all models would take minutes
    "check_no_attributes_set_in_init", "check_parameters_default_constructible", "check_estimator_cloneable",
    "check_estimators_unfitted", "check_estimators_pickle", "check_estimators_nan_inf", "check_n_features_in",
    "check_dict_unchanged", "check_classifiers_one_label", "check_classifiers_regression_target",
)  # fmt: skip


def checks():
    """scikit-learn's checks: all of one model, some of the others."""
    for estimator in [ALL_CHECKS, *SOME_CHECKS]:
        for model, check in estimator_checks_generator(estimator):
            name = getattr(check, "func", check).__name__
            if (estimator is ALL_CHECKS and BY_ROWS not in name) or name in SOME:
                yield pytest.param(model, check, id=f"{type(model).__name__}-{name}-{_arguments(check)}")


def _arguments(check):
    return "-".join(f"{name}={value}" for name, value in getattr(check, "keywords", {}).items())


@pytest.mark.parametrize(("model", "check"), list(checks()))
def test_scikit_learns_own_checks(model, check):
    check(model)


def rare(n, seed):
    """Rows of which few are positive, and those not by a linear rule alone."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6))
    odds = 2 * X[:, 0] + 1.5 * np.abs(X[:, 1]) - 5 + rng.logistic(size=n) * 0.5
    return X, np.where(odds > 0, "rare", "common")


def test_it_ranks_better_than_logistic_regression_where_that_is_misled():
    X, y = rare(2000, 0)
    new, labels = rare(4000, 1)
    ours = AveragePrecisionClassifier((8,), steps=500, folds=3, random_state=0).fit(X, y)
    plain = LogisticRegression(C=1.0).fit(X, y == "rare")
    precision = lambda scores: average_precision_score(labels == "rare", scores)
    assert list(ours.classes_) == ["common", "rare"]
    assert precision(ours.decision_function(new)) > precision(plain.decision_function(new)) + 0.03
    probabilities = ours.predict_proba(new)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    np.testing.assert_allclose(probabilities[:, 1].mean(), np.mean(y == "rare"), atol=0.02)
    assert set(ours.predict(new)) == {"common", "rare"}


@pytest.mark.parametrize("dense", [0, 2**24], ids=["sparse", "written out"])
def test_sparse_rows_give_the_same_model(monkeypatch, dense):
    from bilevax.models import base

    monkeypatch.setattr(base, "DENSE", dense)
    X, y = rare(300, 2)
    X = X * (np.abs(X) > 0.5)
    dense, sparse = (
        AveragePrecisionClassifier(steps=50, folds=1, standardize=False, random_state=3).fit(form(X), y)
        for form in (np.asarray, sp.csr_matrix)
    )
    np.testing.assert_allclose(sparse.decision_function(sp.csr_matrix(X)), dense.decision_function(X), rtol=1e-6)


def test_more_positives_than_a_group_holds_are_several_lower_problems(monkeypatch):
    from bilevax.models import descent

    X, y = rare(600, 4)
    alone = AveragePrecisionClassifier(steps=600, folds=1, random_state=0).fit(X, y)
    monkeypatch.setattr(descent, "GROUP", 8)
    several = AveragePrecisionClassifier(steps=600, folds=1, random_state=0).fit(X, y)
    precision = lambda model: average_precision_score(y == "rare", model.decision_function(X))
    assert (y == "rare").sum() > 16
    assert not np.array_equal(several.layers_[0]["weights"], alone.layers_[0]["weights"])
    assert precision(several) > precision(alone) - 0.03


def test_three_classes_are_refused():
    X, _ = rare(30, 0)
    with pytest.raises(ValueError, match="Only binary classification is supported"):
        AveragePrecisionClassifier().fit(X, np.arange(30) % 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("C", 0.0),
        ("steps", 0),
        ("learning_rate", -1.0),
        ("surrogate", "hinge"),
        ("mixing", 2.0),
        ("width", -1.0),
        ("batch_size", 0),
        ("mixing", "a"),
        ("hidden", 32),
        ("hidden", np.array(32)),
        ("verbose", "yes"),
        ("random_state", -1),
        ("random_state", "0"),
        ("folds", 0),
        ("standardize", 1),
        ("estimator", 3),
        ("estimator", LogisticRegression),
        ("positive", "c"),
    ],
)
def test_bad_settings_are_named(name, value):
    X, _y = rare(30, 5)
    with pytest.raises((ValueError, TypeError), match=f"{name} must be"):
        AveragePrecisionClassifier(**{name: value}).fit(X, np.where(np.arange(30) % 3, "a", "b"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("folds", 0), ("folds", 1), ("folds", 2.5), ("estimator", 3), ("estimator", "trees"), ("verbose", [])],
)
def test_bad_settings_of_the_reweighter_are_named(name, value):
    X, y = rare(30, 5)
    with pytest.raises((ValueError, TypeError), match=f"{name} must be"):
        TrustedReweighter(**{name: value}).fit(X, y)


@pytest.mark.parametrize(
    ("name", "value"),
    [("ridge", np.inf), ("ridge", -1.0), ("tasks_per_step", 0), ("tasks_per_step", -(2**70)), ("folds", 0)],
)
def test_bad_settings_of_many_tasks_are_named(name, value):
    X, y = rare(30, 5)
    with pytest.raises(ValueError, match=f"{name} must be"):
        MultiTaskAUCClassifier(**{name: value}).fit(X, y)


@pytest.mark.parametrize("model", [AveragePrecisionClassifier, MultiTaskAUCClassifier])
def test_sizes_of_layers_are_whole_positive_and_fit(model):
    X, y = rare(30, 5)
    for sizes in [(-3,), (0,), (2.5,), ("4",), (True,)]:
        with pytest.raises((ValueError, TypeError), match=r"hidden\[0\] must be a whole number of at least 1"):
            model(sizes).fit(X, y)
    with pytest.raises(MemoryError, match=r"hidden needs .* TB and .* are available"):
        model((4, 10**13)).fit(X, y)
    with pytest.raises(MemoryError, match=r"batch_size needs .* TB and .* are available"):
        model(batch_size=10**15).fit(X, y)


@pytest.mark.parametrize("model", [AveragePrecisionClassifier, MultiTaskAUCClassifier, TrustedReweighter])
def test_sparse_labels_are_refused(model):
    X, y = rare(30, 5)
    with pytest.raises(TypeError, match=r"y must be an array of labels; got a sparse csr_array"):
        model().fit(X, sp.csr_array(y == y[0]))


def shown(error):
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


BAD_ROWS = {
    "masked": np.ma.array(np.ones((4, 2)), mask=[[0, 1]] * 4),
    "complex": np.ones((4, 2)) * 1j,
    "text": np.array([["1", "2"]] * 4),
    "dates": np.array([["2020-01-01"] * 2] * 4, "datetime64[D]"),
    "one number": 3.0,
    "a vector": np.ones(4),
    "too large": 10**400,
}


@pytest.mark.parametrize("model", [AveragePrecisionClassifier, MultiTaskAUCClassifier, TrustedReweighter])
@pytest.mark.parametrize("case", BAD_ROWS)
def test_rows_that_are_no_real_numbers_are_refused_as_x(model, case):
    with pytest.raises((ValueError, TypeError, OverflowError)) as caught:
        model().fit(BAD_ROWS[case], [0, 1, 0, 1])
    assert "X must" in shown(caught.value)


def test_masked_complex_and_mixed_labels_are_refused_as_y():
    X = np.arange(8.0).reshape(4, 2)
    for y in [
        np.ma.array([0, 1, 0, 1], mask=[1, 0, 0, 0]),
        np.array([0, 1j, 0, 1]),
        np.array(["a", None, 1, 2], object),
    ]:
        for model in (AveragePrecisionClassifier, TrustedReweighter):
            with pytest.raises((ValueError, TypeError)) as caught:
                model().fit(X, y)
            assert "y must" in shown(caught.value) or "y a label" in shown(caught.value)


def many_tasks(n, m, seed):
    """Binary tasks that share two hidden directions, few positives in each."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6))
    angles = np.linspace(0, np.pi, m, endpoint=False)
    scores = np.abs(X[:, :2] @ np.stack([np.cos(angles), np.sin(angles)])) + 0.2 * rng.normal(size=(n, m))
    return X, (scores > 1.5).astype(int)


def test_a_few_tasks_a_step_train_all_of_them():
    X, Y = many_tasks(800, 24, 0)
    new, labels = many_tasks(1500, 24, 1)
    ours = MultiTaskAUCClassifier((16,), tasks_per_step=6, steps=1500, folds=1, random_state=0).fit(X, Y)
    areas = [roc_auc_score(labels[:, i], ours.decision_function(new)[:, i]) for i in range(24)]
    assert np.mean(areas) > 0.85  # a linear model has one half
    assert ours.predict(new).shape == labels.shape
    np.testing.assert_allclose(ours.predict_proba(new).mean(0), Y.mean(0), atol=0.05)


def test_labels_of_several_tasks_must_be_zero_or_one():
    X, Y = many_tasks(30, 3, 0)
    with pytest.raises(ValueError, match="y of several tasks must hold 0 and 1; got"):
        MultiTaskAUCClassifier().fit(X, Y + 1)
