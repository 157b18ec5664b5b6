"""A run in a folder: written as it goes on, so that the next process goes on from there, to the same bits.

A checkpoint is a folder of its own, `000000`, `000001`, ..., with a file for each shard of the run and a manifest that
has their digests and its own. It comes by renaming, so it is there whole or not at all; the last three are kept. What
is damaged is told by its name, and the one before it is used.
"""

import contextlib
import hashlib
import json
import math
import os
import secrets
import shutil
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from bilevax import arguments, files, identity, locks, version
from bilevax.run.result import Result

KEPT = 3
LARGEST_SHARE = 0.05  # of the time, that is spent on writing
FORMAT = 1
LOCK, PART, MANIFEST, SHARD = ".lock", ".part-", "manifest.json", "shard-00000.npz"


class DamageError(ValueError):
    """A checkpoint is not what was written."""


class Checkpoints:
    """Those of one run, in a folder that no other run has."""

    def __init__(self, folder: Path, every: float):
        self.folder, self.every = folder, every
        self.due = time.monotonic() + every

    def newest(self) -> Result | None:
        """The last one that is whole; None where there is none at all."""
        names, found = sorted(_names(self.folder), key=int, reverse=True), []
        for name in names:
            try:
                result = _read(self.folder / name)
            except DamageError as error:
                found.append(f"{self.folder / name}: {error}")
                continue
            if found:
                damaged = "; ".join(found)
                warnings.warn(f"checkpoint {name} is used, because later ones are damaged: {damaged}.", stacklevel=4)
            return result
        if found:
            raise ValueError(
                f"checkpoint: none of {self.folder} can be read ({'; '.join(found)}); remove the folder to begin anew."
            )
        return None

    def is_due(self) -> bool:
        """Whether so many seconds have passed since the last one."""
        return time.monotonic() >= self.due

    def write(self, result: Result) -> None:
        """One more; where the disk is full or gone the run is warned, and goes on."""
        begun = time.monotonic()
        try:
            _write(self.folder, replace(result, x=None, y=None))  # the state has both
        except OSError as error:
            warnings.warn(f"no checkpoint could be written to {self.folder}: {error}.", stacklevel=4)
        now = time.monotonic()
        self.due = now + max(self.every, (now - begun) / LARGEST_SHARE)


class NoCheckpoints:
    """Of a run that was not asked for any."""

    def newest(self) -> None:
        """There is none."""

    def is_due(self) -> bool:
        """Never."""
        return False

    def write(self, result: Result) -> None:
        """Nothing."""


@contextlib.contextmanager
def in_folder(folder: Any, every: Any) -> Iterator[Checkpoints | NoCheckpoints]:
    """The checkpoints of a folder, for this process alone; none where no folder was given."""
    arguments.number("every", every, "seconds, zero or more", lambda v: 0 <= v < math.inf)
    if folder is None:
        yield NoCheckpoints()
        return
    path = files.path_of("checkpoint", folder)
    files.require_writable(path)
    with locks.claim(path / LOCK) as mine:
        if not mine:
            raise RuntimeError(f"checkpoint must be a folder of one run: another process is running in {path}.")
        for left in path.glob(f"{PART}*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        yield Checkpoints(path, float(every))


def facts() -> dict[str, str]:
    """What decides on the bits of a run beside its problem, its algorithm and its seed."""
    generator = str(jax.random.key_impl(jax.random.key(0)))
    return {"bilevax": version.VERSION, "jax": jax.__version__, "random numbers": generator}


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.isdigit() and path.is_dir()]


def _digest(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(folder: Path, result: Result) -> None:
    shard = result.pack()
    manifest: dict[str, Any] = {"bilevax checkpoint": FORMAT, "facts": facts(), "steps": result.steps}
    manifest["files"] = {SHARD: _digest(shard)}
    manifest["digest"] = _digest(json.dumps(manifest, sort_keys=True).encode())
    numbers = sorted(map(int, _names(folder)))
    part = folder / f"{PART}{secrets.token_hex(4)}"
    part.mkdir()
    try:
        for name, content in ((SHARD, shard), (MANIFEST, json.dumps(manifest).encode())):
            (part / name).write_bytes(content)
        files.sync_all(part)
        part.rename(folder / f"{numbers[-1] + 1 if numbers else 0:06d}")
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    files.sync(folder)
    for number in numbers[: max(0, len(numbers) + 1 - KEPT)]:
        gone = folder / f"{PART}{secrets.token_hex(4)}"
        (folder / f"{number:06d}").rename(gone)  # one that is removed is never seen in part
        shutil.rmtree(gone, ignore_errors=True)


def _read(path: Path) -> Result:
    """The run as it was; `DamageError` says what is wrong."""
    try:
        manifest = json.loads(_content(path, MANIFEST))
        digest = manifest.pop("digest")
        if digest != _digest(json.dumps(manifest, sort_keys=True).encode()):
            raise DamageError(f"{MANIFEST} is not as it was written")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise error if isinstance(error, DamageError) else DamageError(f"{MANIFEST} is no manifest") from None
    contents = {name: _content(path, name) for name in manifest["files"]}
    for name, content in contents.items():
        if _digest(content) != manifest["files"][name]:
            raise DamageError(f"{name} is not as it was written")
    _check_facts(path, manifest)
    return Result.unpack(contents[SHARD], path / SHARD)


def _content(path: Path, name: str) -> bytes:
    try:
        return (path / name).read_bytes()
    except OSError as error:
        raise DamageError(f"{name} cannot be read, {error.strerror}") from None


def _check_facts(path: Path, manifest: dict[str, Any]) -> None:
    """Refuse what another version wrote."""
    if manifest["bilevax checkpoint"] != FORMAT:
        raise ValueError(f"{path} is of format {manifest['bilevax checkpoint']}, this version reads {FORMAT}.")
    other = identity.differences(manifest["facts"], now := facts())
    if other:
        told = ", ".join(f"{name} {manifest['facts'].get(name)} there and {now.get(name)} here" for name in other)
        raise ValueError(
            f"checkpoint {path} would not go on to the same bits: {told}. To go on all the same, give "
            f"resume=bilevax.Result.load({os.fspath(path / SHARD)!r}) and another folder."
        )
