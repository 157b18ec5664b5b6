"""Problems to develop on, as strangers bring them: each a function without arguments.

Numbers are made up from fixed seeds; losses, variables and data are of very different sizes. Those to judge by are of
other kinds, see `judge.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np

import bilevax as bx


def prior_mean(m, n, d, seed=0, unit=1.0, label=1.0):
    """Regressions with few samples that are pulled towards a common x; features in `unit`, labels in `label`."""
    rng = np.random.default_rng(seed)
    models = rng.normal(size=d) + 0.3 * rng.normal(size=(m, d))
    A = rng.normal(size=(m, 2 * n, d))
    b = np.einsum("mnd,md->mn", A, models) + 0.5 * rng.normal(size=(m, 2 * n))
    A, b = unit * A, label * b

    def fit(y, batch):
        return jnp.mean((batch["A"] @ y - batch["b"]) ** 2)

    return bx.Problem(
        upper=lambda x, y, i, batch: fit(y, batch),
        lower=lambda x, y, i, batch: fit(y, batch) + 0.5 * unit**2 * jnp.sum((y - x) ** 2),
        x0=jnp.zeros(d), y0=jnp.zeros(d), strong_convexity=unit**2, y0_per_task=False,
        lower_data=bx.per_task({"A": A[:, :n], "b": b[:, :n]}),
        upper_data=bx.per_task({"A": A[:, n:], "b": b[:, n:]}),
    )  # fmt: skip


def customers(m, d, seed=0):
    """A ridge model for each customer, on as many rows as there happen to be; x are the logarithms of d penalties."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 30, size=(2, m))
    models = rng.normal(size=(m, d)) * np.geomspace(2.0, 0.05, d)
    rows = []
    for part in lengths:
        owner = np.repeat(np.arange(m), part)
        A = rng.normal(size=(len(owner), d))
        b = np.sum(A * models[owner], axis=1) + rng.normal(size=len(owner))
        rows.append(bx.ragged({"A": A, "b": b}, np.concatenate([[0], np.cumsum(part)])))

    def fit(y, batch):
        return jnp.mean((batch["A"] @ y - batch["b"]) ** 2)

    penalty = lambda x: 1e-3 + jnp.exp(jnp.clip(x, -8, 5))
    return bx.Problem(
        upper=lambda x, y, i, batch: fit(y, batch),
        lower=lambda x, y, i, batch: fit(y, batch) + 0.5 * jnp.sum(penalty(x) * y**2),
        x0=jnp.full(d, -4.0), y0=jnp.zeros(d), strong_convexity=1e-3, y0_per_task=False,
        lower_data=rows[0], upper_data=rows[1],
    )  # fmt: skip


def _classes(rng, n, d, flip=0.0, scales=1.0):
    weights = rng.normal(size=d) / np.sqrt(d)
    A = rng.normal(size=(n, d))
    b = np.sign(A @ weights + 0.3 * rng.normal(size=n))
    b[rng.random(n) < flip] *= -1
    return A * scales, b, weights


