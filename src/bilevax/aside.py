"""What in x and y is no variable, kept aside: the functions, names and counters in an Equinox module or a Flax state.

Methods see x and y without it, with `None` in its places; losses and users get it back.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree


def _is_plain(tree: PyTree) -> bool:
    """Whether the tree is an array, a number, or a container that Python has; a module is not."""
    return type(tree) in (dict, list, tuple) or hasattr(tree, "_fields") or hasattr(tree, "dtype") or np.isscalar(tree)


def _is_variable(leaf: Any, plain: bool) -> bool:
    """Floating arrays; in plain containers all numbers, so that whole ones are refused by name."""
    if plain:
        return hasattr(leaf, "dtype") or isinstance(leaf, (bool, int, float, complex))
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, np.floating)


def set_aside(tree: PyTree) -> tuple[PyTree, PyTree | None]:
    """The variables of a tree, and all else; `None` where all are variables, or none is and an error will say so."""
    plain = _is_plain(tree)
    is_variable = jax.tree.map(lambda leaf: _is_variable(leaf, plain), tree)
    if len(set(jax.tree.leaves(is_variable))) < 2:
        return tree, None
    variables = jax.tree.map(lambda leaf, yes: leaf if yes else None, tree, is_variable)
    return variables, jax.tree.map(lambda leaf, yes: None if yes else leaf, tree, is_variable)


def bring_back(variables: PyTree, aside: PyTree | None) -> PyTree:
    """The whole tree again."""
    if aside is None:
        return variables
    is_none = lambda node: node is None
    return jax.tree.map(lambda a, b: b if a is None else a, variables, aside, is_leaf=is_none)


@dataclass(frozen=True, eq=False)
class WholeLoss:
    """A loss of the user's x and y, as a function of their variables."""

    loss: Callable[..., Any]
    x: PyTree
    y: PyTree

    def __call__(self, x: PyTree, y: PyTree, task: PyTree, batch: PyTree) -> Any:
        return self.loss(bring_back(x, self.x), bring_back(y, self.y), task, batch)
