"""Cleaning mislabelled digits: ten tasks share one weight for each training sample."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import bilevax as bx
from bilevax.exact import evaluation
from bilevax.files import work_and_write

TRAIN, TRUSTED, CORRUPTED_SHARE, RIDGE = 1000, 100, 0.4, 1e-3
CLASSES = 10


@dataclass(frozen=True)
class Digits:
    """Training images with given and true labels, trusted images, test images."""

    train: np.ndarray
    train_labels: np.ndarray
    true_labels: np.ndarray
    trusted: np.ndarray
    trusted_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray

    @property
    def is_wrong(self) -> np.ndarray:
        """Which training labels are wrong."""
        return self.train_labels != self.true_labels


def load_digits(seed: int) -> Digits:
    """scikit-learn's digits; of the training labels a share is moved on to the next digit (9 to 0).

    A systematic mistake, because linear models shrug off labels that are wrong at random.
    """
    from sklearn.datasets import load_digits as load_bunch

    bunch, rng = load_bunch(), np.random.default_rng(seed)
    images, labels = bunch.data / 16.0, bunch.target
    train, trusted, test = np.split(rng.permutation(len(images)), [TRAIN, TRAIN + TRUSTED])
    wrong = rng.random(TRAIN) < CORRUPTED_SHARE
    train_labels = np.where(wrong, (labels[train] + 1) % CLASSES, labels[train])
    return Digits(
        images[train], train_labels, labels[train], images[trusted], labels[trusted], images[test], labels[test]
    )


def _one_against_rest(labels: np.ndarray) -> np.ndarray:
    return np.where(labels[:, None] == np.arange(CLASSES)[None, :], 1.0, -1.0)


def build_problem(digits: Digits, labels: np.ndarray) -> bx.Problem:
    """One digit-against-rest classifier for each task; x weights the training samples."""
    return bx.problems.reweighting(
        train_features=digits.train,
        train_labels=_one_against_rest(labels),
        trusted_features=digits.trusted,
        trusted_labels=_one_against_rest(digits.trusted_labels),
        ridge=RIDGE,
    )


def accuracy(digits: Digits, models: Any) -> float:
    """The share of test images whose highest of the ten scores is the right one."""
    scores = np.column_stack([digits.test, np.ones(len(digits.test))]) @ np.asarray(models).T
    return float(np.mean(scores.argmax(1) == digits.test_labels))


def _trusted_only(digits: Digits) -> float:
    """The same ten models trained on the trusted images alone."""
    alone = Digits(
        digits.trusted, digits.trusted_labels, digits.trusted_labels, digits.trusted, digits.trusted_labels,
        digits.test, digits.test_labels,
    )  # fmt: skip
    problem = build_problem(alone, alone.true_labels)
    return accuracy(digits, evaluation.exact(problem, problem.x0).y)


@dataclass(frozen=True)
class CleaningResult:
    """What the demo found: figures by name, the run, and how suspicious each training label is."""

    figures: dict[str, float]
    result: bx.Result
    digits: Digits
    suspicion: np.ndarray


def clean(steps: int = 1500, seed: int = 0) -> CleaningResult:
    """Learn the weights with RSVRB, five of the ten tasks a step, and see what they are worth."""
    from sklearn.metrics import roc_auc_score

    digits = load_digits(seed)
    problem = build_problem(digits, digits.train_labels)
    with_truth = build_problem(digits, digits.true_labels)
    algorithm = bx.rsvrb(upper_step=300.0, lower_step=0.5, mixing=0.05, tasks_per_step=5, batch_size=64)
    result = bx.solve(problem, algorithm, steps=steps, seed=seed)
    before, after = (evaluation.exact(problem, x) for x in (problem.x0, result.x))
    suspicion = -np.asarray(result.x)
    wrong = digits.is_wrong
    worst = np.argsort(-suspicion)[: wrong.sum()]
    figures = {
        "F before": float(before.objective),
        "F after": float(after.objective),
        "test accuracy, labels as given": accuracy(digits, before.y),
        "test accuracy, trusted images alone": _trusted_only(digits),
        "test accuracy, cleaned by bilevax": accuracy(digits, after.y),
        "test accuracy, true labels": accuracy(digits, evaluation.exact(with_truth, problem.x0).y),
        "AUROC of low weight for wrong labels": float(roc_auc_score(wrong, suspicion)),
        f"precision at k = {wrong.sum()} wrong labels": float(wrong[worst].mean()),
        "samples drawn": float(result.cost.samples),
        "seconds": result.seconds,
    }
    return CleaningResult(figures, result, digits, suspicion)


def draw_picture(outcome: CleaningResult, path: Path) -> None:
    """The curve of F, the weights of right and wrong labels, and the most suspicious images."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    trace, digits = outcome.result.trace, outcome.digits
    figure = plt.figure(figsize=(12, 8.5), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[1, 1.25])
    above, below = parts
    curve, weights = above.subplots(1, 2)
    curve.semilogy(trace["samples"], trace["objective"], marker="o", markersize=3)
    curve.set(title="Exact objective F(x) on the trusted images", xlabel="samples drawn", ylabel="F(x)")
    values = 1 / (1 + np.exp(outcome.suspicion))
    bins = np.linspace(0, 1, 41)
    weights.hist(values[~digits.is_wrong], bins, alpha=0.7, label="label is right", color="tab:blue")
    weights.hist(values[digits.is_wrong], bins, alpha=0.7, label="label is wrong", color="tab:red")
    weights.set(title="Learned weights of the training samples", xlabel="weight", ylabel="samples")
    weights.legend()
    below.suptitle("The 40 most suspicious training images: given label → true label")
    axes = below.subplots(4, 10)
    for axis, k in zip(axes.ravel(), np.argsort(-outcome.suspicion)[:40], strict=True):
        axis.imshow(digits.train[k].reshape(8, 8), cmap="gray_r")
        wrong = digits.is_wrong[k]
        color = "tab:red" if wrong else "tab:blue"
        axis.set_title(f"{digits.train_labels[k]} → {digits.true_labels[k]}", color=color, fontsize=10)
        axis.set_axis_off()
    figure.savefig(path, dpi=110)
    plt.close(figure)


PICTURE, TRACE = "digits.png", "trace.json"


def run(
    out: Path, steps: int, seed: int, tell: Callable[[CleaningResult], None] = lambda outcome: None
) -> CleaningResult:
    """Clean, and write the picture and the trace into `out`, both or none (`bilevax.files.work_and_write`).

    `tell` hears what was found before anything is written.
    """

    def find() -> CleaningResult:
        outcome = clean(steps, seed)
        tell(outcome)
        return outcome

    return work_and_write(out, (PICTURE, TRACE), find, _write)


def _write(outcome: CleaningResult, folder: Path) -> None:
    outcome.result.trace.save(folder / TRACE)
    draw_picture(outcome, folder / PICTURE)
