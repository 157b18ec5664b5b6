"""Tasks that adapt a head of a shared network: the head is a minimum, the objective is what it says, adapting helps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import estimator_checks_generator

import bilevax as bx
from bilevax.models import MetaLearner, meta_problem
from bilevax.models.prior_problem import Prior, fit_towards

pytestmark = pytest.mark.filterwarnings("ignore")

SOME = (  # a fit of another size is another program
    "check_no_attributes_set_in_init", "check_parameters_default_constructible", "check_estimator_cloneable",
    "check_estimators_unfitted", "check_classifiers_one_label", "check_fit2d_1sample", "check_complex_data",
    "check_classifiers_regression_target", "check_supervised_y_no_nan", "check_estimators_pickle",
)  # fmt: skip


def checks():
    """scikit-learn's checks, as far as they need few programs."""
    for estimator in (MetaLearner((), steps=3), MetaLearner((), kind="logistic", steps=3)):
        for model, check in estimator_checks_generator(estimator):
            name = getattr(check, "func", check).__name__
            if name in SOME[: None if model.kind == "ridge" else -1]:
                more = "-".join(f"{key}={value}" for key, value in getattr(check, "keywords", {}).items())
                yield pytest.param(model, check, id=f"{model.kind}-{name}-{more}")


@pytest.mark.parametrize(("model", "check"), list(checks()))
def test_scikit_learns_own_checks(model, check):
    check(model)


def curves(count, rows, seed):
    """Tasks a·sin(t) + shift with a and the shift of their own; all rest on the same curve."""
    rng = np.random.default_rng(seed)
    tasks = []
    for _ in range(count):
        t = rng.uniform(-3, 3, size=(rows, 1))
        a, shift = rng.normal(size=2)
        tasks.append((t, 3 * a * np.sin(1.5 * t[:, 0]) + shift + 0.05 * rng.normal(size=rows)))
    return tasks


@pytest.fixture(scope="module")
def learner():
    return MetaLearner((8,), decay=1e-4, steps=200, random_state=0).fit(curves(24, 14, 0))


def test_a_task_that_adapts_is_ahead_of_one_that_does_not_and_of_a_straight_line(learner):
    errors = []
    for t, y in curves(20, 60, 1):
        adapted = learner.adapt(t[:8], y[:8]).predict(t[8:])
        line = np.polyval(np.polyfit(t[:8, 0], y[:8], 1), t[8:, 0])
        errors.append([np.mean((guess - y[8:]) ** 2) for guess in (adapted, learner.predict(t[8:]), line)])
    adapted, plain, line = np.mean(errors, 0)
    assert adapted < 0.3 * plain
    assert adapted < 0.5 * line


def test_the_head_of_a_task_is_the_minimum_of_its_losses_and_the_pull_of_the_shared_one(learner):
    t, y = curves(1, 9, 2)[0]
    head = learner.adapt(t, y).head
    A, b = learner._features(t), (y - learner.level_) / learner.unit_
    np.testing.assert_allclose(A.T @ (A @ head - b) + learner.support_rows_ * (head - learner.head_), 0, atol=1e-8)


def test_adapting_solves_the_lower_problem_of_the_library(learner):
    t, y = curves(1, 9, 3)[0]
    Z, b = (t - learner.mean_) / learner.scale_, (y - learner.level_) / learner.unit_
    x = {"body": learner.layers_, "units": learner.units_, "head": learner.head_}
    x = jax.tree.map(jnp.asarray, x)
    split = meta_problem.Split(0, np.arange(9), np.arange(9))
    problem = meta_problem.make_problem(Z, b, [split], np.ones(1), 0.1, x, learner.support_rows_, logistic=False)
    change = bx.lower_solution(problem, x, task=0)["head"]
    np.testing.assert_allclose(learner.adapt(t, y).head, learner.head_ + change, atol=1e-6)


