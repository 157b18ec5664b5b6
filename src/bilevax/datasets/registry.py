"""The paper's data sets by name: found on this machine or downloaded, and checked in both cases."""

import difflib
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from bilevax.datasets.archive import SUFFIXES
from bilevax.datasets.dataset import Dataset
from bilevax.datasets.libsvm import read_libsvm

SITE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
FOLDER_VARIABLE = "BILEVAX_DATA"


class Entry(NamedTuple):
    """What is known of a data set; `digest` is that of the parsed content, see `Dataset.digest`."""

    name: str
    rows: int
    features: int
    positives: int
    digest: str

    @property
    def url(self) -> str:
        """Where the plain file is published."""
        return SITE + self.name


_ENTRIES = (
    Entry("a1a", 1605, 123, 395, "92f9273bca79de87ee2c2a61ac4a281ef2eb215050754cc326cc9ce69549a108"),
    Entry("a1a.t", 30956, 123, 7446, "c6f6697035c7d9927dd39837ed4a16ade82d145b75b083d598855967cca4aacd"),
    Entry("a8a", 22696, 123, 5506, "28d9790088e6c8d4bf6191696e787748d67bed92d03745a5687af48c11b9b52b"),
    Entry("a8a.t", 9865, 123, 2335, "87b829547976078d5f0cec1f625262a8d63220e4d561ddf70c0ea709056a6bc1"),
    Entry("w1a", 2477, 300, 72, "15fe7aa853173d9ed7b894047b0e7aea7eb02ac920d5048b01863362e520c9ac"),
    Entry("w1a.t", 47272, 300, 1407, "189275431339ca1059299131851aae2ab4576b78d53a991047990a286a629cb0"),
    Entry("w8a", 49749, 300, 1479, "15ba45ab196c18b9ae1c79ded75e3f6bddc5e185da124e1e3d55f404249c434f"),
    Entry("w8a.t", 14951, 300, 454, "0a5b488bd9cbb4e8e7df3e22a94d337f3f8f1a25ccf431aeb47d423741081b0c"),
)
REGISTRY: Mapping[str, Entry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})


def load(name: str) -> Dataset:
    """One of the data sets in `REGISTRY`, from this machine or else from the LIBSVM site.

    Looks for the file, plain or packed (.xz, .bz2, .gz), in the folder that the environment variable BILEVAX_DATA
    names, then in the user's cache; then downloads it into the cache (extra `bilevax[data]`).
    Its content must have the digest in the registry.
    """
    entry = _entry(name)
    path = _find(name)
    if path is None:
        return _download(entry)
    try:
        return _read_checked(entry, path)
    except ValueError as error:
        raise ValueError(f"{error} Remove that file, or put {entry.url} in its place.") from error


def is_here(name: str) -> bool:
    """Whether `load` finds the data set without a download."""
    return _find(_entry(name).name) is not None


def _entry(name: str) -> Entry:
    if not isinstance(name, str):
        raise TypeError(f"name must be the name of a data set, one of {', '.join(REGISTRY)}; got {name!r}.")
    if name not in REGISTRY:
        near = difflib.get_close_matches(name, REGISTRY, n=3)
        hint = f" did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ValueError(f"there is no data set {name!r}:{hint} Known are {', '.join(REGISTRY)}.")
    return REGISTRY[name]


def _find(name: str) -> Path | None:
    """The first file of that name, plain or packed."""
    for folder in (_given_folder(), _cache()):
        for suffix in ("", *SUFFIXES):
            if folder is not None and (folder / (name + suffix)).is_file():
                return folder / (name + suffix)
    return None


def _given_folder() -> Path | None:
    """The folder that BILEVAX_DATA names, if it is set."""
    place = os.environ.get(FOLDER_VARIABLE)
    if not place:
        return None
    folder = Path(place)
    if not folder.is_dir():
        raise ValueError(f"the environment variable {FOLDER_VARIABLE} must name a folder; {place!r} is none.")
    return folder


def _cache() -> Path | None:
    """Where downloads are kept; without pooch there are none."""
    try:
        return _pooch().os_cache("bilevax")
    except ImportError:
        return None


def _pooch() -> Any:
    try:
        import pooch
    except ImportError as error:
        raise ImportError("downloading data needs pooch: pip install 'bilevax[data]'") from error
    return pooch


def _read_checked(entry: Entry, path: Path) -> Dataset:
    """The data set in the file; refuse a file with other content."""
    data = read_libsvm(path, entry.features)
    if data.digest() != entry.digest:
        digest = data.digest()
        raise ValueError(f"{path} does not hold {entry.name}: the digest of its rows is {digest}, not {entry.digest}.")
    return data


def _download(entry: Entry) -> Dataset:
    """Fetch the file into the cache; it appears there only once its content is known to be right."""
    cache = Path(_pooch().os_cache("bilevax"))
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        file = Path(folder) / entry.name
        _fetch(entry, file, cache)
        try:
            data = _read_checked(entry, file)
        except ValueError as error:
            raise ValueError(
                f"what {entry.url} sent is not {entry.name}, and was not kept: {error} Try again, or look at that page."
            ) from error
        file.replace(cache / entry.name)
    return data


def _fetch(entry: Entry, file: Path, cache: Path) -> None:
    """Write what the site sends into the file, with a bar on a terminal."""
    import requests

    download = _pooch().HTTPDownloader(progressbar=sys.stderr.isatty())
    try:
        download(entry.url, str(file), None)
    except requests.RequestException as error:
        raise ConnectionError(
            f"{entry.name} is not on this machine, and {entry.url} is not reachable ({error}). Fetch that file by "
            f"hand and put it into {cache}, or into a folder that the environment variable {FOLDER_VARIABLE} names."
        ) from error
