"""Many binary tasks on the same rows: one shared model beside one classifier for each task.

    python -m benchmarks.ranking_tasks [--half develop|judge|all] [--seeds 3] [--short] [--json FILE]

Mean area under the ROC curves of all tasks on new rows. One for each task: logistic regression on standardised columns
with C chosen among five on five folds, and histogram boosting. Defaults of `MultiTaskAUCClassifier` were
found on the half "develop".
"""

import warnings
from itertools import combinations

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import roc_auc_score
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks import harness
from benchmarks.ranking import summarise
from bilevax.models import MultiTaskAUCClassifier


def _rare(scores, share):
    """The upper part of each column."""
    return (scores > np.quantile(scores, 1 - share, axis=0)).astype(int)


def questions(rng, n):
    """Is the digit one of these two? Twenty such questions, few rows to learn from."""
    X, digit = load_digits(return_X_y=True)
    order = rng.permutation(len(X))
    pairs = list(combinations(range(10), 2))[::2][:20]
    return X[order], np.stack([np.isin(digit[order], pair) for pair in pairs], axis=1).astype(int)


def bent(rng, n):
    """Tasks that share two hidden directions and are not linear in them."""
    X, angles = rng.normal(size=(n, 12)), np.linspace(0, np.pi, 16, endpoint=False)
    scores = np.abs(X[:, :2] @ np.stack([np.cos(angles), np.sin(angles)]))
    return X, _rare(scores + 0.3 * rng.normal(size=scores.shape), 0.1)


def alike(rng, n):
    """Linear tasks whose weights lie in three directions of forty."""
    fixed = np.random.default_rng(7)
    weights = fixed.normal(size=(40, 3)) @ fixed.normal(size=(3, 16)) / 4
    X = rng.normal(size=(n, 40))
    return X, _rare(X @ weights + rng.logistic(size=(n, 16)), 0.1)


def apart(rng, n):
    """Linear tasks that share nothing."""
    weights = np.random.default_rng(8).normal(size=(20, 12)) / 2
    X = rng.normal(size=(n, 20))
    return X, _rare(X @ weights + rng.logistic(size=(n, 12)), 0.05)


TABLES = {"questions": (questions, 600), "bent": (bent, 1500), "alike": (alike, 500), "apart": (apart, 1500)}
HALVES = {"develop": ("questions", "alike"), "judge": ("bent", "apart"), "all": tuple(TABLES)}


def logistic(seed, short):
    """One logistic regression for each task."""
    own = LogisticRegressionCV(Cs=np.logspace(-3, 1, 2 if short else 5), cv=2 if short else 5, scoring="roc_auc",
                               max_iter=300, l1_ratios=(0,), use_legacy_attributes=False)  # fmt: skip
    return make_pipeline(StandardScaler(), MultiOutputClassifier(own))


def boosting(seed, short):
    """Histogram boosting for each task."""
    return MultiOutputClassifier(
        HistGradientBoostingClassifier(early_stopping=True, random_state=seed, max_iter=5 if short else 100)
    )


def shared(seed, short):
    """Our model, with its own defaults."""
    settings = {"steps": 20, "folds": 2} if short else {}
    return MultiTaskAUCClassifier(random_state=seed, **settings)


WAYS = {"logistic": logistic, "boosting": boosting, "shared": shared}


def area(model, X, Y):
    """The mean area under the ROC curves of all tasks."""
    found = model.predict_proba(X)
    scores = np.stack([own[:, 1] for own in found], axis=1) if isinstance(found, list) else found
    return roc_auc_score(Y, scores)


def measure(table, seeds, short):
    """Test area of each way, one for each seed."""
    make, rows = TABLES[table]
    found = {way: [] for way in WAYS}
    for seed in range(seeds):
        X, Y = make(np.random.default_rng([seed, 17]), rows + (1000 if short else 5000))
        rows, Y = (rows // 2 if short else rows), Y[:, :3] if short else Y
        for way, make_model in WAYS.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = make_model(seed, short).fit(X[:rows], Y[:rows])
            found[way].append(area(model, X[rows:], Y[rows:]))
    return {way: np.array(values) for way, values in found.items()}


def main(arguments=None):
    """Run the benchmark and return its figures."""
    parser = harness.options(__doc__)
    parser.add_argument("--half", choices=tuple(HALVES), default="judge", help="which tables")
    parser.add_argument("--seeds", type=int, default=3, help="draws of each table")
    chosen = parser.parse_args(arguments)
    shown, gains = [], {"logistic": [], "boosting": []}
    for table in HALVES[chosen.half]:
        found = measure(table, 1 if chosen.short else chosen.seeds, chosen.short)
        shown.append((table, *(f"{values.mean():.4f} ± {values.std():.4f}" for values in found.values())))
        print(*shown[-1], flush=True)
        for other, own in gains.items():
            own.append(found["shared"] - found[other])
    harness.show("Test area under the ROC curve, mean of all tasks", ("table", *WAYS), shown)
    figures = {}
    for other, own in gains.items():
        names = (f"ranking_tasks_gain_over_{other}", f"ranking_tasks_worst_{other}", f"ranking_tasks_lost_{other}")
        figures |= dict(zip(names, summarise(own), strict=True))
    harness.conclude(figures, chosen.json)
    return figures


if __name__ == "__main__":
    main()