@pytest.mark.parametrize("logistic", [False, True], ids=["ridge", "logistic"])
def test_the_objective_is_the_loss_of_query_rows_after_adapting_and_the_decay(logistic):
    rng = np.random.default_rng(0)
    Z, b = rng.normal(size=(20, 2)), rng.normal(size=20)
    b = np.sign(b) if logistic else b
    splits = meta_problem.split_tasks(np.repeat([0, 1, 2], [3, 7, 10]), 2, 0.5, np.random.RandomState(0))
    assert all(not set(split.support) & set(split.query) for split in splits)
    body = [{"weights": jnp.asarray(rng.normal(size=(2, 3))), "shift": jnp.asarray(rng.normal(size=3))}]
    x = {"body": body, "units": jnp.array([0.3, -0.2]), "head": jnp.asarray(rng.normal(size=4))}
    problem = meta_problem.make_problem(Z, b, splits, np.ones(len(splits)), 0.1, x, 4.0, logistic)
    A, head, losses = np.asarray(meta_problem.features(x, jnp.asarray(Z))), np.asarray(x["head"]), []
    for split in splits:
        own = fit_towards(Prior(head, np.full(4, 4.0)), A[split.support], b[split.support], logistic=logistic)
        scores, truth = A[split.query] @ own, b[split.query]
        losses.append(np.mean(np.logaddexp(0, -truth * scores) if logistic else (scores - truth) ** 2 / 2))
    expected = np.mean(losses) + 0.05 * float(jnp.sum(body[0]["weights"] ** 2))
    np.testing.assert_allclose(float(bx.exact_objective(problem, x)), expected, rtol=1e-6)


def test_a_table_with_a_column_of_tasks_is_the_same_as_a_list_of_them(learner):
    tasks = curves(24, 14, 0)
    X, y = (np.concatenate(part) for part in zip(*tasks, strict=True))
    same = clone(learner).fit(X, y, groups=np.repeat(np.arange(24), 14))
    np.testing.assert_array_equal(same.head_, learner.head_)


def test_labels_of_tasks_adapt_too_and_the_decay_is_chosen(capsys):
    tasks = [(t, np.where(y > y.mean(), "high", "low")) for t, y in curves(12, 14, 4)]
    model = MetaLearner((4,), kind="logistic", steps=40, random_state=0, verbose=True).fit(tasks)
    assert model.decay_ == min(model.decay_losses_, key=model.decay_losses_.get)
    assert "decay 0.001, held loss" in capsys.readouterr().err
    t, labels = tasks[0]
    adapted = model.adapt(t, labels)
    assert set(adapted.predict(t)) <= {"high", "low"}
    np.testing.assert_allclose(adapted.predict_proba(t).sum(1), 1)
    assert np.mean(adapted.predict(t) == labels) >= model.score(t, labels)
    with pytest.raises(ValueError, match=r"y must hold the classes \['high', 'low'\] alone; got 'middle'"):
        model.adapt(t[:1], ["middle"])


@pytest.mark.parametrize(
    ("name", "value"),
    [("kind", "probit"), ("hidden", 8), ("splits", 0), ("support", 1.0), ("decay", -1.0), ("decay", "none"),
     ("steps", 0), ("verbose", "yes"), ("random_state", -1)],
)  # fmt: skip
def test_bad_settings_are_named(name, value):
    with pytest.raises((ValueError, TypeError), match=f"{name} must be"):
        MetaLearner(**{name: value}).fit(curves(3, 4, 0))


def test_tasks_that_do_not_fit_are_refused():
    for tasks, message in [
        ([1.0], "X must be a list of tasks"),
        ([(np.ones((3, 2)), np.ones(2))], r"X\[0\] must be rows \(n, features\) and n targets"),
        ([(np.ones((3, 2)), np.ones(3)), (np.ones((3, 1)), np.ones(3))], "X must be tasks with the same columns"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            MetaLearner().fit(tasks)
