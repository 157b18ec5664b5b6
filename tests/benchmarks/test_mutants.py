"""`benchmarks.mutants` makes the changes that it says, one at a time, and tells which of them no test sees."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import mutants

ROOT = Path(__file__).parents[2]


def changes(source):
    """Every change of a source, as before and after."""
    return {(mutant.before, mutant.after) for mutant in mutants.mutants_of(source)}


@pytest.mark.parametrize(
    ("source", "before", "after"),
    [
        ("a + b", "a + b", "a - b"),
        ("a * b", "a * b", "a / b"),
        ("a < b", "a < b", "a <= b"),
        ("a is None", "a is None", "a is not None"),
        ("not a", "not a", "a"),
        ("~a", "~a", "a"),
        ("-a", "-a", "a"),
        ("a and b", "a and b", "a or b"),
        ("f(1)", "1", "2"),
        ("f(0.5)", "0.5", "0.55"),
        ("f(True)", "True", "False"),
        ("jnp.minimum(a, b)", "jnp.minimum", "jnp.maximum"),
        ("jnp.minimum(a, b)", "jnp.minimum(a, b)", "b"),
        ("f(a, b)", "f(a, b)", "f(b, a)"),
        ("f(a, b)", "f(a, b)", "a"),
        ("f(u=a, v=b)", "f(u=a, v=b)", "f(u=b, v=a)"),
        ("a.sum(axis=1)", "1", "2"),
        ("a if b else c", "a if b else c", "c"),
        ("(a, b)", "(a, b)", "(b, a)"),
        ("a += b", "a += b", "pass"),
        ("if a or b:\n    f()", "a or b", "not (a or b)"),
    ],
)
def test_each_kind_of_change_is_made(source, before, after):
    assert (before, after) in changes(source)


def test_the_tests_that_are_meant_for_a_file_exist():
    for name, tests in mutants.TESTS.items():
        assert (ROOT / mutants.PACKAGE / name).exists(), name
        for test in tests:
            path, _, function = test.partition("::")
            assert f"def {function.partition('[')[0]}" in (ROOT / path).read_text(), test


def test_a_mutant_is_the_source_with_that_change_alone():
    source = 'def f(a: Float[Array, "n 1"], b):\n    """Text 1."""\n    # λ\n    return "λ", a - 2 * b\n'
    found = {mutant.source.splitlines()[3].strip() for mutant in mutants.mutants_of(source)}
    assert found == {
        "return ((a - 2 * b, 'λ'))", 'return "λ", (a + 2 * b)', 'return "λ", a - (2 / b)', 'return "λ", a - (3) * b'
    }  # fmt: skip
    for mutant in mutants.mutants_of(source):
        assert mutant.line == 4
        assert [line for line in mutant.source.splitlines() if "a -" not in line][:2] == source.splitlines()[:2]
        ast.parse(mutant.source)


def test_types_messages_and_texts_are_left_alone():
    quiet = 'Rows = Float[Array, "m 1"] | None\nif a:\n    raise ValueError(f"{a + 1} or {b - 1}")\n'
    assert changes(quiet) == {("a", "not a")}


def test_a_file_is_always_one_that_has_tests():
    for name, tests in mutants.TESTS.items():
        assert (ROOT / mutants.PACKAGE / name).is_file()
        assert tests
        assert all((ROOT / test.split("::")[0]).is_file() for test in tests)


def test_a_short_run_leaves_the_sources_alone_and_counts():
    path = ROOT / mutants.PACKAGE / "estimator.py"
    before = path.read_text()
    command = [sys.executable, "-m", "benchmarks.mutants", "--files", "estimator.py", "--most", "2"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, env={**os.environ})
    assert ended.stdout.splitlines()[-1] == "mutants=2 killed=2 survived=0", ended.stdout + ended.stderr
    assert path.read_text() == before
