"""Runs on disk: each a file of its own, written as soon as it ends, and found again by what it was asked for."""

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bilevax.trace import Trace

RUNS = "runs"
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


def _readable(asked: Mapping[str, Any]) -> str:
    name = "-".join(str(asked[part]) for part in ("experiment", "problem", "algorithm", "seed"))
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)


def run_path(folder: Path, asked: Mapping[str, Any]) -> Path:
    """Where a run lies that was asked for these things: readable, and another file for other things."""
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:10]
    return folder / RUNS / f"{_readable(asked)}-{digest}.json"


def stored(folder: Path, asked: Mapping[str, Any]) -> Trace | None:
    """The run, if it has been made before."""
    path = run_path(folder, asked)
    return Trace.load(path) if path.exists() else None


def store(folder: Path, asked: Mapping[str, Any], trace: Trace) -> Path:
    """Write a run that has ended, with what it was asked for and where it was made.

    It takes the place of a run of the same method, problem and seed that was asked for other settings.
    """
    trace.settings = {**asked, **trace.settings, **provenance()}
    path = run_path(folder, asked)
    path.parent.mkdir(parents=True, exist_ok=True)
    trace.save(path)
    for other in path.parent.glob(f"{_readable(asked)}-*.json"):
        if other != path and len(other.name) == len(path.name):
            other.unlink()
    return path
