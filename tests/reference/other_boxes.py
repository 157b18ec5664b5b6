"""The boxes of the methods that bilevax is compared with, in NumPy, line by line; nothing here comes from the library.

Each takes what was drawn in every step, and yields (x, y) after it. Steps and mixings are functions of t = 1, 2, ...
"""

import numpy as np

from .boxes import project_ball, project_eigen, project_singular


def random_length(model, i, x, y, v, zetas, p, Q, theta):
    """Qϑ Π_{k=1..p}(I − ϑ∇²yy g(ζ_k)) v."""
    for k in range(p):
        v = v - theta * model.gyy(i, x, y, zetas[k][i]) @ v
    return Q * theta * v


def whole_sum(model, i, x, y, v, zetas, theta):
    """ϑ Σ_{q=0..Q} Π_{k=1..q}(I − ϑ∇²yy g(ζ_k)) v."""
    total = np.zeros_like(v)
    for q in range(len(zetas) + 1):
        term = v
        for k in range(q):
            term = term - theta * model.gyy(i, x, y, zetas[k][i]) @ term
        total = total + term
    return theta * total


def nested(model, draws, alpha, beta, invert):
    """BSA, TTSA, StocBio: inner steps on y, h by `invert(i, x, y, v, drawn)`, one step on x."""
    x, y = model.x0.copy(), [y.copy() for y in model.y0]
    for t, d in enumerate(draws, start=1):
        for zeta in d["inner"]:
            y = [y[i] - beta(t) * model.gy(i, x, y[i], zeta[i]) for i in range(model.m)]
        z = []
        for i in range(model.m):
            h = invert(i, x, y[i], model.fy(i, x, y[i], d["xi"][i]), d)
            z.append(model.fx(i, x, y[i], d["xi"][i]) - model.gxy(i, x, y[i], d["zeta"][i]) @ h)
        x = x - alpha(t) * np.mean(z, axis=0)
        yield x, y


def hyper_storm(model, draws, alpha, beta, beta_g, beta_f, invert):
    """SUSTAIN and MRBO: STORM on ∇y g and on whole samples of the hypergradient."""
    x, y = model.x0.copy(), [y.copy() for y in model.y0]
    w = z = x_ = y_ = None

    def sampled(x, y, d):
        rows = []
        for i in range(model.m):
            h = invert(i, x, y[i], model.fy(i, x, y[i], d["xi"][i]), d)
            rows.append(model.fx(i, x, y[i], d["xi"][i]) - model.gxy(i, x, y[i], d["cross"][i]) @ h)
        return np.mean(rows, axis=0)

    for t, d in enumerate(draws, start=1):
        fresh = [model.gy(i, x, y[i], d["zeta"][i]) for i in range(model.m)]
        if t == 1:
            w, z = fresh, sampled(x, y, d)
        else:
            old = [model.gy(i, x_, y_[i], d["zeta"][i]) for i in range(model.m)]
            w = [(1 - beta_g(t)) * (w[i] - old[i]) + fresh[i] for i in range(model.m)]
            z = (1 - beta_f(t)) * (z - sampled(x_, y_, d)) + sampled(x, y, d)
        x_, y_ = x, y
        x, y = x - alpha(t) * z, [y[i] - beta(t) * w[i] for i in range(model.m)]
        yield x, y


def stable(model, draws, alpha, beta, tau, everything):
    """STABLE, from V and H on all samples."""
    x, y, m = model.x0.copy(), [y.copy() for y in model.y0], model.m
    V = [project_singular(model.gxy(i, x, y[i], everything), model.C_gxy) for i in range(m)]
    H = [project_eigen(model.gyy(i, x, y[i], everything), model.lam) for i in range(m)]
    x_, y_ = x, y
    for t, d in enumerate(draws, start=1):
        z = []
        for i in range(m):
            ze, xi = d["zeta"][i], d["xi"][i]
            V[i] = (1 - tau(t)) * (V[i] - model.gxy(i, x_, y_[i], ze)) + model.gxy(i, x, y[i], ze)
            H[i] = (1 - tau(t)) * (H[i] - model.gyy(i, x_, y_[i], ze)) + model.gyy(i, x, y[i], ze)
            V[i], H[i] = project_singular(V[i], model.C_gxy), project_eigen(H[i], model.lam)
            z.append(model.fx(i, x, y[i], xi) - V[i] @ np.linalg.solve(H[i], model.fy(i, x, y[i], xi)))
        after = x - alpha(t) * np.mean(z, axis=0)
        moved = [
            y[i] - beta(t) * model.gy(i, x, y[i], d["zeta"][i]) - np.linalg.solve(H[i], V[i].T @ (after - x))
            for i in range(m)
        ]
        x_, y_, x, y = x, y, after, moved
        yield x, y


