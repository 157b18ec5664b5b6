"""Data sets: what the readers accept and refuse, what is loaded by name, and that only right content is kept."""

import bz2
import csv
import gzip
import hashlib
import io
import itertools
import lzma
import math
import os
import re
import struct
import subprocess
import sys
from collections import Counter

import numpy as np
import pooch
import pytest
import requests
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bilevax import datasets
from bilevax.datasets import registry
from bilevax.datasets.archive import read_unpacked
from bilevax.datasets.libsvm import LARGEST_INDEX

PACKED = {"": bytes, ".xz": lzma.compress, ".bz2": bz2.compress, ".gz": gzip.compress}
GOOD = "+1 1:0.5 3:2\n-1\n-1 2:1e-3\n"
in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def write(folder, content, name="some"):
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def same(one, other):
    return (one.features != other.features).nnz == 0 and (one.labels == other.labels).all()


def row_multiset(*parts):
    """How often each row occurs, with its label."""
    counts = Counter()
    for data in parts:
        ends, columns, values = data.features.indptr, data.features.indices, data.features.data
        for label, (a, b) in zip(data.labels, itertools.pairwise(ends), strict=True):
            counts[label, columns[a:b].tobytes(), values[a:b].tobytes()] += 1
    return counts


# The LIBSVM reader: what it accepts.


def test_a_libsvm_file_becomes_sparse_rows_and_signs(tmp_path):
    data = datasets.read_libsvm(write(tmp_path, GOOD))
    assert isinstance(data.features, sp.csr_array)
    assert data.features.dtype == data.labels.dtype == np.float64
    np.testing.assert_array_equal(data.features.toarray(), [[0.5, 0, 2], [0, 0, 0], [0, 1e-3, 0]])
    np.testing.assert_array_equal(data.labels, [1.0, -1.0, -1.0])


def test_the_number_of_columns_is_the_one_asked_for(tmp_path):
    assert datasets.read_libsvm(write(tmp_path, GOOD), n_features=7).features.shape == (3, 7)


@pytest.mark.parametrize(("small", "large"), [("0", "1"), ("1", "2"), ("-1.5", "-1"), ("-1", "+1"), ("1e-3", "1e3")])
def test_the_larger_class_becomes_plus_one(tmp_path, small, large):
    data = datasets.read_libsvm(write(tmp_path, f"{large} 1:1\n{small} 1:1\n{large}\n"))
    np.testing.assert_array_equal(data.labels, [1.0, -1.0, 1.0])


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("\n", "\r\n"),
        GOOD.replace("\n", "\r"),
        GOOD.rstrip("\n"),
        GOOD.replace(" ", " \t "),
        "\n" + GOOD.replace("\n", "\n\n \n"),
        "# first\n" + GOOD.replace("\n", " # größer: 5\n"),
        GOOD.replace("0.5", "5E-1").replace("3:2", "003:+2.000").replace("-1\n", "-1 2:0 3:-0.0\n", 1),
    ],
    ids=["CRLF", "CR", "no end", "blanks", "blank lines", "comments", "other spellings"],
)
def test_another_way_of_writing_is_the_same_content(tmp_path, text):
    plain, other = (datasets.read_libsvm(write(tmp_path, content)) for content in (GOOD, text))
    assert same(plain, other)
    assert plain.digest() == other.digest()


def test_what_it_is_packed_with_is_seen_in_the_content_not_the_name(tmp_path):
    plain = datasets.read_libsvm(write(tmp_path, GOOD, "some"))
    for pack in PACKED.values():
        assert same(plain, datasets.read_libsvm(write(tmp_path, pack(GOOD.encode()), "other.txt")))


@pytest.mark.parametrize("suffix", PACKED)
def test_the_name_is_that_of_the_file_without_the_compression(tmp_path, suffix):
    assert datasets.read_libsvm(write(tmp_path, PACKED[suffix](GOOD.encode()), "a1a.t" + suffix)).name == "a1a.t"


@pytest.mark.parametrize("suffix", [".xz", ".bz2", ".gz"])
def test_an_archive_of_several_streams_is_read_to_its_end(tmp_path, suffix):
    lines = [line.encode() for line in GOOD.splitlines(keepends=True)]
    several = write(tmp_path, b"".join(map(PACKED[suffix], lines)))
    assert same(datasets.read_libsvm(several), datasets.read_libsvm(write(tmp_path, GOOD, "plain")))


