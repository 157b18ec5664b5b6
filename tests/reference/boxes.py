"""The boxes of the paper in NumPy, line by line, eager and slow; nothing here comes from the library.

Every function takes what was drawn in each step, so that the library can be held against it.
"""

from dataclasses import dataclass

import numpy as np


@dataclass
class Drawn:
    """Draws of one step: tasks with 1/(expected count), their samples, and the tasks of the direction."""

    tasks: list
    weights: list
    xi: list
    zeta: list
    direction_tasks: list


@dataclass
class Rates:
    """The rates of one step, as in the boxes: eta_t * gamma, tau, tau_t, and the betas."""

    eta_gamma: float
    tau: float
    tau_t: float
    fx: float
    fy: float
    gy: float
    gxy: float
    gyy: float
    d: float


def project_ball(v, C):
    """Pi_C, of one vector or of each row."""
    if C is None:
        return v
    return v * (C / np.maximum(np.linalg.norm(v, axis=-1, keepdims=True), C))


def project_singular(V, C):
    """S^u_C."""
    if C is None:
        return V
    U, s, Wt = np.linalg.svd(V, full_matrices=False)
    return U @ np.diag(np.minimum(s, C)) @ Wt


def project_eigen(H, lam):
    """S^l_lambda, of one matrix or of each."""
    e, Q = np.linalg.eigh((H + H.mT) / 2)
    return (Q * np.maximum(e, lam)[..., None, :]) @ Q.mT


def correct(u, v, V, H):
    """z_i = u_i - V_i H_i^-1 v_i of every task."""
    return u - (V @ np.linalg.solve(H, v[..., None]))[..., 0]


class Theta:
    """All that Algorithm 2 carries from step to step, eager for all m tasks: a row for each."""

    def __init__(self, model, x0, y0, first):
        self.x, self.x_prev = x0.copy(), x0.copy()
        self.y, self.y_prev = np.array(y0), np.array(y0)
        rows = []
        for i, (xi, zeta) in enumerate(first):
            u = project_ball(model.fx(i, x0, y0[i], xi), model.C_fx)
            v = project_ball(model.fy(i, x0, y0[i], xi), model.C_fy)
            w = model.gy(i, x0, y0[i], zeta)
            V = project_singular(model.gxy(i, x0, y0[i], zeta), model.C_gxy)
            H = project_eigen(model.gyy(i, x0, y0[i], zeta), model.lam)
            rows.append((u, v, w, V, H))
        self.u, self.v, self.w, self.V, self.H = map(np.stack, zip(*rows, strict=True))
        self.z = correct(self.u, self.v, self.V, self.H)
        self.d = np.mean(self.z, axis=0)


def algorithm_1(model, theta, draws, rates):
    """SVRB: yields (x, y) after every step. No projection of u and y, no d."""
    x, x_, y, y_ = theta.x, theta.x_prev, theta.y[0], theta.y_prev[0]
    u, v, w, V, H = theta.u[0], theta.v[0], theta.w[0], theta.V[0], theta.H[0]
    for drawn, r in zip(draws, rates, strict=True):
        xi, ze = drawn.xi[0], drawn.zeta[0]
        u = (1 - r.fx) * (u - model.fx(0, x_, y_, xi)) + model.fx(0, x, y, xi)
        v = project_ball((1 - r.fy) * (v - model.fy(0, x_, y_, xi)) + model.fy(0, x, y, xi), model.C_fy)
        V = project_singular((1 - r.gxy) * (V - model.gxy(0, x_, y_, ze)) + model.gxy(0, x, y, ze), model.C_gxy)
        H = project_eigen((1 - r.gyy) * (H - model.gyy(0, x_, y_, ze)) + model.gyy(0, x, y, ze), model.lam)
        w = (1 - r.gy) * (w - model.gy(0, x_, y_, ze)) + model.gy(0, x, y, ze)
        z = u - V @ np.linalg.solve(H, v)
        x, x_ = x - r.eta_gamma * z, x
        y, y_ = y - r.tau_t * r.tau * w, y
        yield x, [y]


def hits_of(drawn):
    """The drawn tasks, each with the places where it was drawn."""
    tasks = list(map(int, drawn.tasks))
    return {i: [k for k, task in enumerate(tasks) if task == i] for i in tasks}


