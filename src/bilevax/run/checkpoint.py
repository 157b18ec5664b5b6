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
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from bilevax import arguments, device, files, identity, locks, version
from bilevax.run.result import Result
from bilevax.run.saved import SavedState
from bilevax.run.trace import Trace
from bilevax.shards import ALONE, Alone, Shards

KEPT = 3
LARGEST_SHARE = 0.05  # of the time, that is spent on writing
LARGE = 2**24  # bytes of a state, from which on the run does not wait for the disk
FORMAT = 1
LOCK, PART, MANIFEST = ".lock", ".part-", "manifest.json"
SHARD = "shard-{:05d}.npz"


class DamageError(ValueError):
    """A checkpoint is not what was written."""


class Checkpoints:
    """Those of one run, in a folder that no other run has."""

    def __init__(self, folder: Path, every: float, shards: Alone | Shards):
        self.folder, self.every, self.shards = folder, every, shards
        self.due = time.monotonic() + every
        self.writer: Future[None] | None = None

    def newest(self) -> Result | None:
        """The last one that is whole; None where there is none at all."""
        names, found = sorted(_names(self.folder), key=int, reverse=True), []
        for name in names:
            try:
                result, damage = _read(self.folder / name, self.shards), None
            except DamageError as error:
                damage = str(error)
            if self.shards.any(damage is not None):
                found.append(f"{self.folder / name}: {damage or 'what another process read of it is damaged'}")
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
        """Whether so many seconds have passed since the last one, which is written."""
        is_idle = self.writer is None or self.writer.done()
        return bool(self.shards.agree(is_idle and time.monotonic() >= self.due))

    def words(self) -> str:
        """What is said where a run of several processes ends before its time."""
        names = _names(self.folder)
        held = f"goes on from {self.folder / max(names, key=int)}" if names else "begins anew, there was none yet"
        return f"The same command {held}."

    def write(self, result: Result) -> None:
        """One more; where the disk is full or gone the run is warned, and goes on."""
        self.settle()
        begun = time.monotonic()
        self._tell_of_failure(lambda: _write(self.folder, result, self.shards))
        self._wait_from(begun)

    def begin(self, result: Result) -> None:
        """One more, in a thread while the run goes on where that takes long: the run waits for a copy alone."""
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(result.state))
        if size < LARGE or self.shards.is_spread or not device.has_room_for_copy(result.state):
            self.write(result)
            return
        self.settle()
        begun = time.monotonic()
        thread = ThreadPoolExecutor(1, "bilevax-checkpoint")
        self.writer = thread.submit(_write, self.folder, _still(result), self.shards)
        thread.shutdown(wait=False)
        self._wait_from(begun)

    def settle(self) -> None:
        """Wait for one that is being written."""
        writer, self.writer = self.writer, None
        if writer is not None:
            self._tell_of_failure(writer.result)

    def _tell_of_failure(self, act: Callable[[], None]) -> None:
        try:
            act()
        except OSError as error:
            warnings.warn(f"no checkpoint could be written to {self.folder}: {error}.", stacklevel=5)

    def _wait_from(self, begun: float) -> None:
        now = time.monotonic()
        self.due = now + max(self.every, (now - begun) / LARGEST_SHARE)


class NoCheckpoints:
    """Of a run that was not asked for any."""

    def words(self) -> str:
        """What would have helped."""
        return "With checkpoint= it could go on."

    def newest(self) -> None:
        """There is none."""

    def is_due(self) -> bool:
        """Never."""
        return False

    def write(self, result: Result) -> None:
        """Nothing."""

    begin = write


@contextlib.contextmanager
def in_folder(folder: Any, every: Any, shards: Alone | Shards = ALONE) -> Iterator[Checkpoints | NoCheckpoints]:
    """The checkpoints of a folder, for this process alone; none where no folder was given."""
    arguments.number("every", every, "seconds, zero or more", lambda v: 0 <= v < math.inf)
    if folder is None:
        yield NoCheckpoints()
        return
    path = files.path_of("checkpoint", folder)
    files.require_writable(path)
    with locks.claim(path / LOCK) if shards.is_first else contextlib.nullcontext(True) as mine:
        if shards.any(not mine):
            raise RuntimeError(f"checkpoint must be a folder of one run: another process is running in {path}.")
        for left in path.glob(f"{PART}*") if shards.is_first else ():  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        checkpoints = Checkpoints(path, float(every), shards)
        try:
            yield checkpoints
        finally:
            checkpoints.settle()


