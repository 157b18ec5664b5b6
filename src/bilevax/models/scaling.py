"""Columns brought to one scale, and far values brought in."""

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp


class Scaling(NamedTuple):
    """(rows − center)/scale, cut at ±limit. Zeros of a sparse matrix stay zero: it is not centred."""

    center: np.ndarray
    scale: np.ndarray
    limit: float = np.inf

    def __call__(self, X: Any) -> Any:
        """The rows on the scale."""
        if sp.issparse(X):
            scaled = sp.csr_matrix(X @ sp.diags_array(1 / self.scale))
            scaled.data = np.clip(scaled.data, -self.limit, self.limit)
            return scaled
        return np.clip((X - self.center) / self.scale, -self.limit, self.limit)


def find_scaling(X: Any, standardize: bool) -> Scaling:
    """Means and standard deviations of the columns; ones and zeros where nothing is asked for."""
    width = X.shape[1]
    if not standardize:
        return Scaling(np.zeros(width), np.ones(width))
    if sp.issparse(X):
        mean = np.asarray(X.mean(axis=0)).reshape(-1)
        squares = np.asarray(X.multiply(X).mean(axis=0)).reshape(-1)
        scale = np.sqrt(np.maximum(squares - mean**2, 0))
        return Scaling(np.zeros(width), _without_zeros(scale, np.sqrt(squares)))
    mean = X.mean(axis=0)
    return Scaling(mean, _without_zeros(X.std(axis=0), np.abs(X).max(axis=0)))


def _without_zeros(scale: np.ndarray, size: np.ndarray) -> np.ndarray:
    """One for columns that do not vary but for rounding."""
    return np.where(scale > 1e-12 * size, scale, 1.0)
