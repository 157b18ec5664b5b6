"""Damaged files, through the readers and the command line: refused by name, or read as they are."""

import contextlib
import csv
import io
import json
import os
import shutil
import threading
import traceback

import numpy as np
from click.testing import CliRunner

import bilevax as bx
from benchmarks.attack.api import Compiles, guarded
from benchmarks.attack.cases import CLEAR, CRASHED, SILENT, UNCLEAR, Verdict
from bilevax.cli import _commands

PATIENCE = 5  # seconds after which a command is taken to hang


def _libsvm(rng):
    rows = [
        f"{rng.choice(['+1', '-1'])} " + " ".join(f"{k}:{rng.normal():.3g}" for k in range(1, 6) if rng.random() < 0.6)
        for _ in range(12)
    ]
    return "\n".join(["+1 1:1", "-1 2:1", *rows, ""]).encode()


def _csv(rng):
    rows = [f"{rng.normal():.3g},{rng.normal():.3g},{rng.integers(0, 9)},{k % 2}" for k in range(12)]
    return "\n".join(["size,mass,age,kind", *rows, ""]).encode()


def _parquet(rng):
    import pandas as pd

    held = io.BytesIO()
    frame = pd.DataFrame({"size": rng.normal(size=12), "mass": rng.normal(size=12), "kind": np.arange(12) % 2})
    frame.to_parquet(held, index=False)
    return held.getvalue()


def _run(rng):
    rows = [
        {"step": k, "samples": 10 * k, "gradients": 10 * k, "products": 0, "seconds": 0.1 * k, "objective": 1 / (k + 1)}
        for k in range(3)
    ]
    settings = {
        "experiment": "compare",
        "problem": "mine",
        "algorithm": "svrb",
        "label": "SVRB",
        "seed": 0,
        "status": "done",
        "options": {"upper_step": 0.1},
        "versions": {"jax": "1"},
        "machine": {"cores": 2},
        "facts": {},
    }
    return json.dumps({"settings": settings, "rows": rows}, indent=1).encode()


MADE = {"libsvm": _libsvm, "csv": _csv, "parquet": _parquet, "run": _run}


# How files are damaged: bytes to bytes


def flip_bits(held, rng):
    """One to eight bits are flipped."""
    changed = bytearray(held)
    for _ in range(rng.integers(1, 9)):
        changed[rng.integers(len(changed))] ^= 1 << rng.integers(8)
    return bytes(changed)


def truncate(held, rng):
    """The end is missing."""
    return held[: rng.integers(len(held))]


def drop_lines(held, rng):
    """Some lines are missing."""
    return b"\n".join(line for line in held.split(b"\n") if rng.random() < 0.7)


def double_lines(held, rng):
    """Some lines are there twice."""
    return b"\n".join(line for line in held.split(b"\n") for _ in range(1 + (rng.random() < 0.3)))


def shuffle_lines(held, rng):
    """The lines have changed places."""
    lines = held.split(b"\n")
    return b"\n".join(lines[k] for k in rng.permutation(len(lines)))


ODD = [
    b"1e999",
    b"-1e999",
    b"NaN",
    b"nan",
    b"Infinity",
    b"-inf",
    b"9" * 400,
    b"1" + b"0" * 5000,
    b"1e-999",
    b"0x10",
    b"1_000",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b'""',
    b"",
    b" ",
    b"\0",
    b"\xff",
    "\u0661".encode(),
    "\u2028".encode(),
    b'"',
    b"'",
    b"2147483648:1",
    b"-1:1",
    b"0:1",
    b"99999999999999999999:1",
    b"qid:1",
    b"#",
    b":",
    b",",
    b"\r",
    b"1e308",
    b"-0",
]


def odd_number(held, rng):
    """A number is replaced by something odd."""
    places = [k for k, byte in enumerate(held) if chr(byte).isdigit()]
    if not places:
        return held
    start = end = places[rng.integers(len(places))]
    while end < len(held) and chr(held[end]) in "0123456789.e-":
        end += 1
    return held[:start] + ODD[rng.integers(len(ODD))] + held[end:]


def odd_insertion(held, rng):
    """Something odd stands somewhere in between."""
    place = rng.integers(len(held) + 1)
    return held[:place] + ODD[rng.integers(len(ODD))] + held[place:]


def other_encoding(held, rng):
    """Not UTF-8."""
    text = held.decode("latin-1")
    return text.encode(["utf-16", "utf-32", "utf-16-le", "utf-7", "cp037"][rng.integers(5)], "replace")


