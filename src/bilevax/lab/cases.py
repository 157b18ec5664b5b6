"""The problems of the paper's experiments: weights on the samples of a data set, learned for one or many linear models.

    D-m: min_x (1/m) Σ_i mean over validation of ℓ(a_jᵀy_i*(x)/σ_i, b_j),
         y_i*(x) = argmin_y mean over training of s(x_j) ℓ(a_jᵀy/σ_i, b_j) + λ/2 ‖y‖²

with the logistic loss ℓ. One lower problem: σ = 1, and the whole test part is the validation data. Many: σ_i uniform on
[1, 11] and fixed, and 100 points of the test part.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bilevax import arguments, datasets
from bilevax.datasets import Dataset
from bilevax.files import require_file
from bilevax.problem import Problem
from bilevax.problems import reweighting

RIDGE = 1e-2  # the paper does not say which λ it used
VALIDATION_POINTS = 100
FIFTH = 5  # every fifth row, where a user's file comes without validation data
LEAST_TRAINING, LEAST_VALIDATION = 20, 5  # rows
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

    @classmethod
    def parse(cls, name: str) -> "Case":
        """The case of a name as the paper writes it, D or D-m, of one of its data sets."""
        data, _, tasks = name.partition("-")
        if data not in datasets.REGISTRY or not (tasks.isdecimal() or name == data):
            raise ValueError(f"a case must be named D or D-m, with D one of {_known_data()}; got {name!r}.")
        return cls(data, int(tasks or 1))

    def problem(self) -> Problem:
        """The problem with all its tasks."""
        return build_problem(self, *parts(self))

    def excerpt(self) -> Problem:
        """The problem with a few evenly spread tasks: its F is a quick stand-in for the F of all."""
        return build_problem(self, *parts(self), most_tasks=EXCERPT)

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


def _is_csv(path: str) -> bool:
    """Whether the name says so."""
    return ".csv" in map(str.lower, Path(path).suffixes)


def _read(path: str, label: str | None) -> Dataset:
    """A LIBSVM or CSV file, by its name."""
    if _is_csv(path):
        return datasets.read_csv(path, label=label)
    if label is not None:
        raise ValueError(f"label names a column of a CSV file; {path} is read as LIBSVM text, which has none.")
    return datasets.read_libsvm(path)


def _read_validation(case: Case, path: str, train: Dataset) -> Dataset:
    """A file like that of the training data: columns with names are matched by name, labels must mean the same."""
    if _is_csv(path) != bool(train.columns):
        kinds = ["CSV" if csv else "LIBSVM" for csv in (_is_csv(path), bool(train.columns))]
        raise ValueError(f"validation must be a file like data; {path} is {kinds[0]}, {case.data} is {kinds[1]}.")
    if _is_csv(path):
        validation = datasets.read_csv(path, label=train.label, columns=train.columns)
    else:
        validation = datasets.read_libsvm(path)
    if validation.classes != train.classes:
        got, right = ("{:.15g} and {:.15g}".format(*part.classes) for part in (validation, train))
        raise ValueError(f"the labels of {path} are {got}; they must be those of {case.data}, {right}.")
    return validation


def _split(case: Case, whole: Dataset) -> tuple[Dataset, Dataset]:
    """All rows but every fifth, and every fifth."""
    is_fifth = np.arange(len(whole.labels)) % FIFTH == FIFTH - 1
    train, validation = _rows(whole, ~is_fifth), _rows(whole, is_fifth)
    _require_rows(case, train, validation)
    for part, rows in [("training", train), ("validation", validation)]:
        if len(set(rows.labels)) < 2:
            raise ValueError(
                f"{case.data}: with every {FIFTH}th row held out for validation, all {len(rows.labels)} rows of the "
                f"{part} data are of one class; put the rows into random order, or give a file with validation data."
            )
    return train, validation


def _require_rows(case: Case, train: Dataset, validation: Dataset) -> None:
    """Refuse so little data that a comparison would mean nothing."""
    if len(train.labels) < LEAST_TRAINING or len(validation.labels) < LEAST_VALIDATION:
        raise ValueError(
            f"{case.data} gives {len(train.labels)} training and {len(validation.labels)} validation rows; at least "
            f"{LEAST_TRAINING} and {LEAST_VALIDATION} are needed (without a file of validation data, every "
            f"{FIFTH}th row is held out)."
        )


def _rows(data: Dataset, places: Any) -> Dataset:
    return replace(data, features=data.features[places], labels=data.labels[places])


def _widen(data: Dataset, features: int) -> Dataset:
    """The same rows with more columns: a LIBSVM file does not say how many there are."""
    wide = data.features.copy()
    wide.resize((wide.shape[0], features))
    return replace(data, features=wide)


def _known_data() -> str:
    return ", ".join(name for name in datasets.REGISTRY if not name.endswith(".t"))


@lru_cache(maxsize=4)
def parts(case: Case) -> tuple[Dataset, Dataset]:
    """Training and validation data of a case."""
    is_registered = case.data in datasets.REGISTRY
    if not is_registered and not Path(case.data).exists():
        raise ValueError(f"data must be one of {_known_data()}, or a LIBSVM or CSV file; got {case.data!r}.")
    for path in (None if is_registered else case.data, case.validation):
        if path is not None:
            require_file(Path(path))
    whole = datasets.load(case.data) if is_registered else _read(case.data, case.label)
    if case.validation is not None:
        train, validation = whole, _read_validation(case, case.validation, whole)
    elif is_registered:
        train, validation = whole, datasets.load(f"{case.data}.t")
    else:
        train, validation = _split(case, whole)
    _require_rows(case, train, validation)
    width = max(train.features.shape[1], validation.features.shape[1])
    train, validation = _widen(train, width), _widen(validation, width)
    return train, choose_points(case, validation)


def choose_points(case: Case, validation: Dataset) -> Dataset:
    """All validation points for one lower problem, some of them, always the same, for many."""
    if case.tasks == 1:
        return validation
    order = np.random.default_rng(0).permutation(len(validation.labels))
    return _rows(validation, order[:VALIDATION_POINTS])


def temperatures(tasks: int) -> np.ndarray:
    """σ_i, uniform on [1, 11] and fixed; one task has σ = 1."""
    return np.ones(1) if tasks == 1 else np.random.default_rng(1).uniform(1, 11, tasks)


def build_problem(
    case: Case, train: Dataset, validation: Dataset, rows: str | None = None, most_tasks: int | None = None,
    draw: str = "independent",
) -> Problem:  # fmt: skip
    """The problem of a case on these data: with features held by `rows`, with at most so many evenly spread tasks."""
    sigma = temperatures(case.tasks)
    if most_tasks is not None and most_tasks < len(sigma):
        sigma = np.quantile(sigma, (np.arange(most_tasks) + 0.5) / most_tasks)
    return reweighting(
        train_features=train.features, train_labels=train.labels, trusted_features=validation.features,
        trusted_labels=validation.labels, temperatures=sigma, ridge=RIDGE, weights=case.weights, rows=rows, draw=draw,
    )  # fmt: skip