# The LIBSVM reader: what it refuses.

BAD_LINES = {
    "bad label": ("one 1:1", "label 'one' is not a number"),
    "two labels": ("1,2 1:1", "label '1,2' is not a number"),
    "label NaN": ("nan 1:1", "label 'nan' is not finite"),
    "third class": ("3 1:1", "label 3 is of a third class, beside -1 and 1"),
    "no colon": ("+1 1:1 7", "'7' is not a pair index:value"),
    "ranking": ("+1 qid:3 1:1", "'qid:3' marks ranking data"),
    "index a word": ("+1 a:1", "index of 'a:1' is not a whole number"),
    "index a fraction": ("+1 1.5:1", "index of '1.5:1' is not a whole number"),
    "index missing": ("+1 :1", "index of ':1' is not a whole number"),
    "index with underscore": ("+1 1_0:1", "index of '1_0:1' is not a whole number"),
    "index zero": ("+1 0:1 1:1", "index of '0:1' is below 1.*0-based"),
    "index negative": ("+1 -2:1", "index of '-2:1' is below 1"),
    "index twice": ("+1 2:1 2:1", "index of '2:1' comes after index 2: indices must increase"),
    "index falling": ("+1 3:1 2:1", "index of '2:1' comes after index 3: indices must increase"),
    "index huge": (f"+1 {LARGEST_INDEX + 1}:1", "is above 2147483647"),
    "value a word": ("+1 1:x", "value 'x' is not a number"),
    "value with underscore": ("+1 1:1_0", "value '1_0' is not a number"),
    "value hexadecimal": ("+1 1:0x10", "value '0x10' is not a number"),
    "value missing": ("+1 1: 2:1", "value is missing"),
    "two colons": ("+1 1:2:3", "value '2:3' is not a number"),
    "value NaN": ("+1 1:NaN", "value 'NaN' is not finite"),
    "value infinite": ("+1 1:-inf", "value '-inf' is not finite"),
    "value too large": ("+1 1:1e999", "value '1e999' is not finite"),
    "other digits": ("+1 1:\u0663", "bytes that are not ASCII"),
    "binary": (b"\xff\xfe", "bytes that are not ASCII"),
    "zero byte": (b"+1 1:1\0", r"value '1\\x00' is not a number"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_malformed_line_is_named_with_its_number_and_what_is_wrong(tmp_path, case):
    line, reason = BAD_LINES[case]
    line = line if isinstance(line, bytes) else line.encode()
    path = write(tmp_path, b"# a comment\n\n" + GOOD.encode() + line + b"\n+1 broken:too\n")
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}, line 6: .*{reason}"):
        datasets.read_libsvm(path)


def test_an_index_beyond_the_columns_asked_for_is_refused(tmp_path):
    with pytest.raises(ValueError, match="line 1: the index of '3:2' is beyond n_features = 2"):
        datasets.read_libsvm(write(tmp_path, GOOD), n_features=2)


def test_an_index_beyond_the_format_is_refused_whatever_number_of_columns_is_asked_for(tmp_path):
    with pytest.raises(ValueError, match="is above 2147483647"):
        datasets.read_libsvm(write(tmp_path, f"+1 {LARGEST_INDEX + 1}:1\n-1\n"), n_features=2**40)


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b"# nothing\n", gzip.compress(b"")], ids=["empty", "blank", "comment", "packed"]
)
def test_a_file_without_rows_is_refused(tmp_path, content):
    with pytest.raises(ValueError, match="some holds no rows"):
        datasets.read_libsvm(write(tmp_path, content))


def test_a_file_with_one_class_is_refused(tmp_path):
    with pytest.raises(ValueError, match="all 2 labels are 1; two classes are needed"):
        datasets.read_libsvm(write(tmp_path, "+1 1:1\n1 2:1\n"))


@pytest.mark.parametrize("suffix", [".xz", ".bz2", ".gz"])
def test_a_broken_archive_is_refused(tmp_path, suffix):
    whole = PACKED[suffix](GOOD.encode())
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    broken = {"cut": whole[:-5], "changed": bytes(flipped), "with a tail": whole + b"tail", "head": whole[:7]}
    for name, content in broken.items():
        with pytest.raises(ValueError, match=rf"{name}\{suffix} is a truncated or corrupt"):
            datasets.read_libsvm(write(tmp_path, content, name + suffix))


