"""The bytes of a file, unpacked where it is an xz, bzip2 or gzip archive."""

import bz2
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bilevax.files import read_whole

SUFFIXES = (".xz", ".bz2", ".gz")
GZIP = 16 + zlib.MAX_WBITS  # zlib's way to ask for gzip's header and checksum
FORMATS: dict[bytes, tuple[str, Callable[[], Any]]] = {
    b"\xfd7zXZ\x00": ("xz", lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ)),
    b"BZh": ("bzip2", bz2.BZ2Decompressor),
    b"\x1f\x8b": ("gzip", lambda: zlib.decompressobj(GZIP)),
}


def read_unpacked(path: Path) -> bytes:
    """The content of the file; what it is packed with shows in its first bytes, whatever its name."""
    content = read_whole(path)
    for start, (name, decompressor) in FORMATS.items():
        if content.startswith(start):
            try:
                return _unpack(content, decompressor)
            except (lzma.LZMAError, zlib.error, OSError, EOFError, ValueError) as error:
                raise ValueError(f"{path} is a truncated or corrupt {name} archive: {error}.") from error
    return content


def _unpack(content: bytes, decompressor: Callable[[], Any]) -> bytes:
    """All streams of an archive; unlike the standard library's own, it passes over nothing but zero padding."""
    parts = []
    while content:
        stream = decompressor()
        parts.append(stream.decompress(content))
        if not stream.eof:
            raise EOFError("it ends too early")
        content = stream.unused_data.lstrip(b"\0")
    return b"".join(parts)


def without_suffix(path: Path) -> str:
    """The file's name without that of the compression."""
    return path.stem if path.suffix in SUFFIXES else path.name
