"""Estimates from a stream of samples: STORM (Cutkosky and Orabona 2019) and MSVR (Jiang et al. 2022).

Both keep (1 − β) of the old estimate and add what one sample tells, its innovation; innovations of several
samples add up.
"""

from typing import Any

from jaxtyping import Array, Float

Value = Float[Array, "..."]


def innovation(now: Value, before: Value, mixing: Any) -> Value:
    """What one sample tells STORM: h(e_t; ξ) − (1 − β)·h(e_{t−1}; ξ)."""
    return now - (1 - mixing) * before


def msvr_innovation(now: Value, before: Value, mixing: Any, share: float) -> Value:
    """What one sample of a drawn block tells MSVR: β·h(e_t; ξ) + γ·(h(e_t; ξ) − h(e_{t−1}; ξ)).

    `share` is the share I/m of blocks that a step draws; γ = (1 − share)/(share·(1 − β)) + (1 − β) makes up for
    the steps in which the block was not drawn. With all blocks drawn it is STORM's innovation.
    """
    gamma = (1 - share) / (share * (1 - mixing)) + (1 - mixing)
    return mixing * now + gamma * (now - before)


def storm(estimate: Value, new: Value, mixing: Any) -> Value:
    """(1 − β)·estimate + the innovation `new`: (1 − β)(estimate − h(e_{t−1}; ξ)) + h(e_t; ξ) for STORM's."""
    return (1 - mixing) * estimate + new
