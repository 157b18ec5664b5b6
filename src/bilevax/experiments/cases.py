"""The problems of the paper's experiments: weights on the samples of a data set, learned for one or many linear models.

    D-m: min_x (1/m) Σ_i mean over validation of ℓ(a_jᵀy_i*(x)/σ_i, b_j),
         y_i*(x) = argmin_y mean over training of s(x_j) ℓ(a_jᵀy/σ_i, b_j) + λ/2 ‖y‖²

with the logistic loss ℓ. One lower problem: σ = 1, and the whole test part is the validation data. Many: σ_i uniform on
[1, 11] and fixed, and 100 points of the test part.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bilevax import arguments, datasets
from bilevax.datasets import Dataset
from bilevax.problem import Problem
from bilevax.problems import reweighting

RIDGE = 1e-2  # the paper does not say which λ it used
VALIDATION_POINTS = 100
HELD_OUT = 5  # every fifth row, where a user's file comes without validation data
EXCERPT = 24  # temperatures on which settings are compared while tuning
REMARKS = {
    "w8a": "All of w8a.t lies inside w8a: what is called validation loss here is a loss on training points.",
}


@dataclass(frozen=True)
class Case:
    """Data set D with m lower problems.

    `data` is a name of `bilevax.datasets.REGISTRY`, or a LIBSVM or CSV file; `validation` a file of the same kind, by
    default the test part, or every fifth row of a file. `label` names the label's column of a CSV file.
    """

    data: str
    tasks: int = 1
    validation: str | None = None
    label: str | None = None
    weights: str = "sigmoid"

    def __post_init__(self) -> None:
        arguments.count("tasks", self.tasks)

    @property
    def name(self) -> str:
        """D, or D-m as the paper writes it."""
        stem = self.data if self.data in datasets.REGISTRY else Path(self.data).name
        return stem if self.tasks == 1 else f"{stem}-{self.tasks}"

    def problem(self) -> Problem:
        """The problem with all its tasks."""
        return _problem(self, None)

    def excerpt(self) -> Problem:
        """The problem with a few evenly spread tasks: its F is a quick stand-in for the F of all."""
        return _problem(self, EXCERPT)

    def facts(self) -> dict[str, Any]:
        """What a reader of a figure should know of the problem."""
        train, validation = parts(self)
        return {
            "training samples": len(train.labels), "features": train.features.shape[1], "tasks": self.tasks,
            "validation samples": len(validation.labels), "ridge": RIDGE, "weights": self.weights,
            "temperatures": "1" if self.tasks == 1 else "uniform on [1, 11]",
        }  # fmt: skip

    def content(self) -> str:
        """A digest of the rows, so that runs on other rows under the same name are other runs."""
        train, validation = parts(self)
        return f"{train.digest()[:12]} {validation.digest()[:12]}"

    def remark(self) -> str | None:
        """What is odd about the data, if anything is."""
        return REMARKS.get(self.data)


def _read(path: str, label: str | None) -> Dataset:
    """A LIBSVM or CSV file, by its name."""
    if ".csv" in map(str.lower, Path(path).suffixes):
        return datasets.read_csv(path, label=label)
    if label is not None:
        raise ValueError(f"label names a column of a CSV file; {path} is read as LIBSVM text, which has none.")
    return datasets.read_libsvm(path)


def _rows(given: Dataset, chosen: Any) -> Dataset:
    return Dataset(given.name, given.features[chosen], given.labels[chosen])


def _widened(given: Dataset, features: int) -> Dataset:
    """The same rows with more columns: a LIBSVM file does not say how many there are."""
    wide = given.features.copy()
    wide.resize((wide.shape[0], features))
    return Dataset(given.name, wide, given.labels)


@lru_cache(maxsize=4)
def parts(case: Case) -> tuple[Dataset, Dataset]:
    """Training and validation data of a case."""
    known = case.data in datasets.REGISTRY
    if not known and not Path(case.data).is_file():
        names = ", ".join(name for name in datasets.REGISTRY if not name.endswith(".t"))
        raise ValueError(f"data must be one of {names}, or a LIBSVM or CSV file; got {case.data!r}.")
    whole = datasets.load(case.data) if known else _read(case.data, case.label)
    if case.validation is not None:
        train, validation = whole, _read(case.validation, case.label)
    elif known:
        train, validation = whole, datasets.load(f"{case.data}.t")
    else:
        held_out = np.arange(len(whole.labels)) % HELD_OUT == HELD_OUT - 1
        train, validation = _rows(whole, ~held_out), _rows(whole, held_out)
    width = max(train.features.shape[1], validation.features.shape[1])
    train, validation = _widened(train, width), _widened(validation, width)
    if case.tasks > 1:
        chosen = np.random.default_rng(0).permutation(len(validation.labels))[:VALIDATION_POINTS]
        validation = _rows(validation, chosen)
    return train, validation


def temperatures(tasks: int) -> np.ndarray:
    """σ_i, uniform on [1, 11] and fixed; one task has σ = 1."""
    return np.ones(1) if tasks == 1 else np.random.default_rng(1).uniform(1, 11, tasks)


def _problem(case: Case, at_most: int | None) -> Problem:
    train, validation = parts(case)
    sigma = temperatures(case.tasks)
    if at_most is not None and at_most < len(sigma):
        sigma = np.quantile(sigma, (np.arange(at_most) + 0.5) / at_most)
    return reweighting(
        train_features=train.features, train_labels=train.labels, trusted_features=validation.features,
        trusted_labels=validation.labels, temperatures=sigma, ridge=RIDGE, weights=case.weights,
    )  # fmt: skip
