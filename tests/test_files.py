"""Files appear whole and together whatever happens, special files are refused by name, and locks end with processes."""

import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

import bilevax
from bilevax import files, locks

pytestmark = pytest.mark.skipif(locks.fcntl is None, reason="without locks processes are not kept apart")

ROOMS_ALONE = f"""
import os, pathlib, sys, types
package = types.ModuleType("bilevax")  # the two rooms without JAX, which takes a second to import
package.__path__ = [{str(Path(bilevax.__file__).parent)!r}]
sys.modules["bilevax"] = package
from bilevax import files, locks
os.fsync = lambda file: None  # a test does not wait for the disk
"""


def script(text):
    return [sys.executable, "-c", ROOMS_ALONE + textwrap.dedent(text)]


def write(folder, content, names=("table", "page"), then=lambda: None):
    with files.together(folder, ("table", "other", "page")) as new:
        for name in names:
            (new / name).write_text(content)
        then()


def fail(*given, **more):
    raise OSError(errno.ENOSPC, "No space left on device")


def seen(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


# Several files together

KILLS = """
import shutil, signal

NAMES = ("table", "other", "page")
ACTS = ("mkdir", "rename", "replace", "symlink", "link", "unlink", "rmdir", "fsync", "open")

def write(folder, content, names):
    with files.together(folder, NAMES) as new:
        for name in names:
            (new / name).write_text(content)

def dies_at(k, act):
    done = 0
    def counted(function):
        def inside(*given, **more):
            nonlocal done
            done += 1
            if done == k:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*given, **more)
        return inside
    child = os.fork()
    if not child:
        for name in ACTS:
            setattr(os, name, counted(getattr(os, name)))
        act()
        os._exit(0)
    return os.waitpid(child, 0)[1] != 0

def seen(folder):
    return {name: (folder / name).read_text() for name in NAMES if (folder / name).exists()}

def attack(folder, before):
    k, states = 0, set()
    while True:
        k += 1
        shutil.rmtree(folder.parent, ignore_errors=True)
        before(folder)
        old = seen(folder)
        died = dies_at(k, lambda: write(folder, "new", ("table", "page")))
        state = seen(folder)
        new = {"table": "new", "page": "new"}
        assert state in (old, new), (k, state)
        states.add(state == new)
        write(folder, "next", ("other", "page"))
        assert seen(folder) == {"other": "next", "page": "next"}, k
        assert not any(path.is_symlink() for path in folder.iterdir()), k
        left = [path.name for place in (folder, folder.parent) for path in place.iterdir() if path.name[0] == "."]
        assert not left, (k, left)
        if not died:
            break
    assert states == {False, True}
    print(k)

def absent(folder):
    folder.parent.mkdir()

def full(folder):
    folder.mkdir(parents=True)
    (folder / "mine").write_text("mine")
    write(folder, "old", NAMES)

def foreign(folder):
    folder.mkdir(parents=True)
    (folder / "mine").write_text("mine")
"""


@pytest.mark.parametrize("before", ["absent", "full", "foreign"])
def test_a_process_killed_at_any_moment_leaves_all_new_files_or_all_old_ones(tmp_path, before):
    text = KILLS + f"\nattack(pathlib.Path({str(tmp_path / 'home' / 'out')!r}), {before})"
    ended = subprocess.run(script(text), capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 10  # moments
    assert before == "absent" or (tmp_path / "home" / "out" / "mine").read_text() == "mine"


def test_what_was_written_before_and_is_not_any_more_goes_away(tmp_path):
    write(tmp_path / "out", "old", ("table", "page"))
    (tmp_path / "out" / "mine").write_text("mine")
    write(tmp_path / "out", "new", ("other", "page"))
    assert seen(tmp_path / "out") == {"other": "new", "page": "new", "mine": "mine"}


@pytest.mark.parametrize("there", [False, True])
def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path, there):
    if there:
        write(tmp_path / "a" / "out", "old")
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "a" / "out", "new", then=fail)
    assert list(tmp_path.iterdir()) == ([tmp_path / "a"] if there else [])
    if there:
        assert seen(tmp_path / "a" / "out") == {"table": "old", "page": "old"}


@pytest.mark.parametrize("act", ["symlink", "link", "mkdir", "fsync"])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, act):
    write(tmp_path / "out", "old")
    with pytest.raises(OSError, match=r"files of .*out cannot be written, and are as they were: No space left"):
        write(tmp_path / "out", "new", then=lambda: monkeypatch.setattr(os, act, fail))
    monkeypatch.undo()
    assert seen(tmp_path / "out") == {"table": "old", "page": "old"}


