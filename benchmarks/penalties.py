"""A penalty for each feature beside one for all, and beside an elastic net, on ten tables.

    python -m benchmarks.penalties [--short] [--half develop|judge|all] [--json FILE]

Settings of `PenaltyRidge` and `PenaltyLogistic` were chosen on the half "develop", and are reported on "judge".
All models see standardised columns and choose by five folds; the common penalty comes from the same grid as ours.
A figure is the test loss (squared error by variance, or logistic loss), a mean over seeds; a gain is 1 − ours/other.
"""

import time
from typing import NamedTuple

import numpy as np
from sklearn import datasets
from sklearn.linear_model import ElasticNetCV, LogisticRegressionCV, RidgeCV
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from benchmarks import harness
from bilevax.models import PenaltyLogistic, PenaltyRidge
from bilevax.models.penalty_search import LOGISTIC_GRID, RIDGE_GRID

TEST_ROWS = 2000


class Table(NamedTuple):
    """Rows and targets, how many rows a model is fitted to, the labels of the columns where they come in groups."""

    X: np.ndarray
    y: np.ndarray
    train: int
    groups: np.ndarray | None = None


def diabetes_squares(seed):
    """Real: ten measurements, their squares and products."""
    X, y = datasets.load_diabetes(return_X_y=True)
    return Table(PolynomialFeatures(2, include_bias=False).fit_transform(X), y, 250)


def linear(features, telling, noise, train, seed, decay=0.0, classes=False):
    """Generated: a linear rule in some of the features, the k-th by k^−decay."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(train + TEST_ROWS, features))
    truth = np.zeros(features)
    truth[:telling] = rng.choice([-1, 1], telling) * np.arange(1, telling + 1.0) ** -decay
    score = X @ (truth / np.linalg.norm(truth))
    y = score + noise * rng.normal(size=len(X))
    return Table(X, (3 * score + rng.logistic(size=len(X)) > 0).astype(int) if classes else y, train)


def instruments(seed):
    """Generated: four instruments of 15 columns each, of which one tells much, one a little, two nothing."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(4), 15)
    X = rng.normal(size=(150 + TEST_ROWS, 60))
    truth = rng.normal(size=60) * np.array([1.0, 0.3, 0, 0])[groups]
    return Table(X, X @ truth + 4 * rng.normal(size=len(X)), 150, groups)


def correlated(seed):
    """Generated: five blocks of eight columns that say about the same; two blocks tell."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(120 + TEST_ROWS, 5))
    X = np.repeat(hidden, 8, axis=1) + 0.7 * rng.normal(size=(len(hidden), 40))
    return Table(X, hidden[:, 0] - hidden[:, 1] + rng.normal(size=len(X)), 120)


def friedman(seed):
    """Generated: Friedman's first rule, five features of it and 15 others, with squares."""
    X, y = datasets.make_friedman1(300 + TEST_ROWS, 20, noise=1.0, random_state=seed)
    return Table(np.column_stack([X, X**2]), y, 300)


def bundled(load, train, keep=None):
    """Real: a table that comes with scikit-learn, some classes of it."""

    def table(seed):
        X, y = load(return_X_y=True)
        rows = np.isin(y, keep) if keep else np.full(len(y), True)
        return Table(X[rows], y[rows], train)

    return table


DEVELOP = {
    "diabetes, squares": diabetes_squares,
    "sparse, 60 features": lambda seed: linear(60, 6, 1.0, 150, seed),
    "all alike, 40 features": lambda seed: linear(40, 40, 1.0, 150, seed),
    "breast cancer (2 classes)": bundled(datasets.load_breast_cancer, 200),
    "decaying, 30 features (2 classes)": lambda seed: linear(30, 30, 1.0, 250, seed, decay=1.0, classes=True),
}
JUDGE = {
    "instruments, by group": instruments,
    "correlated blocks": correlated,
    "Friedman, squares": friedman,
    "wine (3 classes)": bundled(datasets.load_wine, 80),
    "digits 3, 5 and 8 (3 classes)": bundled(datasets.load_digits, 200, (3, 5, 8)),
}
HALVES = {"develop": DEVELOP, "judge": JUDGE}


def is_classes(y):
    """Whether targets are classes."""
    return np.issubdtype(y.dtype, np.integer)


def contenders(table, seed):
    """The models for a table, ours first."""
    if not is_classes(table.y):
        ours = PenaltyRidge(groups=table.groups, random_state=seed)
        common, net = RidgeCV(RIDGE_GRID * table.train, cv=5), ElasticNetCV(l1_ratio=[0.1, 0.5, 0.9, 1.0], cv=5)
    else:
        ours = PenaltyLogistic(groups=table.groups, random_state=seed)
        options = {"cv": 5, "scoring": "neg_log_loss", "max_iter": 500, "use_legacy_attributes": False}
        strengths = 1 / (LOGISTIC_GRID * table.train)
        common = LogisticRegressionCV(Cs=strengths, l1_ratios=(0,), **options)
        net = LogisticRegressionCV(Cs=strengths[1::2], l1_ratios=(0.1, 0.5, 1.0), solver="saga", tol=1e-3, **options)
    scaled = lambda model: make_pipeline(StandardScaler(), model)
    return {"ours": ours, "common": scaled(common), "elastic net": scaled(net)}


def loss(model, X, y):
    """Squared error by variance, or logistic loss."""
    if is_classes(y):
        return log_loss(y, model.predict_proba(X), labels=model.classes_)
    return float(np.mean((model.predict(X) - y) ** 2) / np.var(y))


def measure(make, seed):
    """The test loss of each model, and the seconds of a fit of ours."""
    table = make(seed)
    order = np.random.default_rng(1000 + seed).permutation(len(table.y))
    train, test = order[: table.train], order[table.train :]
    found = {}
    for name, model in contenders(table, seed).items():
        begun = time.perf_counter()
        model.fit(table.X[train], table.y[train])
        found.setdefault("seconds", time.perf_counter() - begun)
        found[name] = loss(model, table.X[test], table.y[test])
    return found


def tell(figures):
    """The table, and the last lines."""
    print("| table | ours | one penalty | elastic net | gain on one penalty | gain on the net |\n" + "|---" * 6 + "|")
    gains = []
    for name, runs in figures.items():
        ours, common, net = (np.mean([run[kind] for run in runs]) for kind in ("ours", "common", "elastic net"))
        gains.append((1 - ours / common, 1 - ours / net))
        cells = " | ".join(f"{value:.4f}" for value in (ours, common, net))
        print(f"| {name} | {cells} | {gains[-1][0]:+.1%} | {gains[-1][1]:+.1%} |")
    mean, worst = np.mean(gains, 0), np.min(gains, 0)
    last = {"penalty_mean_gain": mean[0], "penalty_worst": worst[0], "net_mean_gain": mean[1], "net_worst": worst[1]}
    print("\n".join(f"{name}={value:.4f}" for name, value in last.items()))
    return {name: float(value) for name, value in last.items()}


def main(given=None):
    """Run the benchmark and return the last lines."""
    return harness.judge_halves(__doc__, HALVES, measure, tell, given)


if __name__ == "__main__":
    main()