def facts() -> dict[str, str]:
    """What decides on the bits of a run beside its problem, its algorithm and its seed."""
    generator = str(jax.random.key_impl(jax.random.key(0)))
    return {"bilevax": version.VERSION, "jax": jax.__version__, "random numbers": generator}


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.isdigit() and path.is_dir()]


def _digest(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()


def _still(result: Result) -> Result:
    """The result as it is now: a run that goes on takes the memory of its state over, and adds to its trace."""
    state = jax.block_until_ready(jax.tree.map(jnp.copy, result.state))
    guard = result.guard and replace(result.guard, notes=list(result.guard.notes))
    return replace(result, state=state, guard=guard, trace=Trace(list(result.trace.rows), result.trace.settings))


def _write(folder: Path, result: Result, shards: Alone | Shards) -> None:
    """Each process writes the files of its own shards; the first one the manifest, when all are there."""
    states = {"state": result.state} if result.guard is None else {"state": result.state, "good": result.guard.good}
    parts = {name: shards.take_apart(state) for name, state in states.items()}
    contents = {k: result.pack({name: parts[name][k] for name in parts}, {}) for k in parts["state"]}  # x, y: in there
    numbers = sorted(map(int, _names(folder)))
    part = folder / f"{PART}{int(shards.agree(secrets.randbits(32))):08x}"
    failure: OSError | None = None
    try:
        part.mkdir(exist_ok=True)
        for k, content in contents.items():
            (part / SHARD.format(k)).write_bytes(content)
        files.sync_all(part)
    except OSError as error:
        failure = error
    if not shards.any(failure is not None):
        digests = shards.gather({k: _digest(content) for k, content in contents.items()})
        try:
            if shards.is_first:
                _finish(folder, part, numbers, result.steps, digests)
        except OSError as error:
            failure = error
    if shards.any(failure is not None):
        shutil.rmtree(part, ignore_errors=True)
        raise failure or OSError("another process could not write its part")


def _finish(folder: Path, part: Path, numbers: list[int], steps: int, digests: list[str]) -> None:
    """The manifest, then the name that makes it a checkpoint; all but the last few are removed."""
    manifest: dict[str, Any] = {"bilevax checkpoint": FORMAT, "facts": facts(), "steps": steps}
    manifest["files"] = {SHARD.format(k): digest for k, digest in enumerate(digests)}
    manifest["digest"] = _digest(json.dumps(manifest, sort_keys=True).encode())
    (part / MANIFEST).write_bytes(json.dumps(manifest).encode())
    files.sync_all(part)
    part.rename(folder / f"{numbers[-1] + 1 if numbers else 0:06d}")
    files.sync(folder)
    for number in numbers[: max(0, len(numbers) + 1 - KEPT)]:
        gone = folder / f"{PART}{secrets.token_hex(4)}"
        (folder / f"{number:06d}").rename(gone)  # one that is removed is never seen in part
        shutil.rmtree(gone, ignore_errors=True)


def _read(path: Path, shards: Alone | Shards) -> Result:
    """The run as it was, with the states of the shards of this process; `DamageError` says what is wrong."""
    try:
        manifest = json.loads(_content(path, MANIFEST))
        digest = manifest.pop("digest")
        if digest != _digest(json.dumps(manifest, sort_keys=True).encode()):
            raise DamageError(f"{MANIFEST} is not as it was written")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise error if isinstance(error, DamageError) else DamageError(f"{MANIFEST} is no manifest") from None
    count = len(manifest["files"])
    if count != shards.count:
        raise ValueError(f"checkpoint {path} is of a run on {count} shards; this problem has {shards.count}.")
    names = {k: SHARD.format(k) for k in shards.own_numbers}
    contents = {k: _content(path, name) for k, name in names.items()}
    for k, content in contents.items():
        if _digest(content) != manifest["files"][names[k]]:
            raise DamageError(f"{names[k]} is not as it was written")
    _check_facts(path, manifest)
    results = {k: Result.unpack(content, path / names[k]) for k, content in contents.items()}
    first = next(iter(results.values()))
    first.state = SavedState({k: result.state.parts[0] for k, result in results.items()})
    if first.guard is not None:
        first.guard.good = SavedState({k: result.guard.good.parts[0] for k, result in results.items()})  # type: ignore[union-attr]
    return first


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
            f"resume=bilevax.Result.load({os.fspath(path / SHARD.format(0))!r}) and another folder."
        )
