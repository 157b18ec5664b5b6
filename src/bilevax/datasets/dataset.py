"""What every reader returns: sparse features, labels -1 and +1, and a digest of both."""

import hashlib
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Samples of two classes: `features` (rows, columns) in float64, `labels` (rows,) of -1.0 and +1.0.

    What a file says beside them: the two `classes` that became -1.0 and +1.0, the names of the features' `columns` and
    that of the `label`'s, where columns have names.
    """

    name: str
    features: sp.csr_array
    labels: np.ndarray
    classes: tuple[float, float] = (-1.0, 1.0)
    columns: tuple[str, ...] = ()
    label: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.features, sp.csr_array) or self.features.dtype != np.float64:
            raise TypeError(f"features must be a scipy.sparse.csr_array of float64; got {type(self.features)}.")
        real = isinstance(self.labels, np.ndarray) and self.labels.dtype.kind in "iuf"
        if not real or np.ma.isMaskedArray(self.labels):
            held = getattr(self.labels, "dtype", "no numbers")
            raise TypeError(f"labels must be a NumPy array of real numbers; got {type(self.labels)} of {held}.")
        if self.labels.shape != self.features.shape[:1] or not np.isin(self.labels, (-1.0, 1.0)).all():
            raise ValueError(f"labels must be -1.0 or +1.0, one for each of the {self.features.shape[0]} rows.")

    def __repr__(self) -> str:
        rows, columns = self.features.shape
        positive = int((self.labels > 0).sum())
        return f"Dataset({self.name!r}: {rows} rows, {columns} features, {positive} positive)"

    def digest(self) -> str:
        """The sha256, in hexadecimal, of the content: of these bytes, one after another, all little-endian.

        1. rows, columns and non-zero entries, three int64
        2. the labels, float64 of -1 and +1
        3. for each row the number of non-zero entries in it and in all rows before it, int64
        4. the columns of the non-zero entries, counted from 0, row by row and increasing, int64
        5. their values in the same order, float64

        Name, line ends, compression, the spelling of numbers, zeros written out: none of them matters.
        """
        content = self.features.copy()
        content.sum_duplicates()
        content.eliminate_zeros()
        wholes = ([*content.shape, content.nnz], content.indptr[1:], content.indices)
        shape, ends, columns = (np.asarray(whole, "<i8").tobytes() for whole in wholes)
        labels, values = (np.asarray(floats, "<f8").tobytes() for floats in (self.labels, content.data))
        return hashlib.sha256(shape + labels + ends + columns + values).hexdigest()
