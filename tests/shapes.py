"""The shapes and types in annotations, held against the arrays of calls of each function of bilevax.

Only arrays are looked at: the rest of an annotation is left to mypy. NumPy's arrays and plain numbers pass where JAX
takes them for its own. `Float[Any, "n"]` is what a user should give: not looked at, since what is wrong must reach the
errors that the library has for it. That is why jaxtyping's own import hook, which looks at everything, is not used.
"""

import ast
import collections
import functools
import inspect
import operator
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader
from types import FunctionType, UnionType
from typing import Any, Union, get_args, get_origin

from beartype import BeartypeConf, beartype
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import AbstractArray, jaxtyped

MOST_CALLS = 40  # of a function in a process that are looked at: what is wrong shows early
calls: collections.Counter = collections.Counter()
look = beartype(conf=BeartypeConf(is_pep484_tower=True))  # whole numbers pass for floats
DECORATOR = "__import__('shapes').check_shapes"


def has_shape(hint: Any) -> bool:
    """Whether an annotation says something about an array that can be looked at; of a function it cannot."""
    if inspect.isclass(hint):
        return issubclass(hint, AbstractArray) and hint.array_type is not Any
    return get_origin(hint) is not Callable and any(map(has_shape, get_args(hint)))


def widen(hint: Any) -> Any:
    """The annotation with NumPy's arrays and numbers beside JAX's."""
    if not has_shape(hint):
        return hint
    if inspect.isclass(hint):
        return hint.dtype[ArrayLike, hint.dim_str] if hint.array_type is Array else hint
    parts = [widen(part) for part in get_args(hint)]
    if get_origin(hint) in (Union, UnionType):
        return functools.reduce(operator.or_, parts)
    return get_origin(hint)[tuple(parts)]


def check_shapes(function: Callable) -> Callable:
    """A function that looks at its arrays when it is called and when it returns."""
    code = function.__code__
    if calls[code] >= MOST_CALLS:
        return function
    shaped = {name: widen(hint) for name, hint in function.__annotations__.items() if has_shape(hint)}
    if not shaped:
        return function
    same = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    same.__kwdefaults__, same.__annotations__, same.__module__ = function.__kwdefaults__, shaped, function.__module__
    same.__qualname__ = function.__qualname__
    checked = look(same)

    @functools.wraps(function)
    def called(*given, **named):
        calls[code] += 1
        if calls[code] > MOST_CALLS:
            return function(*given, **named)
        with jaxtyped("context"):  # in which a name of a dimension has one size
            return checked(*given, **named)

    return called


class Decorated(ast.NodeTransformer):
    """A source with `check_shapes` around each of its functions, inside all other decorators."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.decorator_list.append(ast.parse(DECORATOR, mode="eval").body)
        return node


class CheckedLoader(SourceFileLoader):
    """Loads a source with `check_shapes` in it, and leaves the compiled files of the source alone."""

    def get_code(self, fullname: str) -> Any:
        """The code of the changed source."""
        tree = Decorated().visit(ast.parse(self.get_data(self.path)))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


class CheckedFinder(MetaPathFinder):
    """Finds the modules of a package, to be loaded with their shapes checked."""

    def __init__(self, package: str):
        self.package = package

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """As Python would, but for the loader."""
        found = PathFinder.find_spec(fullname, path, target) if fullname.split(".")[0] == self.package else None
        if found is not None and isinstance(found.loader, SourceFileLoader):
            found.loader = CheckedLoader(found.loader.name, found.loader.path)
        return found


def check_package(package: str) -> None:
    """Check the shapes in all modules of a package that are imported from now on."""
    sys.meta_path.insert(0, CheckedFinder(package))
