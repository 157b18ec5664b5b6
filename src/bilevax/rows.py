"""Rows of features that are mostly zero."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Array, Float, Int


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SparseRows:
    """Rows given by the places and values of their non-zeros; short rows are padded with zeros at place 0.

    They stand in for an array (n, width) as data: a batch of them is SparseRows again, `rows @ y` is the
    product with a vector or a matrix, and `dense(rows)` the array.
    """

    places: Int[Array, "n k"]
    values: Float[Array, "n k"]
    width: int = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the array that this stands for."""
        return self.places.shape[0], self.width

    def __matmul__(self, right: Float[Array, "width ..."]) -> Float[Array, "n ..."]:
        """The product with a vector or a matrix."""
        values = self.values if right.ndim == 1 else self.values[..., None]
        return jnp.sum(values * right[self.places], axis=1)

    def __rmatmul__(self, left: Float[Array, " n"]) -> Float[Array, " width"]:
        """The product of a vector with the rows."""
        empty = jnp.zeros(self.width, self.values.dtype)
        return empty.at[self.places].add(left[:, None] * self.values)


def sparse_rows(matrix: Any, dtype: Any) -> SparseRows:
    """SparseRows of a scipy.sparse matrix."""
    matrix = matrix.tocsr()
    lengths = np.diff(matrix.indptr)
    filled = np.arange(max(1, lengths.max(initial=0)))[None, :] < lengths[:, None]
    places, values = np.zeros(filled.shape, np.int32), np.zeros(filled.shape)
    places[filled], values[filled] = matrix.indices, matrix.data
    return SparseRows(jnp.asarray(places), jnp.asarray(values, dtype), matrix.shape[1])


def as_rows(matrix: Any) -> Any:
    """Rows as losses take them, in JAX's floating type: an array, or SparseRows of a scipy.sparse matrix."""
    dtype = jnp.result_type(float)
    return sparse_rows(matrix, dtype) if sp.issparse(matrix) else jnp.asarray(matrix, dtype)


def dense(rows: SparseRows | Float[Array, "n width"]) -> Float[Array, "n width"]:
    """The rows as an array."""
    if not isinstance(rows, SparseRows):
        return rows
    empty = jnp.zeros(rows.shape, rows.values.dtype)
    return empty.at[jnp.arange(len(rows.places))[:, None], rows.places].add(rows.values)
