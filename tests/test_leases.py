"""Claims in a folder that many machines share: one owner, dead ones are replaced, once; no locks and no clocks."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import bilevax
from bilevax import leases

HOLDER = f"""
import pathlib, sys, types
package = sys.modules["bilevax"] = types.ModuleType("bilevax")  # one room without JAX, which takes a second to import
package.__path__ = [{str(Path(bilevax.__file__).parent)!r}]
from bilevax import leases
with leases.claim(pathlib.Path(sys.argv[1]), "run") as mine:
    print(mine, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def moments(monkeypatch):
    """Minutes that last some hundredths of a second."""
    monkeypatch.setattr(leases, "SECONDS", 0.06)
    monkeypatch.setattr(leases, "SEEN", {})
    monkeypatch.setattr(leases, "HEART", leases._Heart())


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def of_another_machine(path):
    path.write_text(json.dumps({"host": "elsewhere", "process": 1, "token": "12345678"}))


def wait(path, seconds=0.1):
    """What a process thinks of a file after it has looked at it for so long."""
    leases.is_dead(path)
    leases.time.sleep(seconds)
    return leases.is_dead(path)


def test_one_process_has_a_claim_and_when_it_is_killed_another_one(tmp_path):
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout.readline() == "True\n"
    with leases.claim(tmp_path, "run") as mine, leases.claim(tmp_path, "another run") as free:
        assert (mine, free) == (False, True)
    other.send_signal(signal.SIGKILL)
    other.communicate()
    with leases.claim(tmp_path, "run") as mine, leases.claim(tmp_path, "run") as again:
        assert (mine, again) == (True, False)
        assert names(tmp_path) == [".run.000000.lease", ".run.000001.lease"]
    assert names(tmp_path) == []


def test_a_file_of_another_machine_lives_while_it_changes(tmp_path, moments):
    path = tmp_path / ".run.000000.lease"
    of_another_machine(path)
    for stamp in (1000, 2000, 3000):
        os.utime(path, (stamp, stamp))
        assert not leases.is_dead(path)
        leases.time.sleep(0.04)
        assert not leases.is_dead(path)
    with leases.claim(tmp_path, "run") as mine:
        assert not mine
    assert wait(path)
    with leases.claim(tmp_path, "run") as mine:
        assert mine


def test_an_owner_that_lives_is_never_dead(tmp_path, moments, monkeypatch):
    monkeypatch.setattr(leases, "SECONDS", 0.3)
    monkeypatch.setattr(leases, "_is_gone", lambda owner: False)  # as seen from another machine
    with leases.claim(tmp_path, "run") as mine:
        assert mine
        assert not wait(tmp_path / ".run.000000.lease", seconds=0.7)


def test_many_who_find_a_dead_claim_take_it_over_once(tmp_path, moments):
    of_another_machine(tmp_path / ".run.000004.lease")
    assert wait(tmp_path / ".run.000004.lease")
    had = []

    def take(_):
        with leases.claim(tmp_path, "run") as mine:
            had.append(mine)
            leases.time.sleep(0.03)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(take, range(8)))
    assert sum(had) == 1
    assert names(tmp_path) == []


def test_who_was_thought_dead_does_not_take_the_claim_of_its_heir_away(tmp_path, moments):
    with leases.claim(tmp_path, "run") as mine:
        assert mine
        path = tmp_path / ".run.000000.lease"
        of_another_machine(path)  # an heir came, ended, and a third one began
    assert names(tmp_path) == [path.name]


def test_processes_that_want_the_same_agree_and_others_are_refused(tmp_path, moments):
    with leases.agree(tmp_path, "a-runs", "five") as first, leases.agree(tmp_path, "a-runs", "five") as same:
        assert (first, same) == (True, True)
        with leases.agree(tmp_path, "a-runs", "ten") as different, leases.agree(tmp_path, "a", "ten") as other:
            assert (different, other) == (False, True)
    with leases.agree(tmp_path, "a-runs", "ten") as different:
        assert different
    assert names(tmp_path) == []
    left = tmp_path / ".a-runs.five.12345678.lease"
    of_another_machine(left)
    with leases.agree(tmp_path, "a-runs", "ten") as different:
        assert not different
    assert wait(left)
    with leases.agree(tmp_path, "a-runs", "ten") as different:
        assert different
    leases.sweep(tmp_path)
    assert names(tmp_path) == []


def test_a_claim_that_is_just_being_made_is_not_taken_for_a_dead_one(tmp_path, moments):
    path = tmp_path / ".run.000000.lease"
    path.touch()
    with leases.claim(tmp_path, "run") as mine:
        assert not mine
    assert not leases.is_dead(tmp_path / ".gone.000000.lease")
