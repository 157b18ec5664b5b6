"""bilevax demo writes both of its files or none, and says before the work if it cannot."""

import errno
import re
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from bilevax import Trace, demo
from bilevax.cli import _commands


def start(out):
    return CliRunner().invoke(_commands(), ["demo", "--out", str(out)])


def found(steps, seed):
    """What takes no time to find."""
    return SimpleNamespace(result=SimpleNamespace(trace=Trace()), figures={"test accuracy": 0.75})


@pytest.mark.parametrize("out", ["/proc/nowhere", "file/out"])
def test_an_output_that_cannot_be_written_is_refused_before_the_work(tmp_path, monkeypatch, out):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(demo, "clean", None)
    outcome = start(tmp_path / out)
    assert outcome.exit_code == 1
    assert f"Error: {tmp_path / out} must be a folder that can be written to" in str(outcome.exception)


@pytest.mark.parametrize("there", [False, True])
def test_a_failure_while_writing_leaves_what_was_there(tmp_path, monkeypatch, there):
    out = tmp_path / "out"
    if there:
        out.mkdir()
        (out / "trace.json").write_text("old")

    def full(outcome, path):
        Path(path).write_text("half")
        raise OSError("No space left on device")

    monkeypatch.setattr(demo, "clean", found)
    monkeypatch.setattr(demo, "draw_picture", full)
    outcome = start(out)
    assert outcome.exit_code == 1
    assert "No space left" in str(outcome.exception)
    assert [path.read_text() for path in tmp_path.rglob("*") if path.is_file()] == (["old"] if there else [])
    assert out.exists() == there


def test_what_was_found_is_not_lost_where_the_disk_is_full(tmp_path, monkeypatch):
    def full(outcome, path):
        if tmp_path / "temp" not in path.parents:
            raise OSError(errno.ENOSPC, "No space left on device")
        path.write_text("picture")

    monkeypatch.setattr(demo, "clean", found)
    monkeypatch.setattr(demo, "draw_picture", full)
    (tmp_path / "temp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    outcome = start(tmp_path / "out")
    assert outcome.exit_code == 1
    place = Path(re.search(r"No space left on device; what was found lies in (.*) instead", str(outcome.exception))[1])
    assert place.parent == tmp_path / "temp"
    assert sorted(path.name for path in place.iterdir()) == ["digits.png", "trace.json"]
    assert "75.0%" in outcome.output
    assert not (tmp_path / "out").exists()