def nothing(held, rng):
    """An empty file, or one of blanks."""
    return [b"", b"\n", b"\n\n\n", b" ", b"\0" * 100][rng.integers(5)]


def noise(held, rng):
    """Random bytes."""
    return rng.bytes(200)


def packed(held, rng):
    """A broken archive."""
    import gzip

    return flip_bits(gzip.compress(held), rng)


def odd_field(held, rng):
    """A field of a run file holds something of another kind; other files are left alone."""
    try:
        run = json.loads(held)
    except ValueError:
        return odd_number(held, rng)
    odd = [None, 3, "text", [], {}, [1], True, 10**400, float("nan"), float("inf"), -1, "<b>", "\ud800", [[]], 1e308]
    value = odd[rng.integers(len(odd))]
    places = [(run, "rows"), (run, "settings"), *((run["settings"], name) for name in run["settings"])]
    places += [(row, name) for row in run["rows"] for name in row]
    where, name = places[rng.integers(len(places))]
    if rng.random() < 0.2:
        del where[name]
    else:
        where[name] = value
    return json.dumps(run).encode()


DAMAGE = [
    flip_bits,
    truncate,
    drop_lines,
    double_lines,
    shuffle_lines,
    odd_number,
    odd_number,
    odd_insertion,
    odd_insertion,
    other_encoding,
    nothing,
    noise,
    packed,
    odd_field,
    odd_field,
]


# What the files hold, read independently and strictly


def _plain_libsvm(held):
    rows, labels = [], []
    for line in held.splitlines():
        fields = line.split(b"#")[0].split()
        if fields:
            labels.append(float(fields[0]))
            rows.append({int(key): float(value) for key, value in (field.split(b":") for field in fields[1:])})
    return labels, rows


def _agrees_libsvm(held, data):
    labels, rows = _plain_libsvm(held)
    expected = np.zeros(data.features.shape)
    for k, row in enumerate(rows):
        for index, value in row.items():
            expected[k, index - 1] = value
    return np.array_equal(data.features.toarray(), expected) and _same_signs(labels, data)


def _agrees_csv(held, data):
    lines = [line for line in csv.reader(io.StringIO(held.decode("utf-8-sig"), newline="")) if line]
    cells = np.array([[float(cell) for cell in line] for line in lines[1:]])
    return np.array_equal(data.features.toarray(), cells[:, :-1]) and _same_signs(cells[:, -1], data)


def _same_signs(labels, data):
    return np.array_equal(data.labels, np.where(np.asarray(labels) == max(labels), 1.0, -1.0))


READERS = {"libsvm": (bx.datasets.read_libsvm, _agrees_libsvm), "csv": (bx.datasets.read_csv, _agrees_csv)}


def _read(kind, path, words):
    """A damaged data file through its reader."""
    reader, agrees = READERS[kind]
    try:
        data = reader(path)
    except (ValueError, OSError) as error:
        named = path.name in str(error)
        return Verdict(CLEAR if named else UNCLEAR, words, f"{type(error).__name__}: {str(error)[:200]}")
    except Exception as error:
        return Verdict(CRASHED, words, f"{type(error).__name__}: {str(error)[:200]}")
    try:
        right = agrees(_unpacked(path), data)
    except (ValueError, IndexError, UnicodeDecodeError) as error:
        return Verdict(SILENT, words, f"read, though it is damaged: {str(error)[:200]}")
    return Verdict(CLEAR if right else SILENT, words, "read as it is" if right else "read with other values")


def _unpacked(path):
    from bilevax.datasets.archive import read_unpacked

    return read_unpacked(path)


def _load_trace(path, words):
    try:
        bx.Trace.load(path)
    except (ValueError, OSError) as error:
        named = path.name in str(error)
        return Verdict(CLEAR if named else UNCLEAR, words, f"{type(error).__name__}: {str(error)[:200]}")
    except Exception as error:
        return Verdict(CRASHED, words, f"{type(error).__name__}: {str(error)[:200]}")
    return Verdict(CLEAR, words, "read")


# The command line, in this process


