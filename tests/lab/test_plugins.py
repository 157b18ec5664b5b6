"""Algorithms from outside the package register themselves, and `bilevax compare` knows them."""

import sys
from importlib.metadata import EntryPoint

import numpy as np
import pytest
from click.testing import CliRunner

import bilevax as bx
from bilevax import cli, lab
from bilevax.algorithms.contract import DESCRIPTIONS
from bilevax.algorithms.registry import plugins
from bilevax.algorithms.registry.tuning import STEPS, constant_steps
from bilevax.lab import tuning
from bilevax.lab.record import Record
from bilevax.lab.store import read_tuning

FACTS = 'paper="mine", loops="single", batch="O(1)", samples="?", tasks="all", memory="?", curvature="?", accepts="any"'
TUNING = ', tuning=bx.Tuning("My SOBA", STEPS, constant_steps)'
SOURCE = f"""
import bilevax as bx
from bilevax.algorithms.registry.tuning import STEPS, constant_steps

@bx.described({FACTS}{TUNING})
def my_soba(**settings):
    return bx.soba(**settings)._replace(name="my_soba")
"""


@pytest.fixture(autouse=True)
def forget_plugins(monkeypatch, tmp_path):
    """Names, modules and folders that a test adds are gone after it."""
    descriptions, modules = dict(DESCRIPTIONS), set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(tmp_path)
    yield
    DESCRIPTIONS.clear()
    DESCRIPTIONS.update(descriptions)
    for name in set(sys.modules) - modules:
        if "mine" in name:
            del sys.modules[name]


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def command(*arguments):
    return CliRunner().invoke(cli._commands(), [str(argument) for argument in arguments])


def compare(tmp_path, *more):
    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{int(a - b + c > 0)}" for a, b, c in rng.normal(size=(60, 3))]
    (tmp_path / "table.csv").write_text("\n".join(["u,v,class", *rows]))
    given = ("compare", "--data", tmp_path / "table.csv", "--seconds", 0.02, "--seeds", 1, "--out", tmp_path / "out")
    return command(*given, *more)


def test_compare_tunes_and_runs_an_algorithm_of_the_users_own(plugin, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "FIELD", 2)
    monkeypatch.setattr(tuning, "ROUNDS", ((2, 1.0),))
    monkeypatch.setattr(tuning, "steps_within", lambda *given: 12)
    outcome = compare(tmp_path, "--plugin", plugin, "--algorithms", "my_soba,soba")
    assert outcome.exit_code == 0, outcome.output
    assert "My SOBA" in (tmp_path / "out" / "report.html").read_text()
    runs = [Record.load(path) for path in (tmp_path / "out" / "runs").iterdir()]
    origins = {run.algorithm: run.origin for run in runs}
    assert origins["my_soba"].startswith("mine_")
    assert origins["soba"] is None
    read = lambda: {name: read_tuning(tmp_path / "out", ("compare", "table.csv", name)) for name in ("soba", "my_soba")}
    before = read()
    plugin.write_text(SOURCE.replace("bx.soba(", "bx.ma_soba("))  # another algorithm under the old name
    again = compare(tmp_path, "--plugin", plugin, "--algorithms", "my_soba,soba")
    assert again.exit_code == 0, again.output
    assert "tuned My SOBA" in again.output
    assert "tuned SOBA" not in again.output
    after = read()
    assert before["soba"] == after["soba"]
    assert before["my_soba"] != after["my_soba"]


@pytest.mark.parametrize("given", ["mine", "mine.py", "./mine.py"])
def test_a_plugin_is_a_module_or_a_file(plugin, given):
    assert plugins.load_plugin(given) == ["my_soba"]
    assert [facts.paper for facts in bx.list_algorithms() if facts.name == "my_soba"] == ["mine"]
    assert plugins.load_plugin(given) == ["my_soba"]  # once more does no harm
    assert lab.find_contender("my_soba").label == "My SOBA"


