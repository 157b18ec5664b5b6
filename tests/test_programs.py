"""Compiled programs are kept between processes, in a bounded cache that the user can move or leave out."""

import os
import subprocess
import sys
from pathlib import Path

import filelock
import jax
import pytest

from bilevax import programs

SHOW = (
    "import os, jax; {before}import bilevax; print(jax.config.jax_compilation_cache_dir); "
    "print(jax.config.jax_compilation_cache_max_size)"
)


def place(tmp_path, before="", **variables):
    """Where a fresh process keeps its programs, and how many bytes of them."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "BILEVAX_CACHE"))}
    environment = {**own, "XDG_CACHE_HOME": str(tmp_path), **{name: str(value) for name, value in variables.items()}}
    shown = subprocess.run(
        [sys.executable, "-c", SHOW.format(before=before)], env=environment, capture_output=True, text=True, check=True
    )
    return shown.stdout.split()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other folders")
def test_programs_are_kept_in_the_users_cache_with_a_bound(tmp_path):
    folder, bound = place(tmp_path)
    assert Path(folder).parent == tmp_path / "bilevax"
    assert Path(folder).is_dir()
    assert int(bound) == programs.LARGEST


@pytest.fixture
def settings(monkeypatch):
    """What JAX is told."""
    told = {}
    monkeypatch.setattr(jax.config, "update", told.__setitem__)
    monkeypatch.setattr(type(jax.config), "jax_compilation_cache_dir", None)
    return told


def test_a_folder_of_the_users_own_is_taken_and_off_is_off(tmp_path, monkeypatch, settings):
    monkeypatch.setenv(programs.VARIABLE, "off")
    programs.keep_programs()
    assert settings == {}
    monkeypatch.setenv(programs.VARIABLE, str(tmp_path / "mine"))
    programs.keep_programs()
    assert settings["jax_compilation_cache_dir"] == str(tmp_path / "mine")


def test_where_jax_was_told_itself_nothing_is_changed(tmp_path, monkeypatch, settings):
    monkeypatch.setattr(type(jax.config), "jax_compilation_cache_dir", "elsewhere")
    monkeypatch.setenv(programs.VARIABLE, str(tmp_path / "mine"))
    programs.keep_programs()
    assert settings == {}
    assert not (tmp_path / "mine").exists()


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path, monkeypatch, settings):
    (tmp_path / "file").touch()
    monkeypatch.setenv(programs.VARIABLE, str(tmp_path / "file" / "folder"))
    programs.keep_programs()
    assert settings == {}


def test_an_entry_that_a_killed_process_left_is_swept_but_not_one_that_is_being_written(tmp_path):
    names = {"whole-cache", "whole-atime", "broken-cache"}
    for name in names:
        (tmp_path / name).touch()
    with filelock.FileLock(tmp_path / programs.LOCK):
        programs._sweep(tmp_path)
        assert names <= set(os.listdir(tmp_path))
    programs._sweep(tmp_path)
    assert set(os.listdir(tmp_path)) - {programs.LOCK} == {"whole-cache", "whole-atime"}