@pytest.mark.parametrize("missing", ["symlink", "link"])
def test_without_links_files_come_one_by_one_and_never_old_beside_new(tmp_path, monkeypatch, missing):
    write(tmp_path / "out", "old")
    replace, states = os.replace, []

    def refuse(*given, **more):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    def watched(*given):
        states.append(seen_names(tmp_path / "out"))
        replace(*given)

    def seen_names(folder):
        return {name: (folder / name).read_text() for name in ("table", "page") if (folder / name).exists()}

    monkeypatch.setattr(os, missing, refuse)
    monkeypatch.setattr(os, "replace", watched)
    write(tmp_path / "out", "new")
    monkeypatch.undo()
    assert seen(tmp_path / "out") == {"table": "new", "page": "new"}
    assert states
    assert all(len(set(state.values())) <= 1 for state in states)


def test_what_a_living_process_works_on_is_not_swept(tmp_path):
    with files.together(tmp_path / "out", ("page",)) as slow:
        write(tmp_path / "out", "quick")
        assert slow.is_dir()
        (slow / "page").write_text("slow")
    assert seen(tmp_path / "out") == {"page": "slow", "table": "quick"}
    with files.together(tmp_path / "out", ("page",)) as slow:
        write(tmp_path / "out", "quick")
        (slow / "page").write_text("slow")
    assert seen(tmp_path / "out") == {"page": "slow", "table": "quick"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_that_cannot_be_written_to_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "out" / "page").mkdir(parents=True)
    for folder, reason in [("file", "is a file"), ("file/out", "file is a file"), ("out", "page is a folder")]:
        with pytest.raises(OSError, match=reason), files.together(tmp_path / folder, ("page",)):
            pytest.fail("the work began")
    with pytest.raises(OSError, match="must be a folder that can be written to"):
        files.require_writable(tmp_path / "file" / "out")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "out", "page"]


# Files of long work


