"""Ready-made problems."""

from bilevax.problems.quadratic import Quadratic, quadratic
from bilevax.problems.reweighting import reweighting

__all__ = ["Quadratic", "quadratic", "reweighting"]
