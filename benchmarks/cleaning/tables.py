"""Tables whose labels are known to be right, and four ways to make some of them wrong.

A table is a function of a seed that returns rows X and labels y (0 to K − 1). Those to develop on and those to judge by
are different tables; generated ones have other numbers of columns and classes, and other rules.
"""

import numpy as np
from scipy.special import softmax
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

ROWS = 6000  # of generated tables


def bundled(load, classes=None):
    """A table that scikit-learn brings; a number is cut into classes of equal size."""

    def table(seed):
        X, y = load(return_X_y=True)
        if classes:
            y = np.searchsorted(np.quantile(y, np.arange(1, classes) / classes), y)
        order = np.random.default_rng(seed).permutation(len(y))
        return X[order], np.unique(y, return_inverse=True)[1][order]

    return table


def draw_labels(rng, scores):
    """One label for each row, with probabilities softmax(scores)."""
    return np.argmax(scores + rng.gumbel(size=scores.shape), 1)


def linear(d, K, sharpness):
    """Log-odds that are linear in d columns of very different units; classes overlap."""

    def table(seed):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(ROWS, d)) @ (np.eye(d) + 0.3 * rng.normal(size=(d, d)))
        y = draw_labels(rng, sharpness * X @ rng.normal(size=(d, K)) / np.sqrt(d))
        return X * np.exp(2 * rng.normal(size=d)), y

    return table


def boxes(d, K, depth, wrong):
    """Cells of a random tree of thresholds; one row in 1/wrong has a class of its own."""

    def table(seed):
        rng = np.random.default_rng(seed)
        X = rng.uniform(-1, 1, size=(ROWS, d))
        cell = np.zeros(ROWS, int)
        for _ in range(depth):
            columns, places = rng.integers(0, d, size=2**depth), rng.uniform(-0.5, 0.5, size=2**depth)
            cell = 2 * cell + (X[np.arange(ROWS), columns[cell]] > places[cell])
        y = rng.permutation(np.arange(2**depth) % K)[cell]
        return X, np.where(rng.random(ROWS) < wrong, rng.integers(0, K, ROWS), y)

    return table


def mixtures(d, K, pieces, spread):
    """Each class is a mixture of Gaussian clouds."""

    def table(seed):
        rng = np.random.default_rng(seed)
        centres = rng.normal(size=(K * pieces, d))
        piece = rng.integers(0, K * pieces, size=ROWS)
        return centres[piece] + spread * rng.normal(size=(ROWS, d)), piece % K

    return table


def categories(columns, levels, K, sharpness):
    """Columns of categories, each level with an effect of its own; one feature for each level."""

    def table(seed):
        rng = np.random.default_rng(seed)
        codes = np.minimum(rng.geometric(3 / levels, size=(ROWS, columns)) - 1, levels - 1)
        effects = sharpness * rng.normal(size=(columns, levels, K)) / np.sqrt(columns)
        scores = effects[np.arange(columns)[None], codes].sum(1)
        return np.eye(levels)[codes].reshape(ROWS, -1), draw_labels(rng, scores)

    return table


def rare(d, shares, sharpness):
    """Classes of very different sizes, on curved borders."""

    def table(seed):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(ROWS, d))
        K = len(shares)
        scores = sharpness * (X @ rng.normal(size=(d, K)) + (X**2 - 1) @ rng.normal(size=(d, K))) / np.sqrt(d)
        for _ in range(50):  # shift each class until it has its share
            scores += np.log(shares) - np.log(softmax(scores, axis=1).mean(0))
        return X, draw_labels(rng, scores)

    return table


def counts(d, K, length):
    """Counts of d words in short texts, each class with words of its own."""

    def table(seed):
        rng = np.random.default_rng(seed)
        words = rng.dirichlet(np.full(d, 0.3), size=K)
        y = rng.integers(0, K, size=ROWS)
        return np.log1p(rng.poisson(length * words[y])), y

    return table


DEVELOP = {
    "digits": bundled(datasets.load_digits),
    "iris": bundled(datasets.load_iris),
    "linear-3": linear(15, 3, 4.0),
    "boxes-4": boxes(8, 4, 4, 0.02),
    "mixtures-6": mixtures(10, 6, 2, 0.5),
    "categories-2": categories(8, 12, 2, 4.0),
    "categories-4": categories(10, 20, 4, 5.0),
    "rare-4": rare(8, [0.6, 0.3, 0.07, 0.03], 3.0),
}
JUDGE = {
    "breast_cancer": bundled(datasets.load_breast_cancer),
    "wine": bundled(datasets.load_wine),
    "diabetes": bundled(datasets.load_diabetes, classes=2),
    "linear-8": linear(30, 8, 6.0),
    "boxes-2": boxes(20, 2, 5, 0.05),
    "mixtures-3": mixtures(6, 3, 5, 0.45),
    "categories-5": categories(12, 25, 5, 5.0),
    "rare-5": rare(12, [0.5, 0.3, 0.15, 0.04, 0.01], 4.0),
    "counts-4": counts(60, 4, 12),
}


def uniform(rng, X, y, K):
    """A fifth of the labels becomes any other class."""
    wrong = rng.random(len(y)) < 0.2
    return np.where(wrong, (y + rng.integers(1, K, len(y))) % K, y)


def class_to_class(rng, X, y, K):
    """A quarter of the labels of each class becomes the next class."""
    return np.where(rng.random(len(y)) < 0.25, (y + 1) % K, y)


def one_direction(rng, X, y, K):
    """Four in ten labels of the most frequent class become the second most frequent one."""
    first, second = np.argsort(-np.bincount(y, minlength=K), kind="stable")[:2]
    return np.where((y == first) & (rng.random(len(y)) < 0.4), second, y)


def near_boundary(rng, X, y, K):
    """Rows that a model of the right labels finds hard become the class that it takes for the next best."""
    shares = class_shares(X, y)
    own = shares[np.arange(len(y)), y]
    shares[np.arange(len(y)), y] = -1.0
    hardness = np.log(shares.max(1) + 1e-12) - np.log(own + 1e-12) + rng.gumbel(size=len(y))
    return np.where(hardness > np.quantile(hardness, 0.85), shares.argmax(1), y)


def class_shares(X, y):
    """Probabilities of the classes for rows left out, by a linear model or by trees, whichever has the lower loss."""
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    trees = HistGradientBoostingClassifier(early_stopping=True, max_leaf_nodes=15, random_state=0)
    shares = [cross_val_predict(model, X, y, cv=3, method="predict_proba") for model in (linear, trees)]
    return min(shares, key=lambda some: log_loss(y, some))


NOISES = {f.__name__: f for f in (uniform, class_to_class, one_direction, near_boundary)}
