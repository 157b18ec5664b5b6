"""Which values are right for an argument: one rule for each kind, stated once.

A rule tells of a value `RIGHT` (must be taken), `WRONG` (must be refused, clearly and before anything is compiled) or
`EITHER` (its documentation leaves it open).
"""

import math
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from benchmarks.attack.values import Value

RIGHT, WRONG, EITHER = "right", "wrong", "either"


class Rule(NamedTuple):
    """What is right for an argument, and values that are made for it."""

    judge: Callable[[Any, Value], str]
    own: tuple[Value, ...] = ()

    def __call__(self, value):
        """RIGHT, WRONG or EITHER."""
        return self.judge(value.make(), value)


def as_number(thing):
    """The float that one real number stands for, whoever made it; `None` for anything else."""
    if isinstance(thing, (bool, np.bool_)) or np.ma.isMaskedArray(thing):
        return None
    if isinstance(thing, (np.ndarray, np.generic, jax.Array)):
        real = thing.ndim == 0 and thing.dtype.kind in "iuf"
        return float(thing) if real else None
    if isinstance(thing, numbers.Real):
        try:
            return float(thing)
        except OverflowError:
            return None
    return None


def _exotic(thing):
    """Numbers of which the documentation says nothing."""
    return type(thing).__name__ in ("Decimal", "Fraction")


def number(accepts, *, precision=False):
    """One real number that the condition holds for; with `precision` in JAX's floating type too."""

    def judge(thing, value):
        if _exotic(thing):
            return EITHER
        found = as_number(thing)
        if found is None or not accepts(found):
            return WRONG
        with np.errstate(over="ignore"):
            held = float(np.asarray(found).astype(jnp.result_type(float)))
        if not accepts(held):
            return WRONG if precision else EITHER
        return RIGHT

    return Rule(judge)


positive = number(lambda v: math.isfinite(v) and v > 0)
strictly_positive = number(lambda v: math.isfinite(v) and v > 0, precision=True)
not_negative = number(lambda v: math.isfinite(v) and v >= 0)
share = number(lambda v: 0 < v <= 1, precision=True)
open_share = number(lambda v: 0 < v < 1, precision=True)


def count(least=1, most=None):
    """A whole number of at least `least`; beyond `most`, and beyond 63 bits, it is too large."""

    def judge(thing, value):
        if isinstance(thing, (np.ndarray, jax.Array)) and as_number(thing) is not None:
            return EITHER if as_number(thing) >= least and as_number(thing).is_integer() else WRONG
        if isinstance(thing, (bool, np.bool_)) or not isinstance(thing, (int, np.integer)) or thing < least:
            return WRONG
        if most is not None and thing > most:
            return WRONG
        return RIGHT if thing < 2**31 else EITHER

    return Rule(judge)


def choice(*words):
    """One of the words."""
    return Rule(lambda thing, value: RIGHT if isinstance(thing, str) and thing in words else WRONG)


boolean = Rule(lambda thing, value: RIGHT if isinstance(thing, (bool, np.bool_)) else WRONG)


def optional(rule):
    """The same, or None."""
    return Rule(lambda thing, value: RIGHT if thing is None else rule.judge(thing, value), rule.own)


def either(rule, *others):
    """What is right for any of the rules."""

    def judge(thing, value):
        verdicts = [each.judge(thing, value) for each in (rule, *others)]
        return RIGHT if RIGHT in verdicts else EITHER if EITHER in verdicts else WRONG

    return Rule(judge, tuple(value for each in (rule, *others) for value in each.own))


def made_for(word, *values):
    """A function, or something else, that says itself what it is right for, or may be."""
    maybe = lambda value: EITHER if f"maybe {word}" in value.right_for else WRONG
    return Rule(lambda thing, value: RIGHT if word in value.right_for else maybe(value), values)


def instance(kind, *values):
    """An object of a class of the library."""
    return Rule(lambda thing, value: RIGHT if isinstance(thing, kind) else WRONG, values)


def real_array(thing):
    """The array of real numbers that is there; `None` for masked, complex, textual and other ones."""
    if sp.issparse(thing):
        return thing if thing.dtype.kind in "iuf" and np.isfinite(thing.data).all() else None
    if np.ma.isMaskedArray(thing) or isinstance(thing, (str, bytes, bool, dict, set)) or thing is None:
        return None
    try:
        held = np.asarray(thing)
    except (ValueError, TypeError):
        return None
    return held if held.dtype.kind in "iuf" and np.isfinite(held).all() else None


def array(accepts, *values):
    """An array of finite real numbers that the condition holds for; lists and numbers as objects are left open."""

    def judge(thing, value):
        if isinstance(thing, np.ndarray) and thing.dtype == object:
            return EITHER
        held = real_array(thing)
        if held is None or not accepts(held):
            return WRONG
        return RIGHT if isinstance(thing, (np.ndarray, jax.Array)) and (np.abs(held) < 1e30).all() else EITHER

    return Rule(judge, values)
