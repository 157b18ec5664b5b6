"""The rooms import in one direction, and every public name explains itself."""

import ast
import inspect
from pathlib import Path

import pytest

import bilevax
from bilevax.algorithms.base import FACTS

SOURCE = Path(bilevax.__file__).parent
FLOORS = [
    {"arguments", "rows", "lapack"}, {"data", "bounds"}, {"problem"}, {"draw"}, {"oracle"},
    {"projection", "estimator", "schedule"}, {"delay", "lower"}, {"curvature"}, {"memory"}, {"linear_lower"},
    {"algorithms"}, {"metrics", "trace", "terminal"}, {"plan"}, {"check", "run"}, {"experiments", "demo", "models"},
    {"cleaning"}, {"cli"},
]  # fmt: skip
FLOOR = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
ALONE = {  # rooms beside the stairs, and all that they know of the others
    "problems": {"arguments", "bounds", "data", "problem", "curvature", "rows"},
    "datasets": {"arguments"},
    "report": {"arguments", "trace"},
}
FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def room_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "bilevax":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bilevax."):
            yield node.module.split(".")[1]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_imports_against_the_direction(path):
    here, tree = room_of(path), ast.parse(path.read_text())
    rooms = {room for room in imported_rooms(tree) if room in FLOOR}
    if here in ALONE:
        assert rooms <= ALONE[here] | {here}
    else:
        assert all(FLOOR[room] <= FLOOR[here] for room in rooms), rooms


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_public_definition_has_a_docstring(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    public = [n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and not n.name.startswith("_")]
    assert [node.name for node in public if not ast.get_docstring(node)] == []


def test_the_public_names_exist():
    for name in bilevax.__all__:
        assert getattr(bilevax, name) is not None


def test_the_same_setting_has_the_same_name_and_default_in_every_algorithm():
    """Only rates, and what a method's own paper sets, have other defaults in other algorithms."""
    signatures = {name: inspect.signature(getattr(bilevax, name)).parameters for name in FACTS}
    common = {"upper_step", "lower_step", "batch_size", "upper_optimizer", "initialization", "initial_batch_size"}
    assert all(common <= set(parameters) for parameters in signatures.values())
    defaults = {}
    for parameters in signatures.values():
        for name, parameter in parameters.items():
            assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
            defaults.setdefault(name, set()).add(str(parameter.default))
    own = {"upper_step", "lower_step", "mixing", "relaxation", "inner_steps"}
    assert [name for name, values in defaults.items() if len(values) > 1 and name not in own] == []
