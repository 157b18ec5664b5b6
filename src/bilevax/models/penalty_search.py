"""The search for penalties: a common one from a grid, then one for each feature, held to it by a chosen shrinkage."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator

from bilevax import arguments
from bilevax.models import fold_problem
from bilevax.models.base import check_verbose, tell
from bilevax.problem import Problem

STRENGTHS = (np.inf, 3.0, 1.0, 0.3)  # of the shrinkage that are tried; infinity is one penalty for all
RIDGE_GRID = np.geomspace(1e-4, 100, 25)  # common penalties that are tried, in units of the rows
LOGISTIC_GRID = np.geomspace(1e-4, 10, 11)
SURE, ROWS_TO_BE_SURE = 0.5, 15  # standard errors by which less shrinkage must gain, at least, and where rows are few


class PenaltySearch(BaseEstimator, ABC):
    """What both models share: the search for a common penalty, then for one of each feature."""

    grid: Any = RIDGE_GRID

    def __init__(
        self, *, groups: Sequence[Any] | None = None, shrinkage: float | str = "auto", cv: int = 5,
        standardize: bool = True, steps: int = 100, random_state: Any = None, verbose: Any = False,
    ):  # fmt: skip
        self.groups = groups
        self.shrinkage = shrinkage
        self.cv = cv
        self.standardize = standardize
        self.steps = steps
        self.random_state = random_state
        self.verbose = verbose

    def _check(self) -> None:
        """Refuse settings that are out of range."""
        if self.shrinkage != "auto":
            arguments.number("shrinkage", self.shrinkage, '"auto" or a number > 0, or infinity', lambda v: v > 0)
        arguments.count("cv", self.cv, least=2)
        arguments.count("steps", self.steps)
        arguments.flag("standardize", self.standardize)
        check_verbose(self.verbose)

    def _places(self, width: int) -> np.ndarray:
        """The number of the group of each column."""
        if self.groups is None:
            return np.arange(width)
        names = np.asarray(self.groups)
        if names.shape != (width,):
            raise ValueError(f"groups must be one label for each of the {width} columns; got shape {names.shape}.")
        return np.unique(names, return_inverse=True)[1].reshape(-1)

    def _learn(self, X: np.ndarray, y: np.ndarray, random: Any) -> None:
        """Common penalty, strength of the shrinkage, penalties, coefficients."""
        place = self._places(X.shape[1])
        self.mean_, self.scale_ = fold_problem.mean_and_scale(X, self.standardize)
        Z = (X - self.mean_) / self.scale_
        fold = self._folds(y, random)
        inner = self._folds(y, random)
        self.common_penalty_ = self._search(Z, y, (fold, inner))
        strength = self._choose(Z, y, fold, inner, place) if self.shrinkage == "auto" else float(self.shrinkage)
        self.shrinkage_ = strength
        found = [self._path(Z, y, draw, place, [strength])[0] for draw in (fold, inner)]
        self.penalties_ = np.exp(np.log(found).mean(0))  # one draw of folds may be unlucky
        weights, shift = self._refit(Z, y, self.penalties_)
        self.coef_ = weights / self.scale_
        self.intercept_ = shift - self.coef_ @ self.mean_

    def _folds(self, y: np.ndarray, random: Any) -> np.ndarray:
        """The number of the fold of each row; classes are dealt to all folds alike."""
        return fold_problem.deal(y if hasattr(self, "classes_") else np.zeros(len(y)), self.cv, random)

    def _search(self, Z: np.ndarray, y: np.ndarray, draws: Sequence[np.ndarray]) -> float:
        """The penalty of the grid that is best for all features alike, by two draws of folds: one may be unlucky."""
        grid = self.grid * len(Z)
        loss = lambda fold, p: self._fold_losses(Z, y, fold, np.full(Z.shape[1], p)).mean()
        return float(grid[np.argmin([np.mean([loss(fold, p) for fold in draws]) for p in grid])])

    def _fold_losses(self, Z: np.ndarray, y: np.ndarray, fold: np.ndarray, penalties: np.ndarray) -> np.ndarray:
        """The loss of each fold of the model that is fitted to the other rows."""
        one = lambda held: self._losses(self._refit(Z[~held], y[~held], penalties), Z[held], y[held]).mean()
        return np.array([one(fold == k) for k in range(fold.max() + 1)])

    def _path(
        self, Z: np.ndarray, y: np.ndarray, fold: np.ndarray, place: np.ndarray, strengths: Sequence[float]
    ) -> list[np.ndarray]:
        """The penalties for each strength of the shrinkage, from strong to weak, each begun from the one before."""
        found, problem, width = [], None, Z.shape[1]
        for strength in strengths:
            if np.isinf(strength):
                found.append(np.full(width, self.common_penalty_))
                continue
            problem = problem or self._problem(Z, y, fold, place)
            tasks = problem.tasks
            weight = jnp.full_like(tasks["shrinkage"], strength / max(1, (fold >= 0).sum()))
            problem = problem.replace(tasks={**tasks, "shrinkage": weight})
            result = fold_problem.search(problem, self.steps)
            told = tasks["centre"][0], tasks["floor"][0], tasks["place"][0]
            found.append(np.asarray(fold_problem.penalties_at(result.x, *told), float)[:width])
            problem = problem.replace(x0=jnp.concatenate([result.x["changes"], result.x["common"]]))
        return found

    def _choose(self, Z: np.ndarray, y: np.ndarray, fold: np.ndarray, inner: np.ndarray, place: np.ndarray) -> float:
        """The strength for rows that were kept away from the search for penalties, fold by fold."""
        losses = np.zeros((len(y), len(STRENGTHS)))
        for k in range(fold.max() + 1):
            held = fold == k
            candidates = self._path(Z, y, np.where(held, -1, inner), place, STRENGTHS)
            for c, penalties in enumerate(candidates):
                losses[held, c] = self._losses(self._refit(Z[~held], y[~held], penalties), Z[held], y[held])
            told = ", ".join(f"{loss:.4g}" for loss in losses[held].mean(0))
            tell(self, f"fold {k + 1} of {fold.max() + 1}: {told}")
        self.shrinkage_losses_ = dict(zip(STRENGTHS, losses.mean(0).tolist(), strict=True))
        best = STRENGTHS[strongest(losses)]
        tell(self, f"shrinkage {best:g} of {', '.join(f'{s:g}' for s in STRENGTHS)}")
        return best

    @abstractmethod
    def _problem(self, Z: np.ndarray, y: np.ndarray, fold: np.ndarray, place: np.ndarray) -> Problem:
        """The lower problems of all folds."""

    @abstractmethod
    def _refit(self, Z: np.ndarray, y: np.ndarray, penalties: np.ndarray) -> tuple[np.ndarray, Any]:
        """Weights and shift for these penalties."""

    @abstractmethod
    def _losses(self, model: tuple[np.ndarray, Any], Z: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The loss of each row."""


def strongest(losses: Float[np.ndarray, "n s"]) -> int:
    """The first column, that of the strongest shrinkage, that is not surely worse than the best in the mean over rows.

    Surely is by more standard errors of the difference than half of one, or 15 over the number of rows that carry the
    loss, (Σ l)²/Σ l²: where classes can be separated a few rows decide on all, and then a mean is a matter of luck.
    """
    first, best = losses[:, 0], losses.mean(0).argmin()
    carry = first.sum() ** 2 / max((first**2).sum(), np.finfo(float).tiny)
    errors = max(SURE, ROWS_TO_BE_SURE / max(carry, 1.0))
    differences = losses - losses[:, [best]]
    spread = differences.std(0, ddof=1) / np.sqrt(len(losses))
    return int(np.argmax(differences.mean(0) <= errors * spread))
