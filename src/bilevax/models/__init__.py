"""Models with scikit-learn's interface, trained by bilevel optimization."""

from bilevax.models.average_precision import AveragePrecisionClassifier

__all__ = ["AveragePrecisionClassifier"]
