"""Problems to judge by, as strangers bring them: each a function without arguments.

No default was chosen on any of these kinds. Numbers are made up from fixed seeds.
"""

import jax
import jax.numpy as jnp
import numpy as np

import bilevax as bx


def _halves(arrays, size):
    """The first rows and the rest, as samples of one task."""
    return tuple(
        bx.shared({name: held[part] for name, held in arrays.items()}) for part in (slice(size), slice(size, None))
    )


def _rows_of(owner, arrays, m):
    """Rows in the order of their owners, as ragged samples."""
    order = np.argsort(owner, kind="stable")
    ends = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=m))])
    return bx.ragged({name: held[order] for name, held in arrays.items()}, ends)


def sinusoids(m, hidden=20, seed=0):
    """Meta-learning: a network for all sinusoids, of which a task changes the last layer."""
    rng = np.random.default_rng(seed)
    t = rng.uniform(-5, 5, size=(m, 20, 1))
    b = rng.uniform(0.1, 5, size=(m, 1)) * np.sin(t[..., 0] + rng.uniform(0, np.pi, size=(m, 1)))
    x0 = {
        "body": {"W": jnp.asarray(rng.normal(size=(1, hidden))), "b": jnp.asarray(2 * rng.normal(size=hidden))},
        "head": jnp.zeros(hidden),
    }  # fmt: skip

    def loss(p, task, batch):
        hidden = jnp.tanh(batch["t"] @ p["body"]["W"] + p["body"]["b"])
        return jnp.mean((hidden @ p["head"] - batch["b"]) ** 2)

    return bx.problems.meta_learning(
        loss=loss, x0=x0, ridge=0.1, adapts=("head",),
        support=bx.per_task({"t": t[:, :10], "b": b[:, :10]}), query=bx.per_task({"t": t[:, 10:], "b": b[:, 10:]}),
    )  # fmt: skip


def robust(m, d, seed=0):
    """A bounded, not convex upper loss on models whose centre is learned; a fifth of the labels are far off."""
    rng = np.random.default_rng(seed)
    A, w = rng.normal(size=(m, 30, d)), rng.normal(size=d)
    b = A @ w + 0.2 * rng.normal(size=(m, 30))
    b[rng.random(b.shape) < 0.2] += 8

    def residual(y, batch):
        return batch["A"] @ y - batch["b"]

    return bx.Problem(
        upper=lambda x, y, i, batch: jnp.mean(1 - jnp.exp(-0.5 * (residual(y, batch) / 2) ** 2)),
        lower=lambda x, y, i, batch: jnp.mean(residual(y, batch) ** 2) + 0.5 * jnp.sum((y - x) ** 2),
        x0=jnp.zeros(d), y0=jnp.zeros(d), strong_convexity=1.0, y0_per_task=False,
        lower_data=bx.per_task({"A": A[:, :15], "b": b[:, :15]}),
        upper_data=bx.per_task({"A": A[:, 15:], "b": b[:, 15:]}),
    )  # fmt: skip


def labels(n, d, seed=0):
    """x are the labels of a few rows, learned so that a model of them does well on many others."""
    rng = np.random.default_rng(seed)
    rows = jnp.asarray(rng.normal(size=(n, d)))
    A = rng.normal(size=(2000, d))
    b = np.sign(A @ rng.normal(size=d) / np.sqrt(d) + 0.3 * rng.normal(size=2000))
    lower = lambda x, y, i, batch: jnp.mean((rows @ y - x) ** 2) + 0.05 * jnp.sum(y**2)
    return bx.Problem(
        upper=lambda x, y, i, batch: jnp.mean(jax.nn.softplus(-batch["b"] * (batch["A"] @ y))),
        lower=lower, x0=jnp.zeros(n), y0=jnp.zeros(d), strong_convexity=0.1, upper_data=bx.shared({"A": A, "b": b}),
    )  # fmt: skip


