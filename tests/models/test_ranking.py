"""Ranking models look at held-out rows: they leave a start for a gain, and stay where there is none."""

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score
from sklearn.preprocessing import PolynomialFeatures

from bilevax.models import AveragePrecisionClassifier, MultiTaskAUCClassifier, descent, network, ranker
from bilevax.models.held_out import draw_folds, draw_plain_folds, is_gain, spread_weights
from bilevax.models.linear_start import LIMIT, PLAIN, Table, find_line
from bilevax.models.many_tasks import complete
from bilevax.models.scaling import find_scaling


def bent(n, seed, columns=6):
    """Few positive rows, by a line and by the size of another column."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, columns))
    return X, X[:, 0] + 1.5 * np.abs(X[:, 1]) + 0.3 * rng.logistic(size=n) > 3


def test_held_out_rows_are_not_trained_on_and_all_folds_have_the_same_shape():
    positive = np.arange(103) % 7 == 0
    folds = draw_folds(positive, 4, np.random.RandomState(0))
    assert sorted(np.concatenate([fold.held for fold in folds])) == list(range(103))
    assert all(not np.isin(fold.train, fold.held).any() for fold in folds)
    assert len({(positive[fold.train].sum(), len(fold.train)) for fold in folds}) == 1
    assert draw_folds(np.arange(9) < 1, 5, np.random.RandomState(0)) == []
    plain = draw_plain_folds(23, 5, np.random.RandomState(0))
    assert len({len(fold.train) for fold in plain}) == 1
    assert all(not np.isin(fold.train, fold.held).any() for fold in plain)


def test_a_gain_counts_where_it_is_more_than_its_noise():
    old, rng = np.full(5, 0.5), np.random.default_rng(0)
    assert is_gain(old + 0.02 + 0.005 * rng.normal(size=5), old, 5)
    assert not is_gain(old + np.array([0.2, -0.1, 0.1, -0.1, 0.0]), old, 5)
    assert not is_gain(old - 0.01, old, 5)
    assert not is_gain(old[:1] + 1, old[:1], 1)


def test_weights_repeat_rows_and_keep_the_share_of_the_classes():
    positive = np.arange(40) < 8
    places = np.arange(40)
    assert spread_weights(np.full(40, 2.0), positive, places) is places
    weights = np.where(np.arange(40) % 2, 3.0, 1.0)
    counts = np.bincount(spread_weights(weights, positive, places), minlength=40)
    assert counts.sum() == 40
    np.testing.assert_allclose(counts[1:8:2].sum() / counts[:8].sum(), 0.75, atol=0.13)
    np.testing.assert_allclose(counts[:8].sum(), 8, atol=1)


def test_a_network_of_networks_has_the_mean_score():
    rng = np.random.default_rng(0)
    make = lambda *sizes: [
        {"weights": rng.normal(size=pair), "shift": rng.normal(size=pair[1])} for pair in pairwise(sizes)
    ]
    rows = rng.normal(size=(7, 3))
    for sizes in [(3, 1), (3, 4, 1), (3, 4, 5, 2)]:
        several = [make(*sizes) for _ in range(3)]
        joined = network.score_columns(network.join(several, 1 / 3), rows)
        np.testing.assert_allclose(joined, np.mean([network.score_columns(own, rows) for own in several], 0))


def test_columns_have_mean_zero_and_one_scale_and_sparse_ones_keep_their_zeros():
    X = np.random.default_rng(0).normal(size=(50, 3)) * [1, 100, 0] + [5, 0, 7]
    scaled = find_scaling(X, True)(X)
    np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(scaled.std(0), [1, 1, 0], atol=1e-12)
    thin = sp.csr_matrix(X * (np.abs(X) > 1))
    alike = find_scaling(thin, True)._replace(limit=1.5)(thin)
    assert alike.nnz == thin.nnz
    assert np.abs(alike.data).max() <= 1.5
    np.testing.assert_array_equal(find_scaling(X, False)(X), X)


def test_labels_that_nothing_tells_leave_the_logistic_regression():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 4)), rng.random(400) < 0.4
    model = AveragePrecisionClassifier(C=1.0, folds=3, steps=100, random_state=0).fit(X, y)
    assert y.sum() > ranker.ENOUGH
    assert model.n_steps_ == 0
    plain = LogisticRegression(C=1.0, tol=1e-6).fit(model.scaling_(X), y)
    ours, theirs = model.layers_[0]["weights"][:, 0], plain.coef_[0]
    assert ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs) > 0.999


def test_far_values_are_cut_where_that_ranks_better():
    rng = np.random.default_rng(0)
    rows = rng.standard_t(1.5, size=(1500, 4))
    positive = np.tanh(rows).sum(1) + 0.3 * rng.logistic(size=1500) > 2
    table = Table(find_scaling(rows, True)(rows), positive, np.ones(1500))
    folds = draw_folds(positive, 5, np.random.RandomState(0))
    assert find_line(table, folds, 5, (0.1, 1.0)).kind.limit == LIMIT
    assert find_line(table, folds, 5, (0.1, 1.0), others=()).kind == PLAIN


def test_steps_that_help_are_taken_and_those_that_do_not_are_not(monkeypatch):
    """With a start turned away from the truth the way down has to be left where it is best."""
    X, y = bent(1200, 0)
    table, folds = Table(X, y, np.ones(1200)), draw_folds(y, 3, np.random.RandomState(0))
    pace = descent.Pace("sigmoid", 0.3, 100, 1e-2, 64, 0.5, 0)
    wrong = ranker.as_layers(np.array([0.5, 0, 1.0, 0, 0, 0]), 0.0)
    stop = descent.find_stop(table, folds, [wrong] * 3, [0.0] * 3, pace, lambda line: None)
    assert stop.steps > 0
    assert stop.values.mean() > 0.2
    up = lambda table, first, ridge, pace: [first, wrong]
    monkeypatch.setattr(descent, "descend", up)
    right = ranker.as_layers(np.array([1.0, 0, 0, 0, 0, 0]), 0.0)
    assert descent.find_stop(table, folds, [right] * 3, [0.0] * 3, pace, lambda line: None).steps == 0


def test_rows_of_weight_zero_are_not_there():
    X, y = bent(400, 1)
    weights = (np.arange(400) % 3 > 0).astype(float)
    kept = weights > 0
    model = AveragePrecisionClassifier(C=1.0, folds=2, random_state=0)
    ours = clone(model).fit(X, y, sample_weight=weights)
    theirs = clone(model).fit(X[kept], y[kept])
    np.testing.assert_array_equal(ours.decision_function(X), theirs.decision_function(X))
    heavy = clone(model).fit(X, y, sample_weight=np.where(y, 9.0, 1.0))
    share = 9 * y.sum() / (9 * y.sum() + (~y).sum())
    np.testing.assert_allclose(np.average(heavy.predict_proba(X)[:, 1], weights=np.where(y, 9.0, 1.0)), share, atol=0.1)


@pytest.mark.parametrize("weights", [[1.0], -np.ones(60), np.zeros(60), np.full(60, np.nan), "a", ["a"] * 60])
def test_bad_weights_are_named(weights):
    X, _ = bent(60, 0)
    with pytest.raises((ValueError, TypeError), match="sample_weight must be"):
        AveragePrecisionClassifier().fit(X, np.arange(60) % 3 == 0, sample_weight=weights)


def test_the_rarer_class_comes_first_unless_another_is_named():
    X, y = bent(400, 2)
    named = np.where(y, "bad", "good")
    rare = AveragePrecisionClassifier(C=1.0, folds=2, random_state=0).fit(X, named)
    assert rare.positive_ == "bad"
    assert average_precision_score(y, -rare.decision_function(X)) > 0.4
    assert average_precision_score(y, rare.predict_proba(X)[:, 0]) > 0.4
    assert AveragePrecisionClassifier(positive="good", C=1.0, folds=2, steps=5).fit(X, named).positive_ == "good"


def test_progress_is_plain_lines(capsys):
    X, y = bent(300, 3)
    AveragePrecisionClassifier(C=1.0, folds=2, verbose=True, random_state=0).fit(X, y)
    written = capsys.readouterr().err
    assert "on held-out rows" in written
    assert "\x1b" not in written
    assert "\r" not in written


def test_rows_that_are_all_alike_give_a_warning():
    with pytest.warns(ConvergenceWarning, match="all rows have the same score"):
        AveragePrecisionClassifier(C=1.0, folds=2, random_state=0).fit(np.ones((40, 2)), np.arange(40) % 4 == 0)


@pytest.mark.parametrize("C", [1e-4, 1.0])
def test_probabilities_have_the_mean_of_the_rate_however_strong_the_penalty(C):
    X, y = bent(1500, 3)
    found = AveragePrecisionClassifier(C=C, steps=20, folds=3, random_state=0).fit(X, y).predict_proba(X)[:, 1]
    assert abs(found.mean() - y.mean()) < 0.2 * y.mean()


def test_trees_and_the_line_beside_them_rank_better_than_either():
    X, y = bent(3000, 4)
    new, labels = bent(5000, 5)
    trees = HistGradientBoostingClassifier(max_iter=20, random_state=0)
    both = AveragePrecisionClassifier(estimator=trees, C=1.0, folds=3, steps=20, random_state=0).fit(X, y)
    precision = lambda scores: average_precision_score(labels, scores)
    assert len(both.estimators_) == 3
    assert not hasattr(trees, "n_iter_")
    assert precision(both.decision_function(new)) > precision(trees.fit(X, y).decision_function(new))
    assert log_loss(labels, both.predict_proba(new)) < log_loss(labels, np.full(5000, y.mean()))
    np.testing.assert_allclose(both.predict_proba(new)[:, 1].mean(), labels.mean(), atol=0.01)


def test_what_a_transformer_makes_is_ranked():
    X, y = bent(800, 6, columns=3)
    new, labels = bent(2000, 7, columns=3)
    precision = lambda model: average_precision_score(labels, model.fit(X, y).decision_function(new))
    squares = AveragePrecisionClassifier(estimator=PolynomialFeatures(2), C=1.0, steps=20, folds=2, random_state=0)
    assert precision(squares) > precision(AveragePrecisionClassifier(C=1.0, steps=20, folds=2, random_state=0)) + 0.1


def test_a_network_on_top_of_a_classifier_is_refused():
    X, y = bent(60, 8)
    with pytest.raises(ValueError, match=r"hidden must be \(\) where estimator is a classifier"):
        AveragePrecisionClassifier((4,), estimator=LogisticRegression()).fit(X, y)


def test_few_positive_rows_take_no_steps_and_many_may():
    X, y = bent(300, 9)
    assert y.sum() < ranker.ENOUGH
    assert AveragePrecisionClassifier(C=1.0, folds=2, random_state=0).fit(X, y).n_steps_ == 0


def tasks(n, seed):
    """Eight tasks on lines of their own."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 10))
    return X, (X @ np.random.default_rng(0).normal(size=(10, 8)) + rng.logistic(size=(n, 8)) > 3).astype(int)


def test_linear_tasks_that_share_nothing_fall_back_on_a_classifier_for_each():
    X, Y = tasks(300, 1)
    new, labels = tasks(2000, 2)
    ours = MultiTaskAUCClassifier((4,), steps=50, folds=3, ridge=1e-3, random_state=0).fit(X, Y)
    plain = np.stack([LogisticRegression().fit(X, own).decision_function(new) for own in Y.T], axis=1)
    assert ours.linear_share_ > 0
    assert roc_auc_score(labels, ours.decision_function(new)) > roc_auc_score(labels, plain) - 0.01
    np.testing.assert_allclose(ours.predict_proba(new).mean(0), labels.mean(0), atol=0.06)
    assert len(ours.held_out_) == 3


def test_a_fold_has_both_classes_of_every_task_to_train_on():
    positive = np.zeros((10, 2), bool)
    positive[3, 0] = positive[:5, 1] = True
    for fold in draw_plain_folds(10, 5, np.random.RandomState(0)):
        own = positive[complete(fold, positive).train]
        assert own.any(0).all()
        assert not own.all(0).any()