def directions(model, x, y, h, xi, zeta):
    """D_y, D_h of every task, and D_x."""
    tasks = range(model.m)
    D_y = [model.gy(i, x, y[i], zeta[i]) for i in tasks]
    D_h = [model.gyy(i, x, y[i], zeta[i]) @ h[i] - model.fy(i, x, y[i], xi[i]) for i in tasks]
    D_x = np.mean([model.fx(i, x, y[i], xi[i]) - model.gxy(i, x, y[i], zeta[i]) @ h[i] for i in tasks], axis=0)
    return D_y, D_h, D_x


def three_directions(model, draws, gamma, rho, estimate):
    """The single-loop family; `estimate(t, d, x, y, h)` gives D_y, D_h, D_x."""
    x, y = model.x0.copy(), [y.copy() for y in model.y0]
    h = [np.zeros_like(row) for row in y]
    for t, d in enumerate(draws, start=1):
        D_y, D_h, D_x = estimate(t, d, x, y, h)
        x = x - gamma(t) * D_x
        y = [y[i] - rho(t) * D_y[i] for i in range(model.m)]
        h = [project_ball(h[i] - rho(t) * D_h[i], model.R_h) for i in range(model.m)]
        yield x, y


def soba(model):
    """The sample itself."""
    return lambda t, d, x, y, h: directions(model, x, y, h, d["xi"], d["zeta"])


def ma_soba(model, theta):
    """D_x through a moving average."""
    average = [None]

    def estimate(t, d, x, y, h):
        D_y, D_h, D_x = directions(model, x, y, h, d["xi"], d["zeta"])
        average[0] = D_x if t == 1 else (1 - theta(t)) * average[0] + theta(t) * D_x
        return D_y, D_h, average[0]

    return estimate


def srba(model, q, everything):
    """All samples every q steps, differences in between."""
    kept = {}
    whole = [everything] * model.m

    def estimate(t, d, x, y, h):
        if (t - 1) % q == 0:
            new = directions(model, x, y, h, whole, whole)
        else:
            now = directions(model, x, y, h, d["xi"], d["zeta"])
            before = directions(model, *kept["point"], d["xi"], d["zeta"])
            new = [
                [old + a - b for old, a, b in zip(*parts, strict=True)]
                for parts in zip(kept["est"][:2], now[:2], before[:2], strict=True)
            ]
            new.append(kept["est"][2] + now[2] - before[2])
        kept["est"], kept["point"] = new, (x, y, h)
        return new

    return estimate


def saba(model, blocks):
    """SAGA on every term, over fixed blocks of samples (a list of lists); d has the block of each task."""
    n = sum(len(block) for block in blocks)
    terms = {
        "fy": lambda i, x, y, h, s: model.fy(i, x, y, s), "fx": lambda i, x, y, h, s: model.fx(i, x, y, s),
        "gy": lambda i, x, y, h, s: model.gy(i, x, y, s), "H": lambda i, x, y, h, s: model.gyy(i, x, y, s) @ h,
        "V": lambda i, x, y, h, s: model.gxy(i, x, y, s) @ h,
    }  # fmt: skip
    table = {}

    def estimate(t, d, x, y, h):
        tasks = range(model.m)
        if t == 1:
            for name, term in terms.items():
                table[name] = [[term(i, x, y[i], h[i], block) for block in blocks] for i in tasks]
        est = {}
        for name, term in terms.items():
            est[name] = []
            for i in tasks:
                j = d["upper_block" if name in ("fy", "fx") else "lower_block"][i]
                new = term(i, x, y[i], h[i], blocks[j])
                mean = sum(len(b) / n * row for b, row in zip(blocks, table[name][i], strict=True))
                est[name].append(new - table[name][i][j] + mean)
                table[name][i][j] = new
        D_h = [est["H"][i] - est["fy"][i] for i in tasks]
        return est["gy"], D_h, np.mean([est["fx"][i] - est["V"][i] for i in tasks], axis=0)

    return estimate