def areas(m, seed=0):
    """Multi-task AUC: a linear head for each of m tasks on one learned layer."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(600, 8))
    labels = np.where(np.tanh(A) @ rng.normal(size=(8, m)) + rng.normal(size=(600, m)) > 2, 1.0, -1.0)
    return bx.problems.auc(
        features=A, labels=labels, represent=lambda body, rows: jnp.tanh(rows @ body), ridge=1e-3,
        body0=jnp.asarray(0.3 * rng.normal(size=(8, 6))), heads0=0.1 * rng.normal(size=(m, 6)),
    )  # fmt: skip


def sources(n, d, count, seed=0):
    """How much to trust each of `count` sources of rows, of which half have labels of their own invention."""
    rng = np.random.default_rng(seed)
    model = rng.normal(size=(count, d)) * (np.arange(count)[:, None] % 2) * 3 + rng.normal(size=d)
    source = rng.integers(count, size=n)
    A = rng.normal(size=(n, d))
    b = np.sign(np.sum(A * model[source], axis=1) + rng.logistic(size=n))
    b[-n // 5 :] = np.sign(A[-n // 5 :] @ model[0])
    train, validation = _halves({"A": A, "b": b, "source": source}, n - n // 5)

    def losses(y, batch):
        return jax.nn.softplus(-batch["b"] * (batch["A"] @ y))

    def lower(x, y, i, batch):
        return jnp.mean(count * jax.nn.softmax(x)[batch["source"]] * losses(y, batch)) + 1e-3 * jnp.sum(y**2)

    return bx.Problem(
        upper=lambda x, y, i, batch: jnp.mean(losses(y, batch)), lower=lower, x0=jnp.zeros(count), y0=jnp.zeros(d),
        strong_convexity=2e-3, lower_data=train, upper_data=validation,
    )  # fmt: skip


def decays(n, terms, seed=0):
    """A curve as a sum of decays: x are the logarithms of their rates, y how much of each, fitted to other times."""
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0, 10, size=2 * n))
    truth = np.exp(-np.outer(t, np.geomspace(0.1, 3, terms))) @ rng.uniform(0.5, 2, size=terms)
    b = truth + 0.01 * rng.normal(size=2 * n)
    train, validation = (bx.shared({"t": t[part::2], "b": b[part::2]}) for part in range(2))

    def fit(x, y, batch):
        return jnp.mean((jnp.exp(-jnp.outer(batch["t"], jnp.exp(x))) @ y - batch["b"]) ** 2)

    return bx.Problem(
        upper=lambda x, y, i, batch: fit(x, y, batch),
        lower=lambda x, y, i, batch: fit(x, y, batch) + 0.5e-3 * jnp.sum(y**2),
        x0=jnp.linspace(-0.5, 0.5, terms), y0=jnp.zeros(terms), strong_convexity=1e-3,
        lower_data=train, upper_data=validation,
    )  # fmt: skip


def transfer(m, n, d, seed=0):
    """How much of each of d columns m hospitals take over from a model of all; logistic, few rows each."""
    rng = np.random.default_rng(seed)
    common, own = rng.normal(size=d), np.repeat([0.1, 2.0], [d - d // 2, d // 2]) * rng.normal(size=(m, d))
    A = rng.normal(size=(m, 3 * n, d))
    b = np.sign(np.einsum("mnd,md->mn", A, common + own) + rng.logistic(size=(m, 3 * n)))
    loss = lambda y, batch: jnp.mean(jax.nn.softplus(-batch["b"] * (batch["A"] @ y)))

    def lower(x, y, i, batch):
        return loss(y, batch) + 0.5 * jnp.sum((1e-2 + x["pull"] ** 2) * (y - x["model"]) ** 2)

    return bx.Problem(
        upper=lambda x, y, i, batch: loss(y, batch), lower=lower, x0={"pull": jnp.ones(d), "model": jnp.zeros(d)},
        y0=jnp.zeros(d), strong_convexity=1e-2, y0_per_task=False,
        lower_data=bx.per_task({"A": A[:, :n], "b": b[:, :n]}), upper_data=bx.per_task({"A": A[:, n:], "b": b[:, n:]}),
    )  # fmt: skip


def pricing(m, d, seed=0):
    """Prices x of d goods; each of m customers buys what is best for himself; x is to earn the most. No samples."""
    rng = np.random.default_rng(seed)
    roots = 0.3 * rng.normal(size=(m, d, d))
    taste = {"Q": np.eye(d) + roots @ roots.transpose(0, 2, 1), "worth": rng.uniform(50, 150, size=(m, d))}
    return bx.Problem(
        upper=lambda x, y, task, batch: -jnp.sum((x - 20) * y),
        lower=lambda x, y, task, batch: 0.5 * y @ task["Q"] @ y - y @ (task["worth"] - x),
        x0=jnp.full(d, 20.0), y0=jnp.zeros(d), tasks=taste, strong_convexity=1.0, y0_per_task=False,
    )  # fmt: skip


def many_classes(n, d, classes, seed=0):
    """Weights on samples with a third of the labels wrong, for a softmax model: y is a matrix."""
    rng = np.random.default_rng(seed)
    centres = 2 * rng.normal(size=(classes, d))
    b = rng.integers(classes, size=n)
    A = centres[b] + 1.5 * rng.normal(size=(n, d))
    size = n - n // 6
    wrong = np.flatnonzero(rng.random(size) < 1 / 3)
    given = b.copy()
    given[wrong] = (b[wrong] + 1) % classes
    train, validation = _halves({"A": A, "b": given, "row": np.minimum(np.arange(n), size - 1)}, size)

    def losses(y, batch):
        scores = batch["A"] @ y
        return jax.nn.logsumexp(scores, axis=1) - jnp.take_along_axis(scores, batch["b"][:, None], 1)[:, 0]

    def lower(x, y, i, batch):
        return jnp.mean(jax.nn.sigmoid(x[batch["row"]]) * losses(y, batch)) + 0.5e-2 * jnp.sum(y**2)

    return bx.Problem(
        upper=lambda x, y, i, batch: jnp.mean(losses(y, batch)), lower=lower, x0=jnp.zeros(size),
        y0=jnp.zeros((d, classes)), strong_convexity=1e-2, lower_data=train, upper_data=validation,
    )  # fmt: skip


def sparse(m, n, d, seed=0):
    """How much |y| and y² cost, two numbers for m regressions with few columns that count; |y| is rounded at zero."""
    rng = np.random.default_rng(seed)
    models = rng.normal(size=(m, d)) * (rng.random((m, d)) < 0.15)
    A = rng.normal(size=(m, 2 * n, d))
    b = np.einsum("mnd,md->mn", A, models) + 0.5 * rng.normal(size=(m, 2 * n))
    fit = lambda y, batch: 0.5 * jnp.mean((batch["A"] @ y - batch["b"]) ** 2)

    def lower(x, y, i, batch):
        absolute = jnp.sum(jnp.sqrt(y**2 + 1e-4))
        return fit(y, batch) + jnp.exp(x[0]) * absolute + 0.5 * (1e-3 + jnp.exp(x[1])) * jnp.sum(y**2)

    return bx.Problem(
        upper=lambda x, y, i, batch: fit(y, batch), lower=lower, x0=jnp.full(2, -5.0), y0=jnp.zeros(d),
        strong_convexity=1e-3, y0_per_task=False,
        lower_data=bx.per_task({"A": A[:, :n], "b": b[:, :n]}), upper_data=bx.per_task({"A": A[:, n:], "b": b[:, n:]}),
    )  # fmt: skip


def voters(m, d, seed=0):
    """Logistic models of m groups of very different sizes; x is the centre and the width of what they share."""
    rng = np.random.default_rng(seed)
    models = rng.normal(size=d) + np.geomspace(0.1, 1, d) * rng.normal(size=(m, d))
    held = []
    for _ in range(2):
        owner = np.concatenate([np.arange(m), rng.choice(m, size=15 * m, p=rng.dirichlet(np.full(m, 0.7)))])
        A = rng.normal(size=(len(owner), d))
        b = np.sign(np.sum(A * models[owner], axis=1) + rng.logistic(size=len(owner)))
        held.append(_rows_of(owner, {"A": A, "b": b}, m))
    loss = lambda y, batch: jnp.mean(jax.nn.softplus(-batch["b"] * (batch["A"] @ y)))

    def lower(x, y, i, batch):
        return loss(y, batch) + 0.5 * jnp.sum((1e-2 + jax.nn.softplus(x["width"])) * (y - x["centre"]) ** 2)

    return bx.Problem(
        upper=lambda x, y, i, batch: loss(y, batch), lower=lower, x0={"centre": jnp.zeros(d), "width": jnp.zeros(d)},
        y0=jnp.zeros(d), strong_convexity=1e-2, y0_per_task=False, lower_data=held[0], upper_data=held[1],
    )  # fmt: skip


def counts(m, n, d, seed=0):
    """Poisson regressions of m regions around a common model; columns in units of their own."""
    rng = np.random.default_rng(seed)
    scales = np.geomspace(0.1, 10, d)
    models = 0.3 * rng.normal(size=d) + 0.15 * rng.normal(size=(m, d))
    A = rng.normal(size=(m, 2 * n, d))
    b = rng.poisson(np.exp(np.einsum("mnd,md->mn", A, models) + 1)).astype(float)
    A = A * scales

    def loss(y, batch):
        rate = batch["A"] @ y + 1
        return jnp.mean(jnp.exp(rate) - batch["b"] * rate)

    return bx.Problem(
        upper=lambda x, y, i, batch: loss(y, batch),
        lower=lambda x, y, i, batch: loss(y, batch) + 0.5 * jnp.sum((y - x) ** 2),
        x0=jnp.zeros(d), y0=jnp.zeros(d), strong_convexity=1.0, y0_per_task=False,
        lower_data=bx.per_task({"A": A[:, :n], "b": b[:, :n]}), upper_data=bx.per_task({"A": A[:, n:], "b": b[:, n:]}),
    )  # fmt: skip


def worst_group(n, d, groups, seed=0):
    """Min-max: a classifier for the worst weights of some groups of rows, which are kept near equal ones."""
    rng = np.random.default_rng(seed)
    group = rng.choice(groups, size=n, p=rng.dirichlet(np.ones(groups)))
    A = rng.normal(size=(n, d)) + 0.5 * rng.normal(size=(groups, d))[group]
    b = np.sign(np.sum(A * (rng.normal(size=d) + 0.5 * rng.normal(size=(groups, d)))[group], axis=1))
    share = np.bincount(group, minlength=groups) / n

    def loss(x, y, i, batch):
        of_row = jax.nn.softplus(-batch["b"] * (batch["A"] @ x)) / (groups * batch["share"])
        return jnp.mean(of_row * (1 + y[batch["group"]])) - 0.5 * jnp.sum(y**2) + 1e-3 * jnp.sum(x**2)

    held = bx.shared({"A": A, "b": b, "group": group, "share": share[group]})
    return bx.problems.minmax(loss=loss, x0=jnp.zeros(d), y0=jnp.zeros(groups), strong_concavity=1.0, data=held)


def ratings(m, items, k, seed=0):
    """A table of ratings: x are k numbers for each item, y_i those of user i, by ridge on what he has rated."""
    rng = np.random.default_rng(seed)
    taste, kind = rng.normal(size=(m, k)), rng.normal(size=(items, k))
    held = []
    for each in (12, 6):
        owner = np.repeat(np.arange(m), each)
        item = rng.integers(items, size=len(owner))
        stars = np.sum(taste[owner] * kind[item], axis=1) + 0.3 * rng.normal(size=len(owner))
        held.append(_rows_of(owner, {"item": item, "stars": stars}, m))
    fit = lambda x, y, batch: jnp.mean((x[batch["item"]] @ y - batch["stars"]) ** 2)
    return bx.Problem(
        upper=lambda x, y, i, batch: fit(x, y, batch) + 1e-3 * jnp.sum(x**2) / items,
        lower=lambda x, y, i, batch: fit(x, y, batch) + 0.05 * jnp.sum(y**2),
        x0=jnp.asarray(0.5 * rng.normal(size=(items, k))), y0=jnp.zeros(k), strong_convexity=0.1, y0_per_task=False,
        lower_data=held[0], upper_data=held[1],
    )  # fmt: skip


def weight_network(n, d, seed=0):
    """x are a small network that weighs a row by its columns and its label; a quarter of the rows have wrong labels."""
    rng = np.random.default_rng(seed)
    model = rng.normal(size=d)
    A, held = rng.normal(size=(n, d)), rng.normal(size=(n // 10, d))
    b = np.sign(A @ model + 0.5 * rng.normal(size=n)) * np.where(A[:, 0] > 0.7, -1, 1)
    held[:, 0] = -np.abs(held[:, 0])
    truth = np.sign(held @ model)
    x0 = {"W": jnp.asarray(0.3 * rng.normal(size=(d + 1, 8))), "v": jnp.asarray(0.3 * rng.normal(size=8))}

    def losses(y, batch):
        return jax.nn.softplus(-batch["b"] * (batch["A"] @ y))

    def lower(x, y, i, batch):
        rows = jnp.concatenate([batch["A"], batch["b"][:, None]], axis=1)
        return jnp.mean(jax.nn.sigmoid(jnp.tanh(rows @ x["W"]) @ x["v"]) * losses(y, batch)) + 5e-3 * jnp.sum(y**2)

    return bx.Problem(
        upper=lambda x, y, i, batch: jnp.mean(losses(y, batch)), lower=lower, x0=x0, y0=jnp.zeros(d),
        strong_convexity=1e-2, lower_data=bx.shared({"A": A, "b": b}), upper_data=bx.shared({"A": held, "b": truth}),
    )  # fmt: skip


def observed(m, d, seed=0):
    """What do they want? Costs exp(x) of m people's choices y = argmin ½yᵀdiag(exp x)y − cᵀy, from what they did."""
    rng = np.random.default_rng(seed)
    cost = np.exp(rng.normal(size=d))
    c = rng.normal(size=(m, d))
    did = c / cost + 0.1 * rng.normal(size=(m, d))
    return bx.Problem(
        upper=lambda x, y, task, batch: 1e3 * jnp.sum((y - task["did"]) ** 2),
        lower=lambda x, y, task, batch: 0.5 * jnp.sum((1e-2 + jnp.exp(x)) * y**2) - y @ task["c"],
        x0=jnp.zeros(d), y0=jnp.zeros(d), tasks={"c": c, "did": did}, strong_convexity=1e-2, y0_per_task=False,
    )  # fmt: skip


