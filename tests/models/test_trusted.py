"""Wrong labels are found: by probabilities out of fold, by trusted rows, by the habits of whoever labelled."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize_scalar
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.naive_bayes import GaussianNB

from benchmarks.cleaning.__main__ import main
from bilevax.models import TrustedReweighter, experts, label_noise, opinions, row_weights
from bilevax.models.trusted import Verdict

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def mislabelled(n, seed, share):
    """Three classes in the plane, of whose labels a share is moved on to the next class."""
    rng = np.random.default_rng(seed)
    true = rng.integers(0, 3, n)
    X = np.array([[0, 2], [2, -1], [-2, -1]])[true] + rng.normal(size=(n, 2))
    wrong = rng.random(n) < share
    return X, np.where(wrong, (true + 1) % 3, true), wrong


@pytest.fixture(scope="module")
def judged():
    X, y, wrong = mislabelled(600, 0, 0.4)
    sure, labels, _ = mislabelled(60, 1, 0.0)
    lines = []
    return X, y, wrong, TrustedReweighter(random_state=0, verbose=lines.append).fit(X, y, sure, labels), lines


def test_trusted_rows_tell_which_labels_are_wrong(judged):
    X, y, wrong, ours, lines = judged
    new, truth, _ = mislabelled(2000, 2, 0.0)
    own = ours.out_of_fold_[np.arange(600), y]
    assert roc_auc_score(wrong, -ours.weights_) > max(0.95, roc_auc_score(wrong, -own) + 0.05)
    assert sorted(ours.suspicion_rank_) == list(range(1, 601))
    assert (np.diff(ours.weights_[np.argsort(ours.suspicion_rank_)]) >= 0).all()
    assert ours.score(new, truth) > LogisticRegression().fit(X, y).score(new, truth)
    np.testing.assert_allclose(ours.predict_proba(new).sum(1), 1)
    assert ours.evidence_.startswith("60 trusted rows weigh three opinions: ")
    assert lines[-1] == "training on what is believed"


def test_weights_are_probabilities_and_suggestions_the_right_classes(judged):
    _, y, wrong, ours, _ = judged
    truth = (y - wrong) % 3
    assert abs(np.sum(1 - ours.weights_) - wrong.sum()) < 0.15 * wrong.sum()
    sure = ours.suggestion_probabilities_ > 0.95
    assert sure.sum() > 300
    assert np.mean(ours.suggested_labels_[sure] == truth[sure]) > 0.93
    assert (ours.weights_ <= ours.suggestion_probabilities_ + 1e-12).all()


def test_habits_of_whoever_labelled_are_found(judged):
    habits = judged[3].details_["habits"]
    taken_for = np.asarray(habits.taken_for)
    assert all(taken_for[c, (c + 1) % 3] > taken_for[c, (c + 2) % 3] + 1 for c in range(3))


def test_without_trusted_rows_labels_are_ranked_by_their_probability_out_of_fold():
    X, y, _ = mislabelled(120, 3, 0.2)
    named = np.where(y == 0, "first", "other")
    for rows, few in [(sp.csr_matrix(X), ()), (X, (X[:9], named[:9]))]:
        ours = TrustedReweighter(folds=3, random_state=0).fit(rows, named, *few)
        own = ours.out_of_fold_[np.arange(120), (named == "other").astype(int)]
        np.testing.assert_array_equal(ours.weights_, own)
        assert np.isnan(ours.wrong_labels_)
        assert ours.evidence_.endswith(
            "trusted rows: rows are ranked by how improbable their label is out of fold."
        ) == (not few)
        assert ours.score(rows, named) > 0.75


def test_probabilities_of_a_model_of_ones_own_take_the_place_of_the_estimators():
    X, y, _ = mislabelled(90, 4, 0.2)
    shares = np.full((90, 3), 0.2)
    shares[np.arange(90), (np.arange(90) % 3)] = 0.6
    ours = TrustedReweighter(RandomForestClassifier(5, random_state=0)).fit(X, y, pred_probs=shares)
    np.testing.assert_allclose(ours.weights_, shares[np.arange(90), y])
    assert isinstance(ours.estimator_, RandomForestClassifier)
    for wrong in (shares[:5], shares * 2, -shares, shares[:, :2]):
        with pytest.raises(ValueError, match="pred_probs must"):
            TrustedReweighter().fit(X, y, pred_probs=wrong)
    with pytest.raises(ValueError, match="trusted_pred_probs must be given too"):
        TrustedReweighter().fit(X, y, X[:20], y[:20], pred_probs=shares)


BAD_TRUSTED = {
    "labels alone": ((None, [0, 1]), "X_trusted and y_trusted must be given together"),
    "columns": ((np.zeros((2, 3)), [0, 1]), "X_trusted must have the 2 columns of X"),
    "rows": ((np.zeros((2, 2)), [0]), "one label for each of its rows"),
    "unseen": ((np.zeros((2, 2)), [0, 7]), "y_trusted holds labels that y does not: 7"),
}


def test_a_trusted_frame_with_columns_in_another_order_is_refused():
    X, y, _ = mislabelled(30, 0, 0.0)
    frame = pd.DataFrame(X, columns=["height", "width"])
    with pytest.raises(ValueError, match="X_trusted must have the columns of X in the same order"):
        TrustedReweighter().fit(frame, y, frame[["width", "height"]], y)


@pytest.mark.parametrize("places", [[2], [-1], [0.5], [0]])
def test_columns_that_hold_no_codes_are_refused(places):
    X, y, _ = mislabelled(30, 0, 0.0)
    with pytest.raises((TypeError, ValueError), match="categorical_features must"):
        TrustedReweighter(categorical_features=places).fit(X, y)


@pytest.mark.parametrize("case", BAD_TRUSTED)
def test_trusted_rows_that_do_not_fit_are_refused(case):
    X, y, _ = mislabelled(30, 0, 0.0)
    trusted, message = BAD_TRUSTED[case]
    with pytest.raises(ValueError, match=message):
        TrustedReweighter().fit(X, y, *trusted)


def test_masked_trusted_rows_are_refused():
    X, y = np.arange(8.0).reshape(4, 2), [0, 1, 0, 1]
    with pytest.raises(TypeError, match="X_trusted must not be a masked array"):
        TrustedReweighter().fit(X, y, np.ma.array(X, mask=X > 6), y)


def test_no_row_is_judged_by_a_model_that_has_seen_it():
    """A model that remembers its rows knows nothing of those left out."""
    rng = np.random.default_rng(0)
    X, codes = rng.normal(size=(60, 3)), rng.integers(0, 2, 60)
    forest = RandomForestClassifier(10, bootstrap=False, random_state=0)
    found = opinions.choose_base([forest], X, codes, X[:0], 2, 5, 0)
    assert np.mean(found.opinion.rows.argmax(1) == codes) < 0.7
    assert forest.fit(X, codes).score(X, codes) == 1.0


def some_opinions(n, seed):
    """Right classes, and probabilities of two models for them: a good one that shifts a class, and one that guesses."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 3, n)
    logs = 2.0 * np.eye(3)[codes] + rng.normal(size=(n, 3))
    good = np.exp(logs + np.array([1.5, 0, 0]))
    guess = rng.dirichlet(np.ones(3), size=n)
    return codes, good / good.sum(1, keepdims=True), guess


