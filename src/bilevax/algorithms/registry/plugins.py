"""Algorithms from outside the package: a module whose `@described` factories register themselves when it is read.

A module is named by a user (`bilevax compare --plugin my_module`, or the path of a file), or by an installed package in
the group `bilevax.algorithms` of its entry points; each entry is a module or a factory.
"""

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from bilevax.algorithms.contract import DESCRIPTIONS

GROUP = "bilevax.algorithms"


def load_plugin(name: str) -> list[str]:
    """Import a module, by its name or the path of its file; return the names of the algorithms it describes."""
    is_path = name.endswith(".py") or os.sep in name
    return _load(f"plugin {name!r}", lambda: _read_file(Path(name)) if is_path else _import(name))


def load_installed() -> list[str]:
    """Import what installed packages have in the group `bilevax.algorithms`; return the names of the algorithms."""
    names = []
    for entry in entry_points(group=GROUP):
        names += _load(f"entry point {entry.name!r} ({entry.value}) of the group {GROUP}", entry.load)
    return names


def _load(words: str, load: Callable[[], Any]) -> list[str]:
    """What `load` gives, if it can be imported and describes an algorithm."""
    before = dict(DESCRIPTIONS)
    try:
        thing = load()
    except (Exception, SystemExit) as error:  # it is somebody else's code
        raise ValueError(f"{words} cannot be imported: {type(error).__name__}: {error}") from error
    names = [name for name, entry in DESCRIPTIONS.items() if entry is not before.get(name) or _is_of(entry, thing)]
    if not names:
        raise ValueError(f"{words} describes no algorithm: put @bilevax.described(...) before its factory.")
    return names


def _is_of(description: Any, thing: Any) -> bool:
    """Whether an algorithm is that of a factory, or was described in a module or beneath it."""
    if not isinstance(thing, ModuleType):
        return description.factory is thing
    return f"{description.factory.__module__}.".startswith(f"{thing.__name__}.")


def _import(name: str) -> ModuleType:
    """A module by its name, also one in the folder where the command was given."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return importlib.import_module(name)


def _read_file(path: Path) -> ModuleType:
    """A module from its file, under a name that no other module has."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}.")
    name = f"{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file.")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
