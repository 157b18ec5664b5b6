"""A ridge penalty for each of a thousand features by gradient, beside one penalty for all by grid search.

    python examples/hyperparameters.py [--short] [--out DIR]

Logistic regression where 20 of the features tell something. Both choose on the same validation samples, the search for
as long as the steps took, and then fit once more to training and validation samples together. Draws
hyperparameters.png: test loss while the penalties are learned, and the penalties that were found.
"""

import argparse
import time
from pathlib import Path

import matplotlib
import numpy as np
import optax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

import bilevax as bx

matplotlib.use("Agg")
from matplotlib import pyplot as plt

TELLING, START = 20, 0.1


def data(features, seed):
    """Training, validation and test data: rows and labels −1 or +1."""
    rng = np.random.default_rng(seed)
    truth = np.concatenate([rng.normal(size=TELLING), np.zeros(features - TELLING)])

    def part(n):
        rows = rng.normal(size=(n, features))
        return rows, np.where(rows @ truth + rng.logistic(size=n) > 0, 1.0, -1.0)

    return part(features // 2), part(3 * features), part(5000)


def grid_search(train, validation, seconds):
    """One penalty for all features: the best on validation data of as many as the time allows, in any order."""
    begun, tried = time.perf_counter(), {}
    for penalty in np.random.default_rng(0).permutation(np.geomspace(1e-3, 10, 100)):
        model = LogisticRegression(C=1 / (penalty * len(train[1])), max_iter=2000).fit(*train)
        tried[float(penalty)] = log_loss(validation[1], model.predict_proba(validation[0])[:, 1])
        if time.perf_counter() - begun > seconds:
            break
    return min(tried, key=tried.get), len(tried)


def refitted(penalties, train, validation, test):
    """Test loss and accuracy of the model with these penalties, fitted to training and validation samples together.

    A penalty belongs to a sum of losses over so many samples: with more of them it is less in the mean. ½ Σ p_k y_k² is
    ½‖z‖² with z_k = √p_k y_k.
    """
    rows, labels = (np.concatenate(parts) for parts in zip(train, validation, strict=True))
    scale = (penalties * len(train[1]) / len(labels)) ** -0.5
    model = LogisticRegression(C=1 / len(labels), max_iter=2000).fit(rows * scale, labels)
    margins = test[1] * model.decision_function(test[0] * scale)
    return float(np.mean(np.logaddexp(0, -margins))), float(np.mean(margins > 0))


def learned(train, validation, steps, seed, watch):
    """Penalties by gradient; `watch` sees them now and then."""
    problem = bx.problems.ridge(
        train_features=train[0], train_labels=train[1], validation_features=validation[0],
        validation_labels=validation[1], start=START, floor=1e-3, ceiling=3.0,
    )  # fmt: skip
    algorithm = bx.soba(lower_step=0.2, batch_size=None, upper_optimizer=optax.adam(0.03))
    seen = lambda problem, variables: watch(np.asarray(problem.lower.penalties(variables.x)))
    result = bx.solve(problem, algorithm, steps=steps, seed=seed, metrics=seen, record_every=max(1, steps // 20))
    return np.asarray(problem.lower.penalties(result.x)), result


def main():
    """Learn the penalties, search the grid for as long, and compare on test data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a tenth of the features and steps, one seed")
    parser.add_argument("--out", type=Path, default=Path("."), help="where hyperparameters.png goes")
    chosen = parser.parse_args()
    features, steps, seeds = (100, 400, 1) if chosen.short else (1000, 4000, 3)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    rows = {"gradient": [], "grid": []}
    for seed in range(seeds):
        train, validation, test = data(features, seed)
        watch = lambda penalties, parts=(train, validation, test): {"test loss": refitted(penalties, *parts)[0]}
        penalties, result = learned(train, validation, steps, seed, watch)
        single, tried = grid_search(train, validation, result.seconds)
        rows["gradient"].append(refitted(penalties, train, validation, test))
        rows["grid"].append(refitted(np.full(features, single), train, validation, test))
        told = {kind: f"{measured[-1][0]:.4f}, accuracy {measured[-1][1]:.1%}" for kind, measured in rows.items()}
        print(f"seed {seed}, {result.seconds:.1f} s: {features} penalties by gradient, test loss {told['gradient']}; "
              f"one penalty, the best of {tried}, {told['grid']}", flush=True)  # fmt: skip
        left.plot(result.trace["seconds"], result.trace["test loss"], "C0", label=None if seed else "by gradient")
        left.axhline(
            rows["grid"][-1][0], color="C3", linestyle="--", label=None if seed else "one penalty, grid search"
        )
    for kind, measured in rows.items():
        loss, accuracy = np.mean(measured, 0)
        print(f"{kind}: mean test loss {loss:.4f}, mean test accuracy {accuracy:.1%}")
    left.set(xlabel="seconds of steps", ylabel="test loss", title=f"{features} penalties, a line for each seed")
    left.legend()
    bins = np.geomspace(penalties.min(), penalties.max() * 1.01, 40)
    for part, label in (
        (penalties[TELLING:], "features that tell nothing"),
        (penalties[:TELLING], "features that tell"),
    ):
        right.hist(part, bins, weights=np.full(len(part), 1 / len(part)), alpha=0.7, label=label)
    right.set(xscale="log", xlabel="penalty", ylabel="share of them", title="learned penalties, last seed")
    right.legend()
    chosen.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(chosen.out / "hyperparameters.png", dpi=110)


if __name__ == "__main__":
    main()