def test_weights_of_opinions_have_no_slope_left_and_are_no_worse_than_the_best_opinion():
    codes, good, guess = some_opinions(200, 0)
    prior = experts.Prior((1.0, 0.0), 0.5, 2.0)
    found = experts.fit([good, guess], codes, prior)

    def prior_of(weights):
        """How improbable weights s·(centre + away) are, for the most probable s."""
        given = lambda log_s: 0.5 * (log_s**2 + np.sum((weights / np.exp(log_s) - [1, 0]) ** 2) / 0.25)
        return minimize_scalar(given, (-0.1, 0.1), tol=1e-12).fun

    def loss(v):
        shares = experts.Weighing(v[:2], v[2:])([good, guess])
        return -np.log(shares[np.arange(200), codes]).sum() + prior_of(v[:2]) + 0.5 * v[2:] @ v[2:] / 4

    v = np.concatenate([found.weights, found.shifts])
    slopes = [(loss(v + 1e-5 * e) - loss(v - 1e-5 * e)) / 2e-5 for e in np.eye(5)]
    np.testing.assert_allclose(slopes, 0, atol=2e-2)
    new, new_good, new_guess = some_opinions(4000, 1)
    both = [opinions.Opinion(new_good, good), opinions.Opinion(new_guess, guess)]
    shares, weighing = experts.weigh(both, codes, new)
    assert log_loss(new, shares) < log_loss(new, new_good) - 0.05
    assert abs(weighing.weights[1]) < 0.2
    assert weighing.shifts[0] < weighing.shifts[1:].min() - 1


def random_habits(seed):
    keys = jax.random.split(jax.random.key(seed), 2)
    often, taken_for = jax.random.normal(keys[0], (3,)) - 2, jax.random.normal(keys[1], (3, 3))
    return label_noise.Habits(often, jnp.asarray(0.3), jnp.asarray(0.7), taken_for)


def test_chances_of_given_labels_add_up_to_one_and_follow_the_equation():
    _, shares, _ = some_opinions(6, 2)
    habits = random_habits(0)
    chances = np.stack([
        np.exp(label_noise.log_chances(habits, jnp.asarray(shares), jnp.full(6, j, jnp.int32))) for j in range(3)
    ])  # fmt: skip
    np.testing.assert_allclose(chances.sum(0), 1, rtol=1e-10)
    p, nu = shares[2], np.exp(habits.taken_for)
    rho = 1 / (1 + np.exp(-(habits.often[1] - 0.3 * np.log(p[1] / (1 - p[1])))))
    pull = nu[1] * p**0.7
    np.testing.assert_allclose(chances[1, 2, 1], 1 - rho, rtol=1e-10)
    np.testing.assert_allclose(chances[0, 2, 1], rho * pull[0] / (pull[0] + pull[2]), rtol=1e-10)
    given = jnp.asarray([0, 1, 2, 0, 1, 2], jnp.int32)
    right = np.asarray(label_noise.posterior(habits, jnp.asarray(shares), given))
    bayes = shares * chances[given, np.arange(6)]
    np.testing.assert_allclose(right, bayes / bayes.sum(1, keepdims=True), rtol=1e-10)


