"""Locks between processes, by the names of files and folders.

They are those of `fcntl.flock`: a lock ends with the process that holds it, however that ends. Where a system or a file
system has none (Windows, some network folders) nothing is kept apart: every lock is granted, and what a killed process
left behind is not told from what a living one works on.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl as fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]


def lock(file: int, *, wait: bool = True) -> bool | None:
    """Lock an open file or folder until it is closed: whether that was had; None where there are no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def stands_at(file: int, path: Path) -> bool:
    """Whether the open file is still the one of that name: while one waits for a lock, others may replace it."""
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
    except FileNotFoundError:
        return False


def hold(path: Path, *, wait: bool = True) -> int | None:
    """The file of that name, made where there is none, open and locked; None if it does not wait and others hold it."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if lock(file, wait=wait) is False:
            os.close(file)
            return None
        if stands_at(file, path):
            return file
        os.close(file)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process is alone in the folder, and keep others waiting."""
    if fcntl is None:
        yield
        return
    file = os.open(folder, os.O_RDONLY)
    try:
        lock(file)
        yield
    finally:
        os.close(file)


@contextlib.contextmanager
def claim(path: Path) -> Iterator[bool]:
    """Whether this process, and no other, has what the name stands for. The file is a lock and goes with it."""
    file = hold(path, wait=False) if fcntl else None
    try:
        yield file is not None or fcntl is None
    finally:
        if file is not None:
            path.unlink(missing_ok=True)
            os.close(file)
