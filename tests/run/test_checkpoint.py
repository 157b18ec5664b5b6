"""Runs that are kept in a folder: whatever ends the process, the next one goes on to the same bits."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import bilevax as bx
from bilevax.run import checkpoint
from bilevax.run.checkpoint import MANIFEST

STEPS = 600
SHARD = checkpoint.SHARD.format(0)
ROOT = Path(__file__).parents[2]


def problem_of(seed=0):
    return bx.problems.quadratic(dim_x=3, dim_y=2, num_tasks=6, num_samples=8, seed=seed).problem


@pytest.fixture(scope="module")
def problem():
    return problem_of()


@pytest.fixture(scope="module")
def algorithm():
    return bx.block_soba()


def solve(problem, algorithm, folder, steps=STEPS, **options):
    return bx.solve(problem, algorithm, steps=steps, metrics=None, checkpoint=folder, **{"every": 0, **options})


@pytest.fixture(scope="module")
def whole(problem, algorithm):
    """The run that nobody interrupts."""
    return bx.solve(problem, algorithm, steps=STEPS, metrics=None)


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Checkpoints after every chunk, however long writing takes."""
    monkeypatch.setattr(checkpoint, "LARGEST_SHARE", 1e9)


def same(one, other):
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_array_equal(one.y, other.y)
    assert one.cost == other.cost
    assert [row["step"] for row in one.trace.rows] == [row["step"] for row in other.trace.rows]
    assert one.notes == other.notes


@pytest.fixture
def half(problem, algorithm, tmp_path):
    """A folder with a run that was stopped on its way, as by a kill: nothing more is written."""
    write = checkpoint.Checkpoints.write

    def stop(self, result):
        if result.steps < 200:
            write(self, result)
        if result.steps >= 100:
            raise SystemExit(9)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint.Checkpoints, "write", stop)
        with pytest.raises(SystemExit):
            solve(problem, algorithm, tmp_path / "run")
    return tmp_path / "run"


def newest(folder):
    return max(path for path in folder.iterdir() if path.name.isdigit())


def test_a_run_goes_on_to_the_same_bits(problem, algorithm, whole, half):
    assert 100 <= json.loads((newest(half) / MANIFEST).read_text())["steps"] < STEPS
    same(solve(problem, algorithm, half), whole)


def test_one_that_is_done_is_done_again_at_once(problem, algorithm, whole, tmp_path):
    same(solve(problem, algorithm, tmp_path), whole)
    again = solve(problem, algorithm, tmp_path)
    same(again, whole)
    assert again.status == "done"


def test_a_few_are_kept_and_nothing_else_is_left(problem, algorithm, half):
    solve(problem, algorithm, half)
    assert len(list(half.iterdir())) == checkpoint.KEPT


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", [SHARD, MANIFEST])
@pytest.mark.parametrize("damage", [flip, lambda path: os.truncate(path, 50), os.remove], ids=["flip", "cut", "gone"])
def test_what_is_damaged_is_named_and_the_one_before_it_is_used(problem, algorithm, whole, half, name, damage):
    damaged = newest(half)
    damage(damaged / name)
    with pytest.warns(UserWarning, match=f"later ones are damaged: {damaged}: {name}"):
        same(solve(problem, algorithm, half), whole)


def test_without_a_whole_one_nothing_is_begun_anew(problem, algorithm, half):
    for path in half.iterdir():
        flip(path / SHARD)
    with pytest.raises(ValueError, match="remove the folder to begin anew"):
        solve(problem, algorithm, half)


def test_what_another_run_left_is_refused_with_what_differs(problem, algorithm, half, monkeypatch):
    with pytest.raises(ValueError, match=r"checkpoint .* must come from .* not the same are upper_step"):
        solve(problem, bx.block_soba(upper_step=0.1), half)
    with pytest.raises(ValueError, match=r"comes from block_soba, and not the same are algorithm"):
        solve(problem, bx.soba(), half)
    with pytest.raises(ValueError, match=r"not the same are .*data"):
        solve(problem_of(seed=1), algorithm, half)
    with pytest.raises(ValueError, match="seed 0, which it keeps; got seed=3"):
        solve(problem, algorithm, half, seed=3)
    monkeypatch.setattr("bilevax.version.VERSION", "99")
    with pytest.raises(ValueError, match=r"bilevax .* there and 99 here.*resume=bilevax\.Result\.load"):
        solve(problem, algorithm, half)


def test_arguments_are_looked_at_before(problem, algorithm, whole, tmp_path):
    (tmp_path / "file").write_text("")
    for options, error, words in [
        ({"folder": 3}, TypeError, "checkpoint must be the path"),
        ({"folder": tmp_path / "file"}, NotADirectoryError, "is a file"),
        ({"folder": tmp_path, "every": -1}, ValueError, "every must be seconds, zero or more"),
        ({"folder": tmp_path, "resume": whole}, ValueError, "cannot be given together"),
    ]:
        with pytest.raises(error, match=words):
            solve(problem, algorithm, **options)


