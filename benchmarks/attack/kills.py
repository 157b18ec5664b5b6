"""The command line killed at random moments: all files of one run are there, or none, and the next run sweeps up."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.attack.cases import CLEAR, CRASHED, PARTIAL, Verdict
from benchmarks.attack.files import MADE

LONGEST = 120  # seconds after which a command is taken to hang
LASTS = {"report": 3.0, "clean": 8.0}  # seconds that they take, about, until it is known better
FILES = {
    "clean": {"cleaned.csv", "model.joblib", "report.html"},
    "report": {"report.html", "compare.png", "compare.svg"},
}


def _prepare(folder):
    """A table and runs; `_change` makes the next outcome another one."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for name in ("table.csv", "trusted.csv"):
        (folder / name).write_bytes(MADE["csv"](rng))
    (folder / "runs").mkdir(exist_ok=True)
    _change(folder, 0)


def _change(folder, seed):
    content = MADE["run"](None).replace(b'"objective": 0.5', f'"objective": 0.{4000 - seed}'.encode())
    (folder / "runs" / "mine.json").write_bytes(content)


def _command(what, folder, seed):
    """The command, its output folder, and how it is started."""
    if what == "report":
        _change(folder, seed)
        return ["report", folder], folder
    out = folder / "out"
    options = ["--label", "kind", "--seed", seed, "--out", out]
    return ["clean", folder / "table.csv", "--trusted", folder / "trusted.csv", *options], out


def _start(command, programs):
    """The command as a process; compiled programs are kept in a folder, so that most of its time is not compilation."""
    kept = {"JAX_COMPILATION_CACHE_DIR": str(programs), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    environment = {**os.environ, **kept, "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    return subprocess.Popen(
        [sys.executable, "-m", "bilevax.cli", *map(str, command)], env=environment, cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def _held(out):
    """The files of the output folder, but those that were there from the start."""
    own = {"runs", "table.csv", "trusted.csv", "out"}
    return {path.name: path for path in out.iterdir() if path.name not in own} if out.is_dir() else {}


class Attack:
    """All cases of this kind, by number; they share a folder for each command, as a user's runs do."""

    kind = "kills"

    def __init__(self, folder):
        self.folder, self.programs, self.took, self.seeds = folder, folder / "programs", dict(LASTS), 0

    def carry_out(self, number, seed):
        """The verdict of a case."""
        rng = np.random.default_rng([seed, number, 3])
        what = ["report", "clean"][number % 2]
        folder = self.folder / what
        if not folder.exists():
            _prepare(folder)
        before = self._content(what, folder)
        moment, failed = self._kill(what, folder, rng)
        words = f"bilevax {what} killed {moment}"
        if failed:
            return Verdict(CRASHED, words, f"it ended by itself: {failed[-300:]}")
        return self._judge(what, folder, before, words) or Verdict(CLEAR, words, "all files of one run")

    def _next(self, what, folder):
        self.seeds += 1
        return _command(what, folder, self.seeds)

    def _content(self, what, folder):
        _, out = _command(what, folder, self.seeds)
        return {name: path.read_bytes() for name, path in _held(out).items() if path.is_file()}

    def _kill(self, what, folder, rng):
        """At a random moment, or a little after it began to write; when that was, and what it said if it failed."""
        command, out = self._next(what, folder)
        known = {name: path.stat().st_mtime_ns for name, path in _held(out).items()}
        process = _start(command, self.programs)
        watched = rng.random() < 0.7
        wait = rng.random() * (0.03 if watched else self.took[what])
        end = time.monotonic() + LONGEST
        while watched and process.poll() is None and time.monotonic() < end:
            now = {}
            with contextlib.suppress(OSError):
                now = {name: path.stat().st_mtime_ns for name, path in _held(out).items()}
            if now != known:
                break
            time.sleep(0.0005)
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        said, _ = process.communicate()
        moment = f"{wait * 1000:.0f} ms after {'it began to write' if watched else 'its start'}"
        return moment, "" if process.returncode in (0, -signal.SIGKILL) else said

    def _judge(self, what, folder, before, words):
        _, out = _command(what, folder, self.seeds)
        held = _held(out)
        shown = {name for name in held if not name.startswith(".") and not name.endswith(".part")}
        if shown and shown != FILES[what]:
            return Verdict(PARTIAL, words, f"there are {sorted(held)}")
        after = self._content(what, folder)
        same = {name for name in FILES[what] if name in before and after.get(name) == before[name]}
        if same and same != FILES[what]:
            return Verdict(PARTIAL, words, f"{sorted(same)} are old, {sorted(FILES[what] - same)} are new")
        if set(held) != shown:
            return self._finish(what, folder, words)
        return None

    def _finish(self, what, folder, words=""):
        """Run the command to its end: it works, and nothing is left over."""
        command, out = self._next(what, folder)
        begun, process = time.monotonic(), _start(command, self.programs)
        try:
            said, _ = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            process.kill()
            return Verdict(CRASHED, f"bilevax {what} {words and f'after {words}'}", "does not end")
        if process.returncode:
            return Verdict(CRASHED, f"bilevax {what} {words and f'after {words}'}", said[-300:])
        self.took[what] = time.monotonic() - begun
        left = set(_held(out)) ^ FILES[what]
        return Verdict(PARTIAL, words, f"left over or missing: {sorted(left)}") if left else None
