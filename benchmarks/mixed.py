"""A mixed model with a normal coefficient for each column and group, by EM: what `SharedPrior` is compared with.

    y_i = μ + u_i,   u_ij ~ N(0, τ_j²);   squares with noise σ², or the odds of two classes by Laplace's approximation

Laird, Ware, Random-Effects Models for Longitudinal Data, 1982.
"""

import numpy as np

ROUNDS, LEAST = 100, 1e-8


class MixedModel:
    """Linear (`logistic=False`) or logistic mixed model on standardised columns and a constant."""

    def __init__(self, logistic=False):
        self.logistic = logistic

    def fit(self, X, y, groups):
        """EM on rows X, numbers or labels 0 and 1, and the group of each row."""
        self.middle, self.spread = X.mean(0), np.maximum(X.std(0), 1e-12)
        A, self.names = self._columns(X), np.unique(groups)
        parts = [(A[groups == name], y[groups == name].astype(float)) for name in self.names]
        self.mu, self.tau = np.zeros(A.shape[1]), np.full(A.shape[1], 0.3 * (1 if self.logistic else np.var(y)))
        self.noise = 1.0 if self.logistic else float(np.var(y))
        self.own = np.zeros((len(parts), A.shape[1]))
        for _ in range(ROUNDS):
            spreads = [self._estimate(i, *part) for i, part in enumerate(parts)]
            self._maximise(parts, spreads, len(A))
        return self

    def _columns(self, X):
        return np.column_stack([(X - self.middle) / self.spread, np.ones(len(X))])

    def _curvature(self, A, b, y):
        """Slope and Hessian of the loss of some rows, by the noise."""
        if not self.logistic:
            return A.T @ (A @ y - b) / self.noise, A.T @ A / self.noise
        share = 1 / (1 + np.exp(-np.clip(A @ y, -30, 30)))
        return A.T @ (share - b), (A.T * (share * (1 - share))) @ A

    def _estimate(self, i, A, b):
        """The most probable u_i, and its covariance."""
        for _ in range(3 if self.logistic else 1):
            slope, hessian = self._curvature(A, b, self.mu + self.own[i])
            whole = hessian + np.diag(1 / self.tau)
            self.own[i] -= np.linalg.solve(whole, slope + self.own[i] / self.tau)
        return np.linalg.inv(whole)

    def _maximise(self, parts, spreads, n):
        """μ by a Newton step with all u_i as they are, then τ² and σ²."""
        pairs = [self._curvature(A, b, self.mu + u) for (A, b), u in zip(parts, self.own, strict=True)]
        hessian = sum(pair[1] for pair in pairs) + 1e-6 * np.eye(len(self.mu))
        self.mu = self.mu - np.linalg.solve(hessian, sum(pair[0] for pair in pairs))
        self.tau = np.maximum(np.mean([u**2 + np.diag(V) for u, V in zip(self.own, spreads, strict=True)], 0), LEAST)
        if not self.logistic:
            rows = zip(parts, self.own, spreads, strict=True)
            left = [np.sum((A @ (self.mu + u) - b) ** 2) + np.sum((A @ V) * A) for (A, b), u, V in rows]
            self.noise = max(float(np.sum(left)) / n, LEAST)

    def decision_function(self, X, groups):
        """aᵀ(μ + u_i) of each row; aᵀμ for a new group."""
        places = {name: i for i, name in enumerate(self.names.tolist())}
        models = np.vstack([self.mu + self.own, self.mu])
        rows = [places.get(name, -1) for name in np.asarray(groups).tolist()]
        return np.einsum("np,np->n", self._columns(X), models[rows])
