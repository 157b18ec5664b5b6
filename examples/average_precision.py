"""Rare positives: models trained for average precision beside logistic regression, on w8a and a8a.

    python examples/average_precision.py [--short] [--out DIR]

For each seed 30 % of the rows are for testing; every model chooses among four settings on a fifth of the others and is
then fitted to all of them. Draws average_precision.png: test average precision of every model and seed, and precision
against recall of the last seed. The short mode is on made-up data.
"""

import argparse
import time
import warnings
from pathlib import Path

import matplotlib
import numpy as np
from sklearn.datasets import make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, precision_recall_curve
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

import bilevax as bx
from bilevax.models import AveragePrecisionClassifier

matplotlib.use("Agg")
from matplotlib import pyplot as plt

HIDDEN = (32,)


def logistic(**options):
    """Logistic regression with four strengths of its ridge."""
    return [LogisticRegression(C=C, max_iter=2000, **options) for C in (0.1, 1, 10, 100)]


def network():
    """scikit-learn's network of that size on the logistic loss, with four strengths of its ridge."""
    return [MLPClassifier(HIDDEN, activation="tanh", alpha=alpha, max_iter=10, random_state=0)
            for alpha in (1e-5, 1e-4, 1e-3, 1e-2)]  # fmt: skip


def precise(steps, **options):
    """Two strengths of the ridge, two widths of the surrogate; the training alone, nothing held out inside of it."""
    plain = {"steps": steps, "folds": 1, "standardize": False, "random_state": 0}
    return [AveragePrecisionClassifier(C=C, width=width, **plain, **options)
            for C in (1, 10) for width in (0.3, 1.0)]  # fmt: skip


def models(steps):
    """Each kind of model with its settings."""
    return {
        "logistic": logistic(),
        "logistic, classes weighted": logistic(class_weight="balanced"),
        "logistic, network": network(),
        "average precision": precise(steps),
        "average precision, network": precise(steps, hidden=HIDDEN, learning_rate=1e-3),
    }


def data(short):
    """Rows and labels of each set."""
    if short:
        rows, labels = make_classification(1200, 10, weights=[0.9], random_state=0)
        return {"made up": (rows, 2 * labels - 1)}
    loaded = {name: bx.datasets.load(name) for name in ("w8a", "a8a")}
    return {name: (held.features, np.asarray(held.labels).reshape(-1)) for name, held in loaded.items()}


def scores(model, rows):
    """What a model ranks rows by."""
    return model.predict_proba(rows)[:, 1]


def judged(settings, train, test, seed):
    """The best setting fitted to all training rows: its scores on the test rows, and the seconds of that fit."""
    fit_rows, check_rows, fit_labels, check_labels = train_test_split(
        *train, test_size=0.2, stratify=train[1], random_state=seed
    )
    score = lambda model: average_precision_score(check_labels, scores(model.fit(fit_rows, fit_labels), check_rows))
    best = max(settings, key=score)
    begun = time.perf_counter()
    best.fit(*train)
    return scores(best, test), time.perf_counter() - begun


def main():
    """Fit all models to all data with all seeds; print the table, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="made-up data, one seed, few steps")
    parser.add_argument("--out", type=Path, default=Path("."), help="where average_precision.png goes")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)  # the network stops after ten epochs, as it should
    seeds, steps = (1, 50) if chosen.short else (5, 2000)
    sets = data(chosen.short)
    figure, axes = plt.subplots(len(sets), 2, figsize=(11, 4 * len(sets)), layout="constrained", squeeze=False)
    print("| data | positive | model | test average precision | seconds of a fit |\n|---|---|---|---|---|")
    for (left, right), (name, (rows, labels)) in zip(axes, sets.items(), strict=True):
        for place, (kind, settings) in enumerate(models(steps).items()):
            found, seconds = [], []
            for seed in range(seeds):
                train_rows, new_rows, train_labels, new_labels = train_test_split(
                    rows, labels, test_size=0.3, stratify=labels, random_state=seed
                )
                ranked, took = judged(settings, (train_rows, train_labels), new_rows, seed)
                found.append(average_precision_score(new_labels, ranked))
                seconds.append(took)
            print(f"| {name} | {np.mean(labels > 0):.0%} | {kind} | {np.mean(found):.4f} ± {np.std(found):.4f} | "
                  f"{np.mean(seconds):.1f} |", flush=True)  # fmt: skip
            left.plot(found, [place] * seeds, "o", label=kind)
            precision, recall, _ = precision_recall_curve(new_labels, ranked)
            right.plot(recall, precision, label=kind)
        left.set(yticks=range(5), yticklabels=models(steps), xlabel="test average precision, a dot a seed", title=name)
        right.set(xlabel="recall", ylabel="precision", title=f"{name}, last seed")
        right.legend(fontsize=8)
    chosen.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(chosen.out / "average_precision.png", dpi=110)


if __name__ == "__main__":
    main()
