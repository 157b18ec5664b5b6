"""Trusted rows as an issue of cleanlab's Datalab, against the released package."""

import importlib
import re
import sys

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

pytest.importorskip("cleanlab")
pytest.importorskip("datasets")
import cleanlab

import bilevax.cleaning.datalab  # registers the issue
from bilevax.models import TrustedReweighter

CHECKED = np.arange(40)


@pytest.fixture(scope="module")
def rows():
    """Rows, labels in words and true ones; one direction of mistakes, rows that were checked are right."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    truth = np.where(X[:, 0] + X[:, 1] > 0, "yes", "no")
    seen = truth.copy()
    seen[40:][(rng.random(260) < 0.4) & (truth[40:] == "yes")] = "no"
    return X, seen, truth


def find(rows, **options):
    X, seen, _ = rows
    lab = cleanlab.Datalab({"X": X, "y": list(seen)}, label_name="y", verbosity=0)
    options = {"features": X, "trusted": CHECKED, "estimator": LogisticRegression(), "random_state": 0, **options}
    lab.find_issues(issue_types={"annotation": options})
    return lab


@pytest.fixture(scope="module")
def lab(rows):
    return find(rows)


def test_scores_are_those_of_the_model(rows, lab):
    X, seen, _ = rows
    model = TrustedReweighter(LogisticRegression(), random_state=0)
    model.fit(X[40:], seen[40:], X[:40], seen[:40])
    issues = lab.get_issues("annotation")
    np.testing.assert_allclose(issues["annotation_score"][40:], model.weights_)
    assert (issues["annotation_score"][:40] == 1).all()
    assert not issues["is_annotation_issue"][:40].any()
    np.testing.assert_array_equal(issues["annotation_suggestion"][40:], model.suggested_labels_)
    np.testing.assert_array_equal(issues["is_annotation_issue"], issues["annotation_suggestion"] != seen)


def test_finds_what_goes_in_one_direction(rows, lab):
    _, seen, truth = rows
    assert roc_auc_score(seen == truth, lab.get_issues("annotation")["annotation_score"]) > 0.9


def test_report_tells_the_evidence(lab, capsys):
    lab.report(show_summary_score=True)
    told = capsys.readouterr().out
    assert "annotation issues" in told
    assert lab.get_info("annotation")["evidence"] in told


def test_places_and_truth_values_are_alike(rows, lab):
    mask = np.isin(np.arange(300), CHECKED)
    again = find(rows, trusted=mask).get_issues("annotation")
    np.testing.assert_array_equal(again["annotation_score"], lab.get_issues("annotation")["annotation_score"])


def test_probabilities_of_ones_own_are_taken(rows):
    _, seen, truth = rows
    sure = np.where((truth == "yes")[:, None], [0.05, 0.95], [0.95, 0.05])  # classes in sorted order
    scores = find(rows, pred_probs=sure).get_issues("annotation")["annotation_score"]
    assert roc_auc_score(seen == truth, scores) > 0.99


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"features": None}, "needs features"),
        ({"features": np.ones((3, 2))}, r"\(300, columns\)"),
        ({"trusted": [300]}, "0 to 299"),
        ({"trusted": [0.5]}, "truth values"),
        ({"pred_probs": np.ones((300, 3))}, r"\(300, 2\)"),
        ({"epochs": 3}, "no option epochs"),
    ],
)
def test_bad_options_are_told(rows, capsys, options, words):
    """Datalab prints errors of an issue and goes on."""
    find(rows, **options)
    assert re.search("Error in annotation.*" + words, capsys.readouterr().out)


def test_module_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "cleanlab.datalab.internal.issue_manager", None)
    with pytest.raises(ImportError, match=r"bilevax\[datalab\]"):
        importlib.reload(bilevax.cleaning.datalab)
