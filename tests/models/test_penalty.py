"""Penalties of features: a common one in the limit, a minimum of the loss of folds else, scikit-learn's contract."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, Ridge, RidgeCV
from sklearn.model_selection import PredefinedSplit
from sklearn.utils.estimator_checks import estimator_checks_generator

import bilevax as bx
from bilevax.models import PenaltyLogistic, PenaltyRidge, fold_problem
from bilevax.models.penalty_search import LOGISTIC_GRID, RIDGE_GRID, strongest

pytestmark = pytest.mark.filterwarnings("ignore")

SOME = (  # those of the logistic model: rows and classes make programs of their own
    "check_no_attributes_set_in_init", "check_parameters_default_constructible", "check_estimator_cloneable",
    "check_estimators_unfitted", "check_estimators_pickle", "check_n_features_in", "check_classifiers_one_label",
    "check_classifiers_regression_target", "check_fit2d_1sample", "check_fit2d_1feature",
)  # fmt: skip


def checks():
    """scikit-learn's checks: all of the ridge model, some of the logistic one."""
    for estimator in (PenaltyRidge(shrinkage=1.0, steps=5), PenaltyLogistic(shrinkage=1.0, steps=3)):
        for model, check in estimator_checks_generator(estimator):
            name = getattr(check, "func", check).__name__
            if isinstance(model, PenaltyRidge) or name in SOME:
                more = "-".join(f"{key}={value}" for key, value in getattr(check, "keywords", {}).items())
                yield pytest.param(model, check, id=f"{type(model).__name__}-{name}-{more}")


@pytest.mark.parametrize(("model", "check"), list(checks()))
def test_scikit_learns_own_checks(model, check):
    check(model)


