"""Several processes of one run: how they find one another, and what happens when one dies."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import jax

from bilevax import arguments

ADDRESS, COUNT, NUMBER = "BILEVAX_ADDRESS", "BILEVAX_PROCESSES", "BILEVAX_PROCESS"  # what `launch` tells a process
COLLECTIVE_TIMEOUT = "--xla_cpu_collective_timeout_seconds=45"  # a process that hangs is given up after so long
HEARTBEAT = 20  # seconds without a sign of life after which a process counts as dead
CLUSTERS = (
    "SLURM_JOB_ID",
    "OMPI_MCA_orte_hnp_uri",
    "OMPI_MCA_ess_base_jobid",
    "PMIX_NAMESPACE",
    "KUBERNETES_SERVICE_HOST",
)
PATIENCE = 10.0  # seconds that a process has to end after it was told to


def connect() -> int:
    """Connect the processes of a run, before anything else runs on JAX; the number of this one.

    Under `bilevax launch`, Slurm or Open MPI the others are found by themselves, with `jax.distributed.initialize`; a
    process that is alone stays alone, so the same script runs everywhere. When another process dies, this one ends with
    an error within seconds; when one hangs, after 45 (`--xla_cpu_collective_timeout_seconds` in XLA_FLAGS says another
    number; on GPUs it is NCCL that waits).

    >>> number = bx.connect()
    >>> problem = bx.shard(make_problem(part=number, parts=jax.process_count()))
    """
    if os.environ.get(COUNT) == "1":
        return 0
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_collective_timeout_seconds" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {COLLECTIVE_TIMEOUT}".strip()
    if ADDRESS in os.environ:
        address, count, number = os.environ[ADDRESS], int(os.environ[COUNT]), int(os.environ[NUMBER])
        jax.distributed.initialize(
            address, count, number, heartbeat_timeout_seconds=HEARTBEAT, coordinator_bind_address=address
        )
    elif any(name in os.environ for name in CLUSTERS):
        jax.distributed.initialize(heartbeat_timeout_seconds=HEARTBEAT)
    if jax.process_count() > 1:
        sys.excepthook = _end_with
    return jax.process_index()


def _end_with(kind: type[BaseException], error: BaseException, place: TracebackType | None) -> None:
    """Show an error and end at once: JAX would wait more than a minute for processes that are gone."""
    sys.__excepthook__(kind, error, place)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def launch(
    command: Sequence[str], processes: int, shards: int | None = None, say: Callable[[str], None] = print
) -> int:
    """Run a Python script in several processes of this machine that share a run; the status of the first to fail.

    - `command`: the script and its arguments. It calls `bx.connect()` first.
    - `processes`: how many; each gets `shards`/`processes` devices of the processor, one by default.

    When one ends before its time the others are told to end too, and after ten seconds they are killed. A process that
    hangs makes the others give up after 45 seconds; it is named, because it does not end when it is told to.
    """
    arguments.count("processes", processes)
    devices, rest = divmod(processes if shards is None else shards, processes)
    if rest or not devices:
        raise ValueError(f"shards must be a multiple of the {processes} processes, each has as many; got {shards}.")
    if not command or not Path(command[0]).is_file():
        raise ValueError(f"the script must be a file; got {command[0] if command else 'none'!r}.")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    shared = {**os.environ, ADDRESS: address, COUNT: str(processes), "JAX_NUM_CPU_DEVICES": str(devices)}
    started = [subprocess.Popen([sys.executable, *command], env={**shared, NUMBER: str(k)}) for k in range(processes)]
    try:
        with _heard_sigterm():
            return _watch(started, say)
    except KeyboardInterrupt as stopped:
        number = stopped.args[0] if stopped.args else signal.SIGINT
        say(f"Stopped by {signal.Signals(number).name}: all processes are told to end.")
        return 128 + number
    finally:
        for number in _end(started):
            say(
                f"Process {number} of {processes} (pid {started[number].pid}) did not answer for {PATIENCE:.0f} s and "
                "was killed: it hung, and what the others said of it is because of that."
            )


@contextlib.contextmanager
def _heard_sigterm() -> Iterator[None]:
    """SIGTERM as an exception, so that the processes are ended too; where signals can be heard."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _watch(started: Sequence[subprocess.Popen[bytes]], say: Callable[[str], None]) -> int:
    """Wait for all, or for the first that fails."""
    while True:
        ended = {k: process.poll() for k, process in enumerate(started)}
        failed = {k: status for k, status in ended.items() if status}
        if failed:
            number = min(failed, key=lambda k: failed[k] > 0)  # one that was killed: others end because of it
            status = failed[number]
            how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            say(
                f"Process {number} of {len(started)} (pid {started[number].pid}) {how}; the others are ended. A run "
                "with checkpoint= goes on from its last one: give the same command again, also with fewer processes "
                "and as many shards."
            )
            return 128 - status if status < 0 else status
        if all(status == 0 for status in ended.values()):
            return 0
        time.sleep(0.1)


def _end(started: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Tell those that are left to end, and after a while kill them; the numbers of those."""
    left = {k: process for k, process in enumerate(started) if process.poll() is None}
    for process in left.values():
        process.terminate()
    until, hung = time.monotonic() + PATIENCE, []
    for k, process in left.items():
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            hung.append(k)
    return hung
