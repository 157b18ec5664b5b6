"""STORM and MSVR on numbers: their recursions as the papers write them, and what they do without noise."""

import numpy as np
import pytest

from bilevax import estimator

NOW, BEFORE, OLD = 3.0, 2.5, 5.0


def test_storm_is_its_recursion():
    """(1 − β)(estimate − h(before)) + h(now), in one piece or as an innovation that is added."""
    new = estimator.innovation(NOW, BEFORE, 0.25)
    assert estimator.storm(OLD, new, 0.25) == 0.75 * (OLD - BEFORE) + NOW


def test_storm_stays_true_without_noise():
    """An estimate that is right stays right wherever the point moves, and a wrong one loses β of its error."""
    follow = lambda estimate: estimator.storm(estimate, estimator.innovation(NOW, BEFORE, 0.2), 0.2)
    assert follow(BEFORE) == pytest.approx(NOW, rel=1e-15)
    assert follow(BEFORE + 1) - NOW == pytest.approx(0.8, rel=1e-14)


@pytest.mark.parametrize(("m", "size"), [(7, 1), (7, 3), (5, 5)])
def test_msvr_is_its_recursion(m, size):
    """s ← (1 − α)s + α·g_now + γ(g_now − g_before), γ = (m − I)/(I(1 − α)) + (1 − α)."""
    alpha = 0.3
    gamma = (m - size) / (size * (1 - alpha)) + (1 - alpha)
    wanted = (1 - alpha) * OLD + alpha * NOW + gamma * (NOW - BEFORE)
    got = estimator.storm(OLD, estimator.msvr_innovation(NOW, BEFORE, alpha, size / m), alpha)
    np.testing.assert_allclose(got, wanted, rtol=1e-14)


def test_msvr_of_all_blocks_is_storm():
    np.testing.assert_allclose(
        estimator.msvr_innovation(NOW, BEFORE, 0.3, 1.0), estimator.innovation(NOW, BEFORE, 0.3), rtol=1e-15
    )
