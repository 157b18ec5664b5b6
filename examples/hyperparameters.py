"""A ridge penalty for each of a thousand features by gradient, beside one penalty for all by grid search.

    python examples/hyperparameters.py [--short] [--out DIR]

Logistic regression on data of which a few features tell anything. Draws hyperparameters.png: test loss of both against
seconds, and the penalties that were found.
"""

import argparse
import time
from pathlib import Path

import matplotlib
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss

import bilevax as bx
from bilevax import metrics

matplotlib.use("Agg")
from matplotlib import pyplot as plt

TELLING, SAMPLES = 20, 400


def data(features, seed=0):
    """Training, validation and test data: rows and labels −1 or +1."""
    rng = np.random.default_rng(seed)
    truth = np.concatenate([rng.normal(size=TELLING), np.zeros(features - TELLING)])

    def part(n):
        rows = rng.normal(size=(n, features))
        return rows, np.where(rows @ truth + rng.logistic(size=n) > 0, 1.0, -1.0)

    return part(SAMPLES), part(SAMPLES), part(4000)


def grid_search(train, validation, test, seconds):
    """One penalty for all features: the best on validation data of as many as the time allows, from a fine grid."""
    begun, best, tried = time.perf_counter(), (np.inf, None), 0
    for ridge in np.geomspace(1e-4, 1, 200)[np.random.default_rng(0).permutation(200)]:
        model = LogisticRegression(C=1 / (ridge * SAMPLES), max_iter=2000).fit(*train)
        best = min(best, (log_loss(validation[1], model.predict_proba(validation[0])[:, 1]), model), key=lambda t: t[0])
        tried += 1
        if time.perf_counter() - begun > seconds:
            break
    return best[1], tried


def main():
    """Learn the penalties, search the grid for as long, and compare on test data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a tenth of the features and steps")
    parser.add_argument("--out", type=Path, default=Path("."), help="where hyperparameters.png goes")
    chosen = parser.parse_args()
    features, steps = (100, 300) if chosen.short else (1000, 6000)
    train, validation, test = data(features)
    problem = bx.problems.ridge(
        train_features=train[0], train_labels=train[1], validation_features=validation[0],
        validation_labels=validation[1], start=0.03, floor=1e-3,
    )  # fmt: skip

    def judged(model):
        scores = test[0] @ np.asarray(model)[:-1] + np.asarray(model)[-1]
        return float(np.mean(np.logaddexp(0, -test[1] * scores))), accuracy_score(test[1], np.sign(scores))

    def losses(problem, variables):
        exact = metrics.exact(problem, variables.x, variables.y)
        loss, accuracy = judged(exact.y[0])
        return {"objective": exact.objective, "test loss": loss, "test accuracy": accuracy}

    algorithm = bx.soba(upper_step=20.0, lower_step=0.3, batch_size=64, initialization="theorem")
    result = bx.solve(problem, algorithm, steps=steps, metrics=losses)
    single, tried = grid_search(train, validation, test, result.seconds)
    own = judged(np.append(single.coef_[0], single.intercept_[0]))
    trace = result.trace
    print(f"{features} penalties by gradient, {result.seconds:.1f} s: validation loss {trace['objective'][-1]:.4f}, "
          f"test loss {trace['test loss'][-1]:.4f}, test accuracy {trace['test accuracy'][-1]:.1%}")  # fmt: skip
    print(f"one penalty by grid search, {tried} tried in that time: test loss {own[0]:.4f}, test accuracy {own[1]:.1%}")
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    left.plot(trace["seconds"], trace["test loss"], label=f"{features} penalties, by gradient")
    left.axhline(own[0], color="tab:red", linestyle="--", label=f"one penalty, best of {tried}")
    left.set(xlabel="seconds of steps", ylabel="test loss")
    left.legend()
    penalties = np.exp(np.asarray(result.x))
    bins = np.geomspace(penalties.min(), penalties.max() * 1.01, 40)
    right.hist(penalties[TELLING:], bins, density=True, alpha=0.7, label="features that tell nothing")
    right.hist(penalties[:TELLING], bins, density=True, alpha=0.7, label="features that tell")
    right.set(xscale="log", xlabel="penalty", ylabel="density", title="Learned penalties")
    right.legend()
    chosen.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(chosen.out / "hyperparameters.png", dpi=110)


if __name__ == "__main__":
    main()
