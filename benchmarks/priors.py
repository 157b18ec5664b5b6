"""Models of many groups with a learned prior, beside one pooled model, one for each group, and a mixed model.

    python -m benchmarks.priors [--short] [--half develop|judge|all] [--json FILE]

Settings of `SharedPrior` were chosen on the half "develop", and are reported on "judge". Ten tables, several seeds; a
figure is the loss of new rows (squared error by variance, or logistic loss) of groups that were seen, and of others
that were not. Pooled and own models choose their penalty by five folds, from the grid of ours; a gain is
1 − ours/other.
"""

import time
from typing import NamedTuple

import numpy as np
from sklearn import datasets
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks import harness
from benchmarks.mixed import MixedModel
from bilevax.models import SharedPrior
from bilevax.models.penalty_search import LOGISTIC_GRID, RIDGE_GRID

KINDS = ("ours", "pooled", "own", "mixed")
TEST_ROWS, NEW_GROUPS = 40, 10


class Table(NamedTuple):
    """Rows, targets, groups; the part of a row: to train, of a group that is seen, or of a new one."""

    X: np.ndarray
    y: np.ndarray
    groups: np.ndarray
    part: np.ndarray


def generated(seed, groups, rows, mean, spread, classes=False, kinds=1, noise=1.0):
    """Groups with models mean + spread·normal (the shift last), and `rows` of them each: from, to."""
    rng = np.random.default_rng(seed)
    count = groups + NEW_GROUPS
    mean, spread = np.asarray(mean, float), np.asarray(spread, float)
    models = np.where(rng.integers(kinds, size=count) == 0, 1, -1)[:, None] * mean + spread * rng.normal(
        size=(count, len(mean))
    )
    sizes = rng.integers(rows[0], rows[1] + 1, count)
    part = [np.repeat(["train" if i < groups else "new", "seen" if i < groups else "new"], [sizes[i], TEST_ROWS])
            for i in range(count)]  # fmt: skip
    group = np.repeat(np.arange(count), sizes + TEST_ROWS)
    A = np.column_stack([rng.normal(size=(len(group), len(mean) - 1)), np.ones(len(group))])
    score = np.einsum("np,np->n", A, models[group])
    y = (score + rng.logistic(size=len(A)) > 0).astype(int) if classes else score + noise * rng.normal(size=len(A))
    return Table(A[:, :-1], y, group, np.concatenate(part))


def bands(load, column, count, rows):
    """Real: a table that comes with scikit-learn, in bands of one of its columns; one band of them is new."""

    def table(seed):
        rng = np.random.default_rng(seed)
        X, y = load(return_X_y=True)
        group = np.argsort(np.argsort(X[:, column], kind="stable")) * count // len(X)
        part = np.full(len(X), "seen", dtype="<U5")
        for i in range(count):
            inside = rng.permutation(np.flatnonzero(group == i))
            part[inside[: rng.integers(rows[0], rows[1] + 1)]] = "train"
        part[group == rng.integers(count)] = "new"
        return Table(np.delete(X, column, axis=1), y, group, part)

    return table


ONES = np.ones(6)
DEVELOP = {
    "only shifts differ": lambda seed: generated(seed, 30, (2, 20), ONES, [0, 0, 0, 0, 0, 2]),
    "two slopes differ, ragged": lambda seed: generated(seed, 40, (1, 40), ONES, [1, 1, 0, 0, 0, 0.5]),
    "groups alike (2 classes)": lambda seed: generated(seed, 20, (10, 20), ONES, 0 * ONES, classes=True),
    "slopes differ (2 classes)": lambda seed: generated(seed, 30, (10, 40), ONES, ONES, classes=True),
    "diabetes, bands of age": bands(datasets.load_diabetes, 0, 10, (8, 25)),
}
JUDGE = {
    "all slopes differ a little": lambda seed: generated(seed, 60, (5, 10), np.ones(9), 0.4 * np.ones(9)),
    "unrelated groups": lambda seed: generated(seed, 20, (15, 30), 0 * ONES, ONES),
    "two kinds of groups": lambda seed: generated(seed, 40, (3, 30), ONES, 0.2 * ONES, kinds=2),
    "a shift and a slope differ (2 classes)": lambda seed: generated(
        seed, 40, (5, 50), ONES, [1.5, 0, 0, 0, 0, 1], classes=True
    ),
    "breast cancer, bands of texture (2 classes)": bands(datasets.load_breast_cancer, 1, 8, (15, 40)),
}
HALVES = {"develop": DEVELOP, "judge": JUDGE}