def test_the_list_of_algorithms_has_those_of_plugins(plugin):
    outcome = command("algorithms", "--plugin", plugin)
    assert outcome.exit_code == 0, outcome.output
    assert "my_soba" in outcome.output


@pytest.mark.parametrize("value", ["mine", "mine:my_soba"])
def test_algorithms_of_installed_packages_are_known_by_entry_points(plugin, monkeypatch, value):
    entry = EntryPoint("mine", value, "bilevax.algorithms")
    monkeypatch.syspath_prepend(plugin.parent)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry] if group == "bilevax.algorithms" else [])
    assert plugins.load_installed() == ["my_soba"]
    assert plugins.load_installed() == ["my_soba"]
    assert "my_soba" in command("algorithms").output


def test_an_entry_point_that_is_no_algorithm_is_named(plugin, monkeypatch):
    monkeypatch.syspath_prepend(plugin.parent)
    for value, message in {"mine": "describes no algorithm", "gone": "cannot be imported"}.items():
        plugin.write_text("import bilevax as bx")
        monkeypatch.setattr(plugins, "entry_points", lambda group, value=value: [EntryPoint("odd", value, group)])
        outcome = command("algorithms")
        assert outcome.exit_code == 1
        assert f"entry point 'odd' ({value}) of the group bilevax.algorithms {message}" in str(outcome.exception)


WRONG = {
    "no such module": ("nowhere", SOURCE, "plugin 'nowhere' cannot be imported: ModuleNotFoundError"),
    "no such file": ("nowhere.py", SOURCE, "there is no file nowhere.py"),
    "no Python": ("mine.py", "(", "plugin 'mine.py' cannot be imported: SyntaxError"),
    "an error inside": ("mine.py", "1 / 0", "ZeroDivisionError: division by zero"),
    "ends the command": ("mine.py", "raise SystemExit(3)", "plugin 'mine.py' cannot be imported: SystemExit"),
    "nothing in it": ("mine.py", "import bilevax", "plugin 'mine.py' describes no algorithm"),
    "a name that is taken": (
        "mine.py", SOURCE.replace("def my_soba", "def soba"),
        "there is an algorithm 'soba' already, in bilevax.algorithms.soba; give that of mine",
    ),
    "a fact that is missing": ("mine.py", SOURCE.replace('loops="single", ', ""), "missing: loops"),
    "a fact that is unknown": ("mine.py", SOURCE.replace("loops=", "hoops="), "missing: loops; not known: hoops"),
    "no tuning": (
        "mine.py", SOURCE.replace(TUNING, ""),
        "my_soba cannot be compared, for nothing says how it is tuned: add tuning=Tuning(label, ranges, arguments)",
    ),
    "a label that is taken": ("mine.py", SOURCE.replace("My SOBA", "SOBA"), "have the same label 'SOBA'"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_a_plugin_is_said_before_anything_runs(plugin, tmp_path, case):
    given, source, message = WRONG[case]
    plugin.write_text(source)
    outcome = compare(tmp_path, "--plugin", given, "--algorithms", "soba,my_soba")
    assert outcome.exit_code == 1
    assert message in str(outcome.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"label": " "}, "label must be"),
        ({"ranges": {"upper": (1.0, 0.1)}}, "the range of 'upper' must go from a smaller to a larger"),
        ({"ranges": {"upper": (0.0, 0.1)}}, "the range of 'upper' must be a finite number > 0; got 0.0"),
        ({"ranges": {"upper": 0.1}}, "the range of 'upper' must be a pair"),
        ({"choices": {"upper": (1, 2)}}, "choices must be tuples for options that have no range"),
        ({"choices": {"terms": ()}}, "choices must be tuples"),
        ({"arguments": {}}, "arguments must be a function"),
    ],
)
def test_a_tuning_that_cannot_be_is_refused_at_once(given, message):
    with pytest.raises((ValueError, TypeError), match=message):
        bx.Tuning(**{"label": "mine", "ranges": STEPS, "arguments": constant_steps, **given})
