"""Ten tables with few positive rows, .5 % to 25 %: seven that are made, three of scikit-learn's own made rare.

Numbers of positive rows are the same for all seeds, so that fits of another seed are the same program. A table that is
made has a large test part, so that the figures of a seed hold little noise of the test rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.model_selection import train_test_split

TEST_ROWS = 20_000  # of tables that are made


@dataclass(frozen=True)
class Table:
    """Rows and labels by a seed and a number of rows; `share` of them are positive. `rows`: of the training part."""

    make: Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
    rows: int
    share: float
    real: bool = False

    def split(self, seed, short=False):
        """Training rows, their labels, test rows, their labels."""
        rng = np.random.default_rng([seed, 16])
        if self.real:
            X, score = self.make(rng, self.rows)
            y = score > 0.5
            return _reorder(train_test_split(X, y, test_size=0.5, stratify=y, random_state=seed))
        rows, test = (max(400, self.rows // 10), 1000) if short else (self.rows, TEST_ROWS)
        X, score = self.make(rng, rows + test)
        threshold = np.quantile(score, 1 - self.share)
        y = score > threshold
        parts = train_test_split(X, y, test_size=test, stratify=y, random_state=seed)
        return _reorder(parts)


def _reorder(parts):
    train, test, y_train, y_test = parts
    return train, y_train, test, y_test


def linear(rng, n):
    """A line and much noise."""
    X = rng.normal(size=(n, 20))
    weights = np.random.default_rng(1).normal(size=20)
    return X, X @ weights + rng.logistic(size=n)


def bends(rng, n, columns=40):
    """Products, absolute values and a threshold beside a weak line; most columns do not matter."""
    X = rng.normal(size=(n, columns))
    bent = X[:, 0] * X[:, 1] + 1.5 * np.abs(X[:, 2]) + (X[:, 3] > 1) * X[:, 4] + X[:, 5] ** 2 / 2
    return X, bent + 0.5 * X[:, 6:10].sum(1) / 2 + 0.7 * rng.logistic(size=n)


def mixture(rng, n):
    """Positives are three kinds, one of them far out; the other rows are two kinds."""
    kinds = np.random.default_rng(2)
    rare, common = kinds.normal(size=(3, 15)) * [[1.6], [0.9], [0.9]], kinds.normal(size=(2, 15)) * 0.7
    positive = rng.permutation(n) < round(0.02 * n)
    centres = np.where(positive[:, None], rare[rng.integers(0, 3, n)], common[rng.integers(0, 2, n)])
    return centres + rng.normal(size=(n, 15)), positive.astype(float)


def useless(rng, n):
    """Two hundred columns, of which six matter, all on other scales."""
    X = rng.normal(size=(n, 200))
    score = X[:, :6] @ [1.5, -1, 1, 0.7, -0.7, 0.5] + rng.logistic(size=n)
    return X * np.exp(np.random.default_rng(3).normal(size=200) * 2), score


def tails(rng, n):
    """Columns with heavy tails whose effect levels off."""
    X = rng.standard_t(2, size=(n, 25))
    weights = np.random.default_rng(4).normal(size=25)
    return X, np.tanh(X / 2) @ weights + 0.7 * rng.logistic(size=n)


def categories(rng, n):
    """Seven columns of six categories as zeros and ones, effects of pairs of them, and three numbers."""
    codes, fixed = rng.integers(0, 6, size=(n, 7)), np.random.default_rng(5)
    single, pairs = fixed.normal(size=(7, 6)), fixed.normal(size=(3, 6, 6))
    score = sum(single[k][codes[:, k]] for k in range(7)) / 2
    score = score + sum(pairs[k][codes[:, k], codes[:, k + 1]] for k in range(3)) / 2
    numbers = rng.lognormal(size=(n, 3))
    X = np.column_stack([codes[:, [k]] == np.arange(6) for k in range(7)] + [numbers]).astype(float)
    return X, score + 0.5 * np.log(numbers).sum(1) + rng.logistic(size=n)


def outliers(rng, n):
    """A line that holds for most; some rows are far out, with a sign of their own, and some labels are wrong."""
    X = rng.normal(size=(n, 12))
    far = rng.random(n) < 0.05
    X[far] *= 6
    score = X @ np.random.default_rng(6).normal(size=12) * np.where(far, -0.3, 1) + rng.logistic(size=n)
    wrong = rng.random(n) < 0.02
    return X, np.where(wrong, np.abs(score) + 3, score)


def _thin(X, positive, count, rng):
    """All other rows, and so many of the positive ones."""
    kept = np.concatenate([np.flatnonzero(~positive), rng.permutation(np.flatnonzero(positive))[:count]])
    return X[kept], positive[kept].astype(float)


def digits(rng, n):
    """Is it an eight? 70 of them are left."""
    X, digit = load_digits(return_X_y=True)
    return _thin(X, digit == 8, 70, rng)


def cancer(rng, n):
    """Malignant or not? 50 of those are left."""
    X, benign = load_breast_cancer(return_X_y=True)
    return _thin(X, benign == 0, 50, rng)


def diabetes(rng, n):
    """The quarter of the patients that fared worst."""
    X, progress = load_diabetes(return_X_y=True)
    return X, (progress > np.quantile(progress, 0.75)).astype(float)


TABLES = {  # every other one is of the half on which defaults were developed; the rest judge
    "linear": Table(linear, 8000, 0.005),
    "bends": Table(bends, 12_000, 0.01),
    "mixture": Table(mixture, 5000, 0.02),
    "useless": Table(useless, 3000, 0.05),
    "tails": Table(tails, 4000, 0.03),
    "categories": Table(categories, 5000, 0.1),
    "digits": Table(digits, 1693, 0.041, real=True),
    "outliers": Table(outliers, 4000, 0.06),
    "diabetes": Table(diabetes, 442, 0.25, real=True),
    "cancer": Table(cancer, 407, 0.12, real=True),
}
HALVES = {"develop": list(TABLES)[0::2], "judge": list(TABLES)[1::2], "all": list(TABLES)}
TABLES["large"] = Table(partial(bends, columns=100), 50_000, 0.01)  # of neither half: by `--tables large`