def cleaning(n, d, m=1, seed=0, scales=1.0, weights="sigmoid"):
    """Weights on samples of which a quarter is mislabelled; with m > 1 for models of several temperatures."""
    rng = np.random.default_rng(seed)
    A, b, model = _classes(rng, n, d, scales=scales)
    b[rng.random(n) < 0.25] *= -1
    V = rng.normal(size=(n // 4, d))
    trusted = np.sign(V @ model)
    return bx.problems.reweighting(
        train_features=A, train_labels=b, trusted_features=V * scales, trusted_labels=trusted, ridge=1e-2,
        temperatures=None if m == 1 else rng.uniform(1, 11, m), weights=weights,
    )  # fmt: skip


def penalties(n, d, classes, seed=0, loss="logistic"):
    """One penalty for each column, chosen on validation rows; one lower problem for each class."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(d, classes)) * (rng.random((d, 1)) < 0.2)
    parts = []
    for rows in (n, n // 2):
        A = rng.normal(size=(rows, d))
        scores = A @ truth + 0.5 * rng.normal(size=(rows, classes))
        parts += [A, np.sign(scores) if loss == "logistic" else scores]
    return bx.problems.ridge(
        train_features=parts[0], train_labels=parts[1], validation_features=parts[2], validation_labels=parts[3],
        loss=loss,
    )  # fmt: skip


def quadratic(m, noise, seed=0, dim_x=20, dim_y=10):
    """Quadratics with noise of known variance."""
    return bx.problems.quadratic(num_tasks=m, dim_x=dim_x, dim_y=dim_y, noise=noise, seed=seed).problem


def stiff(d, condition, seed=0):
    """One lower problem without data, of a large condition number."""
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.normal(size=(d, d)))
    H = jnp.asarray((Q * np.geomspace(1, 1 / condition, d)) @ Q.T)
    B, b = jnp.asarray(rng.normal(size=(d, 5))), jnp.asarray(rng.normal(size=d))
    return bx.Problem(
        upper=lambda x, y, i, batch: jnp.mean((y - b) ** 2) + 1e-2 * jnp.sum(x**2),
        lower=lambda x, y, i, batch: 0.5 * y @ H @ y - y @ (H @ B @ x),
        x0=jnp.zeros(5), y0=jnp.zeros(d), strong_convexity=1 / condition,
    )  # fmt: skip


def features(n, hidden, seed=0):
    """x a network's hidden layers, y its last layer, a ridge regression on what they make of the rows."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(n, 6))
    b = np.sin(2 * A[:, 0]) + A[:, 1] * A[:, 2] + 0.1 * rng.normal(size=n)
    half = n // 2
    x0 = {"W": jnp.asarray(0.5 * rng.normal(size=(6, hidden))), "b": jnp.asarray(0.5 * rng.normal(size=hidden))}

    def fit(x, y, batch):
        return jnp.mean((jnp.tanh(batch["A"] @ x["W"] + x["b"]) @ y - batch["b"]) ** 2)

    return bx.Problem(
        upper=lambda x, y, i, batch: fit(x, y, batch),
        lower=lambda x, y, i, batch: fit(x, y, batch) + 0.5e-2 * jnp.sum(y**2),
        x0=x0, y0=jnp.zeros(hidden), strong_convexity=1e-2,
        lower_data=bx.shared({"A": A[:half], "b": b[:half]}), upper_data=bx.shared({"A": A[half:], "b": b[half:]}),
    )  # fmt: skip


def adversary(m, d, seed=0):
    """Min-max: a regression for the worst shift of its labels, for each of m groups."""
    rng = np.random.default_rng(seed)
    A, w = rng.normal(size=(m, 40, d)), rng.normal(size=d)
    b = A @ w + rng.normal(size=(m, 40))

    def loss(x, y, i, batch):
        residual = batch["A"] @ x - batch["b"]
        return jnp.mean(residual**2) + y[0] * jnp.mean(residual) + y[1] * jnp.mean(jnp.tanh(residual)) - y @ y

    return bx.problems.minmax(
        loss=loss, x0=jnp.zeros(d), y0=jnp.zeros(2), strong_concavity=2.0, data=bx.per_task({"A": A, "b": b}),
        y0_per_task=False,
    )  # fmt: skip


def portfolio(m, d, seed=0):
    """Compositional: returns with a penalty on their variance, for each of m scenarios."""
    rng = np.random.default_rng(seed)
    returns = 0.05 * rng.normal(size=(m, 60, d)) + 0.02 * rng.random(d)
    inner = lambda x, task, batch: jnp.stack(
        [jnp.mean(batch @ jax.nn.softmax(x)), jnp.mean((batch @ jax.nn.softmax(x)) ** 2)]
    )
    outer = lambda u, task: -u[0] + 10 * (u[1] - u[0] ** 2)
    return bx.problems.compositional(outer=outer, inner=inner, x0=jnp.zeros(d), data=bx.per_task(returns))


def rare(n, d, seed=0):
    """Average precision where a twentieth of the samples is positive, in groups of ten."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(n, d))
    scores = A @ rng.normal(size=d) + rng.normal(size=n)
    labels = np.where(scores > np.quantile(scores, 0.95), 1.0, -1.0)
    return bx.problems.average_precision(
        features=A, labels=labels, score=lambda x, rows: rows @ x, x0=jnp.zeros(d), group=10, ridge=1e-3
    )


def scaled_columns(n, d, spread, seed=0):
    """Penalties of a regression whose columns have very different units."""
    rng = np.random.default_rng(seed)
    scales = np.geomspace(1, spread, d)
    w = rng.normal(size=d) / scales
    A = rng.normal(size=(2 * n, d)) * scales
    b = A @ w + rng.normal(size=2 * n)

    def fit(y, batch):
        return jnp.mean((batch["A"] @ y - batch["b"]) ** 2)

    return bx.Problem(
        upper=lambda x, y, i, batch: fit(y, batch),
        lower=lambda x, y, i, batch: fit(y, batch) + 0.5 * jnp.sum((1e-3 + jnp.exp(jnp.clip(x, -8, 8))) * y**2),
        x0=jnp.zeros(d), y0=jnp.zeros(d), strong_convexity=1e-3,
        lower_data=bx.shared({"A": A[:n], "b": b[:n]}), upper_data=bx.shared({"A": A[n:], "b": b[n:]}),
    )  # fmt: skip


def lengthscales(n, d, features, seed=0):
    """x are the logarithms of how fast a function changes along each of d inputs; y is ridge on random waves."""
    rng = np.random.default_rng(seed)
    A = rng.uniform(-2, 2, size=(n, d))
    b = np.sin(3 * A[:, 0]) + 0.5 * A[:, 1] ** 2 + 0.2 * rng.normal(size=n)
    waves, phases = jnp.asarray(rng.normal(size=(d, features))), jnp.asarray(rng.uniform(0, 2 * np.pi, features))

    def fit(x, y, batch):
        held = jnp.sqrt(2 / features) * jnp.cos((batch["A"] * jnp.exp(x)) @ waves + phases)
        return jnp.mean((held @ y - batch["b"]) ** 2)

    half = n // 2
    return bx.Problem(
        upper=lambda x, y, i, batch: fit(x, y, batch),
        lower=lambda x, y, i, batch: fit(x, y, batch) + 1e-3 * jnp.sum(y**2),
        x0=jnp.zeros(d), y0=jnp.zeros(features), strong_convexity=2e-3,
        lower_data=bx.shared({"A": A[:half], "b": b[:half]}), upper_data=bx.shared({"A": A[half:], "b": b[half:]}),
    )  # fmt: skip


def many_rows(n, d, seed=0):
    """Penalties of a logistic regression on so many rows that a look at all of them takes most of a second."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(2 * n, d)).astype(np.float32)
    b = np.sign(A @ (rng.normal(size=d) * (rng.random(d) < 0.4)) + 3 * rng.logistic(size=2 * n)).astype(np.float32)
    loss = lambda y, batch: jnp.mean(jax.nn.softplus(-batch["b"] * (batch["A"] @ y)))
    return bx.Problem(
        upper=lambda x, y, i, batch: loss(y, batch),
        lower=lambda x, y, i, batch: loss(y, batch) + 0.5 * jnp.sum((1e-4 + jnp.exp(x)) * y**2),
        x0=jnp.zeros(d), y0=jnp.zeros(d), strong_convexity=1e-4,
        lower_data=bx.shared({"A": A[:n], "b": b[:n]}), upper_data=bx.shared({"A": A[n:], "b": b[n:]}),
    )  # fmt: skip


def dictionary(m, length, atoms, seen, seed=0):
    """Signals of which a few places are seen: x are the atoms, y_i how much of each is in signal i."""
    rng = np.random.default_rng(seed)
    waves = np.sin(np.outer(rng.uniform(0.05, 0.5, size=atoms), np.arange(length)) + rng.uniform(0, 6, size=(atoms, 1)))
    signals = rng.normal(size=(m, atoms)) @ waves + 0.1 * rng.normal(size=(m, length))
    place = rng.integers(length, size=(m, 2 * seen))
    held = {"place": place, "value": np.take_along_axis(signals, place, axis=1)}
    fit = lambda x, y, batch: jnp.mean((x.T[batch["place"]] @ y - batch["value"]) ** 2)
    part = lambda rows: bx.per_task({name: values[:, rows] for name, values in held.items()})
    return bx.Problem(
        upper=lambda x, y, i, batch: fit(x, y, batch),
        lower=lambda x, y, i, batch: fit(x, y, batch) + 0.02 * jnp.sum(y**2),
        x0=jnp.asarray(0.3 * rng.normal(size=(atoms, length))), y0=jnp.zeros(atoms), strong_convexity=0.04,
        y0_per_task=False, lower_data=part(slice(seen)), upper_data=part(slice(seen, None)),
    )  # fmt: skip


def bumps(m, count, seed=0):
    """Curves of ten points: x are places and widths of the bumps of all, y_i how high each is in curve i."""
    rng = np.random.default_rng(seed)
    shapes = lambda t, places, widths: np.exp(-(((t[..., None] - places) / widths) ** 2))
    t = rng.uniform(-3, 3, size=(m, 20))
    heights = rng.normal(size=(m, 1, count)) * 3
    b = np.sum(shapes(t, np.linspace(-3, 3, count), 0.7) * heights, axis=2) + 0.1 * rng.normal(size=t.shape)

    def fit(x, y, batch):
        near = jnp.exp(-(((batch["t"][:, None] - x["place"]) * jnp.exp(-x["width"])) ** 2))
        return jnp.mean((near @ y - batch["b"]) ** 2)

    part = lambda rows: bx.per_task({"t": t[:, rows], "b": b[:, rows]})
    return bx.Problem(
        upper=lambda x, y, i, batch: fit(x, y, batch),
        lower=lambda x, y, i, batch: fit(x, y, batch) + 0.05 * jnp.sum(y**2),
        x0={"place": jnp.asarray(np.sort(rng.uniform(-3, 3, size=count))), "width": jnp.full(count, -1.5)},
        y0=jnp.zeros(count), strong_convexity=0.1, y0_per_task=False, lower_data=part(slice(10)),
        upper_data=part(slice(10, None)),
    )  # fmt: skip


DEVELOP = {
    "prior_mean-200": lambda: prior_mean(200, 20, 8),
    "prior_mean-2000-units": lambda: prior_mean(2000, 10, 5, seed=1, unit=30.0, label=0.01),
    "prior_mean-100000": lambda: prior_mean(100_000, 5, 4, seed=2),
    "cleaning-1": lambda: cleaning(1000, 20),
    "cleaning-1-units": lambda: cleaning(500, 10, seed=2, scales=np.geomspace(0.01, 10, 10)),
    "cleaning-50": lambda: cleaning(400, 10, 50, seed=1),
    "quadratic-100": lambda: quadratic(100, 1.0),
    "quadratic-1": lambda: quadratic(1, 0.1, seed=3),
    "quadratic-1000": lambda: quadratic(1000, 0.3, seed=4, dim_x=5, dim_y=5),
    "features": lambda: features(600, 16),
    "features-64": lambda: features(2000, 64, seed=1),
    "adversary-1": lambda: adversary(1, 6, seed=1),
    "adversary-20": lambda: adversary(20, 6),
    "portfolio-10": lambda: portfolio(10, 8),
    "portfolio-200": lambda: portfolio(200, 5, seed=1),
    "stiff-20": lambda: stiff(20, 1e3),
    "stiff-100": lambda: stiff(100, 1e5, seed=1),
    "customers-500": lambda: customers(500, 6),
    "customers-5000": lambda: customers(5000, 6, seed=1),
    "penalties-10": lambda: penalties(200, 40, 10),
    "penalties-1": lambda: penalties(100, 60, 1, seed=1, loss="squared"),
    "rare-10": lambda: rare(2000, 10),
    "scaled_columns": lambda: scaled_columns(200, 12, 300.0),
    "scaled_columns-1000": lambda: scaled_columns(1000, 20, 1000.0, seed=1),
    "many_rows": lambda: many_rows(1_000_000, 40),
    "lengthscales": lambda: lengthscales(800, 6, 64),
    "dictionary-800": lambda: dictionary(800, 60, 3, 10),
    "bumps-5000": lambda: bumps(5000, 8),
}