def algorithm_2(model, theta, draws, rates):
    """RSVRB: changes theta, and yields (x, y) after every step."""
    T = theta
    for drawn, r in zip(draws, rates, strict=True):
        z_t = T.z
        # Of a task that is not drawn all estimates fade.
        u, v, w = (1 - r.fx) * T.u, (1 - r.fy) * T.v, (1 - r.gy) * T.w
        V, H = (1 - r.gxy) * T.V, project_eigen((1 - r.gyy) * T.H, model.lam)
        for i, hits in hits_of(drawn).items():

            def storm(old, of, beta, samples, i=i, hits=hits, drawn=drawn):
                before = sum(drawn.weights[k] * of(i, T.x_prev, T.y_prev[i], samples[k]) for k in hits)
                now = sum(drawn.weights[k] * of(i, T.x, T.y[i], samples[k]) for k in hits)
                return (1 - beta) * (old - before) + now

            u[i] = project_ball(storm(T.u[i], model.fx, r.fx, drawn.xi), model.C_fx)
            v[i] = project_ball(storm(T.v[i], model.fy, r.fy, drawn.xi), model.C_fy)
            V[i] = project_singular(storm(T.V[i], model.gxy, r.gxy, drawn.zeta), model.C_gxy)
            H[i] = project_eigen(storm(T.H[i], model.gyy, r.gyy, drawn.zeta), model.lam)
            w[i] = storm(T.w[i], model.gy, r.gy, drawn.zeta)
        T.u, T.v, T.w, T.V, T.H, T.z = u, v, w, V, H, correct(u, v, V, H)
        J = drawn.direction_tasks
        T.d = (1 - r.d) * (T.d - np.mean(z_t[J], axis=0)) + np.mean(T.z[J], axis=0)
        T.x_prev, T.x = T.x, T.x - r.eta_gamma * T.d
        trial = project_ball(T.y - r.tau * T.w, model.R_y)
        T.y_prev, T.y = T.y, (1 - r.tau_t) * T.y + r.tau_t * trial
        yield T.x, T.y


def algorithm_3(model, theta, draws, first, lengths):
    """RE-RSVRB: stages of lengths T_k that carry theta over; rates as Theorem 3 changes them."""
    draws = iter(draws)
    for k, length in enumerate(lengths):
        eta, beta = 2 ** (-k / 2), 2.0**-k
        rate = Rates(
            first.eta_gamma * eta, first.tau, first.tau_t * eta,
            first.fx * beta, first.fy * beta, first.gy * beta, first.gxy * beta, first.gyy * beta, first.d * beta,
        )  # fmt: skip
        stage = [next(draws) for _ in range(length)]
        yield from algorithm_2(model, theta, stage, [rate] * length)


def msvr(old, now, before, alpha, m, size):
    """s ← (1−α)s + α·g_now + γ(g_now − g_prev) for a drawn block."""
    gamma = (m - size) / (size * (1 - alpha)) + (1 - alpha)
    return (1 - alpha) * old + alpha * now + gamma * (now - before)


class BlockTheta:
    """All that BSVRB carries from step to step, eager for all m blocks: a row for each."""

    def __init__(self, model, x0, y0, first, version):
        self.x, self.x_prev = x0.copy(), x0.copy()
        self.y, self.y_prev = np.array(y0), np.array(y0)
        rows, z = [], []
        for i, (xi, zeta) in enumerate(first):
            hessian, v = model.gyy(i, x0, y0[i], zeta), model.fy(i, x0, y0[i], xi)
            H = project_eigen(hessian, model.lam)
            h = project_ball(v * (v @ v) / (v @ hessian @ v), model.R_h)
            rows.append((model.gy(i, x0, y0[i], zeta), H, h, hessian @ h - v))
            used = h if version == 2 else np.linalg.solve(H, v)
            z.append(model.fx(i, x0, y0[i], xi) - model.gxy(i, x0, y0[i], zeta) @ used)
        self.s, self.H, self.h, self.r = map(np.stack, zip(*rows, strict=True))
        self.h_prev, self.H_prev = self.h, self.H.copy()
        self.z = np.mean(z, axis=0)


def bsvrb(model, theta, draws, rates, version):
    """BSVRB v1 or v2: yields (x, y) after every step. `rates` are (eta, tau, tau_h, alpha_s, alpha_H, beta)."""
    T, m = theta, model.m
    for drawn, (eta, tau, tau_h, alpha_s, alpha_h, beta) in zip(draws, rates, strict=True):
        size, now, before, H_t = len(drawn.tasks), [], [], T.H.copy()
        for i, xi, ze in zip(drawn.tasks, drawn.xi, drawn.zeta, strict=True):
            at, old = (i, T.x, T.y[i]), (i, T.x_prev, T.y_prev[i])
            T.s[i] = msvr(T.s[i], model.gy(*at, ze), model.gy(*old, ze), alpha_s, m, size)
            v, v_old = model.fy(*at, xi), model.fy(*old, xi)
            if version == 1:
                h, h_old = np.linalg.solve(T.H[i], v), np.linalg.solve(T.H_prev[i], v_old)
                moved = msvr(T.H[i], model.gyy(*at, ze), model.gyy(*old, ze), alpha_h, m, size)
                T.H[i] = project_eigen(moved, model.lam)
            else:
                h, h_old = T.h[i], T.h_prev[i]
                residual, residual_old = model.gyy(*at, ze) @ h - v, model.gyy(*old, ze) @ h_old - v_old
                T.r[i] = msvr(T.r[i], residual, residual_old, alpha_h, m, size)
            now.append(model.fx(*at, xi) - model.gxy(*at, ze) @ h)
            before.append(model.fx(*old, xi) - model.gxy(*old, ze) @ h_old)
        T.z = (1 - beta) * (T.z - np.mean(before, axis=0)) + np.mean(now, axis=0)
        T.x_prev, T.x, T.H_prev = T.x, T.x - eta * T.z, H_t
        T.y_prev, T.y = T.y, T.y - tau * T.s
        T.h_prev, T.h = T.h, project_ball(T.h - tau_h * T.r, model.R_h)
        yield T.x, T.y


