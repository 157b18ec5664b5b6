"""Runs on disk: each a file of its own, written as soon as it ends, and found again by what it was asked for.

Several processes, of one machine or of many that share a folder, may work in it: none makes a run that another one is
making, and none replaces what another one, with other settings, has in use (`bilevax.leases`). What a dead one was at
is made by the others.
"""

import contextlib
import glob
import hashlib
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bilevax.files import read_whole, require_writable, write_whole
from bilevax.lab.record import Record
from bilevax.leases import agree, claim, sweep

RUNS, TUNING = "runs", "tuned"
DIGEST = 10  # letters of a digest
WAIT = 0.5  # seconds between two looks at what another process makes
LONGEST = 160  # bytes of a name, which gets a digest, what tells claims apart, and an ending
PACKAGES = ("bilevax", "jax", "jaxlib", "numpy", "scipy", "optax")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _processor() -> str:
    """Its name, where the system tells it."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def provenance() -> dict[str, Any]:
    """Versions and machine, for the record."""
    versions = {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}
    machine = {"system": platform.system(), "processor": _processor(), "cores": os.cpu_count()}
    return {"versions": versions, "machine": machine}


def _file_name(*parts: Any) -> str:
    """The parts as the name of a file: readable, and not longer than a file system allows."""
    name = "-".join(map(str, parts))
    short = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)
    return short if len(short.encode()) <= LONGEST else f"{short[: LONGEST // 4]}-{_digest(name)}"


def _digest(request: Any) -> str:
    return hashlib.sha256(json.dumps(request, sort_keys=True, default=str).encode()).hexdigest()[:DIGEST]


def key_of(place: tuple[str, str, str], last: Any, request: Any) -> str:
    """A name for what is asked for of an experiment, problem and algorithm: readable, and another one for another."""
    return f"{_file_name(*place, last)}-{_digest(request)}"


def place_of(record: Record) -> tuple[str, str, str]:
    """Experiment, problem and algorithm."""
    return record.experiment, record.problem, record.algorithm


def run_key(record: Record) -> str:
    """The name of a run, without the ending of its file."""
    return key_of(place_of(record), record.seed, record.request())


def run_path(folder: Path, record: Record) -> Path:
    """Where a run lies that was asked for these things."""
    return folder / RUNS / f"{run_key(record)}.json"


def unfinished_path(folder: Path, record: Record) -> Path:
    """Where checkpoints of such a run lie until it ends."""
    return folder / RUNS / f".{run_key(record)}.run"


def find_run(folder: Path, request: Record) -> Record | None:
    """The run that was asked for, if it has been made before."""
    try:
        return Record.load(run_path(folder, request))
    except FileNotFoundError:
        return None


def store_run(folder: Path, record: Record) -> Path:
    """Write a run that has ended, with where it was made.

    It takes the place of a run of the same method, problem and seed that was asked for other settings.
    """
    path = run_path(folder, record)
    path.parent.mkdir(parents=True, exist_ok=True)
    alike = _file_name(*place_of(record), record.seed)
    replace(record, **provenance()).save(path)
    others = [other for other in path.parent.glob(f"{glob.escape(alike)}-*.json") if len(other.name) == len(path.name)]
    ages = {other: age for other in others if (age := _age(other)) is not None}
    for other in ages:
        if path in ages and ages[other] < ages[path]:  # by age: two runs stored at once must not take each other away
            other.unlink(missing_ok=True)
    for unfinished in path.parent.glob(f".{glob.escape(alike)}-{'?' * DIGEST}.run"):
        shutil.rmtree(unfinished, ignore_errors=True)
    return path


def _age(path: Path) -> tuple[int, str] | None:
    """An order of files in time, by the clock of their disk; None for one that is gone."""
    try:
        return path.stat().st_mtime_ns, path.name
    except FileNotFoundError:
        return None


def make_once(
    folder: Path, key: str, find: Callable[[], Any], make: Callable[[], Any], tell: Callable[[str], None],
    wait: bool = True,
) -> Any:  # fmt: skip
    """What `find` finds, or else what `make` makes, unless another process is at it: then wait for that, or None."""
    is_waiting = False
    while True:
        with claim(_home(folder), key) as mine:
            there = find()
            if there is not None:
                return there
            if mine:
                return make()
        if not wait:
            return None
        if not is_waiting:
            tell(f"waiting for another command, which is at {key.rpartition('-')[0]}")
            is_waiting = True
        time.sleep(WAIT)


@contextlib.contextmanager
def keep_folder(folder: Path, uses: Iterable[tuple[str, Record]]) -> Iterator[None]:
    """See that the folder can be written to, sweep what killed commands left, and keep others from replacing runs.

    Each of `uses` is what is kept, and what runs of a method on a problem are asked for, whatever the seed. Commands
    that ask for the same share the work; one that asks for something else meanwhile is refused.
    """
    require_writable(folder)
    sweep(_home(folder))
    with contextlib.ExitStack() as stack:
        for what, record in uses:
            stack.enter_context(_keep(folder, what, record))
        yield


@contextlib.contextmanager
def _keep(folder: Path, what: str, record: Record) -> Iterator[None]:
    alike = {name: value for name, value in record.request().items() if name != "seed"}
    with agree(_home(folder), f"{_file_name(*place_of(record))}-{what}", _digest(alike)) as same:
        if not same:
            raise ValueError(
                f"another command is at {record.algorithm} on {record.problem} with other settings, and has its "
                f"runs in {folder}: wait until it has ended, or choose another folder."
            )
        yield


def _home(folder: Path) -> Path:
    """Where runs lie, and hidden beside them what is claimed."""
    (folder / RUNS).mkdir(parents=True, exist_ok=True)
    return folder / RUNS


def _tuning_path(folder: Path, place: tuple[str, str, str]) -> Path:
    return folder / TUNING / f"{key_of(place, 'tuned', place)}.json"


def read_tuning(folder: Path, place: tuple[str, str, str]) -> dict[str, Any]:
    """What has been tuned in a folder for an experiment, problem and algorithm; nothing where that was not yet."""
    path = _tuning_path(folder, place)
    try:
        entry = json.loads(read_whole(path))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a file of tuned settings: it is no JSON ({error}).") from None
    if not isinstance(entry, dict) or not isinstance(entry.get("options", {}), dict):
        raise ValueError(f"{path} is not a file of tuned settings: it must hold a dictionary, with one of options.")
    return entry


def add_tuning(folder: Path, place: tuple[str, str, str], entry: Mapping[str, Any]) -> None:
    """Write what has been tuned for an experiment, problem and algorithm: a file of its own, so nothing is lost."""
    path = _tuning_path(folder, place)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (json.dumps(dict(entry), indent=1, sort_keys=True) + "\n").encode())
