"""Files that are read only if they are files, and that appear whole: one alone, or several together."""

import contextlib
import errno
import io
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from bilevax import locks

Outcome = TypeVar("Outcome")

PART = ".bilevax-part-"
NEW, OLD, SHOWN, LINK = "new", "old", "shown", "link"  # what a part holds
FULL = (errno.ENOSPC, errno.EDQUOT)
KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}  # fmt: skip


LONGEST = 4095  # bytes of a path


def path_of(name: str, value: Any) -> Path:
    """The argument `name` as a path; refuse what cannot be one."""
    if not isinstance(value, (str, os.PathLike)) or isinstance(os.fspath(value), bytes):
        raise TypeError(f"{name} must be the path of a file, text or a pathlib.Path; got {value!r}.")
    if "\0" in os.fspath(value):
        raise ValueError(f"{name} must be the path of a file, without zero bytes; got {value!r}.")
    if len(os.fsencode(value)) > LONGEST:
        raise ValueError(f"{name} must be the path of a file, of {LONGEST} bytes at most; got {str(value)[:40]!r}...")
    return Path(value)


def require_file(path: Path) -> Path:
    """Refuse by name what is not there, and what is no file: a pipe that nobody writes to would block for ever."""
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}.") from None
    except OSError as error:
        raise _explain(error, f"{path} cannot be read") from error
    if kind != stat.S_IFREG:
        raise ValueError(f"{path} is {KINDS.get(kind, 'something else')}; it must be a file.")
    return path


def read_whole(path: Path) -> bytes:
    """The content of a file."""
    try:
        return require_file(path).read_bytes()
    except OSError as error:
        if error.errno is None:  # it is explained already
            raise
        raise _explain(error, f"{path} cannot be read") from error


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write a file that appears whole or not at all; other processes may write the same one at the same time."""
    if path.is_dir():
        raise IsADirectoryError(f"path must be that of a file; {path} is a folder.")
    part = path.with_name(path.name + ".part")
    try:
        file = locks.hold(part)
    except OSError as error:
        raise _explain(error, f"{path} cannot be written") from error
    assert file is not None  # it waits
    with os.fdopen(file, "wb") as stream:
        try:
            stream.truncate(0)
            stream.write(content)
            stream.flush()
            os.fsync(file)
            if os.name == "nt":  # where an open file cannot be moved
                stream.close()
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def write_figure(path: Any, figure: Any) -> None:
    """Write a matplotlib figure, of the kind that the path's ending says (png, pdf, svg, ...), whole or not at all."""
    path = path_of("path", path)
    kinds = figure.canvas.get_supported_filetypes()
    kind = path.suffix.removeprefix(".").lower() or "png"
    if kind not in kinds:
        raise ValueError(f"path must end in one of {', '.join(sorted(kinds))}; got {str(path)!r}.")
    content = io.BytesIO()
    figure.savefig(content, format=kind, dpi=150)
    write_whole(path, content.getvalue())


def require_writable(folder: Path) -> None:
    """Make a folder where there is none; refuse one in which nothing can be written."""
    _refuse_files(folder)
    with _tell_of_disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()


def _refuse_files(folder: Path) -> None:
    """A file cannot be a folder, nor hold one."""
    for above in (folder, *folder.parents):
        if above.exists() and not above.is_dir():
            raise NotADirectoryError(f"{folder} must be a folder that can be written to: {above} is a file.")


@contextlib.contextmanager
def _tell_of_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _explain(error, f"{folder} must be a folder that can be written to") from error


def _explain(error: OSError, what: str) -> OSError:
    """An error of the same kind that says what is wrong before the system's reason."""
    return type(error)(f"{what}: {error.strerror or error}.")


@contextlib.contextmanager
def together(folder: Path, names: Iterable[str]) -> Iterator[Path]:
    """A hidden folder to write files into, all of which appear in `folder` together when the block ends.

    `names` are all that may be written: what of them is not written this time, and is there from an earlier time, goes
    away. That the folder can be written to is known before the block begins.

    At every moment either all new files are seen or, as before, all old ones (none, if there were none); also when
    the process is killed, the block raises, or the disk is full. How: a folder that is not there yet comes by renaming.
    In one that is there, the files become links to the old files first, by way of one link (`shown`), and that is
    turned to the new ones; then new files take the place of the links. Before that moment a name that was not there
    is a link to nothing. Where the file system has no links, the old files are removed and the new ones come one by
    one: old and new are never seen together, but a part of them may be.

    What a killed process left is swept by the next one that writes into the same folder, and what it began is ended;
    what a living one works on is let alone (`bilevax.locks`; where there are no locks nothing is swept).
    """
    folder, names = folder.resolve(), tuple(names)
    _refuse_files(folder)
    for name in names:
        if (folder / name).is_dir():
            raise IsADirectoryError(f"{folder / name} is a folder, and a file of that name is to be written.")
    home = folder if folder.is_dir() else folder.parent
    made = [above for above in (home, *home.parents) if not above.exists()]
    with _tell_of_disk(folder):
        home.mkdir(parents=True, exist_ok=True)
        part, lock = _new_part(home)
    try:
        for place in {home, folder.parent}:  # a part lies beside its folder if that was not there
            with contextlib.suppress(PermissionError), locks.alone_in(place):
                _sweep(place)
        yield part / NEW
        _appear(part, folder, names)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise _explain(error, f"the files of {folder} cannot be written, and are as they were") from error
    finally:
        if part.exists():
            _settle(part)
        os.close(lock)
        with contextlib.suppress(OSError):  # they are not empty if all went well
            for above in made:
                above.rmdir()


