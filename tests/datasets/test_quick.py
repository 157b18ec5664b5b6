"""The quick readers read what they read as the slow ones do, and leave the rest to them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bilevax.datasets import libsvm, quick, read_csv, read_libsvm

NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(-1000, 1000, places=4).map(str),
    st.sampled_from(
        ["0", "-0", "+1", ".5", "5.", "1e3", "-2.5E-3", "007", "0.1234567890123456789", "123456789012345678"]
    ),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(NUMBERS, min_size=2, max_size=12))
def test_numbers_are_those_of_float_bit_for_bit(words):
    table = quick.read_table((",".join(words) + "\n").encode(), len(words))
    np.testing.assert_array_equal(table[0], np.array([float(word) for word in words]))
    np.testing.assert_array_equal(np.signbit(table[0]), np.signbit([float(word) for word in words]))


def text_of(rows, rng):
    lines = []
    for _ in range(rows):
        columns = np.flatnonzero(rng.random(9) < 0.4) + 1
        pairs = " ".join(f"{j}:{rng.choice([1, 0.25, -3e-7])}" for j in columns)
        lines.append(f"{rng.choice(['+1', '-1'])} {pairs}")
    return "\n".join(lines).encode()


def test_rows_in_many_pieces_are_the_same(tmp_path, monkeypatch):
    content = text_of(60, np.random.default_rng(0))
    path = tmp_path / "rows"
    path.write_bytes(content)
    slow = libsvm._read_slowly(path, content, None)
    for size in (2**17, 40, 1):
        monkeypatch.setattr(quick, "PIECE", size)
        rows = quick.read_rows(content, 100)
        assert rows is not None
        found = read_libsvm(path)
        assert (found.features != slow.features).nnz == 0
        np.testing.assert_array_equal(found.labels, slow.labels)


STRANGE = {
    "a comment": b"1 1:2 # three\n-1 1:3\n",
    "falling": b"1 2:1 1:1\n-1 1:1\n",
    "the same twice": b"1 2:1 2:1\n-1 1:1\n",
    "zero": b"1 0:1\n-1 1:1\n",
    "beyond": b"1 101:1\n-1 1:1\n",
    "two labels": b"1 1 1:1\n-1 1:1\n",
    "a blank": b"1 1: 1\n-1 1:1\n",
    "a colon": b"1 1::1\n-1 1:1\n",
    "a colon at the end": b"1 1:\n-1 1:1\n",
    "a pair alone": b"1:1\n-1 1:1\n",
    "three": b"1 1:1:1\n-1 1:1\n",
    "a word": b"one 1:1\n-1 1:1\n",
    "a sign": b"1 +1:1\n-1 1:1\n",
    "too large": b"1 1:1e999\n-1 1:1\n",
    "no number": b"1 1:.\n-1 1:1\n",
    "no number either": b"1 1:1e\n-1 1:1\n",
    "a comma": b"1 1:1,2\n-1 1:1\n",
    "long": b"1 1:" + b"1" * 40 + b"\n-1 1:1\n",
    "an index that wraps": b"1 4294967297:1\n-1 1:1\n",
}


@pytest.mark.parametrize("case", STRANGE)
def test_what_is_not_plain_is_left_to_the_slow_reader(case):
    assert quick.read_rows(STRANGE[case], 100) is None


@pytest.mark.parametrize(
    "body", [b"1,2\n3\n", b"1,2,\n3,4\n", b"1,,2\n", b'"1",2\n', b"1 ,2\n", b"1,2:3\n", b"1,nan\n", b""]
)
def test_tables_that_are_not_plain_are_left_to_the_slow_reader(body):
    assert quick.read_table(body, 2) is None


def test_a_plain_table_is_read_quickly(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,label,b\r\n1,0,2.5\r\n\r\n-3e2,1,.25\r\n")
    found = read_csv(path, label="label")
    np.testing.assert_array_equal(found.features.toarray(), [[1, 2.5], [-300, 0.25]])
    np.testing.assert_array_equal(found.labels, [-1, 1])
    np.testing.assert_array_equal(quick.read_table(b"1,0,2.5\r\n\r\n-3e2,1,.25\r\n", 3), [[1, 0, 2.5], [-300, 1, 0.25]])
