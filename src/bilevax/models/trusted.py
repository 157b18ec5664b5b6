"""A classifier that finds wrong labels: by what models say of rows they have not seen, and by a few trusted rows."""

import warnings
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_array, check_is_fitted, has_fit_parameter

from bilevax import arguments
from bilevax.models import experts, label_noise, row_weights
from bilevax.models.base import check_labels, check_verbose, explain_rows, random_numbers, read_rows, tell
from bilevax.models.opinions import (
    LEAST_FOR_TREES,
    MOST_CODES,
    Base,
    Opinion,
    choose_base,
    class_probabilities,
    describe,
    linear_models,
    trees,
    trust_alone,
)
from bilevax.models.weighted_rows import WeightedRows

FEWEST = 10  # trusted rows that are listened to


class Verdict(NamedTuple):
    """P(right class) of each row, given its label; in words where it comes from; how far a model is to believe it."""

    right: np.ndarray
    words: str
    details: dict[str, Any]
    belief: float = 0.0


class TrustedReweighter(ClassifierMixin, BaseEstimator):
    """Finds rows with wrong labels, says which label is right, and trains a classifier on what it believes.

    It stands on three opinions of the right class of a row, each by a model that has not seen the row:

    - `estimator`, trained on the given labels, out of fold;
    - a model of the trusted rows alone;
    - a linear model of all rows in which each label counts as much as it seems right. How much is a small function of
      what is known of the label, learned by the bilevel problem of `bilevax.models.row_weights`: the lower problem
      trains the model, the upper one judges it by trusted rows.

    Trusted rows weigh the opinions (cross-validation on them says how far to go from the best opinion alone), all
    rows show the habits of whoever labelled (`bilevax.models.label_noise`), and Bayes' rule joins both to the
    probability that a label is right. Without trusted rows, or with fewer than 10, rows are ranked by how improbable
    their label is out of fold, and `evidence_` says so.

    - `estimator`: any scikit-learn classifier with `predict_proba`; by default a linear model or histogram boosting,
      whichever predicts the given labels better out of fold.
    - `categorical_features`: places of columns of X that hold whole numbers, 0 to 254, which are codes of categories:
      trees take them as such, linear models get a column for each. A classifier of yours gets the codes.
    - `folds`: parts of the rows; each is predicted by a model of the others.
    - `random_state`: of folds and models; `verbose`: a line for each stage, on stderr, or given to a function.

    Fitted: `weights_` (the probability that the label of a row is right; without trusted rows how probable it is to a
    model that has not seen the row), `wrong_labels_` (about how many there are; NaN without trusted rows, nobody can
    tell then), `suspicion_rank_` (1 is the row to look at first), `suggested_labels_` and `suggestion_probabilities_`
    (the most probable class of each row), `out_of_fold_` (probabilities of the classes by `estimator`), `evidence_`
    (words), `details_` (weights of the opinions, habits, the function that was learned, how far labels are believed to
    be others), `estimator_` (trained on each row as every class that it may be, with that weight, and on trusted rows),
    `classes_`.

    >>> model = TrustedReweighter(random_state=0).fit(X, y, X_trusted, y_trusted)
    >>> rows = np.argsort(model.suspicion_rank_)[:20]
    """

    def __init__(
        self, estimator: Any = None, *, categorical_features: Any = None, folds: int = 5, random_state: Any = None,
        verbose: Any = False,
    ):  # fmt: skip
        self.estimator = estimator
        self.categorical_features = categorical_features
        self.folds = folds
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        """Dense or sparse rows."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(
        self, X: Any, y: Any, X_trusted: Any = None, y_trusted: Any = None, *, pred_probs: Any = None,
        trusted_pred_probs: Any = None,
    ) -> "TrustedReweighter":  # fmt: skip
        """Judge the labels y of rows X, by trusted rows where there are some; those are none of X.

        `pred_probs`, and `trusted_pred_probs` for the trusted rows, are probabilities of the classes (in sorted order)
        by a model of your own that has not seen the row; they take the place of those of `estimator`. X may then be
        embeddings.
        """
        self._check_settings()
        rng = random_numbers(self.random_state)
        X, y = read_rows(self, X, y)
        check_labels(y)
        self._categories = _read_categories(self.categorical_features, X)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must hold at least two classes; got one class, {self.classes_[0]!r}.")
        trusted, trusted_y = self._trusted_rows(X, X_trusted, y_trusted)
        trusted_codes = np.searchsorted(self.classes_, trusted_y)
        seed = int(rng.randint(2**31))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a model that is nearly there is an opinion too
            warnings.filterwarnings("ignore", "The least populated class", UserWarning)
            base = self._base(X, codes, trusted, seed, pred_probs, trusted_pred_probs)
            verdict = self._judge(base, X, codes, trusted, trusted_codes, seed)
            self._keep(base, verdict, codes)
            tell(self, "training on what is believed")
            self.estimator_ = self._train(base.model, X, codes, trusted, trusted_codes, verdict)
        return self

    def _check_settings(self) -> None:
        arguments.count("folds", self.folds)
        if self.folds < 2:
            raise ValueError(f"folds must be at least 2; got {self.folds}.")
        if self.estimator is not None and not hasattr(self.estimator, "predict_proba"):
            raise TypeError(f"estimator must be a classifier with predict_proba; got {self.estimator!r}.")
        check_verbose(self.verbose)

    def _trusted_rows(self, X: Any, X_trusted: Any, y_trusted: Any) -> tuple[Any, np.ndarray]:
        """The trusted rows, checked; none where there are none."""
        if (X_trusted is None) != (y_trusted is None):
            raise ValueError("X_trusted and y_trusted must be given together.")
        if X_trusted is None:
            return X[:0], self.classes_[:0]
        with explain_rows("X_trusted", "y_trusted", X_trusted, y_trusted):
            trusted = check_array(X_trusted, accept_sparse="csr", dtype=np.float64, input_name="X_trusted")
            labels = np.asarray(y_trusted)
        if trusted.shape[1] != X.shape[1] or labels.shape != trusted.shape[:1]:
            raise ValueError(
                f"X_trusted must have the {X.shape[1]} columns of X, and y_trusted one label for each of its rows; got "
                f"shapes {trusted.shape} and {labels.shape}."
            )
        names, own = getattr(self, "feature_names_in_", None), getattr(X_trusted, "columns", None)
        if names is not None and own is not None and list(names) != list(own):
            raise ValueError(
                f"X_trusted must have the columns of X in the same order, {list(names)[:8]}; got {list(own)[:8]}."
            )
        unseen = sorted(set(labels.tolist()) - set(self.classes_.tolist()), key=str)
        if unseen:
            raise ValueError(f"y_trusted holds labels that y does not: {', '.join(map(repr, unseen[:5]))}.")
        if sp.issparse(X) != sp.issparse(trusted):
            trusted = sp.csr_matrix(trusted) if sp.issparse(X) else trusted.toarray()
        return trusted, labels

    def _candidates(self, sparse: bool, codes: np.ndarray, seed: int) -> list[Any]:
        if self.estimator is not None:
            return [self.estimator]
        return [*linear_models(sparse, self._categories), *([] if sparse else [trees(codes, seed, self._categories)])]

    def _base(
        self, X: Any, codes: np.ndarray, trusted: Any, seed: int, pred_probs: Any, trusted_pred_probs: Any
    ) -> Base:
        """The estimator and what it says out of fold; or what the user's own model says."""
        candidates, num_classes = self._candidates(sp.issparse(X), codes, seed), len(self.classes_)
        if pred_probs is None and trusted_pred_probs is None:
            return choose_base(candidates, X, codes, trusted, num_classes, self.folds, seed, partial(tell, self))
        rows = _read_probabilities("pred_probs", pred_probs, X.shape[0], num_classes)
        sure = trusted_pred_probs if trusted.shape[0] else np.zeros((0, num_classes))
        opinion = Opinion(rows, _read_probabilities("trusted_pred_probs", sure, trusted.shape[0], num_classes))
        return Base(candidates[-1], opinion, float("nan"))

    def _judge(
        self, base: Base, X: Any, codes: np.ndarray, trusted: Any, trusted_codes: np.ndarray, seed: int
    ) -> Verdict:
        """P(right class | given label, row) of each row."""
        if len(trusted_codes) < FEWEST:
            return _disagreement(base.opinion, codes, len(trusted_codes))
        tell(self, "training on the trusted rows alone")
        candidates = linear_models(sp.issparse(X), self._categories)
        if len(trusted_codes) >= LEAST_FOR_TREES and not sp.issparse(X):
            candidates.append(trees(trusted_codes, seed, self._categories))
        alone, model = trust_alone(candidates, X, trusted, trusted_codes, len(self.classes_))
        tell(self, "learning how much to believe each label")
        weighted = WeightedRows(base.opinion, X, codes, trusted, trusted_codes, seed, self._categories)
        opinion, learned = weighted.ask(alone, model, self.folds)
        shares, weighing = experts.weigh([base.opinion, alone, opinion], trusted_codes, codes)
        right, habits = label_noise.right_classes(shares, codes, seed)
        names = (describe(base.model), "trusted rows alone", "weighted rows")
        words = f"{len(trusted_codes)} trusted rows weigh three opinions: " + ", ".join(
            f"{name} {weight:.2f}" for name, weight in zip(names, weighing.weights, strict=True)
        )
        together = weighing([one.trusted for one in (base.opinion, alone, opinion)])
        belief = experts.surely_better(together, base.opinion.trusted, trusted_codes)
        details = {"weighing": weighing, "habits": habits, "row_weights": learned, "belief": belief}
        return Verdict(right, words + ".", details, belief)

    def _keep(self, base: Base, verdict: Verdict, codes: np.ndarray) -> None:
        """Set what is known after a fit."""
        self.out_of_fold_ = base.opinion.rows
        self.weights_ = verdict.right[np.arange(len(codes)), codes]
        self.suspicion_rank_ = 1 + np.argsort(np.argsort(self.weights_, kind="stable"), kind="stable")
        best = verdict.right.argmax(1)
        self.suggested_labels_, self.suggestion_probabilities_ = self.classes_[best], verdict.right.max(1)
        self.evidence_, self.details_ = verdict.words, verdict.details
        self.wrong_labels_ = float(np.sum(1 - self.weights_)) if verdict.details else float("nan")

    def _train(
        self, model: Any, X: Any, codes: np.ndarray, trusted: Any, trusted_codes: np.ndarray, verdict: Verdict
    ) -> Any:
        """The estimator on what is believed: each row as every class that it may be, with that weight.

        A row is believed to be of its given class as far as it is not sure that the opinions together predict trusted
        rows better than a model of the given labels does (`Verdict.belief`): the mistakes of opinions lie where they
        are hard to see, those of whoever labelled often do not, and a model averages them out. The most probable
        classes alone where the estimator takes no weights.
        """
        made = clone(model)
        last = made.steps[-1] if hasattr(made, "steps") else None
        takes_weights = has_fit_parameter(last[1] if last else made, "sample_weight")
        shares = verdict.belief * verdict.right
        shares[np.arange(len(codes)), codes] += 1 - verdict.belief
        if takes_weights:
            row, code = np.nonzero(shares > row_weights.LEAST_SHARE)
            share = shares[row, code]
        else:
            row, code, share = np.arange(len(codes)), shares.argmax(1), np.ones(len(codes))
        stack = (lambda parts: sp.vstack(parts).tocsr()) if sp.issparse(X) else np.vstack
        rows, labels = stack([X[row], trusted]), np.concatenate([code, trusted_codes])
        weights = np.concatenate([share, np.ones(len(trusted_codes))])
        if self.estimator is None and last is None:
            made = trees(labels, made.random_state, self._categories)  # some classes may have become rare
        name = f"{last[0]}__sample_weight" if last else "sample_weight"
        return made.fit(rows, labels, **({name: weights} if takes_weights else {}))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, by `estimator_`."""
        check_is_fitted(self)
        return class_probabilities(self.estimator_, read_rows(self, X, reset=False), len(self.classes_))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]


def _disagreement(opinion: Opinion, codes: np.ndarray, trusted: int) -> Verdict:
    """Without trusted rows: how probable a label is out of fold."""
    words = "no trusted rows" if not trusted else f"only {trusted} trusted rows, fewer than {FEWEST}"
    return Verdict(opinion.rows, f"{words}: rows are ranked by how improbable their label is out of fold.", {})


def _read_categories(places: Any, X: Any) -> tuple[int, ...]:
    """The columns that hold codes, once they are known to do so."""
    if places is None:
        return ()
    wanted = f"places of columns of X, 0 to {X.shape[1] - 1}"
    given = np.asarray(places)
    if given.size and (given.ndim != 1 or not np.issubdtype(given.dtype, np.integer)):
        raise TypeError(f"categorical_features must be {wanted}; got {places!r}.")
    if given.size and not (given.min() >= 0 and given.max() < X.shape[1]):
        raise ValueError(f"categorical_features must be {wanted}; got {places!r}.")
    if sp.issparse(X) and given.size:
        raise TypeError("categorical_features must be left out where X is sparse: give a column for each level.")
    codes = X[:, given.astype(int)] if given.size else np.zeros((1, 0))
    if not ((codes >= 0) & (codes < MOST_CODES) & (codes == np.floor(codes))).all():
        raise ValueError(f"categorical_features must name columns of whole numbers, 0 to {MOST_CODES - 1}.")
    return tuple(int(place) for place in np.unique(given))


def _read_probabilities(name: str, value: Any, rows: int, num_classes: int) -> np.ndarray:
    """Refuse what are no probabilities of the classes."""
    if value is None:
        raise ValueError(f"{name} must be given too: pred_probs for the rows, trusted_pred_probs for the trusted rows.")
    found = np.asarray(value, float)
    if found.shape != (rows, num_classes):
        raise ValueError(f"{name} must have the shape (rows, classes) = {(rows, num_classes)}; got {found.shape}.")
    if not (np.isfinite(found).all() and (found >= 0).all() and np.allclose(found.sum(1), 1, atol=1e-3)):
        raise ValueError(f"{name} must hold probabilities that add up to one in each row.")
    found = np.clip(found, 1e-6, None)
    return found / found.sum(1, keepdims=True)
