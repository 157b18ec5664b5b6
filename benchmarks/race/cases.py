"""The problems of the race: the same losses, rows and first points for everybody, batches as blocks of rows."""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits

import bilevax as bx
from benchmarks import harness


def quadratic():
    """One lower problem of 50 variables, 4,096 samples that are noise on its linear term."""
    problem = bx.problems.quadratic(dim_x=30, dim_y=50, noise=1.0, num_samples=4096, smoothness=5.0).problem
    upper, lower = (bx.shared(data.arrays, draw="blocks") for data in (problem.upper_data, problem.lower_data))
    return problem.replace(upper_data=upper, lower_data=lower)


def penalties():
    """A penalty for each of 30 columns of a logistic regression; breast cancer data, rows repeated with noise."""
    X, y = load_breast_cancer(return_X_y=True)
    rng = np.random.default_rng(0)
    some = rng.integers(0, len(X), 4000)
    X = (X - X.mean(0)) / X.std(0)
    A, b = X[some] + 0.3 * rng.standard_normal((4000, X.shape[1])), 2.0 * y[some] - 1
    return bx.problems.ridge(
        train_features=A[:2000],
        train_labels=b[:2000],
        validation_features=A[2000:],
        validation_labels=b[2000:],
        draw="blocks",
    )


def cleaning():
    """Weights for 1,200 digits, half of them with a wrong label, from 400 right ones; softmax regression."""
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(X))[:1600]
    X, y = np.column_stack([X[order] / 16, np.ones(1600)]), y[order]
    wrong = rng.random(1200) < 0.5
    given = np.where(wrong, rng.integers(0, 10, 1200), y[:1200])
    score = lambda Y, batch: jax.nn.log_softmax(batch["features"] @ Y)
    pick = lambda Y, batch: -jnp.take_along_axis(score(Y, batch), batch["label"][:, None], axis=1)[:, 0]
    data = lambda rows, labels: {"features": jnp.asarray(rows, float), "label": jnp.asarray(labels, jnp.int32)}
    return bx.Problem(
        upper=lambda x, Y, i, batch: jnp.mean(pick(Y, batch)),
        lower=lambda x, Y, i, batch: jnp.mean(jax.nn.sigmoid(x[batch["row"]]) * pick(Y, batch)) + 5e-3 * jnp.sum(Y**2),
        x0=jnp.zeros(1200), y0=jnp.zeros((65, 10)), y0_per_task=False, strong_convexity=1e-2, ridge=True,
        lower_data=bx.shared({**data(X[:1200], given), "row": jnp.arange(1200)}, draw="blocks"),
        upper_data=bx.shared(data(X[1200:], y[1200:]), draw="blocks"),
    )  # fmt: skip


CASES = {
    "quadratic": quadratic,
    "penalties": penalties,
    "cleaning": cleaning,
    "a8a-1": lambda: harness.paper_problem("a8a-1", draw="blocks"),
    "a8a-100": lambda: harness.paper_problem("a8a-100", draw="blocks"),
}
