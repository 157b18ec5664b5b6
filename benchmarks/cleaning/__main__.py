"""Wrong labels found by `TrustedReweighter`, beside cleanlab, the trusted rows alone and plain out-of-fold loss.

    python -m benchmarks.cleaning [--half judge|develop|both] [--tables wine,linear-8] [--trusted 0,50,300,1000]
                                  [--seeds 3] [--short] [--json FILE] [--keep FOLDER]
    python -m benchmarks.cleaning --large
    python -m benchmarks.cleaning --free [--half develop|judge|both]

Each table of `tables.py` gets wrong labels in four ways; so many other rows are trusted (not more than a third of the
table). All sides stand on the same out-of-fold probabilities, those that `TrustedReweighter` chose. cleanlab ranks by
its self-confidence score (the probability of the given label; the package itself is asked where it is installed, extra
`peers`). Trusted alone: the better of a linear model and of boosted trees on the trusted rows, by their own folds. For
each: the area under the ROC curve of the ranking, and precision at k, the number of wrong labels. At the end a model
of the same kind is trained on all labels as given, and on those that `TrustedReweighter` suggests; their accuracy on
2,000 other rows stands beside. With `--keep` what was measured lies in a folder, and is not measured again. The last
lines are means over the tables of the half, with 50 or more trusted rows:

- `auroc_gain`, `precision_gain`: ours less cleanlab's; `one_direction_gain`: the former for noise in one direction.
- `worst`: ours less the better of cleanlab and trusted alone, AUROC, the worst table in the mean over all else;
  `worst_case`: the same for the worst table, noise and number of trusted rows, in the mean over seeds.
- `without_trusted`: largest difference to out-of-fold loss without trusted rows.
- `accuracy_gain`: of the model that was trained on suggested labels, mean and worst table.

With `--large` one fit of 100,000 rows with 48 columns, five classes and 300 trusted rows is measured: its seconds, and
the most memory that the process had. With `--free` ours stands beside a weight of its own for each row, learned by the
bilevel problem of `bilevax.problems.reweighting` (linear models, one for each class), with as many trusted rows as a
table has (up to 1,000): `free_gain` is the AUROC of its ranking less ours, with the best of three ridges, chosen by the
truth; `free_best` is that of the table where it does best.
"""

import collections
import itertools
import json
import resource
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

import bilevax as bx
from benchmarks import harness
from benchmarks.cleaning.tables import DEVELOP, JUDGE, NOISES
from bilevax.files import write_whole
from bilevax.models import TrustedReweighter
from bilevax.models.opinions import LEAST_FOR_TREES, linear_models, trees, trust_alone

LARGE, SIZES = 6000, (3000, 1000, 2000)  # rows of a generated table: to clean, to trust at most, to judge models by
SIDES = ("ours", "cleanlab", "trusted")
RIDGES = (1e-3, 1e-2, 1e-1)  # of the linear models that learn a weight for each row


