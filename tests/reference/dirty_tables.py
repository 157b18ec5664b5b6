"""Tables of which some labels are wrong."""

import numpy as np
import pandas as pd


def rows(n, seed, wrong_share=0.0):
    """Three classes that numbers and a category tell apart; some labels are moved on to the next class."""
    rng = np.random.default_rng(seed)
    true = rng.integers(0, 3, n)
    frame = pd.DataFrame({
        "size": true + 0.4 * rng.normal(size=n),
        "colour": np.where(rng.random(n) < 0.8, np.array(["red", "green", "blue"])[true], "grey"),
        "noise": rng.normal(size=n),
    })  # fmt: skip
    frame.loc[rng.random(n) < 0.1, "size"] = np.nan
    frame.loc[rng.random(n) < 0.05, "colour"] = None
    wrong = rng.random(n) < wrong_share
    frame["kind"] = np.array(["ant", "bee", "cat"])[np.where(wrong, (true + 1) % 3, true)]
    return frame, wrong
