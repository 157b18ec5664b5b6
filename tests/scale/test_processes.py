"""Several real processes on 127.0.0.1: the same bits as one, an end when one dies, and the rest of the run on fewer."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bilevax.scale import processes
from bilevax.scale.processes import launch

ROOT = Path(__file__).parents[2]
STEPS = 800  # some milliseconds each between processes
SCRIPT = Path(__file__).with_name("one_run.py")


def start(processes, *arguments, shards=2):
    """`bilevax launch`, as users call it."""
    return subprocess.Popen(
        [sys.executable, "-m", "bilevax.cli", "launch", "-n", str(processes), "--shards", str(shards), str(SCRIPT),
         *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip


def finish(process):
    """Its status and all that it and its processes said."""
    said, _ = process.communicate(timeout=300)
    return process.returncode, said


def found(out):
    """What the processes wrote, put together; all agree on x and the cost."""
    parts = [json.loads(path.read_text()) for path in sorted(out.parent.glob(f"{out.name}.*"))]
    for name, first in parts[0].items():
        for other in parts[1:]:
            assert {**other[name], "y": 0} == {**first, "y": 0}
            first["y"] |= other[name]["y"]
    return parts[0]


def children_of(pid):
    """The processes that a process has started."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for(condition, process, seconds=200):
    """Look again and again until it holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, finish(process)
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for children in /proc")
def test_two_processes_have_the_bits_of_one_and_when_one_is_killed_one_alone_goes_on(tmp_path):
    """The run of two is killed on its way, ends within a minute and names who died; one process ends it."""
    status, said = finish(start(1, tmp_path / "one", "none", STEPS, "block_soba"))
    assert status == 0, said
    expected = found(tmp_path / "one")
    running = start(2, tmp_path / "two", tmp_path / "kept", STEPS, "block_soba")
    wait_for(lambda: list(tmp_path.glob("kept/block_soba/[0-9]*")), running)
    victim = children_of(running.pid)[1]
    os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    status, said = finish(running)
    assert status == 128 + signal.SIGKILL, said
    assert time.monotonic() - killed < 60
    assert f"Process 1 of 2 (pid {victim}) was ended by SIGKILL" in said
    assert not list(tmp_path.glob("two.*"))
    status, said = finish(start(1, tmp_path / "again", tmp_path / "kept", STEPS, "block_soba"))
    assert status == 0, said
    assert found(tmp_path / "again") == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((["none.py"], 2), "the script must be a file; got 'none.py'"),
        (([], 2), "the script must be a file; got 'none'"),
        (([__file__], 2, 3), "shards must be a multiple of the 2 processes, each has as many; got 3"),
        (([__file__], 0), "processes must be"),
    ],
)
def test_what_cannot_be_launched_is_refused(given, message):
    with pytest.raises((TypeError, ValueError), match=message):
        launch(*given)


def test_the_status_of_a_script_that_fails_is_that_of_the_launch(tmp_path):
    script, lines = tmp_path / "fails.py", []
    script.write_text("import os, sys, time\nif os.environ['BILEVAX_PROCESS'] == '1': sys.exit(3)\ntime.sleep(60)\n")
    begun = time.monotonic()
    assert launch([str(script)], 2, say=lines.append) == 3
    assert time.monotonic() - begun < 30
    assert lines[0].startswith("Process 1 of 2")
    assert "ended with status 3" in lines[0]


def test_a_process_that_hangs_is_named(tmp_path, monkeypatch):
    """The other one gives up and is seen first; that which does not answer is the reason."""
    script, lines = tmp_path / "hangs.py", []
    script.write_text(
        "import os, signal, sys, time\n"
        "if os.environ['BILEVAX_PROCESS'] == '0': time.sleep(1); sys.exit(1)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)\n"
    )
    monkeypatch.setattr(processes, "PATIENCE", 0.5)
    assert launch([str(script)], 2, say=lines.append) == 1
    assert lines[0].startswith("Process 0 of 2")
    assert lines[1].startswith("Process 1 of 2")
    assert "it hung" in lines[1]


def start_by_hand(number, address, *arguments):
    """One of two processes, as a cluster starts them: nobody watches."""
    own = {"BILEVAX_ADDRESS": address, "BILEVAX_PROCESSES": "2", "BILEVAX_PROCESS": str(number)}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "JAX_NUM_CPU_DEVICES": "1", **own},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def test_where_nobody_watches_the_others_end_too_and_name_the_checkpoint(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    arguments = tmp_path / "out", tmp_path / "kept", 10**6, "block_soba"
    first, second = (start_by_hand(number, address, *arguments) for number in range(2))
    wait_for(lambda: list(tmp_path.glob("kept/block_soba/[0-9]*")), first)
    second.kill()
    killed = time.monotonic()
    status, said = finish(first)
    second.communicate()
    assert time.monotonic() - killed < 60
    assert status == 1, said
    assert "A process of this run has died or hangs, or had this error. The same command goes on from" in said
