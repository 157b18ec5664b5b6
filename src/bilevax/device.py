"""What the device that computes still has room for."""

import os
from collections.abc import Mapping
from typing import Any

import jax


def available_bytes() -> int | None:
    """Memory that the default device still has; `None` where it does not tell."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        limit = stats.get("bytes_limit")
        return None if limit is None else limit - stats.get("bytes_in_use", 0)
    try:
        with open("/proc/meminfo") as lines:
            fields = dict(line.split(":", 1) for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def has_room_for_copy(tree: Any) -> bool:
    """Whether a copy of all arrays in a tree takes less than an eighth of the memory that is left."""
    available = available_bytes()
    return available is None or sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) < available / 8


def format_bytes(size: float) -> str:
    """A number of bytes for a reader."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def require(name: str, sizes: Mapping[str, int], advice: str) -> None:
    """Refuse arrays, bytes by name, that would not fit; before any of them is copied."""
    needed, available = sum(sizes.values()), available_bytes()
    if available is not None and needed > available:
        largest = sorted(sizes, key=lambda part: -sizes[part])[:3]
        listed = ", ".join(f"{part} {format_bytes(sizes[part])}" for part in largest)
        raise MemoryError(
            f"{name} needs {format_bytes(needed)} and {format_bytes(available)} are available; "
            f"its largest parts: {listed}. {advice}"
        )
