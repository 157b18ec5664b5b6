"""Compiled programs are kept for the next process: most of the time to a first result is compilation.

JAX's own persistent cache does it, in a folder of the user's cache. It holds half a gigabyte at most, what was not used
for the longest time goes first, and a lock keeps processes apart. `BILEVAX_CACHE=off` leaves it out, and
`BILEVAX_CACHE=folder` has another place; whoever has set JAX's own `jax_compilation_cache_dir` keeps that.
"""

import contextlib
import hashlib
import os
import platform
import sys
from pathlib import Path

import filelock
import jax

VARIABLE, OFF = "BILEVAX_CACHE", "off"
LARGEST = 2**29  # bytes
SHORTEST = 0.1  # seconds of compilation that are worth a file
LOCK, ENTRY, STAMP = ".lockfile", "-cache", "-atime"  # as JAX names them


def keep_programs() -> None:
    """Have JAX keep what it compiles, unless the user has said where or that it should not."""
    wish = os.environ.get(VARIABLE)
    if wish == OFF or jax.config.jax_compilation_cache_dir is not None:  # type: ignore[attr-defined]
        return
    folder = Path(wish) if wish else _users_cache() / "bilevax" / f"programs-{_machine()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
    except OSError:  # a home that cannot be written to: then nothing is kept
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_compilation_cache_max_size", LARGEST)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST)


def _users_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _machine() -> str:
    """What tells processors apart: a program that was compiled for one may not run on another that shares a home."""
    facts = platform.machine() + platform.processor()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        facts += "".join(dict.fromkeys(line for line in lines if line.startswith(("model name", "flags", "Features"))))
    return hashlib.sha256(facts.encode()).hexdigest()[:10]


def _sweep(folder: Path) -> None:
    """Take away entries that a killed process left: JAX stamps an entry once it is whole, and never mends one."""
    names = set(os.listdir(folder))
    broken = [name for name in names if name.endswith(ENTRY) and name.removesuffix(ENTRY) + STAMP not in names]
    if broken:
        with contextlib.suppress(filelock.Timeout), filelock.FileLock(folder / LOCK).acquire(timeout=0):
            for name in broken:
                if not (folder / (name.removesuffix(ENTRY) + STAMP)).exists():
                    (folder / name).unlink(missing_ok=True)
