"""The rooms import in one direction, and every public name explains itself."""

import ast
import importlib
import inspect
import pkgutil
import sys
import tomllib
from pathlib import Path

import pytest

import bilevax
from bilevax.algorithms.contract import DESCRIPTIONS

SOURCE = Path(bilevax.__file__).parent
FLOORS = [  # from the ground up: a room knows lower floors only; every module and folder has its place here
    {"arguments", "aside", "device", "rows", "lapack", "leases", "locks", "pages", "programs", "version", "words"},
    {"identity", "files", "bounds", "chunks", "shards", "stored"},
    {"samples"}, {"draw"}, {"data", "linear_model"}, {"structure"}, {"problem"},
    {"projection", "estimator", "schedule"}, {"tasks"}, {"curvature"}, {"exact"}, {"scales", "scale"}, {"algorithms"},
    {"run"}, {"diagnosis", "trials"},
    {"problems", "datasets"}, {"bilevax"},
    {"demo", "models", "testing"}, {"cleaning"}, {"lab"}, {"cli"},
]  # fmt: skip
FLOOR = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
ASIDE = {  # rooms beside the stairs, and all that they know of the others
    "problems": {
        "arguments",
        "bounds",
        "data",
        "device",
        "samples",
        "identity",
        "linear_model",
        "problem",
        "rows",
        "structure",
    },
    "datasets": {"arguments", "files"},
}
FILES = sorted(SOURCE.rglob("*.py"))
by_place = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))


def name_of(path):
    """The parts of the name of a module, as `bilevax.exact.lower`; the package itself stands for its folder."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def room_of(path):
    """The module or folder that a file belongs to; `bilevax` is the room of the public names."""
    return name_of(path)[:2][-1]


def imported_names(source, package=()):
    """All that a source may import, by whole names: of `from a import b` it is a.b. Also inside functions."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                above = package[: len(package) - level + 1] if level else ()
                start = ".".join([*above, *([module] if module else [])])
                yield from (f"{start}.{alias.name}" for alias in names)
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(name))]):
                if called in ("import_module", "__import__"):
                    yield name


def rooms_in(source, package=()):
    """The rooms that a source imports; a name of the package that is no room is a public one."""
    for name in imported_names(source, package):
        top, _, rest = name.partition(".")
        if top == "bilevax":
            room = rest.partition(".")[0]
            yield room if room in FLOOR else "bilevax"


def against_the_direction(source, room, package=()):
    """The rooms that a source of some room imports and should not know."""
    known = {other for other, level in FLOOR.items() if level < FLOOR[room]}
    return set(rooms_in(source, package)) - ASIDE.get(room, known) - {room}


@by_place
def test_nothing_imports_against_the_direction(path):
    package = name_of(path) if path.name == "__init__.py" else name_of(path)[:-1]
    assert against_the_direction(path.read_text(), room_of(path), package) == set()


def test_every_room_has_its_place():
    assert {room_of(path) for path in FILES} == set(FLOOR)


@pytest.mark.parametrize(
    "source",
    [
        "import bilevax.lab", "import bilevax.lab.report as r", "from bilevax import lab",
        "from bilevax.lab import work", "from bilevax.lab.work import conduct",
        "from . import lab", "from .lab import work", "from .lab.work import conduct",
        "def f():\n    from bilevax import lab", "if True:\n    import bilevax.lab",
        "importlib.import_module('bilevax.lab.work')", "import bilevax.run.plan, bilevax.lab",
    ],
)  # fmt: skip
def test_every_form_of_an_import_against_the_direction_is_seen(source):
    assert "lab" in against_the_direction(source, "problem", ("bilevax",))
    assert against_the_direction(source, "cli", ("bilevax",)) == set()


@pytest.mark.parametrize(("source", "room"), [("import bilevax as bx", "bilevax"), ("from .. import run", "run")])
def test_the_public_names_and_relative_imports_of_a_folder_are_rooms_too(source, room):
    assert against_the_direction(source, "algorithms", ("bilevax", "algorithms")) == {room}
    assert against_the_direction(source, "demo", ("bilevax", "demo")) == set()


def test_a_room_aside_knows_only_what_it_says():
    assert against_the_direction("from bilevax import tasks, data", "problems") == {"tasks"}
    assert against_the_direction("from bilevax.problems import ridge", "problems") == set()


def shadowed_modules(package):
    """Modules that are not what their package shows under their name."""
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        module, (parent, _, name) = importlib.import_module(found.name), found.name.rpartition(".")
        if getattr(sys.modules[parent], name) is not module:
            yield found.name


def test_no_object_has_the_name_of_a_module_beside_it():
    """Where it had, `import bilevax.a.b as b` would give the object."""
    assert list(shadowed_modules(bilevax)) == []