def work_and_write(
    folder: Path, names: Iterable[str], work: Callable[[], Outcome], write: Callable[[Outcome, Path], None]
) -> Outcome:
    """Do work that may take long, then write the files of its outcome, which appear in `folder` as by `together`.

    What was found is not lost where they cannot be written, because the disk is full or gone: then they are written
    into a fresh folder among the system's temporary ones, and the error says which. If that fails as well, it is the
    error of the first failure alone.
    """
    found: list[Outcome] = []
    try:
        with together(folder, names) as new:
            found.append(work())
            write(found[0], new)
    except OSError as error:
        if not found:
            raise
        told = error if error.errno is None else _explain(error, f"the files of {folder} cannot be written")
        raise _rescue(told, lambda place: write(found[0], place)) from error
    return found[0]


def _rescue(error: OSError, write: Callable[[Path], None]) -> OSError:
    """Write into a temporary folder that others cannot read; the error, with its name if that went well."""
    try:
        place = Path(tempfile.mkdtemp(prefix="bilevax-"))
    except OSError:
        return error
    try:
        write(place)
        sync_all(place)
    except BaseException as second:
        shutil.rmtree(place, ignore_errors=True)
        if isinstance(second, Exception):
            return error
        raise
    return type(error)(f"{str(error).removesuffix('.')}; what was found lies in {place} instead.")


def _new_part(home: Path) -> tuple[Path, int]:
    """A hidden folder and, open and locked, what shows others that it is in use."""
    while True:
        part = home / f"{PART}{secrets.token_hex(4)}"
        part.mkdir()
        try:
            (part / NEW).mkdir()
            lock = os.open(part if locks.fcntl else os.devnull, os.O_RDONLY)
        except FileNotFoundError:  # swept before it was locked
            continue
        locks.lock(lock)
        if not locks.fcntl or locks.stands_at(lock, part):
            return part, lock
        os.close(lock)


def _sweep(home: Path) -> None:
    """End what killed processes began in a folder."""
    parts = [home / name for name in os.listdir(home) if name.startswith(PART)] if locks.fcntl else []
    for part in parts:
        with contextlib.suppress(FileNotFoundError):  # another process sweeps too
            lock = os.open(part, os.O_RDONLY)
            try:
                if locks.lock(lock, wait=False):
                    _settle(part)
            finally:
                os.close(lock)


def _appear(part: Path, folder: Path, names: Iterable[str]) -> None:
    new = part / NEW
    sync_all(new)
    if part.parent != folder:
        try:
            os.rename(new, folder)
        except OSError:
            if not folder.is_dir():
                raise
            part = part.rename(folder / part.name)  # another process made the folder meanwhile
        else:
            sync(folder.parent)
            return
    with locks.alone_in(folder):
        _sweep(folder)
        try:
            _switch(part, {*names, *os.listdir(part / NEW)})
        finally:
            _settle(part)


def _switch(part: Path, names: set[str]) -> None:
    """Let the new files be seen instead of the old ones."""
    try:
        _show_old(part, names)
    except (OSError, NotImplementedError) as error:
        _end_links(part)
        if getattr(error, "errno", None) in FULL:
            raise
        for name in names:
            (part.parent / name).unlink(missing_ok=True)
        for name in os.listdir(part / NEW):
            os.replace(part / NEW / name, part.parent / name)
    else:
        os.symlink(NEW, part / LINK)
        os.replace(part / LINK, part / SHOWN)  # the moment
        sync(part)


def _show_old(part: Path, names: set[str]) -> None:
    """Make a link of every file, to what it is now."""
    (part / OLD).mkdir()
    there = [name for name in names if os.path.lexists(part.parent / name)]
    for name in there:
        os.link(part.parent / name, part / OLD / name)
    os.symlink(OLD, part / SHOWN)
    for name in {*there, *os.listdir(part / NEW)}:
        os.symlink(f"{part.name}/{SHOWN}/{name}", part / LINK)
        os.replace(part / LINK, part.parent / name)


def _end_links(part: Path) -> None:
    """Put files in the place of links to them."""
    if not (part / SHOWN).is_symlink():
        return
    for name in os.listdir(part.parent):
        link = part.parent / name
        if link.is_symlink() and os.readlink(link).startswith(f"{part.name}/"):
            if os.path.lexists(part / SHOWN / name):
                os.replace(part / SHOWN / name, link)
            else:
                link.unlink()
    sync(part.parent)


def _settle(part: Path) -> None:
    """End a switch wherever it stands, and remove what is left of it."""
    _end_links(part)
    shutil.rmtree(part)


def sync_all(folder: Path) -> None:
    """Have the files of a folder on the disk."""
    for file in (*folder.iterdir(), folder):
        sync(file)


def sync(path: Path) -> None:
    """Have the file, or the names in a folder, on the disk."""
    if os.name == "nt":  # there only a file that is open for writing can be asked for that
        return
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