def test_two_runs_have_not_one_folder(problem, algorithm, tmp_path):
    with checkpoint.in_folder(tmp_path, 1), pytest.raises(RuntimeError, match="another process is running in"):
        solve(problem, algorithm, tmp_path)


def test_a_full_disk_warns_and_the_run_goes_on(problem, algorithm, whole, tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.warns(UserWarning, match=r"no checkpoint could be written to .*No space left"):
        same(solve(problem, algorithm, tmp_path), whole)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_swept(problem, algorithm, half, whole):
    shutil.copytree(newest(half), half / ".part-12345678")
    same(solve(problem, algorithm, half), whole)
    assert not list(half.glob(".*"))


def test_an_error_of_a_metric_keeps_the_run(problem, algorithm, whole, tmp_path):
    def fail(problem, variables):
        if fail.calls > 3:
            raise OverflowError("enough")
        fail.calls += 1
        return {}

    fail.calls = 0
    with pytest.raises(OverflowError):
        bx.solve(problem, algorithm, steps=STEPS, metrics=fail, checkpoint=tmp_path)
    same(solve(problem, algorithm, tmp_path), whole)


def test_a_run_without_an_algorithm_keeps_the_one_that_was_chosen(problem, tmp_path):
    whole = bx.solve(problem, steps=12, metrics=None)
    bx.solve(problem, steps=4, metrics=None, checkpoint=tmp_path)
    result = bx.solve(problem, steps=12, seconds=1e-9, metrics=None, checkpoint=tmp_path)
    assert result.steps == 4  # a budget for which another one would be chosen
    again = bx.solve(problem, steps=12, metrics=None, checkpoint=tmp_path)
    np.testing.assert_array_equal(again.x, whole.x)
    assert again.notes == whole.notes


def test_writing_takes_a_small_share_of_the_time(tmp_path, whole, monkeypatch):
    with checkpoint.in_folder(tmp_path, 1.0) as kept:
        clock = iter([100.0, 110.0])
        monkeypatch.setattr(checkpoint, "LARGEST_SHARE", 0.05)
        monkeypatch.setattr(checkpoint.time, "monotonic", lambda: next(clock))
        kept.write(whole)
        assert kept.due == 110 + 10 / 0.05


@pytest.fixture
def written_aside(monkeypatch):
    """Every state counts as large; a write begins when the run has gone on."""
    write = checkpoint._write
    monkeypatch.setattr(checkpoint, "LARGE", 0)
    monkeypatch.setattr(checkpoint, "_write", lambda *given: time.sleep(0.02) or write(*given))


def test_a_large_state_is_written_as_it_was_while_the_run_goes_on(
    problem, algorithm, whole, tmp_path, monkeypatch, written_aside
):
    begin, begun = checkpoint.Checkpoints.begin, []

    def stop(self, result):
        begin(self, result)
        assert not self.is_due()
        begun.append(result.steps)
        if result.steps >= 100:
            raise SystemExit(9)

    monkeypatch.setattr(checkpoint.Checkpoints, "begin", stop)
    with pytest.raises(SystemExit):
        solve(problem, algorithm, tmp_path)
    monkeypatch.undo()
    with checkpoint.in_folder(tmp_path, 1) as kept:
        assert kept.newest().steps == begun[-1]
    same(solve(problem, algorithm, tmp_path), whole)


def test_a_large_state_that_cannot_be_written_warns_and_the_run_goes_on(
    problem, algorithm, whole, tmp_path, monkeypatch, written_aside
):
    def fail(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "_write", fail)
    with pytest.warns(UserWarning, match="no checkpoint could be written"):
        result = solve(problem, algorithm, tmp_path)
    same(result, whole)


CHILD = """
import sys
import bilevax as bx
problem = bx.problems.quadratic(dim_x=3, dim_y=2, num_tasks=6, num_samples=8, seed=0).problem
print("ready", flush=True)
bx.solve(problem, bx.block_soba(), steps=10**9, metrics=None, checkpoint=sys.argv[1], every=0.01)
"""


def test_sigterm_writes_one_and_ends_with_its_own_status(problem, algorithm, tmp_path):
    child = subprocess.Popen([sys.executable, "-c", CHILD, tmp_path], env={**os.environ, "JAX_ENABLE_X64": "1"})
    deadline = time.monotonic() + 120
    while not any(path.name.isdigit() for path in tmp_path.iterdir()):
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.terminate()
    assert child.wait(60) == -signal.SIGTERM
    with checkpoint.in_folder(tmp_path, 1) as kept:
        reached = kept.newest()
    assert reached.message.startswith("stopped by SIGTERM")
    fresh = bx.solve(problem, algorithm, steps=reached.steps, metrics=None)
    again = bx.solve(problem, algorithm, steps=reached.steps, metrics=None, checkpoint=tmp_path)
    np.testing.assert_array_equal(again.x, fresh.x)
    np.testing.assert_array_equal(again.y, fresh.y)