def invoke(command, words, names):
    """Run a command; refused in one line with the file's name, or done."""
    with guarded()(), warnings_off():
        try:
            outcome = CliRunner().invoke(_commands(), [str(part) for part in command])
        except Compiles:
            return Verdict(CLEAR, words, "accepted")
    error, said = outcome.exception, outcome.output.strip()
    if error is None or outcome.exit_code == 0:
        return Verdict(CLEAR, words, "done")
    if not isinstance(error, SystemExit):
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(last.filename)}:{last.lineno}"
        return Verdict(CRASHED, words, f"{type(error).__name__} at {place}: {str(error)[:200]}")
    said = f"{said} {error.code if isinstance(error.code, str) else ''}"
    named = any(name in said for name in names)
    return Verdict(CLEAR if named else UNCLEAR, words, " ".join(said.split())[:300])


@contextlib.contextmanager
def warnings_off():
    """Silence, for what is damaged on purpose."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Attack:
    """All cases of this kind, by number."""

    kind = "files"

    def __init__(self, folder):
        self.folder = folder

    def carry_out(self, number, seed):
        """The verdict of a case."""
        rng = np.random.default_rng([seed, number, 1])
        here = self.folder / str(number)
        here.mkdir(parents=True)
        try:
            if rng.random() < 0.05:
                return self._no_file(here, rng)
            return self._damaged(here, rng)
        finally:
            shutil.rmtree(here)

    def _damaged(self, here, rng):
        kind = list(MADE)[rng.integers(len(MADE))]
        held, done = MADE[kind](rng), []
        for _ in range(1 + (rng.random() < 0.2)):
            damage = DAMAGE[rng.integers(len(DAMAGE))]
            held = damage(held, rng) if held else held
            done.append(damage.__name__)
        words = f"{kind} file after {', '.join(done)}"
        through = rng.random()
        if kind in READERS and through < 0.9:
            path = here / f"mine.{kind}"
            path.write_bytes(held)
            return _read(kind, path, words)
        if kind == "run":
            path = here / "runs" / "mine.json"
            path.parent.mkdir()
            path.write_bytes(held)
            if through < 0.7:
                return _load_trace(path, f"{words}, Trace.load")
            return invoke(["report", here], f"{words}, bilevax report", ["mine.json"])
        path = here / f"mine.{kind}"
        path.write_bytes(held)
        if kind == "parquet" or (kind == "csv" and through < 0.95):
            return self._clean(here, path, words, rng)
        compare = ["compare", "--data", path, "--algorithms", "svrb", "--seconds", "0.1", "--out", here / "out"]
        return invoke(compare, f"{words}, bilevax compare", [path.name])

    def _clean(self, here, path, words, rng):
        whole = here / f"whole{path.suffix}"
        whole.write_bytes(MADE[path.suffix[1:]](rng))
        table, trusted = (path, whole) if rng.random() < 0.5 else (whole, path)
        command = ["clean", table, "--label", "kind", "--trusted", trusted, "--out", here / "out"]
        role = "table" if table is path else "trusted"
        return invoke(command, f"{words}, bilevax clean, as {role}", [path.name, whole.name])

    def _no_file(self, here, rng):
        """A folder, nothing, or a pipe without an end where a file belongs."""
        what = ["a folder", "no file", "a FIFO", "a file that may not be read", "a broken link"][rng.integers(5)]
        which = ["libsvm", "csv", "run", "clean", "compare"][rng.integers(5)]
        path = (here / "runs" / "mine.json") if which == "run" else here / "mine.csv"
        path.parent.mkdir(exist_ok=True)
        _put(what, path)
        words = f"{what} for {which}"
        act = {
            "libsvm": lambda: _read("libsvm", path, words),
            "csv": lambda: _read("csv", path, words),
            "run": lambda: invoke(["report", here], words, ["mine.json", "runs"]),
            "clean": lambda: self._clean(here, path, words, rng),
            "compare": lambda: invoke(
                ["compare", "--data", path, "--algorithms", "svrb", "--out", here / "out"], words, ["mine.csv"]
            ),
        }[which]
        return in_time(act, path, words)


def _put(what, path):
    if what == "a folder":
        path.mkdir()
    elif what == "a FIFO":
        os.mkfifo(path)
    elif what == "a file that may not be read":
        path.write_text("a,b\n")
        path.chmod(0)
    elif what == "a broken link":
        path.symlink_to(path.parent / "nowhere")


def in_time(act, path, words):
    """The verdict, or `crashed` where a reader waits for a pipe for ever; the pipe is then closed to set it free."""
    if not path.is_fifo():
        return act()
    late = threading.Event()

    def let_go():
        late.set()
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))

    timer = threading.Timer(PATIENCE, let_go)
    timer.start()
    try:
        verdict = act()
    finally:
        timer.cancel()
    return Verdict(CRASHED, words, "waits for ever") if late.is_set() else verdict
