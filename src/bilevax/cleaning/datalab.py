"""Wrong labels by a few trusted rows, as an issue of cleanlab's Datalab; importing this module registers it."""

from typing import Any, ClassVar

import numpy as np
import pandas as pd

from bilevax.models import TrustedReweighter

try:
    from cleanlab.datalab.internal.issue_manager import IssueManager
    from cleanlab.datalab.internal.issue_manager_factory import register
except ImportError as error:
    raise ImportError("bilevax.cleaning.datalab needs cleanlab's Datalab: pip install 'bilevax[datalab]'.") from error


@register
class AnnotationIssueManager(IssueManager):
    """Labels that are probably wrong, judged by rows of the same data whose labels were checked by hand.

    Its options are those of `issue_types`:

    - `features`: (rows, columns), numbers or embeddings. They need not be those of other issues.
    - `trusted`: the places of the rows whose labels are right for sure, or one truth value for each row. Without it, or
      with fewer than 10, rows are judged by out-of-fold probabilities alone, and the report says so.
    - `pred_probs`: (rows, classes), by a model of your own that has not seen the row; in place of `estimator`'s.
    - `estimator`, `folds`, `random_state`: of `bilevax.models.TrustedReweighter`.

    The score of a row is the probability that its label is right; trusted rows have 1. A row is an issue where another
    class is more probable: `annotation_suggestion`, with `annotation_suggestion_probability`. Datalab's `get_info` has
    `evidence`, in words, and `wrong_labels`, about how many there are (NaN without trusted rows).

    >>> import bilevax.cleaning.datalab
    >>> lab = cleanlab.Datalab({"X": X, "y": y}, label_name="y")
    >>> lab.find_issues(issue_types={"annotation": {"features": X, "trusted": checked}})
    >>> lab.get_issues("annotation").sort_values("annotation_score")
    """

    description: ClassVar[str] = "Examples whose given label is probably wrong, judged by examples that were checked."
    issue_name: ClassVar[str] = "annotation"
    verbosity_levels: ClassVar[dict[int, list[str]]] = {0: ["evidence"], 1: ["wrong_labels"], 2: [], 3: []}

    def find_issues(
        self, features: Any = None, trusted: Any = None, pred_probs: Any = None, estimator: Any = None, folds: int = 5,
        random_state: Any = 0, **unknown: Any,
    ) -> None:  # fmt: skip
        """Judge all labels that are not trusted."""
        if unknown:
            raise TypeError(f"annotation has no option {', '.join(sorted(unknown))}; it has features, trusted, "
                            "pred_probs, estimator, folds and random_state.")  # fmt: skip
        codes, names = np.asarray(self.datalab.labels), self.datalab.class_names
        if features is None:
            raise ValueError("annotation needs features: "
                             "find_issues(issue_types={'annotation': {'features': X, 'trusted': rows}}).")  # fmt: skip
        rows = features if hasattr(features, "tocsr") else np.asarray(features)
        if rows.ndim != 2 or rows.shape[0] != len(codes):
            raise ValueError(f"features must be ({len(codes)}, columns), a row for each example; got {rows.shape}.")
        sure = read_trusted(trusted, len(codes))
        model = TrustedReweighter(estimator, folds=folds, random_state=random_state)
        known = (rows[sure], codes[sure]) if sure.any() else ()
        opinions = {}
        if pred_probs is not None:
            own = np.asarray(pred_probs)
            if own.shape != (len(codes), len(names)):
                raise ValueError(f"pred_probs must be {(len(codes), len(names))}, (rows, classes); got {own.shape}.")
            opinions = {"pred_probs": own[~sure], "trusted_pred_probs": own[sure] if sure.any() else None}
        model.fit(rows[~sure], codes[~sure], *known, **opinions)
        self._keep(model, codes, sure, names)

    def _keep(self, model: TrustedReweighter, codes: np.ndarray, sure: np.ndarray, names: list) -> None:
        score, suggested, probability = np.ones(len(codes)), codes.copy(), np.ones(len(codes))
        score[~sure] = model.weights_
        suggested[~sure] = model.suggested_labels_
        probability[~sure] = model.suggestion_probabilities_
        self.issues = pd.DataFrame({
            f"is_{self.issue_name}_issue": suggested != codes, self.issue_score_key: score,
            f"{self.issue_name}_suggestion": [names[code] for code in suggested],
            f"{self.issue_name}_suggestion_probability": probability,
        })  # fmt: skip
        self.summary = self.make_summary(score=float(score.mean()))
        self.info = self.collect_info(model)

    def collect_info(self, model: TrustedReweighter) -> dict:
        """What `get_info` has."""
        return {"evidence": model.evidence_, "wrong_labels": model.wrong_labels_}


def read_trusted(trusted: Any, count: int) -> np.ndarray:
    """True for trusted rows, from places or truth values."""
    sure = np.zeros(count, bool)
    if trusted is None:
        return sure
    given = np.asarray(trusted)
    if given.dtype == bool and given.shape == (count,):
        return given
    places = given.size == 0 or (given.ndim == 1 and np.issubdtype(given.dtype, np.integer))
    if not places or np.any((given < 0) | (given >= count)):
        raise ValueError(f"trusted must be places of rows, 0 to {count - 1}, or {count} truth values; "
                         f"got {trusted!r:.80}.")  # fmt: skip
    sure[given.astype(int)] = True
    return sure