def margins(n, d, classes, seed=0):
    """One scale for each column of a squared-hinge classifier, chosen on other rows; one lower problem for a class."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(d, classes)) * (rng.random((d, 1)) < 0.3)
    A = rng.normal(size=(2 * n, d))
    b = np.sign(A @ truth + rng.normal(size=(2 * n, classes)))
    held = _halves({"A": A, "b": b}, n)

    def loss(x, y, i, batch):
        margin = batch["b"][:, i] * ((batch["A"] * jnp.exp(x)) @ y)
        return jnp.mean(jax.nn.relu(1 - margin) ** 2)

    return bx.Problem(
        upper=loss, lower=lambda x, y, i, batch: loss(x, y, i, batch) + 0.05 * jnp.sum(y**2), x0=jnp.zeros(d),
        y0=jnp.zeros(d), tasks=classes, strong_convexity=0.1, y0_per_task=False, lower_data=held[0], upper_data=held[1],
    )  # fmt: skip


def shrinkage(m, seed=0):
    """Very many means of three numbers each, pulled towards a common one as strongly as x says."""
    rng = np.random.default_rng(seed)
    means = 100 + 5 * rng.normal(size=(m, 2))
    rows = means[:, None] + np.array([3.0, 20.0]) * rng.normal(size=(m, 4, 2))
    fit = lambda y, batch: 0.5 * jnp.mean(jnp.sum((batch - y) ** 2, axis=-1))

    def lower(x, y, i, batch):
        return fit(y, batch) + 0.5 * jnp.sum(jnp.exp(jnp.clip(x["pull"], -10, 10)) * (y - 100 * x["centre"]) ** 2)

    return bx.Problem(
        upper=lambda x, y, i, batch: fit(y, batch), lower=lower, x0={"centre": jnp.zeros(2), "pull": jnp.zeros(2)},
        y0=jnp.zeros(2), strong_convexity=1.0, y0_per_task=False,
        lower_data=bx.per_task(rows[:, :3]), upper_data=bx.per_task(rows[:, 3:]),
    )  # fmt: skip


JUDGE = {
    "sinusoids-300": lambda: sinusoids(300),
    "sinusoids-10000": lambda: sinusoids(10_000, seed=1),
    "robust-50": lambda: robust(50, 6),
    "robust-1000": lambda: robust(1000, 4, seed=1),
    "labels-50": lambda: labels(50, 10),
    "labels-300": lambda: labels(300, 20, seed=1),
    "areas-10": lambda: areas(10),
    "sources-10": lambda: sources(5000, 20, 10),
    "decays-4": lambda: decays(200, 4),
    "transfer-100": lambda: transfer(100, 25, 12),
    "pricing-200": lambda: pricing(200, 8),
    "many_classes": lambda: many_classes(1200, 15, 4),
    "sparse-20": lambda: sparse(20, 40, 30),
    "voters-2000": lambda: voters(2000, 5),
    "counts-30": lambda: counts(30, 50, 6),
    "worst_group": lambda: worst_group(3000, 15, 8),
    "ratings-1000": lambda: ratings(1000, 200, 4),
    "weight_network": lambda: weight_network(20_000, 20),
    "observed-5000": lambda: observed(5000, 10),
    "margins-5": lambda: margins(300, 30, 5),
    "shrinkage-100000": lambda: shrinkage(100_000),
}
