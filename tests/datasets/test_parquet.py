"""Parquet: columns are unpacked once, whole or not at all, and read as arrays on disk."""

import os

import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax.datasets import open_parquet, parquet

pyarrow = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
ROWS = 300


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    return {
        "age": rng.normal(size=ROWS), "count": rng.integers(0, 9, ROWS), "is_new": rng.random(ROWS) < 0.5,
        "picture": [list(row) for row in rng.normal(size=(ROWS, 4))],
        "name": [f"row {k}" for k in range(ROWS)],
    }  # fmt: skip


@pytest.fixture
def path(table, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "BATCH", 128)
    pq.write_table(pyarrow.table(table), tmp_path / "table.parquet", row_group_size=70)
    return tmp_path / "table.parquet"


NUMBERS = ["age", "count", "is_new", "picture"]


def test_columns_are_those_of_the_table_and_stay_on_disk(path, table):
    found = open_parquet(path, NUMBERS)
    assert list(found) == NUMBERS
    for name, column in found.items():
        assert isinstance(column, np.memmap)
        np.testing.assert_array_equal(column, np.asarray(table[name]))
    assert found["picture"].shape == (ROWS, 4)
    assert sorted(file.name for file in path.parent.iterdir()) == ["table.parquet", "table.parquet.columns"]


def test_they_are_unpacked_once_and_again_when_the_file_is_another(path, table, monkeypatch):
    open_parquet(path, ["age"])
    unpack, calls = parquet._unpack, []
    monkeypatch.setattr(parquet, "_unpack", lambda *given: calls.append(given) or unpack(*given))
    np.testing.assert_array_equal(open_parquet(str(path), ["age"])["age"], table["age"])
    assert not calls
    pq.write_table(pyarrow.table({"age": np.ones(5)}), path)
    np.testing.assert_array_equal(open_parquet(path)["age"], np.ones(5))
    os.utime(path, (1, 1))
    open_parquet(path)
    assert len(calls) == 2


def test_a_run_on_them_has_the_bits_of_one_in_memory(path, table):
    def solve(rows):
        data = bx.shared({"A": rows["picture"], "b": rows["age"]})
        fit = lambda y, batch: jnp.mean((batch["A"] @ y - batch["b"]) ** 2)
        problem = bx.Problem(
            upper=lambda x, y, i, batch: fit(y, batch),
            lower=lambda x, y, i, batch: fit(y, batch) + 0.5 * jnp.sum((y - x) ** 2),
            x0=jnp.zeros(4), y0=jnp.zeros(4), upper_data=data, lower_data=data, strong_convexity=1.0,
        )  # fmt: skip
        return bx.solve(problem, bx.soba(upper_step=0.1, lower_step=0.1, batch_size=8), steps=5, metrics=None).x

    in_memory = {name: np.asarray(table[name]) for name in NUMBERS}
    np.testing.assert_array_equal(solve(open_parquet(path, NUMBERS)), solve(in_memory))


def test_lists_that_are_longer_in_later_rows_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "BATCH", 2)
    pq.write_table(pyarrow.table({"v": [[1.0], [1.0], [1.0, 2.0], [1.0, 2.0]]}), tmp_path / "t")
    with pytest.raises(ValueError, match="they have 1, and 2 from row 2 on"):
        open_parquet(tmp_path / "t")


def test_a_missing_number_is_nan(tmp_path):
    pq.write_table(pyarrow.table({"a": [1.0, None]}), tmp_path / "t")
    np.testing.assert_array_equal(open_parquet(tmp_path / "t")["a"], [1.0, np.nan])


@pytest.mark.parametrize(
    ("content", "columns", "words"),
    [
        ({"name": ["x", "y"]}, None, "the column 'name' must hold numbers, or columns= must leave it out"),
        ({"n": [1, None]}, None, "the column 'n' must not have missing values"),
        ({"v": [[1.0], [1.0, 2.0]]}, None, "the column 'v' must hold lists of one length"),
        ({"v": [[1.0], None]}, None, "the column 'v' must hold lists of one length"),
        ({"a": [1.0]}, ["b"], "columns must be"),
        ({"a": [1.0]}, "a", "columns must be names"),
        ({"a": []}, None, "must hold rows and columns"),
    ],
)
def test_what_holds_no_numbers_is_named_and_nothing_is_left(tmp_path, content, columns, words):
    pq.write_table(pyarrow.table(content), tmp_path / "t")
    with pytest.raises((ValueError, TypeError), match=words):
        open_parquet(tmp_path / "t", columns)
    assert [file.name for file in tmp_path.iterdir()] == ["t"]


def test_another_file_is_refused_by_its_name(tmp_path):
    (tmp_path / "t").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="is not a Parquet file"):
        open_parquet(tmp_path / "t")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        open_parquet(tmp_path / "none")
