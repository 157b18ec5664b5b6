"""Models with scikit-learn's interface, trained by bilevel optimization."""

from bilevax.models.auc import MultiTaskAUCClassifier
from bilevax.models.average_precision import AveragePrecisionClassifier
from bilevax.models.penalty import PenaltyLogistic, PenaltyRidge
from bilevax.models.prior import SharedPrior
from bilevax.models.trusted import TrustedReweighter

__all__ = [
    "AveragePrecisionClassifier",
    "MultiTaskAUCClassifier",
    "PenaltyLogistic",
    "PenaltyRidge",
    "SharedPrior",
    "TrustedReweighter",
]
