"""What is wrong with an argument: each check names it, what was given and what would be right."""

import difflib
import functools
import inspect
import numbers
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])


def known_keywords(function: Function) -> Function:
    """Let `function` refuse a keyword that it does not have, with the nearest one it has."""
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    shown = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        for name in keywords:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise TypeError(f"{shown}() has no argument {name!r}: {hint}It takes {', '.join(names)}.")
        return function(*arguments, **keywords)

    return call  # type: ignore[return-value]


def is_concrete(value: Any) -> bool:
    """Whether the number is known now; inside `jit` and `vmap` it is not, and cannot be checked."""
    return not isinstance(value, jax.core.Tracer)


def is_number(value: Any) -> bool:
    """Whether the value is one real number, of Python, NumPy or JAX; neither text nor True nor a date is."""
    if isinstance(value, (bool, np.bool_, np.ma.MaskedArray)) or not isinstance(
        value, (numbers.Real, np.ndarray, jax.Array)
    ):
        return False
    kind = getattr(value, "dtype", np.dtype(float))
    real = np.issubdtype(kind, np.integer) or jax.dtypes.issubdtype(kind, np.floating)
    return bool(real) and getattr(value, "size", 1) == 1


def number(name: str, value: Any, right: str, accepts: Callable[[float], bool]) -> None:
    """Refuse a value that is not one real number for which `accepts` holds."""
    if not is_concrete(value):
        return
    if not is_number(value):
        raise TypeError(f"{name} must be {right}; got {value!r}.")
    try:
        given = float(value)
    except OverflowError:
        raise ValueError(f"{name} must be {right}; got a whole number of more digits than a float has.") from None
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be {right}; got {value!r}.") from None
    if not accepts(given):
        raise ValueError(f"{name} must be {right}; got {value!r}.")


def positive(name: str, value: Any) -> None:
    """Refuse anything but one finite number above zero."""
    number(name, value, "a finite number > 0", lambda v: bool(np.isfinite(v)) and v > 0)


LEAST = 1e-37  # the smallest share: what is smaller is zero in float32


def share(name: str, value: Any) -> None:
    """Refuse anything but a number in (0, 1], and one that is zero in float32."""
    number(name, value, "a number in (0, 1]", lambda v: LEAST <= v <= 1)


def below_one(name: str, value: Any) -> None:
    """Refuse anything but a number in (0, 1)."""
    number(name, value, "a number in (0, 1)", lambda v: LEAST <= v < 1)


def count(name: str, value: Any, least: int = 1, most: int = 2**63 - 1) -> None:
    """Refuse anything but a whole number of at least `least`, and one that does not fit in 64 bits."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < least:
        kind = ValueError if whole else TypeError
        raise kind(f"{name} must be a whole number of at least {least}; got {value!r}.")
    if value > most:
        raise ValueError(
            f"{name} must be a whole number from {least} to {most}; got one of {int(value).bit_length()} bits."
        )


def flag(name: str, value: Any, none: bool = False) -> None:
    """Refuse anything but True or False, or None where that is meant."""
    if not (isinstance(value, (bool, np.bool_)) or (none and value is None)):
        raise TypeError(f"{name} must be True{', False or None' if none else ' or False'}; got {value!r}.")


def floats(name: str, value: Any, right: str) -> np.ndarray:
    """The value as an array of floats; refuse what is none."""
    try:
        given = np.asarray(value)
        real = np.issubdtype(given.dtype, np.integer) or np.issubdtype(given.dtype, np.floating)
        if not real or isinstance(value, np.ma.MaskedArray):
            raise TypeError
        return given.astype(float)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} must be {right}; got {value!r}.") from None


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuse a word that is not among the choices."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}.")


def finite_leaves(name: str, tree: Any) -> None:
    """Refuse NaN and infinity in any floating leaf."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not is_concrete(leaf):
            continue
        dtype = np.asarray(leaf).dtype
        if not (np.issubdtype(dtype, np.number) or np.issubdtype(dtype, np.bool_)):
            raise TypeError(f"{name}{jax.tree_util.keystr(path)} must hold numbers; got an array of {dtype}.")
        if not np.issubdtype(dtype, np.inexact):
            continue
        if np.issubdtype(dtype, np.complexfloating):
            raise TypeError(f"{name}{jax.tree_util.keystr(path)} must hold real numbers; got an array of {dtype}.")
        if isinstance(leaf, np.ma.MaskedArray) and np.ma.is_masked(leaf):
            where, missing = name + jax.tree_util.keystr(path), np.ma.count_masked(leaf)
            raise ValueError(f"{where} must have no missing values; {missing} of its {leaf.size} are masked.")
        bad = int(np.size(leaf) - np.isfinite(np.asarray(leaf)).sum())
        if bad:
            where = name + jax.tree_util.keystr(path)
            raise ValueError(f"{where} must be finite; {bad} of its {np.size(leaf)} values are NaN or infinite.")


def leading_axis(name: str, tree: Any, axis: int = 0) -> int:
    """The length that all leaves share along `axis`; refuse an empty tree, scalars and mismatches."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    if not leaves:
        raise ValueError(f"{name} must hold at least one array; got {tree!r}.")
    lengths = {}
    for path, leaf in leaves:
        if np.ndim(leaf) <= axis:
            raise ValueError(
                f"{name}{jax.tree_util.keystr(path)} must have at least {axis + 1} "
                f"{'axes' if axis else 'axis'}; got shape {np.shape(leaf)}."
                + (" A list is a pytree of its entries here; write np.asarray(...)." if isinstance(tree, list) else "")
            )
        lengths[name + jax.tree_util.keystr(path)] = np.shape(leaf)[axis]
    if len(set(lengths.values())) > 1:
        items = ", ".join(f"{where}: {length}" for where, length in lengths.items())
        raise ValueError(f"all arrays of {name} must have the same length along axis {axis}; got {items}.")
    return next(iter(lengths.values()))