def split(table, noise, seed):
    """Rows to clean with given and right labels, rows that can be trusted, and rows to judge models by."""
    X, y = table(seed)
    rng = np.random.default_rng(100 + seed)
    given = NOISES[noise](rng, X, y, int(y.max()) + 1)
    sure, other = SIZES[1:] if len(y) >= LARGE else (len(y) // 3, len(y) // 5)
    order = rng.permutation(len(y))
    dirty, trusted, test = np.split(order, [len(y) - sure - other, len(y) - other])
    return (X[dirty], given[dirty], y[dirty]), (X[trusted], y[trusted]), (X[test], y[test])


def rank_by_cleanlab(given, shares):
    """Self-confidence: the smaller, the more suspicious."""
    try:
        from cleanlab.rank import get_self_confidence_for_each_label
    except ImportError:
        return shares[np.arange(len(given)), given]
    return get_self_confidence_for_each_label(given, shares)


def judge(weights, wrong):
    """AUROC and precision at k of a ranking, the smallest weights first."""
    if wrong.all() or not wrong.any():
        return None
    first = np.argsort(weights, kind="stable")[: wrong.sum()]
    return float(roc_auc_score(wrong, -weights)), float(wrong[first].mean())


def measure(table, noise, number, seed):
    """What the sides reach; None where the table has too few rows."""
    (X, given, y), (sure, labels), (test, truth) = split(table, noise, seed)
    if number > len(labels):
        return None
    sure, labels = sure[:number], labels[:number]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trusted = (sure, labels) if number else ()
        ours = TrustedReweighter(random_state=seed).fit(X, given, *trusted)
        wrong = y != given
        found = {
            "ours": judge(ours.weights_, wrong),
            "cleanlab": judge(rank_by_cleanlab(given, ours.out_of_fold_), wrong),
            "loss": judge(ours.out_of_fold_[np.arange(len(y)), given], wrong),
        }
        if number:
            models = linear_models(False) + [trees(labels, seed)] * (number >= LEAST_FOR_TREES)
            alone = trust_alone(models, X, sure, labels, int(max(y.max(), given.max())) + 1)[0].rows
            found["trusted"] = judge(alone[np.arange(len(y)), given], wrong)
        plain = clone(ours.estimator_).fit(np.vstack([X, sure]), np.concatenate([given, labels]))
        found["accuracy"] = [float(np.mean(plain.predict(test) == truth)), float(np.mean(ours.predict(test) == truth))]
    return found


def measure_all(tables, options):
    """What was measured, by table, noise, number of trusted rows and seed."""
    folder = options.keep and Path(options.keep)
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, noise, number, seed in itertools.product(tables, options.noises, options.trusted, range(options.seeds)):
        path = folder and folder / f"{name}.{noise}.{number}.{seed}.json"
        if path and path.exists():
            result = json.loads(path.read_text())
        else:
            result = measure(tables[name], noise, number, seed)
            if path:
                write_whole(path, json.dumps(result).encode())
        if result:
            found[name, noise, number, seed] = result
            shown = "  ".join(f"{side} {result[side][0]:.3f}" for side in SIDES if result.get(side))
            print(f"{name} {noise} {number} trusted, seed {seed}: {shown}", flush=True)
    return found


def mean_over_seeds(found):
    """Means by table, noise and number of trusted rows: AUROC and precision of the sides."""
    parts = collections.defaultdict(list)
    for (name, noise, number, _), result in found.items():
        if number and all(result[side] for side in SIDES):
            parts[name, noise, number].append([result[side] for side in SIDES])
    return {key: np.mean(values, axis=0) for key, values in parts.items()}


def show(means):
    """A table of all cases."""
    rows = [(*key, *(f"{auroc:.3f} / {precision:.3f}" for auroc, precision in own)) for key, own in means.items()]
    harness.show("AUROC / precision at k of wrong labels", ("table", "noise", "trusted", *SIDES), rows)


def summarise(found):
    """The last lines."""
    means = mean_over_seeds(found)
    tables = sorted({name for name, *_ in means})
    of_table = {name: np.mean([v for key, v in means.items() if key[0] == name], axis=0) for name in tables}
    all_of = np.mean(list(of_table.values()), axis=0)
    one_way = np.mean([v for key, v in means.items() if key[1] == "one_direction"], axis=0)
    less = lambda values: values[0, 0] - max(values[1, 0], values[2, 0])
    by_table, by_case = {k: less(v) for k, v in of_table.items()}, {k: less(v) for k, v in means.items()}
    accuracy = collections.defaultdict(list)
    for (name, *_), result in found.items():
        accuracy[name].append(result["accuracy"][1] - result["accuracy"][0])
    gains = {name: float(np.mean(values)) for name, values in accuracy.items()}
    without = [abs(r["ours"][0] - r["loss"][0]) for (_, _, number, _), r in found.items() if not number and r["ours"]]
    return {
        "auroc_gain": all_of[0, 0] - all_of[1, 0], "precision_gain": all_of[0, 1] - all_of[1, 1],
        "one_direction_gain": one_way[0, 0] - one_way[1, 0],
        "worst": min(by_table.values()), "worst_table": min(by_table, key=by_table.get),
        "worst_case": min(by_case.values()), "worst_case_of": " ".join(map(str, min(by_case, key=by_case.get))),
        "without_trusted": max(without, default=0.0),
        "accuracy_gain": float(np.mean(list(gains.values()))), "accuracy_worst": min(gains.values()),
    }  # fmt: skip


def rank_by_free_weights(X, given, sure, labels, ridge):
    """The weight of each row, so that linear models of all classes do well on trusted rows."""
    scaler, classes = StandardScaler().fit(X), np.unique(given)
    signs = lambda y: np.where(y[:, None] == classes, 1.0, -1.0)
    problem = bx.problems.reweighting(
        train_features=scaler.transform(X), train_labels=signs(given), trusted_features=scaler.transform(sure),
        trusted_labels=signs(labels), ridge=ridge,
    )  # fmt: skip
    return np.asarray(bx.solve(problem, seconds=5, metrics=None, progress=False).x)


def measure_free(tables, noises, seeds):
    """AUROC of free weights less ours, by table."""
    gains = collections.defaultdict(list)
    for name, noise, seed in itertools.product(tables, noises, range(seeds)):
        (X, given, y), (sure, labels), _ = split(tables[name], noise, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours = judge(TrustedReweighter(random_state=seed).fit(X, given, sure, labels).weights_, y != given)
            if ours is None:
                continue
            free = [judge(rank_by_free_weights(X, given, sure, labels, ridge), y != given) for ridge in RIDGES]
        best = max(auroc for auroc, _ in free)
        gains[name].append(best - ours[0])
        print(f"{name} {noise} {len(labels)} trusted, seed {seed}: ours {ours[0]:.3f}  free {best:.3f}", flush=True)
    means = {name: float(np.mean(own)) for name, own in gains.items()}
    return {
        "free_gain": float(np.mean(list(means.values()))), "free_best": max(means.values()),
        "free_best_of": max(means, key=means.__getitem__),
    }  # fmt: skip


def measure_large(rows):
    """Seconds and memory of one fit; a fifth of the labels of one class are wrong."""
    X, y = make_classification(rows + 300, 48, n_informative=12, n_redundant=4, n_classes=5, random_state=0)
    given = np.where((y == 1) & (np.random.default_rng(0).random(len(y)) < 0.2), 2, y)
    begun = time.perf_counter()
    model = TrustedReweighter(random_state=0, verbose=True).fit(X[300:], given[300:], X[:300], y[:300])
    seconds = time.perf_counter() - begun
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    auroc, _ = judge(model.weights_, (given != y)[300:])
    return {"large_rows": rows, "large_seconds": seconds, "large_gigabytes": most, "large_auroc": auroc}


def main(arguments=None):
    """Measure, show, and return the last lines as a dictionary."""
    parser = harness.options(__doc__)
    parser.add_argument("--half", choices=["judge", "develop", "both"], default="judge")
    parser.add_argument("--tables", type=lambda text: text.split(","))
    parser.add_argument(
        "--trusted", type=lambda text: [int(part) for part in text.split(",")], default=[0, 50, 300, 1000]
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="a folder for what was measured")
    parser.add_argument("--large", action="store_true", help="one fit of 100,000 rows instead")
    parser.add_argument("--free", action="store_true", help="beside a weight of its own for each row instead")
    options = parser.parse_args(arguments)
    if options.large:
        lines = measure_large(1000 if options.short else 100_000)
        harness.conclude(lines, options.json)
        return lines
    tables = {"judge": JUDGE, "develop": DEVELOP, "both": DEVELOP | JUDGE}[options.half]
    options.noises = list(NOISES)
    if options.short:
        tables, options.noises = {"iris": DEVELOP["iris"]}, ["one_direction"]
        options.trusted, options.seeds = [0, 50], 1
    if options.tables:
        unknown = [name for name in options.tables if name not in tables]
        if unknown:
            parser.error(f"--tables must be some of {', '.join(tables)}; got {', '.join(unknown)}.")
        tables = {name: tables[name] for name in options.tables}
    if options.free:
        lines = measure_free(tables, options.noises, options.seeds)
        harness.conclude(lines, None)
        return lines
    found = measure_all(tables, options)
    show(mean_over_seeds(found))
    lines = summarise(found)
    harness.conclude(lines, None)
    if options.json:
        listed = [[*key, result] for key, result in found.items()]
        write_whole(Path(options.json), json.dumps({"measured": listed, **lines}).encode())
    return lines


if __name__ == "__main__":
    main()