def test_a_shadowed_module_is_seen(tmp_path, monkeypatch):
    (tmp_path / "villa" / "hall").mkdir(parents=True)
    (tmp_path / "villa" / "__init__.py").write_text("from villa.door import door\n")
    (tmp_path / "villa" / "door.py").write_text("door = 1\n")
    (tmp_path / "villa" / "hall" / "__init__.py").write_text("from villa.hall import lamp\n")
    (tmp_path / "villa" / "hall" / "lamp.py").write_text("light = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(shadowed_modules(importlib.import_module("villa"))) == ["villa.door"]


TESTS = Path(__file__).parent


def foreign_tests(source):
    """The test modules among what a source imports."""
    return {name for name in imported_names(source) if any(part.startswith("test_") for part in name.split("."))}


def test_no_test_module_imports_a_test_module():
    """What tests share lies in `tests/reference/`."""
    found = {path.relative_to(TESTS): foreign_tests(path.read_text()) for path in TESTS.rglob("*.py")}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    ["import test_a", "from test_a import b", "import tests.x.test_a as a", "from tests.x import test_a",
     "from . import test_a", "from .test_a import b", "def f():\n    from x.test_a import b"],
)  # fmt: skip
def test_every_form_of_an_import_of_a_test_module_is_seen(source):
    assert foreign_tests(source)


ROOT = TESTS.parent
PARTS = ("src", "tests", "benchmarks", "examples", "docs")
OURS = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))


def climb(node, known):
    """How many folders an expression stands above its file, as Path(__file__).parents[1] does by two; else None."""
    match node:
        case ast.Name(id=name):
            return known.get(name)
        case ast.Call(func=ast.Name(id="Path"), args=[ast.Name(id="__file__")]):
            return 0
        case ast.Call(func=ast.Attribute(value=inner, attr="resolve" | "absolute")):
            return climb(inner, known)
        case ast.Attribute(value=inner, attr="parent") if (below := climb(inner, known)) is not None:
            return below + 1
        case ast.Subscript(value=ast.Attribute(value=inner, attr="parents"), slice=ast.Constant(value=k)):
            below = climb(inner, known)
            return None if below is None else below + k + 1


def leaves_the_checkout(source, depth):
    """Whether a file so many folders deep (1 beside the README) looks above the checkout, or goes up by ".."."""
    tree, known = ast.parse(source), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            known[node.targets[0].id] = climb(node.value, known)
    climbs = [climb(node, known) or 0 for node in ast.walk(tree)]
    steps = [node.right for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)]
    upwards = any(isinstance(step, ast.Constant) and str(step.value).startswith("..") for step in steps)
    return max(climbs) > depth or upwards


def test_nothing_looks_for_a_folder_beside_the_checkout():
    """Data come by BILEVAX_DATA alone."""
    deep = {path.relative_to(ROOT): path.read_text() for path in OURS}
    assert [path for path, source in deep.items() if leaves_the_checkout(source, len(path.parts))] == []


HERE = "HERE = Path(__file__).parents[1]\n"


@pytest.mark.parametrize(
    "source",
    [
        "Path(__file__).parents[2] / 'data'", "Path(__file__).parent.parent.parent",
        "Path(__file__).resolve().parents[3]", HERE + "HERE.parent / 'shared'", HERE + "HERE / '../shared'",
    ],
)  # fmt: skip
def test_every_way_out_of_the_checkout_is_seen(source):
    assert leaves_the_checkout(source, depth=2)
    assert not leaves_the_checkout(HERE + "HERE / 'src'", depth=2)


@by_place
def test_every_public_definition_has_a_docstring(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    public = [n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and not n.name.startswith("_")]
    assert [node.name for node in public if not ast.get_docstring(node)] == []


def test_the_package_says_that_it_is_typed():
    """`py.typed` lies in the folder that the wheel takes as a whole."""
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert built == {"packages": ["src/bilevax"]}
    assert (ROOT / "src" / "bilevax" / "py.typed").is_file()


def test_the_public_names_exist():
    for name in bilevax.__all__:
        assert getattr(bilevax, name) is not None


def test_the_same_setting_has_the_same_name_and_default_in_every_algorithm():
    """Only rates, and what a method's own paper sets, have other defaults; a method that draws nothing has no rates."""
    drawing = [name for name in DESCRIPTIONS if name != "implicit"]
    signatures = {name: inspect.signature(getattr(bilevax, name)).parameters for name in drawing}
    common = {"upper_step", "lower_step", "batch_size", "upper_optimizer", "initialization", "initial_batch_size"}
    assert all(common <= set(parameters) for parameters in signatures.values())
    defaults = {}
    for parameters in signatures.values():
        for name, parameter in parameters.items():
            assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
            defaults.setdefault(name, set()).add(str(parameter.default))
    own = {"upper_step", "lower_step", "mixing", "relaxation", "inner_steps"}
    assert [name for name, values in defaults.items() if len(values) > 1 and name not in own] == []


@pytest.mark.parametrize("name", list(DESCRIPTIONS))
def test_every_parameter_of_an_algorithm_is_explained_in_its_own_docstring(name):
    factory = DESCRIPTIONS[name].factory
    words = inspect.getdoc(factory)
    assert [parameter for parameter in inspect.signature(factory).parameters if f"`{parameter}`" not in words] == []
    assert "those of `bilevax.rsvrb`" not in words.replace("projected as those of `bilevax.rsvrb`", "")