def rows(n, seed, width=8):
    """A rule in two of the features, the others tell nothing."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, width))
    return X, 2 * X[:, 0] - X[:, 1] + rng.normal(size=n)


def drawn_folds(model, y):
    """The two draws of folds of a model with random_state=0."""
    random = np.random.RandomState(0)
    return model._folds(y, random), model._folds(y, random)


def both(draws):
    """The folds of both draws as scikit-learn takes them."""
    return [split for fold in draws for split in PredefinedSplit(fold).split()]


def test_without_changes_it_is_ridge_regression_with_the_penalty_of_cross_validation():
    X, y = rows(60, 0)
    ours = PenaltyRidge(shrinkage=np.inf, standardize=False, random_state=0).fit(X, y)
    theirs = RidgeCV(RIDGE_GRID * len(y), cv=both(drawn_folds(ours, y)), scoring="neg_mean_squared_error")
    theirs.fit(X, y)
    np.testing.assert_allclose(ours.common_penalty_, theirs.alpha_)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-8)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-8)


def test_without_changes_it_is_logistic_regression_with_the_penalty_of_cross_validation():
    X, y = rows(80, 1)
    labels = np.digitize(y, [-1, 1])
    ours = PenaltyLogistic(shrinkage=np.inf, standardize=False, random_state=0).fit(X, labels)
    theirs = LogisticRegressionCV(
        Cs=1 / (LOGISTIC_GRID * len(y)), cv=both(drawn_folds(ours, labels)), scoring="neg_log_loss",
        tol=1e-8, max_iter=2000, l1_ratios=(0,), use_legacy_attributes=False,
    ).fit(X, labels)  # fmt: skip
    np.testing.assert_allclose(1 / ours.common_penalty_, theirs.C_)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)


def test_a_huge_shrinkage_leaves_all_penalties_alike():
    X, y = rows(60, 0)
    held = PenaltyRidge(shrinkage=1e9, random_state=0).fit(X, y).penalties_
    free = PenaltyRidge(shrinkage=0.3, random_state=0).fit(X, y).penalties_
    np.testing.assert_allclose(held, held[0], rtol=1e-4)
    assert free[2:].min() > 10 * free[:2].max()  # what tells nothing is held back


@pytest.mark.parametrize("model", [PenaltyRidge, PenaltyLogistic])
def test_coefficients_are_the_minimum_for_the_penalties_that_were_found(model):
    X, y = rows(60, 2)
    scale = X.std(0)
    if model is PenaltyRidge:
        ours = model(shrinkage=1.0, random_state=0).fit(X, y)
        residual = X @ ours.coef_ + ours.intercept_ - y
        slope = X.T @ residual + ours.penalties_ * ours.coef_ * scale**2
    else:
        ours = model(shrinkage=1.0, random_state=0).fit(X, y > 0)
        residual = ours.predict_proba(X)[:, 1] - (y > 0)
        slope = X.T @ residual + ours.penalties_ * ours.coef_[0] * scale**2
    np.testing.assert_allclose(slope, 0, atol=1e-3)
    np.testing.assert_allclose(residual.sum(), 0, atol=1e-3)  # the shift is free


def folds_loss(kind, X, y, fold, penalties):
    """The mean loss of the folds, by scikit-learn."""
    losses = []
    for k in range(fold.max() + 1):
        train, held = fold != k, fold == k
        if kind == "ridge":
            model = Ridge(alpha=1.0, tol=1e-12).fit(X[train] * penalties**-0.5, y[train])
            losses.append(np.mean((model.predict(X[held] * penalties**-0.5) - y[held]) ** 2) / 2)
        else:
            model = LogisticRegression(C=1.0, tol=1e-10, max_iter=5000).fit(X[train] * penalties**-0.5, y[train])
            chosen = model.predict_proba(X[held] * penalties**-0.5)[np.arange(held.sum()), y[held]]
            losses.append(-np.log(chosen).mean())
    return np.mean(losses)


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_the_objective_is_the_loss_of_the_folds_as_scikit_learn_has_it(kind):
    X, y = rows(50, 3, width=5)
    X, fold, place = X + 0.3, np.arange(50) % 3, np.array([0, 1, 1, 2, 0])
    changes = {"common": jnp.array([0.4]), "changes": jnp.zeros(16).at[:3].set(jnp.array([0.5, -1.0, 2.0]))}
    penalties = np.asarray(fold_problem.penalties_at(changes, 4.0, fold_problem.FLOOR * 50, jnp.asarray(place)))
    change = 0.4 + np.array([0.5, -1.0, -1.0, 2.0, 0.5])  # the common one and that of the group
    written_out = 5e-4 + (4.0 - 5e-4) * np.exp(8 * np.tanh(change / 8))
    np.testing.assert_allclose(penalties, written_out)
    if kind == "ridge":
        problem = fold_problem.quadratic_problem(X, y, fold, place, 4.0)
        unit = float(problem.tasks["noise"][0])
    else:
        y, unit = (y > 0).astype(int), 1.0
        problem = fold_problem.logistic_problem(X, y[:, None].astype(float), fold, place, 4.0)
    moved = np.array([0.4, 0.5, -1.0, 2.0])
    shrinking = 0.5 * np.log1p(moved**2).sum()  # with a strength of one
    ours = (float(bx.exact_objective(problem, changes)) - shrinking) * unit
    np.testing.assert_allclose(ours, folds_loss(kind, X, y, fold, penalties), rtol=1e-4)


def test_penalties_lie_between_where_the_gradients_of_two_draws_of_folds_vanish():
    X, y = rows(60, 4)
    model = PenaltyRidge(shrinkage=1.0, random_state=0).fit(X, y)
    Z, found = (X - model.mean_) / model.scale_, []
    for fold in drawn_folds(model, y):
        problem = model._problem(Z, y, fold, np.arange(8))
        problem = problem.replace(tasks={**problem.tasks, "shrinkage": jnp.full_like(problem.tasks["rows"], 1 / 60)})
        result = bx.solve(problem, fold_problem.METHOD, steps=100, metrics=None, progress=False)
        first, last = (
            np.concatenate(jax.tree.leaves(jax.tree.map(np.ravel, bx.exact_gradient(problem, x))))
            for x in (problem.unravel_x(problem.x0), result.x)
        )
        assert np.abs(last).max() < 1e-3 * np.abs(first).max()
        told = (problem.tasks[name][0] for name in ("centre", "floor", "place"))
        found.append(np.asarray(fold_problem.penalties_at(result.x, *told))[:8])
    np.testing.assert_allclose(model.penalties_, np.sqrt(found[0] * found[1]), rtol=1e-6)


@pytest.mark.parametrize(("gain", "chosen"), [(0.04, 0), (0.06, 1)])
def test_less_shrinkage_is_taken_where_it_gains_more_than_half_a_standard_error(gain, chosen):
    """A hundred rows, and a difference of deviation one: its standard error is a tenth."""
    noise = np.tile([1.0, -1.0], 50) * np.sqrt(99 / 100)
    assert strongest(np.column_stack([np.full(100, 5.0), 5.0 - gain + noise])) == chosen


@pytest.mark.parametrize(("rest", "chosen"), [(0.0, 0), (2.0, 1)])
def test_less_shrinkage_is_not_taken_where_few_rows_carry_the_loss(rest, chosen):
    """Three rows lose less without shrinkage: a gain of 1.7 standard errors, where five would be asked for."""
    first = np.where(np.arange(100) < 3, 2.0, rest)
    assert strongest(np.column_stack([first, first - np.where(np.arange(100) < 3, 1.0, 0.0)])) == chosen


def test_columns_of_a_group_share_a_penalty():
    X, y = rows(60, 5)
    model = PenaltyRidge(groups=["a", "a", *"bbbccc"], shrinkage=0.3, random_state=0).fit(X, y)
    assert len(set(model.penalties_)) == 3
    assert model.penalties_[0] == model.penalties_[1] < model.penalties_[2] / 10


def test_the_strength_is_chosen_and_a_sparse_rule_gains(capsys):
    X, y = rows(60, 6, width=16)
    new, truth = rows(1000, 7, width=16)
    chosen = PenaltyRidge(random_state=0, verbose=True).fit(X, y)
    plain = PenaltyRidge(shrinkage=np.inf, random_state=0).fit(X, y)
    error = lambda model: np.mean((model.predict(new) - truth) ** 2)
    assert chosen.shrinkage_losses_[chosen.shrinkage_] < chosen.shrinkage_losses_[np.inf]
    assert error(chosen) < 0.95 * error(plain)
    assert "fold 5 of 5" in capsys.readouterr().err


def test_a_class_that_a_fold_lacks_is_no_obstacle():
    X, y = rows(40, 8)
    labels = np.where(np.arange(40) == 0, "rare", np.where(y > 0, "a", "b"))
    model = PenaltyLogistic(shrinkage=np.inf, random_state=0).fit(X, labels)
    assert model.predict_proba(X).shape == (40, 3)
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("shrinkage", 0.0), ("shrinkage", "none"), ("cv", 1), ("cv", 2.5), ("steps", 0), ("standardize", 1),
     ("groups", ["a", "b"]), ("verbose", "yes"), ("random_state", -1)],
)  # fmt: skip
def test_bad_settings_are_named(name, value):
    X, y = rows(20, 0)
    for model, labels in [(PenaltyRidge, y), (PenaltyLogistic, y > 0)]:
        with pytest.raises((ValueError, TypeError), match=f"{name} must be"):
            model(**{name: value}).fit(X, labels)


def test_single_precision_finds_the_same_penalties():
    X, y = rows(60, 9)
    double = PenaltyRidge(shrinkage=1.0, random_state=0).fit(X, y)
    with jax.enable_x64(False):
        single = PenaltyRidge(shrinkage=1.0, random_state=0).fit(X.astype(np.float32), y.astype(np.float32))
    np.testing.assert_allclose(single.coef_, double.coef_, atol=2e-3)


def test_the_benchmark_runs_in_its_short_mode(capsys):
    from benchmarks import penalties

    figures = penalties.main(["--short"])
    assert figures["penalty_mean_gain"] > 0  # of columns in groups, of which two tell nothing
    assert "\npenalty_worst=" in capsys.readouterr().out