def test_a_long_word_is_shown_shortened(tmp_path):
    with pytest.raises(ValueError, match="is not a number") as caught:
        datasets.read_libsvm(write(tmp_path, "x" * 10**6))
    assert len(str(caught.value)) < len(str(tmp_path)) + 200


@pytest.mark.parametrize(("given", "kind"), [(0, ValueError), (-3, ValueError), (2.5, TypeError), ("3", TypeError)])
def test_a_wrong_number_of_columns_is_refused(tmp_path, given, kind):
    with pytest.raises(kind, match="n_features must be a whole number of at least 1"):
        datasets.read_libsvm(write(tmp_path, GOOD), n_features=given)


@pytest.mark.parametrize("read", [datasets.read_libsvm, datasets.read_csv])
def test_a_missing_file_is_named(tmp_path, read):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read(tmp_path / "nowhere")


@pytest.mark.parametrize("read", [datasets.read_libsvm, datasets.read_csv])
def test_what_is_no_file_is_refused_by_name_and_does_not_block(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    for path, kind in [(tmp_path / "pipe", "pipe is a pipe"), (tmp_path, "is a folder"), ("/dev/zero", "is a device")]:
        with pytest.raises(ValueError, match=kind):
            read(path)
    for wrong in (3, None, b"rows"):
        with pytest.raises(TypeError, match="path must be the path of a file"):
            read(wrong)


def test_columns_are_had_in_the_order_asked_for(tmp_path):
    path = write(tmp_path, "b,class,a\n1,0,2\n3,1,4\n", "table.csv")
    data = datasets.read_csv(path, label="class")
    assert (data.columns, data.label, data.classes) == (("b", "a"), "class", (0.0, 1.0))
    other = datasets.read_csv(path, label="class", columns=("a", "b"))
    np.testing.assert_array_equal(other.features.toarray(), [[2, 1], [4, 3]])
    assert other.columns == ("a", "b")
    with pytest.raises(
        ValueError, match=r"table\.csv, line 1: the columns must be 'c', 'b' .* missing: 'c'; left over: 'a'"
    ):
        datasets.read_csv(path, label="class", columns=("c", "b"))


# Properties of the LIBSVM reader.

numbers = st.floats(allow_nan=False, allow_infinity=False)
rows = st.tuples(st.booleans(), st.dictionaries(st.integers(1, 40), numbers, max_size=6))
row_lists = st.lists(rows, max_size=12).map(lambda some: [*some, (True, {}), (False, {40: 1.0})])


def as_text(some, ends="\n"):
    words = [[("1" if up else "-1"), *(f"{i}:{row[i]!r}" for i in sorted(row))] for up, row in some]
    return "".join(" ".join(line) + ends for line in words)


@in_one_folder
@given(some=row_lists, suffix=st.sampled_from(list(PACKED)), ends=st.sampled_from(["\n", "\r\n"]))
def test_rows_survive_text_and_compression(tmp_path, some, suffix, ends):
    data = datasets.read_libsvm(write(tmp_path, PACKED[suffix](as_text(some, ends).encode()), "some" + suffix))
    expected = np.zeros((len(some), 40))
    for k, (_, row) in enumerate(some):
        for index, value in row.items():
            expected[k, index - 1] = value
    np.testing.assert_array_equal(data.features.toarray(), expected)
    np.testing.assert_array_equal(data.labels, [1.0 if up else -1.0 for up, _ in some])
    again = datasets.Dataset("other", sp.csr_array(expected), data.labels)
    assert data.digest() == again.digest()


PAIR = re.compile(r"(\d+):([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)", re.ASCII)


def naive(content):
    """A plain reading of the format by its grammar: signs and rows as dictionaries, or None where it is violated."""
    labels, found = [], []
    for line in re.split(rb"\r\n|\r|\n", content):
        try:
            words = re.sub(rb"#.*", b"", line, flags=re.DOTALL).decode("ascii").split()
        except UnicodeDecodeError:
            return None
        if not words:
            continue
        matches = [PAIR.fullmatch(word) for word in ["1:" + words[0], *words[1:]]]
        if not all(matches):
            return None
        (_, label), *pairs = [(int(m[1]), float(m[2])) for m in matches]
        indices = [index for index, _ in pairs]
        if indices != sorted(set(indices)) or (indices and not 1 <= indices[0] <= indices[-1] <= LARGEST_INDEX):
            return None
        if not all(math.isfinite(value) for _, value in [*pairs, (0, label)]):
            return None
        labels.append(label)
        found.append({index: value for index, value in pairs if value})
    if len(set(labels)) != 2:
        return None
    return [1.0 if label == max(labels) else -1.0 for label in labels], found


def assert_read_as_by_grammar(path, content):
    expected = naive(content)
    path.write_bytes(content)
    if expected is None:
        with pytest.raises(ValueError, match=re.escape(str(path))):
            datasets.read_libsvm(path)
        return
    data = datasets.read_libsvm(path)
    ends, columns, values = data.features.indptr, data.features.indices, data.features.data
    spans = itertools.pairwise(ends)
    assert [dict(zip(columns[a:b] + 1, values[a:b], strict=True)) for a, b in spans] == expected[1]
    assert data.labels.tolist() == expected[0]


words = st.sampled_from(
    ["+1", "-1", "2", "1:1", "2:.5", "3:0", "2:1e5", "7:-2.", "0:1", "4:nan", "5", "qid:1", "#", ":"]
)
gaps = st.sampled_from([" ", " ", " ", "\n", "\n", "\r\n", "\t", "\x0b", "\x0c", "\x1c", "\x85", ""])


@in_one_folder
@given(parts=st.lists(st.tuples(words, gaps), max_size=12))
def test_words_in_any_order_are_read_as_the_grammar_says_or_refused(tmp_path, parts):
    assert_read_as_by_grammar(tmp_path / "some", "".join(word + gap for word, gap in parts).encode())


@in_one_folder
@given(
    some=row_lists,
    edits=st.lists(
        st.tuples(st.integers(0, 10**6), st.sampled_from(list(b"0123456789:.-+eE# \n\r\t_nx\x00\x1c\xa0\xff"))),
        min_size=1,
        max_size=3,
    ),
    insert=st.booleans(),
)
def test_a_changed_file_is_read_as_the_grammar_says_or_refused(tmp_path, some, edits, insert):
    content = bytearray(as_text(some).encode())
    for place, byte in edits:
        place %= len(content)
        content[place : place + (not insert)] = bytes([byte])
    assert_read_as_by_grammar(tmp_path / "some", bytes(content))


@in_one_folder
@given(content=st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_arbitrary_content_is_read_as_the_grammar_says_or_refused(tmp_path, content):
    assert_read_as_by_grammar(tmp_path / "some", content)


@in_one_folder
@given(
    suffix=st.sampled_from([".xz", ".bz2", ".gz"]),
    place=st.integers(0, 10**6),
    bit=st.integers(0, 7),
    cut=st.booleans(),
)
def test_a_changed_or_cut_archive_gives_the_same_rows_or_is_refused(tmp_path, suffix, place, bit, cut):
    content = bytearray(PACKED[suffix](GOOD.encode()))
    place %= len(content)
    content[place:] = b"" if cut else bytes([content[place] ^ 1 << bit]) + content[place + 1 :]
    plain = datasets.read_libsvm(write(tmp_path, GOOD, "plain"))
    try:
        data = datasets.read_libsvm(write(tmp_path, bytes(content)))
    except ValueError:
        return
    assert same(plain, data)


# Tables.

TABLE = "size,kind,age\n1,0,2.5\n0,1,-3e2\n"


def test_the_last_column_of_a_table_is_the_label(tmp_path):
    data = datasets.read_csv(write(tmp_path, "size,age,kind\n1,2.5,3\n0,-3e2,4\n\n", "people.csv"))
    assert data.name == "people"
    assert isinstance(data.features, sp.csr_array)
    np.testing.assert_array_equal(data.features.toarray(), [[1, 2.5], [0, -300]])
    np.testing.assert_array_equal(data.labels, [-1.0, 1.0])


def test_another_column_can_be_the_label(tmp_path):
    data = datasets.read_csv(write(tmp_path, TABLE), label="kind")
    np.testing.assert_array_equal(data.features.toarray(), [[1, 2.5], [0, -300]])
    np.testing.assert_array_equal(data.labels, [-1.0, 1.0])


@pytest.mark.parametrize("suffix", PACKED)
def test_a_table_may_be_packed_or_come_from_a_spreadsheet(tmp_path, suffix):
    content = "\ufeff" + TABLE.replace("\n", "\r\n").replace("kind", '"kind"').replace("age", " age ")
    path = write(tmp_path, PACKED[suffix](content.encode()), "people.csv" + suffix)
    for label in ("size", "kind", "age"):
        data = datasets.read_csv(path, label=label)
        assert data.name == "people"
        assert same(data, datasets.read_csv(write(tmp_path, TABLE), label=label))


BAD_TABLES = {
    "word": ("a,b\n1,0\nx,1\n", "line 3: column 'a': value 'x' is not a number"),
    "word as label": ("a,b\n1,0\n2,yes\n", "line 3: column 'b': label 'yes' is not a number"),
    "missing": ("a,b\n1,0\n,1\n", "line 3: column 'a': value is missing"),
    "missing label": ("a,b\n1, \n", "line 2: column 'b': label is missing"),
    "NaN": ("a,b\n\nNaN,0\n", "line 3: column 'a': value 'NaN' is not finite"),
    "infinite": ("a,b\n1e999,0\n", "line 2: column 'a': value '1e999' is not finite"),
    "underscore": ("a,b\n1_0,0\n", "line 2: column 'a': value '1_0' is not a number"),
    "other digits": ("a,b\n\u0663,0\n", "line 2: column 'a': value '\u0663' is not a number"),
    "third class": ("a,b\n1,0\n1,1\n1,2\n", "line 4: column 'b': label 2 is of a third class, beside 0 and 1"),
    "one class": ("a,b\n1,0\n2,0\n", "some: all 2 labels are 0"),
    "short line": ("a,b\n1\n", "line 2: 1 cells, but the header names 2 columns"),
    "long line": ("a,b\n1,0,3\n", "line 2: 3 cells"),
    "empty": ("", "line 1: a header .* is missing"),
    "header alone": ("a,b\n", "some holds no rows"),
    "no header": ("1,0\n2,1\n", "line 1: the first line must name the columns; got the numbers '1', '0'"),
    "one column": ("a;b\n1;0\n", "line 1: the only column is 'a;b'.*commas"),
    "no name": (",a,b\n0,1,1\n", "line 1: column 1 has no name"),
    "name twice": ("a,b,a\n1,1,1\n", "line 1: more than one column is named 'a'"),
    "open quote": ('a,b\n1,"0\n', "line 2: unexpected end of data"),
    "not UTF-8": (b"a,b\n1,0\n\xff,1\n", "line 3: byte 0xff is not UTF-8"),
    "cut archive": (gzip.compress(b"a,b\n1,0\n2,1\n")[:-3], "truncated or corrupt gzip archive"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_malformed_table_is_named_with_line_and_column(tmp_path, case):
    content, reason = BAD_TABLES[case]
    path = write(tmp_path, content)
    with pytest.raises(ValueError, match=f"^{re.escape(str(tmp_path))}.*{reason}"):
        datasets.read_csv(path)


def test_a_label_that_is_no_column_is_refused_with_the_columns(tmp_path):
    with pytest.raises(ValueError, match="got 'sort', the columns are 'size', 'kind', 'age'"):
        datasets.read_csv(write(tmp_path, TABLE), label="sort")


@in_one_folder
@given(table=st.lists(st.tuples(numbers, numbers, st.booleans()), max_size=8))
def test_numbers_survive_a_table(tmp_path, table):
    table = [*table, (0.0, -0.5, True), (1.0, 2.0, False)]
    text = io.StringIO()
    csv.writer(text).writerows([("p", "q", "label"), *((p, q, int(up)) for p, q, up in table)])
    data = datasets.read_csv(write(tmp_path, text.getvalue()))
    np.testing.assert_array_equal(data.features.toarray(), [[p, q] for p, q, _ in table])
    np.testing.assert_array_equal(data.labels, [1.0 if up else -1.0 for *_, up in table])


@in_one_folder
@given(
    content=st.binary(max_size=60)
    | st.text('ab01.,"\n\r\0 -e', max_size=40).map(lambda t: b"a,b\n1,0\n0,1\n" + t.encode())
)
def test_arbitrary_tables_are_read_or_refused(tmp_path, content):
    try:
        data = datasets.read_csv(write(tmp_path, content))
    except ValueError:
        return
    assert np.isfinite(data.features.data).all()
    assert set(data.labels) == {-1.0, 1.0}


# The data set itself.


def some_data(**changes):
    given = {"name": "some", "features": sp.csr_array([[0.0, 2.0], [3.0, 0.0]]), "labels": np.array([1.0, -1.0])}
    return datasets.Dataset(**given | changes)


def test_a_data_set_shows_itself_in_a_line():
    assert repr(some_data()) == "Dataset('some': 2 rows, 2 features, 1 positive)"


@pytest.mark.parametrize(
    ("changes", "kind", "name"),
    [
        ({"features": np.eye(2)}, TypeError, "features"),
        ({"features": sp.csr_array(np.eye(2, dtype=int))}, TypeError, "features"),
        ({"labels": np.ones(3)}, ValueError, "labels"),
        ({"labels": np.array([0.0, 1.0])}, ValueError, "labels"),
        ({"labels": np.array([1.0, -1.0], complex)}, TypeError, "labels"),
        ({"labels": sp.csr_array(np.array([1.0, -1.0]))}, TypeError, "labels"),
        ({"labels": np.ma.array([1.0, -1.0], mask=[False, True])}, TypeError, "labels"),
    ],
)
def test_a_data_set_of_something_else_is_refused(changes, kind, name):
    with pytest.raises(kind, match=f"{name} must be"):
        some_data(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": np.array([-1.0, 1.0])},
        {"features": sp.csr_array([[0.0, 2.0], [np.nextafter(3.0, 4.0), 0.0]])},
        {"features": sp.csr_array([[2.0, 0.0], [3.0, 0.0]])},
        {"features": sp.csr_array([[0.0, 2.0, 0.0], [3.0, 0.0, 0.0]])},
        {"features": sp.csr_array([[3.0, 2.0], [0.0, 0.0]])},
    ],
    ids=["labels", "value", "column", "width", "row"],
)
def test_other_content_has_another_digest(changes):
    assert some_data(**changes).digest() != some_data().digest()


def test_the_digest_is_of_the_content_not_of_how_it_is_held():
    held = sp.csr_array((np.array([2.0, 0.0, 1.0, 2.0]), np.array([1, 0, 0, 0]), np.array([0, 2, 4])), (2, 2))
    data = some_data(name="other", features=held)
    assert data.digest() == some_data().digest()
    assert held.nnz == 4


def test_the_digest_is_the_one_that_is_documented():
    content = struct.pack("<3q 2d 2q 2q 2d", 2, 2, 2, 1.0, -1.0, 1, 2, 1, 0, 2.0, 3.0)
    assert some_data().digest() == hashlib.sha256(content).hexdigest()


# Data sets by name.


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder that BILEVAX_DATA names."""
    path = tmp_path / "given"
    path.mkdir()
    monkeypatch.setenv("BILEVAX_DATA", str(path))
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The cache of a user who has none yet, with no way to the network."""
    monkeypatch.delenv("BILEVAX_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "caches" / project)

    def refuse(*arguments, **keywords):
        raise requests.ConnectionError("no way out")

    monkeypatch.setattr(requests, "get", refuse)
    return tmp_path / "caches" / "bilevax"


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """A data set of three rows in place of the registered ones."""
    data = datasets.read_libsvm(write(tmp_path, GOOD, "tiny-source"), 3)
    entry = datasets.Entry("tiny", 3, 3, 1, data.digest())
    monkeypatch.setattr(registry, "REGISTRY", {"tiny": entry})
    return entry


def site_sends(monkeypatch, content, asked=None):
    """Let the site answer with that content; an exception in it is raised in the middle of the download."""

    class Answer:
        headers = {"content-length": "30"}  # noqa: RUF012

        def raise_for_status(self):
            pass

        def iter_content(self, chunk_size):
            for part in content:
                if not isinstance(part, bytes):
                    raise part
                yield part

    def get(url, **keywords):
        if asked is not None:
            asked.append(url)
        return Answer()

    monkeypatch.setattr(requests, "get", get)


def held(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("suffix", PACKED)
def test_a_file_in_the_given_folder_is_loaded_plain_or_packed(cache, folder, tiny, suffix):
    assert not datasets.is_here("tiny")
    write(folder, PACKED[suffix](GOOD.encode()), "tiny" + suffix)
    assert datasets.is_here("tiny")
    assert datasets.load("tiny").digest() == tiny.digest


def test_a_file_in_the_cache_is_loaded_without_a_download(cache, tiny):
    cache.mkdir(parents=True)
    write(cache, GOOD, "tiny")
    assert datasets.is_here("tiny")
    assert datasets.load("tiny").name == "tiny"


def test_the_given_folder_comes_before_the_cache(cache, folder, tiny):
    cache.mkdir(parents=True)
    write(cache, "broken", "tiny")
    write(folder, GOOD, "tiny")
    assert datasets.load("tiny").features.shape == (3, 3)


def test_what_is_not_here_is_downloaded_once_and_kept(cache, tiny, monkeypatch):
    asked = []
    site_sends(monkeypatch, [GOOD.encode()[:9], GOOD.encode()[9:]], asked)
    first, second = datasets.load("tiny"), datasets.load("tiny")
    assert same(first, second)
    assert asked == [tiny.url]
    assert held(cache) == ["tiny"]
    assert (cache / "tiny").read_text() == GOOD


def test_a_download_with_other_line_ends_is_accepted(cache, tiny, monkeypatch):
    site_sends(monkeypatch, [GOOD.replace("\n", "\r\n").encode()])
    assert datasets.load("tiny").digest() == tiny.digest


@pytest.mark.parametrize("content", ["-1 1:0.5\n+1\n", "<html>log in first</html>", "", GOOD[:-3]])
def test_a_wrong_download_is_refused_and_not_kept(cache, tiny, monkeypatch, content):
    site_sends(monkeypatch, [content.encode()])
    with pytest.raises(ValueError, match=f"what {re.escape(tiny.url)} sent is not tiny, and was not kept"):
        datasets.load("tiny")
    assert held(cache) == []
    assert not datasets.is_here("tiny")


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), requests.ConnectionError("lost"), OSError(28, "full")])
def test_an_interrupted_download_leaves_nothing_behind(cache, tiny, monkeypatch, interruption):
    site_sends(monkeypatch, [GOOD.encode()[:9], interruption])
    with pytest.raises((KeyboardInterrupt, OSError)):
        datasets.load("tiny")
    assert held(cache) == []


def test_without_a_network_the_error_says_what_to_fetch_and_where_to_put_it(cache, tiny):
    with pytest.raises(ConnectionError, match="not reachable") as caught:
        datasets.load("tiny")
    assert isinstance(caught.value.__cause__, requests.ConnectionError)
    for part in (tiny.url, str(cache), "BILEVAX_DATA", "by hand"):
        assert part in str(caught.value)


def test_a_bar_is_shown_on_a_terminal_only(cache, tiny, monkeypatch, capsys):
    site_sends(monkeypatch, [GOOD.encode()])
    datasets.load("tiny")
    assert capsys.readouterr().err == ""
    (cache / "tiny").unlink()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    datasets.load("tiny")
    assert "30.0/30.0" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["folder", "cache"])
def test_a_file_with_other_content_is_refused_with_both_digests(cache, folder, tiny, where):
    place = folder if where == "folder" else cache
    place.mkdir(parents=True, exist_ok=True)
    path = write(place, GOOD.replace("0.5", "0.25"), "tiny")
    other = datasets.read_libsvm(path, 3).digest()
    with pytest.raises(ValueError, match=f"{re.escape(str(path))} does not hold tiny.*{other}.*{tiny.digest}.*Remove"):
        datasets.load("tiny")
    assert path.exists()


def test_a_broken_file_says_what_to_do(cache, folder, tiny):
    write(folder, gzip.compress(GOOD.encode())[:-3], "tiny.gz")
    with pytest.raises(
        ValueError, match=f"tiny.gz is a truncated .* Remove that file, or put {re.escape(tiny.url)} in"
    ):
        datasets.load("tiny")


@pytest.mark.parametrize("ask", [datasets.load, datasets.is_here])
def test_an_unknown_name_is_refused_with_near_ones_and_all(ask):
    with pytest.raises(ValueError, match=r"'a9a': did you mean 'a8a' or 'a1a'.*Known are a1a, a1a\.t, .*, w8a\.t"):
        ask("a9a")


@pytest.mark.parametrize("given", [3, None, ["a1a"]])
def test_a_name_that_is_no_text_is_refused(given):
    with pytest.raises(TypeError, match="name must be the name of a data set, one of a1a"):
        datasets.load(given)


@pytest.mark.parametrize("ask", [datasets.load, datasets.is_here])
def test_a_given_folder_that_is_none_is_refused(tmp_path, monkeypatch, ask):
    monkeypatch.setenv("BILEVAX_DATA", str(write(tmp_path, "", "file")))
    with pytest.raises(ValueError, match=r"BILEVAX_DATA must name a folder; '.*file' is none"):
        ask("a1a")


def test_an_empty_variable_names_no_folder(cache, tiny, monkeypatch, tmp_path):
    monkeypatch.setenv("BILEVAX_DATA", "")
    monkeypatch.chdir(tmp_path)
    write(tmp_path, GOOD, "tiny")
    assert not datasets.is_here("tiny")


def test_without_pooch_a_given_folder_still_serves_and_a_download_says_what_to_install(folder, tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert not datasets.is_here("tiny")
    with pytest.raises(ImportError, match=re.escape("pip install 'bilevax[data]'")):
        datasets.load("tiny")
    write(folder, GOOD, "tiny")
    assert datasets.load("tiny").name == "tiny"


def test_the_import_brings_no_optional_library():
    optional = {"pooch", "requests", "pandas", "sklearn"}
    code = f"import sys, bilevax.datasets; print({optional} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_registry_holds_the_four_data_sets_and_their_test_parts():
    assert set(datasets.REGISTRY) == {part for name in ("a1a", "a8a", "w1a", "w8a") for part in (name, name + ".t")}
    for name, entry in datasets.REGISTRY.items():
        assert entry.name == name
        assert entry.url == f"https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/{name}"
    with pytest.raises(TypeError):
        datasets.REGISTRY["a1a"] = None


# The real data.

KNOWN = {  # rows, positive, non-zeros, rows without features
    "a1a": (1605, 395, 22249, 0), "a1a.t": (30956, 7446, 429343, 0),
    "a8a": (22696, 5506, 314815, 0), "a8a.t": (9865, 2335, 136777, 0),
    "w1a": (2477, 72, 28410, 207), "w1a.t": (47272, 1407, 551176, 3996),
    "w8a": (49749, 1479, 579586, 4203), "w8a.t": (14951, 454, 174276, 1252),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_the_papers_data_have_the_known_size(paper_data, name):
    data, entry = paper_data(name), datasets.REGISTRY[name]
    found = (len(data.labels), (data.labels > 0).sum(), data.features.nnz, (np.diff(data.features.indptr) == 0).sum())
    assert found == KNOWN[name]
    assert (entry.rows, entry.positives) == KNOWN[name][:2]
    assert data.features.shape == (entry.rows, entry.features)
    assert entry.features == (123 if name.startswith("a") else 300)
    assert (data.features.data == 1).all()


def test_a1a_and_a8a_are_splits_of_the_same_rows(paper_data):
    assert row_multiset(paper_data("a1a"), paper_data("a1a.t")) == row_multiset(paper_data("a8a"), paper_data("a8a.t"))


def test_w1a_and_its_test_part_are_w8a(paper_data):
    assert row_multiset(paper_data("w1a"), paper_data("w1a.t")) == row_multiset(paper_data("w8a"))


def test_the_test_part_of_w8a_lies_inside_w8a(paper_data):
    assert row_multiset(paper_data("w8a.t")) <= row_multiset(paper_data("w8a"))


def test_scikit_learn_reads_the_same_rows(paper_data):
    from sklearn.datasets import load_svmlight_file

    data, content = paper_data("w1a"), read_unpacked(registry._find("w1a"))
    features, labels = load_svmlight_file(io.BytesIO(content), n_features=300)
    assert (data.features != sp.csr_array(features)).nnz == 0
    np.testing.assert_array_equal(data.labels, labels)
