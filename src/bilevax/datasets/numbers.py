"""Numbers and labels in a text, read strictly."""

import math
import reprlib
from array import array
from pathlib import Path

import numpy as np


def finite(what: str, text: str) -> float:
    """The finite number that the text spells; `what` it is goes into the message where it is none."""
    try:
        value = float(text)
    except ValueError:
        value = None
    if value is None or "_" in text or not text.isascii():  # float() also takes 1_000 and digits of other scripts
        raise ValueError(f"{what} {reprlib.repr(text)} is not a number" if text.strip() else f"{what} is missing")
    if not math.isfinite(value):
        raise ValueError(f"{what} {reprlib.repr(text)} is not finite")
    return value


class Labels:
    """Labels as they are read, of two classes and no more."""

    def __init__(self) -> None:
        self.values = array("d")
        self.classes: set[float] = set()

    @classmethod
    def of(cls, values: np.ndarray) -> "Labels":
        """Labels that are known to be of two classes."""
        labels = cls()
        labels.values.frombytes(values.astype(float).tobytes())
        labels.classes = set(np.unique(values).tolist())
        return labels

    def add(self, text: str) -> None:
        """Take one more label; refuse one of a third class."""
        value = finite("label", text)
        if value not in self.classes:
            if len(self.classes) == 2:
                first, second = sorted(self.classes)
                raise ValueError(
                    f"label {value:.15g} is of a third class, beside {first:.15g} and {second:.15g}; two are needed"
                )
            self.classes.add(value)
        self.values.append(value)

    @property
    def both(self) -> tuple[float, float]:
        """The smaller and the larger class."""
        return min(self.classes), max(self.classes)

    def signs(self, path: Path) -> np.ndarray:
        """+1.0 for the larger of the two classes, -1.0 for the other; refuse a file without rows or with one class."""
        if not self.values:
            raise ValueError(f"{path} holds no rows.")
        if len(self.classes) < 2:
            raise ValueError(
                f"{path}: all {len(self.values)} labels are {self.values[0]:.15g}; two classes are needed."
            )
        return np.where(np.asarray(self.values) == max(self.classes), 1.0, -1.0)
