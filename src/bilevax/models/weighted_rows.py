"""The third opinion: a model of all rows in which each label counts as much as it seems right.

A trusted row may not be judged by what it has taught. So what it is shown is made without it and some others: the
first look, the weights and the model of the rows are made anew for each part of the trusted rows, by the other parts.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bilevax.models import experts, label_noise, row_weights
from bilevax.models.opinions import Opinion, ask_out_of_fold, split, trust_alone

PARTS = 3  # of the trusted rows


class WeightedRows:
    """Rows with given labels and trusted rows, as the third opinion sees them."""

    def __init__(
        self, base: Opinion, X: Any, given: np.ndarray, trusted: Any, codes: np.ndarray, seed: int,
        categories: Sequence[int] = (),
    ):  # fmt: skip
        columns = row_weights.Columns(X, seed, categories)
        self.base, self.X, self.given, self.trusted, self.codes, self.seed = base, X, given, trusted, codes, seed
        self.z, self.z_trusted = columns(X, base.rows), columns(trusted, base.trusted)

    def learn(self, alone: Opinion, places: np.ndarray) -> tuple[row_weights.Labels, row_weights.RowWeights]:
        """How much each label counts, by these trusted rows and what a model of them alone says."""
        codes = self.codes[places]
        both = [Opinion(self.base.rows, self.base.trusted[places]), alone]
        right, _ = label_noise.right_classes(experts.weigh(both, codes, self.given)[0], self.given, self.seed)
        labels = row_weights.describe_labels(self.base.rows, right, self.given)
        return labels, row_weights.learn_weights(self.z, labels, self.z_trusted[places], codes, self.seed)

    def ask(self, alone: Opinion, model: Any, folds: int) -> tuple[Opinion, row_weights.RowWeights]:
        """What the model says of rows and of trusted rows that it does not know; and the weights by all of the latter.

        `alone` is what `model`, trained on the trusted rows alone, says.
        """
        num_classes = self.base.rows.shape[1]
        labels, learned = self.learn(alone, np.arange(len(self.codes)))
        train = lambda _, seen: row_weights.train_on_weighted_rows(self.z, labels, learned, seen)
        found = ask_out_of_fold(train, self.z, self.z_trusted[:0], split(self.given, folds, self.seed), num_classes)
        sure = np.zeros((len(self.codes), num_classes))
        for seen, left in split(self.codes, PARTS, self.seed):
            others, _ = trust_alone([model], self.X, self.trusted[seen], self.codes[seen], num_classes)
            ask = row_weights.train_on_weighted_rows(self.z, *self.learn(others, seen), np.arange(len(self.z)))
            sure[left] = ask(self.z_trusted[left])
        return Opinion(found.rows, sure), learned