def test_fitted_habits_have_no_slope_left():
    codes, shares, _ = some_opinions(300, 3)
    given = np.where(np.random.default_rng(0).random(300) < 0.3, (codes + 1) % 3, codes)
    habits = label_noise.fit_habits(shares, given, 0)
    slope = jax.grad(label_noise.loss)(habits, label_noise._clip(shares), jnp.asarray(given))
    assert max(float(jnp.abs(leaf).max()) for leaf in slope) < 0.1


@pytest.fixture(scope="module")
def weighing_problem():
    rng = np.random.default_rng(0)
    codes, shares, _ = some_opinions(70, 4)
    given = np.where(rng.random(70) < 0.3, (codes + 1) % 3, codes)
    right, _ = label_noise.right_classes(shares, given, 0)
    labels = row_weights.describe_labels(shares, right, given)
    columns = row_weights.Columns(shares[:, :2], 0)
    z = columns(shares[:, :2], shares)
    return (
        z,
        labels,
        row_weights.make_problem(z[:50], row_weights.Labels(*(p[:50] for p in labels)), z[50:], codes[50:]),
    )


def test_rows_that_fill_up_do_not_count(weighing_problem):
    z, labels, problem = weighing_problem
    rng = np.random.default_rng(1)
    theta, y = rng.normal(size=labels.known.shape[1]), rng.normal(size=(z.shape[1], 3))
    w = 1 / (1 + np.exp(-labels.known[:50] @ theta))[:, None]
    targets = w * np.eye(3)[labels.given[:50]] + (1 - w) * labels.otherwise[:50]
    scores = z[:50] @ y
    losses = np.log(np.exp(scores).sum(1)) - (targets * scores).sum(1)
    expected = losses.mean() + 0.5 * (1e-4 + np.exp(-3.0)) * np.sum(y**2)
    flat = jax.flatten_util.ravel_pytree({"log_ridge": jnp.asarray(-3.0), "theta": jnp.asarray(theta)})[0]
    got = problem.lower_loss(flat, jnp.asarray(y.ravel()), 0, None)
    np.testing.assert_allclose(float(got), expected, rtol=1e-9)


def test_what_is_known_of_labels_is_finite_and_says_what_it_says(weighing_problem):
    _, labels, _ = weighing_problem
    assert np.isfinite(labels.known).all()
    np.testing.assert_allclose(labels.otherwise.sum(1), 1)
    np.testing.assert_allclose(labels.otherwise[np.arange(70), labels.given], 0, atol=1e-9)
    np.testing.assert_allclose(labels.known[:, 3:].argmax(1), labels.given)


def test_learned_weights_lower_the_loss_on_trusted_rows(judged):
    learned = judged[3].details_["row_weights"]
    assert learned.weights.shape == (600,)
    assert not np.allclose(learned.theta, np.eye(1, len(learned.theta))[0])
    assert roc_auc_score(judged[2], -learned.weights) > 0.9


def test_the_benchmark_runs_in_its_short_mode(capsys, tmp_path):
    for _ in range(2):  # what was measured is not measured again
        lines = main(["--short", "--keep", str(tmp_path)])
    shown = capsys.readouterr().out
    assert f"one_direction_gain={lines['one_direction_gain']:.4f}" in shown
    assert lines["one_direction_gain"] > 0.05
    assert lines["without_trusted"] == 0
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(SystemExit):
        main(["--tables", "nowhere"])


def test_how_sure_it_is_that_one_opinion_is_better_is_its_share_of_the_posterior():
    codes = np.zeros(9, int)
    one, other = (np.eye(2)[wrong] for wrong in ([0] * 7 + [1] * 2, [0] * 2 + [1] * 6 + [0]))  # 5 rows to 1
    p = (np.arange(100_000) + 0.5) / 100_000
    density = p ** (1 + 5) * (1 - p) ** (1 + 1)
    expected = (density[p > 0.5].sum() - density[p < 0.5].sum()) / density.sum()
    np.testing.assert_allclose(experts.surely_better(one, other, codes), expected, atol=1e-6)
    assert experts.surely_better(other, one, codes) == 0 == experts.surely_better(one, one, codes)


@pytest.mark.parametrize("belief", [0.0, 0.4, 1.0])
def test_a_model_is_trained_on_what_is_believed_as_far_as_that_is_sure(judged, belief):
    X, y, *_ = judged
    right = np.random.default_rng(0).dirichlet(np.ones(3), size=len(y))
    verdict = Verdict(right, "", {}, belief)
    made = TrustedReweighter(GaussianNB())._train(GaussianNB(), X, y, X[:0], y[:0], verdict)
    shares = belief * right + (1 - belief) * np.eye(3)[y]
    expected = shares.T @ X / shares.sum(0)[:, None]  # the means of the classes
    np.testing.assert_allclose(made.theta_, expected, atol=0.02)
