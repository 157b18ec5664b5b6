"""Ready-made problems."""

from bilevax.problems.auc import auc
from bilevax.problems.average_precision import average_precision
from bilevax.problems.compositional import compositional
from bilevax.problems.meta_learning import meta_learning
from bilevax.problems.minmax import minmax
from bilevax.problems.quadratic import Quadratic, quadratic
from bilevax.problems.reweighting import reweighting
from bilevax.problems.ridge import ridge

__all__ = [
    "Quadratic",
    "auc",
    "average_precision",
    "compositional",
    "meta_learning",
    "minmax",
    "quadratic",
    "reweighting",
    "ridge",
]
