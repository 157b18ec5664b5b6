"""Ready-made problems."""

from bilevax.problems.adaptation import meta_learning
from bilevax.problems.auc_margin import auc
from bilevax.problems.composition import compositional
from bilevax.problems.penalties import ridge
from bilevax.problems.precision import average_precision
from bilevax.problems.quadratics import Quadratic, quadratic
from bilevax.problems.saddle import minmax
from bilevax.problems.sample_weights import reweighting

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
