"""Ready-made problems."""

from bilevax.problems.average_precision import average_precision
from bilevax.problems.compositional import compositional
from bilevax.problems.minmax import minmax
from bilevax.problems.quadratic import Quadratic, quadratic
from bilevax.problems.reweighting import reweighting

__all__ = ["Quadratic", "average_precision", "compositional", "minmax", "quadratic", "reweighting"]
