"""STORM, the estimate that every algorithm of the paper keeps of everything (Cutkosky and Orabona 2019)."""

from typing import Any

from jaxtyping import Array, Float

Value = Float[Array, "..."]


def innovation(now: Value, before: Value, mixing: Any) -> Value:
    """What one sample tells: h(e_t; ξ) − (1 − β)·h(e_{t−1}; ξ). Innovations of several samples add up."""
    return now - (1 - mixing) * before


def storm(estimate: Value, new: Value, mixing: Any) -> Value:
    """(1 − β)·(estimate − h(e_{t−1}; ξ)) + h(e_t; ξ), with the sample's innovation `new`."""
    return (1 - mixing) * estimate + new