@pytest.fixture
def temp(tmp_path, monkeypatch):
    """The system's temporary folder."""
    (tmp_path / "temp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    return tmp_path / "temp"


def work_and_write(folder, write_page, work=lambda: "found"):
    def write(outcome, place):
        (place / "table").write_text(outcome)
        write_page(place / "page", outcome)

    return files.work_and_write(folder, ("table", "page"), work, write)


def full_disk(temp, number=errno.ENOSPC):
    """Write the page, but only among the temporary files."""

    def write_page(path, content):
        if temp not in path.parents:
            path.write_text("half")
            raise OSError(number, os.strerror(number))
        path.write_text(content)

    return write_page


def place_in(error):
    return Path(re.search(r"; what was found lies in (.*) instead\.$", str(error))[1])


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize(("number", "reason"), [(errno.ENOSPC, "No space left on device"), (errno.EIO, "output error")])
def test_what_was_found_lies_in_a_temporary_folder_where_it_cannot_be_written(tmp_path, temp, there, number, reason):
    out, works = tmp_path / "out", []
    if there:
        write(out, "old")
    with pytest.raises(OSError, match=f"files of {out} cannot be written.*{reason}; what was found lies in") as caught:
        work_and_write(out, full_disk(temp, number), lambda: works.append(1) or "found")
    place = place_in(caught.value)
    assert place.parent == temp
    assert place.stat().st_mode & 0o777 == 0o700  # the table may be nobody else's business
    assert seen(place) == {"table": "found", "page": "found"}
    assert len(works) == 1
    assert out.exists() == there
    assert not there or seen(out) == {"table": "old", "page": "old"}


@pytest.mark.parametrize("act", ["symlink", "link"])
def test_what_was_found_is_not_lost_where_the_disk_is_full_at_the_last_moment(tmp_path, temp, monkeypatch, act):
    write(tmp_path / "out", "old")
    monkeypatch.setattr(os, act, fail)
    with pytest.raises(OSError, match="No space left on device; what was found lies in") as caught:
        work_and_write(tmp_path / "out", Path.write_text)
    assert seen(place_in(caught.value)) == {"table": "found", "page": "found"}
    assert seen(tmp_path / "out") == {"table": "old", "page": "old"}


@pytest.mark.parametrize("also", ["the same disk", "a defect", "no folder"])
def test_where_no_temporary_folder_takes_what_was_found_either_the_first_error_is_told(tmp_path, temp, also):
    def write_page(path, content):
        full_disk(temp)(path, content)
        raise OSError(errno.EIO, "another reason") if also == "the same disk" else KeyError("page")

    if also == "no folder":
        temp.rmdir()
    with pytest.raises(OSError, match=r"files of .*out cannot be written, and are as they were: No space left.*\.$"):
        work_and_write(tmp_path / "out", write_page)
    assert [path.name for path in tmp_path.rglob("*")] == ([] if also == "no folder" else ["temp"])


def test_ctrl_c_while_what_was_found_is_written_leaves_nothing(tmp_path, temp):
    def write_page(path, content):
        full_disk(temp)(path, content)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work_and_write(tmp_path / "out", write_page)
    assert list(tmp_path.rglob("*")) == [temp]


def test_an_error_of_the_work_is_its_own(tmp_path, temp):
    with pytest.raises(OSError, match=r"^\[Errno 5\] the data are gone$"):
        work_and_write(tmp_path / "out", Path.write_text, lambda: fail_with(OSError(errno.EIO, "the data are gone")))
    assert list(tmp_path.rglob("*")) == [temp]


def fail_with(error):
    raise error


def test_work_that_went_well_is_written_and_returned(tmp_path, temp):
    assert work_and_write(tmp_path / "out", Path.write_text) == "found"
    assert seen(tmp_path / "out") == {"table": "found", "page": "found"}
    assert list(temp.iterdir()) == []


# One file


def test_special_files_folders_and_missing_ones_are_refused_by_name(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, kind in [("pipe", "is a pipe"), ("", "is a folder"), ("nowhere", "there is no file .*nowhere")]:
        with pytest.raises((ValueError, FileNotFoundError), match=kind):
            files.read_whole(tmp_path / name)
    with pytest.raises(ValueError, match="/dev/null is a device"):
        files.read_whole(Path("/dev/null"))


@pytest.mark.parametrize(
    ("given", "kind"), [(3, TypeError), (None, TypeError), (b"a", TypeError), ("a\0b", ValueError)]
)
def test_what_cannot_be_a_path_is_refused_by_the_arguments_name(given, kind):
    with pytest.raises(kind, match="data must be the path of a file"):
        files.path_of("data", given)


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    files.write_whole(tmp_path / "file", b"old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        files.write_whole(tmp_path / "file", b"new")
    assert seen(tmp_path) == {"file": "old"}
    with pytest.raises(OSError, match="nowhere/file cannot be written: No such file"):
        files.write_whole(tmp_path / "nowhere" / "file", b"new")


def test_processes_that_write_the_same_file_do_not_disturb_each_other(tmp_path):
    text = """
    for k in range(100):
        files.write_whole(pathlib.Path(sys.argv[1]), sys.argv[2].encode() * 5000)
    """
    path = tmp_path / "file"
    path.write_text("a" * 5000)
    writers = [subprocess.Popen([*script(text), path, letter], stderr=subprocess.PIPE, text=True) for letter in "ab"]
    while any(writer.poll() is None for writer in writers):
        assert path.read_text() in ("a" * 5000, "b" * 5000)
    assert [writer.communicate()[1] for writer in writers] == ["", ""]
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_writer_left_does_not_stop_the_next_one(tmp_path):
    (tmp_path / "file.part").write_bytes(b"a long beginning of what was to be written")
    files.write_whole(tmp_path / "file", b"whole")
    assert seen(tmp_path) == {"file": "whole"}


# Locks

HOLDER = """
path = pathlib.Path(sys.argv[1])
with {lock} as had:
    print(had, flush=True)
    sys.stdin.read()
"""


def holder(path, lock):
    """A process that has a lock until it is killed."""
    process = subprocess.Popen(
        [*script(HOLDER.format(lock=lock)), path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "True\n"
    return process


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_claim_is_for_one_process_and_ends_with_it(tmp_path):
    path = tmp_path / "claim"
    other = holder(path, "locks.claim(path)")
    with locks.claim(path) as had:
        assert not had
    kill(other)
    with locks.claim(path) as had:
        assert had
        with locks.claim(path) as again:
            assert not again
    assert not path.exists()


def test_without_locks_everything_is_granted_and_files_still_appear(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "fcntl", None)
    with locks.claim(tmp_path / "x") as one, locks.claim(tmp_path / "x") as two:
        assert one
        assert two
    files.write_whole(tmp_path / "file", b"whole")
    write(tmp_path / "out", "old")
    write(tmp_path / "out", "new")
    assert seen(tmp_path / "out") == {"table": "new", "page": "new"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "out"]
