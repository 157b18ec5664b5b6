"""Models with scikit-learn's interface, trained by bilevel optimization."""

from bilevax.models.auc import MultiTaskAUCClassifier
from bilevax.models.average_precision import AveragePrecisionClassifier
from bilevax.models.meta import MetaLearner
from bilevax.models.penalty import PenaltyLogistic, PenaltyRidge
from bilevax.models.prior import SharedPrior
from bilevax.models.trusted import TrustedReweighter

__all__ = [
    "AveragePrecisionClassifier",
    "MetaLearner",
    "MultiTaskAUCClassifier",
    "PenaltyLogistic",
    "PenaltyRidge",
    "SharedPrior",
    "TrustedReweighter",
]