def block_soba(model, draws, rates, inner_steps):
    """SOBA on the drawn blocks; yields (x, y) after every step. `rates` are (gamma, rho, theta)."""
    x, y, d = model.x0.copy(), project_ball(model.y0.copy(), model.R_y), None
    h = np.zeros_like(y)
    for drawn, (gamma, rho, theta) in zip(draws, rates, strict=True):
        D = []
        for i, xi, ze in zip(drawn.tasks, drawn.xi, drawn.zeta, strict=True):
            for _ in range(inner_steps):
                residual = model.gyy(i, x, y[i], ze) @ h[i] - model.fy(i, x, y[i], xi)
                y[i] = project_ball(y[i] - rho * model.gy(i, x, y[i], ze), model.R_y)
                h[i] = project_ball(h[i] - rho * residual, model.R_h)
            D.append(model.fx(i, x, y[i], xi) - model.gxy(i, x, y[i], ze) @ h[i])
        d = np.mean(D, axis=0) if d is None else (1 - theta) * d + theta * np.mean(D, axis=0)
        x = x - gamma * d
        yield x, y.copy()


def tracked_rsvrb(model, theta, draws, rates):
    """RSVRB with h_i ≈ H_i⁻¹v_i followed by its own recursion: s estimates ∇²yy g·h, k estimates ∇²xy g·h.

    Of a task that is not drawn, u, v, w, s and k fade; y moves along −w and h along −(s − v) of its last visit, which
    fades with w. Yields (x, y) after every step.
    """
    T = theta
    for drawn, r in zip(draws, rates, strict=True):
        z_t, step = T.u - T.k, r.tau_t * r.tau
        u, v, w = (1 - r.fx) * T.u, (1 - r.fy) * T.v, (1 - r.gy) * T.w
        s, k, residual = (1 - r.gyy) * T.s, (1 - r.gxy) * T.k, (1 - r.gy) * T.residual
        h = T.h - step * residual
        for i, hits in hits_of(drawn).items():

            def storm(old, of, beta, samples, i=i, hits=hits, drawn=drawn):
                before = sum(drawn.weights[n] * of(T.x_prev, T.y_prev[i], T.h_prev[i], samples[n]) for n in hits)
                now = sum(drawn.weights[n] * of(T.x, T.y[i], T.h[i], samples[n]) for n in hits)
                return (1 - beta) * (old - before) + now

            u[i] = project_ball(storm(T.u[i], lambda x, y, h, s, i=i: model.fx(i, x, y, s), r.fx, drawn.xi), model.C_fx)
            v[i] = project_ball(storm(T.v[i], lambda x, y, h, s, i=i: model.fy(i, x, y, s), r.fy, drawn.xi), model.C_fy)
            w[i] = storm(T.w[i], lambda x, y, h, s, i=i: model.gy(i, x, y, s), r.gy, drawn.zeta)
            s[i] = storm(T.s[i], lambda x, y, h, s, i=i: model.gyy(i, x, y, s) @ h, r.gyy, drawn.zeta)
            k[i] = storm(T.k[i], lambda x, y, h, s, i=i: model.gxy(i, x, y, s) @ h, r.gxy, drawn.zeta)
            residual[i] = s[i] - v[i]
            h[i] = project_ball(T.h[i] - step * residual[i], model.R_h)
        T.u, T.v, T.w, T.s, T.k, T.residual = u, v, w, s, k, residual
        T.h_prev, T.h = T.h, h
        J, z = drawn.direction_tasks, T.u - T.k
        T.d = (1 - r.d) * (T.d - np.mean(z_t[J], axis=0)) + np.mean(z[J], axis=0)
        T.x_prev, T.x = T.x, T.x - r.eta_gamma * T.d
        T.y_prev, T.y = T.y, T.y - step * T.w
        yield T.x, T.y


def tracked_theta(model, x0, y0, first):
    """The start of `tracked_rsvrb`: h is the best multiple of v."""
    theta = Theta(model, x0, y0, first)
    rows = []
    for i, (_, zeta) in enumerate(first):
        v, hessian = theta.v[i], model.gyy(i, x0, y0[i], zeta)
        h = project_ball(v * (v @ v) / max(v @ hessian @ v, model.lam * (v @ v)), model.R_h)
        rows.append((h, hessian @ h, model.gxy(i, x0, y0[i], zeta) @ h))
    theta.h, theta.s, theta.k = map(np.stack, zip(*rows, strict=True))
    theta.h_prev, theta.residual = theta.h, theta.s - theta.v
    theta.d = np.mean(theta.u - theta.k, axis=0)
    return theta