def plain(classes, n):
    """Ridge or logistic regression on standardised columns, its penalty by five folds."""
    if not classes:
        return make_pipeline(StandardScaler(), RidgeCV(RIDGE_GRID * n, cv=min(5, n)))
    options = {"scoring": "neg_log_loss", "max_iter": 500, "use_legacy_attributes": False, "l1_ratios": (0,)}
    return make_pipeline(StandardScaler(), LogisticRegressionCV(Cs=1 / (LOGISTIC_GRID * n), cv=5, **options))


def scores_of(model, X):
    """Numbers, or log-odds of the second class."""
    return model.decision_function(X) if hasattr(model, "decision_function") else model.predict(X)


def own_scores(train, rest, classes):
    """A model for each group; the pooled one where its rows are too few for five folds, and for groups that are new."""
    X, y, groups = train
    pooled = plain(classes, len(y)).fit(X, y)
    shared = scores_of(pooled, rest.X)
    own = shared.copy()
    for name in np.unique(groups):
        inside, asked = groups == name, rest.groups == name
        enough = np.bincount(y[inside], minlength=2).min() >= 5 if classes else inside.sum() >= 5
        if enough and asked.any():
            own[asked] = scores_of(plain(classes, inside.sum()).fit(X[inside], y[inside]), rest.X[asked])
    return shared, own


def measure(make, seed):
    """For each model the losses of seen and of new groups; and the seconds of ours."""
    table = make(seed)
    classes, training = np.issubdtype(table.y.dtype, np.integer), table.part == "train"
    rest = Table(*(column[~training] for column in table))
    train = [column[training] for column in table[:3]]
    begun = time.perf_counter()
    ours = SharedPrior(kind="logistic" if classes else "ridge", random_state=seed).fit(*train)
    seconds = time.perf_counter() - begun
    mixed = MixedModel(classes).fit(*train)
    pooled, own = own_scores(train, rest, classes)
    all_scores = [
        (ours.decision_function if classes else ours.predict)(rest.X, rest.groups),
        pooled,
        own,
        mixed.decision_function(rest.X, rest.groups),
    ]
    signs, unit = 2 * rest.y - 1, np.var(rest.y)
    losses = [np.logaddexp(0, -signs * s) if classes else (s - rest.y) ** 2 / unit for s in all_scores]
    means = {part: [float(loss[rest.part == part].mean()) for loss in losses] for part in ("seen", "new")}
    return {**means, "seconds": seconds}


def tell(figures):
    """The table, and the last lines."""
    print("| table | " + " | ".join(KINDS) + " | gain on the best other | new groups: ours | pooled | mixed |")
    print("|---" * 9 + "|")
    gains = []
    for name, runs in figures.items():
        seen, new = (np.mean([run[part] for run in runs], 0) for part in ("seen", "new"))
        gains.append([1 - seen[0] / seen[1:].min(), 1 - seen[0] / seen[3], 1 - new[0] / new[1]])
        cells = " | ".join(f"{value:.4f}" for value in seen)
        print(f"| {name} | {cells} | {gains[-1][0]:+.1%} | {new[0]:.4f} | {new[1]:.4f} | {new[3]:.4f} |")
    mean, worst = np.mean(gains, 0), np.min(gains, 0)
    last = {"prior_mean_gain": mean[0], "prior_worst": worst[0], "mixed_mean_gain": mean[1], "mixed_worst": worst[1],
            "new_groups_mean_gain": mean[2], "new_groups_worst": worst[2]}  # fmt: skip
    print("\n".join(f"{name}={value:.4f}" for name, value in last.items()))
    return {name: float(value) for name, value in last.items()}


def main(given=None):
    """Run the benchmark and return the last lines."""
    return harness.judge_halves(__doc__, HALVES, measure, tell, given)


if __name__ == "__main__":
    main()
