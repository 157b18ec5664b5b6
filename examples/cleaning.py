"""Wrong labels in a table, found from a few trusted rows: what `bilevax clean` does, measured where the truth is known.

    python examples/cleaning.py [--short] [--out DIR]

Measurements of breast tumours (scikit-learn's copy of the Wisconsin data) as a CSV file; a fifth of all its labels are
changed, or four in ten of the malignant ones; 60 other rows are trusted. The same from a shell, with the files that
this writes:

    bilevax clean DIR/table.csv --label diagnosis --trusted DIR/trusted.csv --out DIR/cleaned

Draws cleaning.png: how many of the wrong labels are found by looking at the most suspicious rows first, beside the
order of a logistic regression's own errors (each row judged by a model of the others), and the accuracy on other rows.
"""

import argparse
from pathlib import Path

import joblib
import matplotlib
import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bilevax.cleaning import clean_table

matplotlib.use("Agg")
from matplotlib import pyplot as plt

TRUSTED, TEST = 60, 150
WRONG = {"a fifth of all labels": {"benign": 0.2, "malignant": 0.2}, "four in ten malignant ones": {"malignant": 0.4}}


def tables(folder, shares, seed):
    """Write both tables; give the rows for testing, and which labels of the first table are wrong."""
    held, rng = load_breast_cancer(as_frame=True), np.random.default_rng(seed)
    rows = held.data.assign(diagnosis=np.where(held.target == 1, "benign", "malignant"))
    rows = rows.iloc[rng.permutation(len(rows))].reset_index(drop=True)
    trusted, test, table = rows[:TRUSTED], rows[TRUSTED : TRUSTED + TEST], rows[TRUSTED + TEST :]
    wrong = rng.random(len(table)) < table.diagnosis.map(shares).fillna(0.0).to_numpy()
    other = table.diagnosis.map({"benign": "malignant", "malignant": "benign"})
    folder.mkdir(parents=True, exist_ok=True)
    table.assign(diagnosis=table.diagnosis.where(~wrong, other)).to_csv(folder / "table.csv", index=False)
    trusted.to_csv(folder / "trusted.csv", index=False)
    return test, wrong


def split(rows):
    """Features and labels."""
    return rows.drop(columns="diagnosis"), rows.diagnosis


def plain():
    """Logistic regression that believes every label."""
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))


def found(order, wrong):
    """The share of wrong labels among the first rows of an order, for each number of rows."""
    return np.cumsum(wrong[order]) / wrong.sum()


def study(folder, shares, seed):
    """One seed: the two curves, and the accuracies on untouched rows."""
    test, wrong = tables(folder, shares, seed)
    written = clean_table(folder / "table.csv", "diagnosis", folder / "trusted.csv", folder / "cleaned", seed=seed)
    cleaned, model = pd.read_csv(written[0]), joblib.load(written[1])
    table, trusted = (pd.read_csv(folder / name) for name in ("table.csv", "trusted.csv"))
    features, labels = split(table)
    believed = cross_val_predict(plain(), features, labels, method="predict_proba", cv=10)
    own = believed[np.arange(len(labels)), (labels == "malignant").astype(int)]  # classes are in sorted order
    curves = {
        "bilevax clean": found(np.argsort(cleaned.suspicion_rank.to_numpy()), wrong),
        "a logistic regression's errors": found(np.argsort(own), wrong),
    }
    accuracies = {
        "all labels believed": plain().fit(features, labels).score(*split(test)),
        "trusted rows alone": plain().fit(*split(trusted)).score(*split(test)),
        "bilevax clean": float(np.mean(model.predict(split(test)[0]) == test.diagnosis)),
    }
    return curves, accuracies, wrong


def main():
    """Several seeds; print what was found, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="one seed")
    parser.add_argument("--out", type=Path, default=Path("."), help="where the tables and cleaning.png go")
    chosen = parser.parse_args()
    seeds = 1 if chosen.short else 5
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.2), layout="constrained")
    for axis, marker, (kind, shares) in zip(axes, "os", WRONG.items(), strict=False):
        studies = [study(chosen.out, shares, seed) for seed in range(seeds)]
        print(f"{kind} wrong")
        rows = len(studies[0][2])
        for name in studies[0][0]:
            curve = np.mean([curves[name] for curves, *_ in studies], axis=0)
            as_many = np.mean([curves[name][wrong.sum() - 1] for curves, _, wrong in studies])
            print(f"  {name}: {as_many:.1%} of the wrong labels are among as many most suspicious rows")
            axis.plot(np.arange(1, rows + 1) / rows, curve, label=name)
        axis.plot([0, 1], [0, 1], color="gray", linestyle=":", label="in any order")
        axis.set(xlabel="share of rows looked at", ylabel="share of wrong labels found", title=f"{kind} wrong")
        axis.legend()
        for place, name in enumerate(studies[0][1]):
            values = [accuracies[name] for _, accuracies, _ in studies]
            print(f"  {name}: accuracy {np.mean(values):.1%} ± {np.std(values):.1%} on {TEST} other rows", flush=True)
            axes[2].plot(
                values,
                [place + 0.15 * (marker == "s")] * seeds,
                marker,
                color=f"C{place}",
                label=None if place else kind,
            )
    axes[2].set(yticks=range(3), yticklabels=studies[0][1], xlabel="accuracy on other rows, a dot or square a seed")
    axes[2].legend()
    figure.savefig(chosen.out / "cleaning.png", dpi=110)


if __name__ == "__main__":
    main()
