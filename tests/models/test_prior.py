"""Models of groups with a shared prior: pooled and single models in the limits, a minimum of the held loss between."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.utils.estimator_checks import estimator_checks_generator

import bilevax as bx
from bilevax.models import SharedPrior, fold_problem, prior_problem

pytestmark = pytest.mark.filterwarnings("ignore")


def checks():
    """scikit-learn's checks: without groups it is the pooled model, which needs no program."""
    for estimator in (SharedPrior(), SharedPrior(kind="logistic")):
        for model, check in estimator_checks_generator(estimator):
            more = "-".join(f"{key}={value}" for key, value in getattr(check, "keywords", {}).items())
            yield pytest.param(model, check, id=f"{model.kind}-{getattr(check, 'func', check).__name__}-{more}")


@pytest.mark.parametrize(("model", "check"), list(checks()))
def test_scikit_learns_own_checks(model, check):
    check(model)


def table(seed, groups=8, rows=(2, 12), spread=(0.0, 1.0, 0.0, 0.5)):
    """Ragged groups whose second slope and shift differ."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), rng.integers(rows[0], rows[1] + 1, groups))
    models = np.array([1.0, 1.0, -1.0, 2.0]) + np.array(spread) * rng.normal(size=(groups, 4))
    X = rng.normal(size=(len(group), 3)) * [1.0, 2.0, 0.5] + 0.3
    score = np.einsum("np,np->n", np.column_stack([X, np.ones(len(X))]), models[group])
    return X, score + 0.3 * rng.normal(size=len(X)), np.array([f"group {i}" for i in group])


def labels_of(y):
    return np.where(y > np.median(y), "yes", "no")


def test_one_group_is_the_pooled_model():
    X, y, _ = table(0)
    ours = SharedPrior(random_state=0).fit(X, y, np.zeros(len(y)))
    Z = (X - X.mean(0)) / X.std(0)
    theirs = Ridge(alpha=ours.pooled_penalty_).fit(Z, y)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(Z), rtol=1e-6)
    np.testing.assert_array_equal(ours.predict(X, np.zeros(len(y))), ours.predict(X))


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_infinite_precision_is_the_pooled_model_for_every_group(kind):
    X, y, groups = table(1)
    y = y if kind == "ridge" else labels_of(y)
    pooled = SharedPrior(kind=kind, precision=np.inf, random_state=0).fit(X, y, groups)
    Z = (X - X.mean(0)) / X.std(0)
    if kind == "ridge":
        theirs = Ridge(alpha=pooled.pooled_penalty_).fit(Z, y).predict(Z)
    else:
        theirs = (
            LogisticRegression(C=1 / pooled.pooled_penalty_, tol=1e-10, max_iter=5000).fit(Z, y).decision_function(Z)
        )
    np.testing.assert_allclose(pooled._scores(X, groups), theirs, atol=1e-4)
    np.testing.assert_allclose(pooled.coef_, np.tile(pooled.prior_coef_, (8, 1)))


def test_a_precision_of_nothing_is_a_model_of_its_own_for_every_group():
    X, y, groups = table(2, rows=(8, 12))
    ours = SharedPrior(precision=1e-9, random_state=0, steps=3).fit(X, y, groups)
    for i, name in enumerate(ours.groups_):
        inside = groups == name
        A = np.column_stack([X[inside], np.ones(inside.sum())])
        own = np.linalg.lstsq(A, y[inside], rcond=None)[0]
        np.testing.assert_allclose([*ours.coef_[i], ours.intercept_[i]], own, atol=1e-3)


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_every_group_is_the_minimum_of_its_losses_and_the_pull_of_the_prior(kind):
    X, y, groups = table(3)
    y = y if kind == "ridge" else labels_of(y)
    ours = SharedPrior(kind=kind, random_state=0).fit(X, y, groups)
    unit, scale = ours.unit_, ours.scale_
    for i, name in enumerate(ours.groups_):
        inside = groups == name
        A = np.column_stack([(X[inside] - ours.mean_) / scale, np.ones(inside.sum())])
        score = ours._scores(X[inside], groups[inside])
        residual = (score - y[inside]) / unit if kind == "ridge" else 1 / (1 + np.exp(-score)) - (y[inside] == "yes")
        away = (ours.coef_[i] - ours.prior_coef_) * scale / unit
        shift = (ours.intercept_[i] - ours.prior_intercept_ + (ours.coef_[i] - ours.prior_coef_) @ ours.mean_) / unit
        np.testing.assert_allclose(A.T @ residual + ours.precision_ * [*away, shift], 0, atol=1e-6)


def held_loss(A, b, group, fold, prior, kind):
    """The mean loss of held rows over all folds, and of every group as a whole, written out."""
    total, count = 0.0, 0
    loss = lambda y, rows: (
        0.5 * (A[rows] @ y - b[rows]) ** 2 if kind == "ridge" else np.logaddexp(0, -b[rows] * (A[rows] @ y))
    )
    for i in range(group.max() + 1):
        for k in [*range(fold.max() + 1), None]:
            inside = group == i
            held = inside if k is None else inside & (fold == k)
            if k is not None and inside.sum() == 1:
                continue
            train = inside & ~held
            y = prior_problem.fit_towards(prior, A[train], b[train], logistic=kind == "logistic")
            total, count = total + loss(y, held).sum(), count + held.sum()
    return total / count


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_the_objective_is_the_loss_of_held_rows_and_the_search_lowers_it(kind):
    X, y, groups = table(4)
    group = np.unique(groups, return_inverse=True)[1]
    A, b = (
        np.column_stack([X, np.ones(len(X))]),
        y / y.std() if kind == "ridge" else np.where(y > np.median(y), 1.0, -1.0),
    )
    fold = fold_problem.deal(group, 3, np.random.RandomState(0))
    splits = prior_problem.splits_of(group, fold)
    make = prior_problem.quadratic_problem if kind == "ridge" else prior_problem.logistic_problem
    first = prior_problem.Prior(np.zeros(4), np.full(4, 0.7))
    problem = make(A, b, splits, first, prior_problem.Search(2.0, True, 1.0))
    x = {
        "mean": jnp.array([0.5, 0.2, -0.3, 1.0]),
        "common": jnp.array([0.3]),
        "changes": jnp.array([1.0, -1.0, 0.0, 0.5]),
    }
    prior = prior_problem.prior_at(x, problem)
    total = sum(len(split.held) for split in splits)
    unit = np.mean(b**2) if kind == "ridge" else 1.0  # the noise where the pooled model is zero
    ridge, changes = 0.35 * np.sum(np.square(x["mean"])) / unit, 0.5 * np.sum(np.log1p(np.square(x["changes"])))
    expected = held_loss(A, b, group, fold, prior, kind) / unit + (ridge + changes) / total
    np.testing.assert_allclose(float(bx.exact_objective(problem, x)), expected, rtol=1e-6)
    result = bx.solve(problem, fold_problem.METHOD, steps=100, metrics=None, progress=False)
    gradient = lambda x: max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(bx.exact_gradient(problem, x)))
    assert gradient(result.x) < 1e-3 * gradient(x)


def test_spread_is_found_where_groups_differ_and_new_groups_have_the_mean():
    X, y, groups = table(5, groups=30)
    ours = SharedPrior(random_state=0).fit(X, y, groups)
    slope, other = ours.precision_[1], ours.precision_[[0, 2]]
    assert slope < other.min() / 10
    np.testing.assert_array_equal(ours.predict(X, ["a new one"] * len(X)), ours.predict(X))
    np.testing.assert_allclose(ours.prior_coef_, [1.0, 1.0, -1.0], atol=0.5)
    assert ours.score(X, y, groups) > ours.score(X, y) + 0.05


def test_a_group_with_one_row_is_taken(capsys):
    X, y, groups = table(6)
    groups[groups == "group 3"] = "group 4"
    groups[0] = "alone"
    ours = SharedPrior(random_state=0, verbose=True, steps=5).fit(X, y, groups)
    assert "alone" in ours.groups_
    assert np.isfinite(ours.coef_).all()
    assert "lower problems" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value"),
    [("kind", "probit"), ("precision", 0.0), ("precision", "none"), ("shrinkage", np.inf), ("cv", 1), ("steps", 0),
     ("standardize", "yes"), ("verbose", "yes"), ("random_state", -1)],
)  # fmt: skip
def test_bad_settings_are_named(name, value):
    X, y, groups = table(0)
    with pytest.raises((ValueError, TypeError), match=f"{name} must be"):
        SharedPrior(**{name: value}).fit(X, y, groups)


def test_groups_that_do_not_fit_are_refused():
    X, y, groups = table(0)
    with pytest.raises(ValueError, match=r"groups must be one label for each of the \d+ rows; got shape \(3,\)"):
        SharedPrior().fit(X, y, groups[:3])
    with pytest.raises(TypeError, match="groups must hold labels of one kind"):
        SharedPrior().fit(X, y, np.array([1, "a"] * len(y), object)[: len(y)])


def test_single_precision_finds_the_same_models():
    X, y, groups = table(3)
    double = SharedPrior(random_state=0).fit(X, y, groups)
    with jax.enable_x64(False):
        single = SharedPrior(random_state=0).fit(X.astype(np.float32), y.astype(np.float32), groups)
    np.testing.assert_allclose(single.predict(X, groups), double.predict(X, groups), atol=0.05)


def test_the_benchmark_runs_in_its_short_mode(capsys):
    from benchmarks import priors

    figures = priors.main(["--short", "--half", "develop"])
    assert figures["prior_mean_gain"] > -0.05
    assert "\nprior_worst=" in capsys.readouterr().out


def test_groups_on_two_devices_give_the_prior_of_one(monkeypatch):
    X, y, groups = table(3)
    split, shard = [], fold_problem.shard
    monkeypatch.setattr(fold_problem, "shard", lambda *given: split.append(shard(*given)) or split[-1])
    one, two = (SharedPrior(random_state=0, steps=20, devices=count).fit(X, y, groups) for count in (1, 2))
    np.testing.assert_allclose(two.coef_, one.coef_, rtol=1e-4, atol=1e-6)
    assert [problem.shards.count for problem in split] == [2]
    assert two.n_steps_ > 1
    with pytest.raises(ValueError, match=r"devices must be at most the \d+ that JAX has here; got 1000"):
        SharedPrior(devices=1000).fit(X, y, groups)
