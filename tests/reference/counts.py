"""Counts of what was drawn, against what was to be expected."""

import numpy as np


def assert_frequencies(counts, expected):
    """Within five standard deviations of a Poisson count, everywhere."""
    counts, expected = np.asarray(counts), np.asarray(expected)
    assert np.all(np.abs(counts - expected) <= 5 * np.sqrt(expected)), (counts, expected)
