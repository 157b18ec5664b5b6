"""Claims between processes of many machines that share a folder, by files alone.

A file is made by exactly one process (O_EXCL), and its owner touches it every few seconds for as long as it lives. So
no locks of a file system are needed, which network folders often lack, and no clocks that agree: whoever waits looks
whether a file still changes. One that has not changed for a minute, or whose process is gone from this machine, is
dead, and the next process takes it over by making a file of the next number. That too happens once.
"""

import contextlib
import glob
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

SECONDS = 60.0  # after which a file that does not change is dead
BEATS = 6  # how often it is touched meanwhile
TOKEN = 8  # letters of the name of an owner
ENDING = ".lease"


class _Heart:
    """Touches the files of this process while it lives."""

    def __init__(self) -> None:
        self.files: set[Path] = set()
        self.guard = threading.Lock()
        self.thread: threading.Thread | None = None

    def add(self, path: Path) -> None:
        """Touch it from now on."""
        with self.guard:
            self.files.add(path)
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(target=self._beat, daemon=True, name="bilevax-leases")
                self.thread.start()

    def remove(self, path: Path) -> None:
        """No longer."""
        with self.guard:
            self.files.discard(path)

    def _beat(self) -> None:
        while True:
            time.sleep(SECONDS / BEATS)
            with self.guard:
                if not self.files:
                    self.thread = None
                    return
                for path in self.files:
                    with contextlib.suppress(OSError):  # a folder that is gone for a moment
                        os.utime(path)


HEART = _Heart()
SEEN: dict[Path, tuple[int, float]] = {}  # when a file of others was last found changed: its stamp, and our clock


def _make(path: Path) -> str:
    """The file of that name, ours; its token. `FileExistsError` where somebody has it."""
    token = secrets.token_hex(TOKEN // 2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    with os.fdopen(file, "w") as stream:
        json.dump({"host": socket.gethostname(), "process": os.getpid(), "token": token}, stream)
    HEART.add(path)
    return token


def _owner(path: Path) -> dict[str, object]:
    """Who made a file; nothing where that is not written yet."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_gone(owner: dict[str, object]) -> bool:
    """Whether it was a process of this machine that is no more."""
    process = owner.get("process")
    if owner.get("host") != socket.gethostname() or not isinstance(process, int) or os.name == "nt":
        return False  # on Windows a process cannot be asked without a signal that it hears
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is there, and somebody else's
        pass
    return False


def is_dead(path: Path) -> bool:
    """Whether the owner of a file lives no more, as far as this process has seen."""
    try:
        stamp = path.stat().st_mtime_ns
    except FileNotFoundError:
        SEEN.pop(path, None)
        return False
    if _is_gone(_owner(path)):
        return True
    before, since = SEEN.get(path, (None, 0.0))
    if before != stamp:
        SEEN[path] = stamp, time.monotonic()
        return False
    return time.monotonic() - since >= SECONDS


def _release(path: Path, token: str) -> None:
    """Take our own file away; not one that somebody made since."""
    HEART.remove(path)
    if _owner(path).get("token") == token:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def claim(folder: Path, name: str) -> Iterator[bool]:
    """Whether this process, and no other, has what the name stands for."""
    taken, token = sorted(folder.glob(f".{glob.escape(name)}.[0-9]*{ENDING}")), None
    path = folder / f".{name}.{_number(taken[-1]) + 1 if taken else 0:06d}{ENDING}"
    if not taken or is_dead(taken[-1]):
        with contextlib.suppress(FileExistsError):  # another one was quicker
            token = _make(path)
    try:
        yield token is not None
    finally:
        if token is not None:
            for dead in taken:
                dead.unlink(missing_ok=True)
            _release(path, token)


def _number(path: Path) -> int:
    """Of a claim: how often it was taken over."""
    return int(path.name.removesuffix(ENDING).rpartition(".")[2])


@contextlib.contextmanager
def agree(folder: Path, name: str, wish: str) -> Iterator[bool]:
    """Whether all processes that have the name now want the same; `wish` is a word without dots."""
    path = folder / f".{name}.{wish}.{secrets.token_hex(TOKEN // 2)}{ENDING}"
    token = _make(path)
    same = True
    for other in folder.glob(f".{glob.escape(name)}.*.{'?' * TOKEN}{ENDING}"):
        theirs, wanted, _ = other.name.removesuffix(ENDING).rsplit(".", 2)
        same &= theirs != f".{name}" or wanted == wish or is_dead(other)
    try:
        if not same:
            _release(path, token)
        yield same
    finally:
        _release(path, token)


def sweep(folder: Path) -> None:
    """Take away what dead processes left."""
    for path in folder.glob(f".*{ENDING}"):
        if is_dead(path):
            name, _, last = path.name.removeprefix(".").removesuffix(ENDING).rpartition(".")
            if len(last) == TOKEN:
                path.unlink(missing_ok=True)
            else:
                with claim(folder, name):  # goes with it
                    pass
