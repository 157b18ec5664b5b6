"""Do the ranking models generalise? Average precision on new rows of ten imbalanced tables, beside the usual models.

    python -m benchmarks.ranking [--half develop|judge|all] [--seeds 3] [--short] [--json FILE]
                                 [--tables linear,tails] [--ways linear,logistic]

Defaults of `AveragePrecisionClassifier` were found on the half "develop"; "judge" was not looked at before. The usual
models: logistic regression on standardised columns, plain and with balanced classes, with C chosen among seven by
average precision on five folds; histogram boosting with early stopping, plain and balanced. A gain is over the better
of the two of a kind on that table, chosen by its mean over the seeds on the test rows, which is more than a user could
know. The last way is LibAUC's loss for average precision (the squared hinge of SOAP, γ = .9) on the same network from
the same start with the same early stopping, in our own loop: `benchmarks.soap` runs the package itself.
"""

import warnings

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks import harness
from benchmarks.imbalanced import HALVES, TABLES
from bilevax.models import AveragePrecisionClassifier


def logistic(seed, short, weight=None):
    """Logistic regression as a careful user has it."""
    folds = StratifiedKFold(3 if short else 5, shuffle=True, random_state=seed)
    regression = LogisticRegressionCV(
        Cs=np.logspace(-4, 2, 3 if short else 7), cv=folds, scoring="average_precision", class_weight=weight,
        max_iter=500, l1_ratios=(0,), use_legacy_attributes=False,
    )  # fmt: skip
    return make_pipeline(StandardScaler(), regression)


def boosting(seed, short, weight=None):
    """Histogram boosting with early stopping."""
    return HistGradientBoostingClassifier(
        early_stopping=True, class_weight=weight, random_state=seed, max_iter=10 if short else 100
    )


def ours(seed, short, **settings):
    """Our model, with its own defaults."""
    if short:
        settings |= {"steps": 20, "folds": 2}
    return AveragePrecisionClassifier(random_state=seed, **settings)


SOAP = {"surrogate": "squared_hinge", "width": 1.0, "mixing": 0.9}
WAYS = {
    "logistic": logistic,
    "balanced logistic": lambda seed, short: logistic(seed, short, "balanced"),
    "linear": ours,
    "boosting": boosting,
    "balanced boosting": lambda seed, short: boosting(seed, short, "balanced"),
    "trees": lambda seed, short: ours(seed, short, estimator=boosting(seed, short)),
    "network": lambda seed, short: ours(seed, short, hidden=(32,)),
    "SOAP network": lambda seed, short: ours(seed, short, hidden=(32,), **SOAP),
}
BESIDE = {  # whose gain is over the better one of whom
    "linear": ("logistic", "balanced logistic"),
    "trees": ("boosting", "balanced boosting"),
    "network": ("SOAP network",),
}


def measure(table, ways, seeds, short):
    """Test average precision of each way, one for each seed, and how many steps for it ours took."""
    found, steps = {way: [] for way in ways}, {way: [] for way in ways}
    for seed in range(seeds):
        X, y, new, labels = TABLES[table].split(seed, short)
        for way in ways:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = WAYS[way](seed, short).fit(X, y)
            found[way].append(average_precision_score(labels, model.decision_function(new)))
            steps[way].append(getattr(model, "n_steps_", 0))
    return {way: np.array(values) for way, values in found.items()}, steps


def compare(found):
    """For each of our ways the gains over the better of the others, one for each seed."""
    gains = {}
    for way, others in BESIDE.items():
        if way in found and set(others) <= set(found):
            best = max(others, key=lambda other: found[other].mean())
            gains[way] = found[way] - found[best]
    return gains


def summarise(gains):
    """Figures of one way: mean gain, smallest gain of a table, tables that lost more than the spread over the seeds."""
    means = np.array([own.mean() for own in gains])
    spreads = np.array([own.std(ddof=1) if len(own) > 1 else 0.0 for own in gains])
    return float(means.mean()), float(means.min()), int((means < -spreads).sum())


def main(arguments=None):
    """Run the benchmark and return its figures."""
    parser = harness.options(__doc__)
    parser.add_argument("--half", choices=tuple(HALVES), default="judge", help="which tables")
    parser.add_argument("--tables", help="these tables instead")
    parser.add_argument("--ways", default=",".join(WAYS), help="these ways alone")
    parser.add_argument("--seeds", type=int, default=3, help="draws of each table")
    chosen = parser.parse_args(arguments)
    tables = chosen.tables.split(",") if chosen.tables else HALVES[chosen.half]
    ways = chosen.ways.split(",")
    shown, gains = [], {}
    for table in tables:
        found, steps = measure(table, ways, 1 if chosen.short else chosen.seeds, chosen.short)
        cells = [f"{values.mean():.3f} ± {values.std():.3f}" for values in found.values()]
        shown.append((f"{table}, {TABLES[table].share:.1%}", *cells))
        for way, own in compare(found).items():
            gains.setdefault(way, []).append(own)
        print(table, {way: f"{values.mean():.4f}" for way, values in found.items()}, steps, flush=True)
    harness.show("Test average precision, mean and spread over the seeds", ("table, positive", *ways), shown)
    figures = {}
    for way, own in gains.items():
        names = (f"ranking_{way}_mean_gain", f"ranking_{way}_worst", f"ranking_{way}_lost")
        figures |= dict(zip(names, summarise(own), strict=True))
    harness.conclude(figures, chosen.json)
    return figures


if __name__ == "__main__":
    main()
