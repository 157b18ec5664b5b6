"""Numbers as people read them: 12.3 k, 1.2 M, 0.35 s, 10 %."""

import math
from typing import Any

SPACE = "\u202f"  # narrow, and no line break inside a number
UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def plain(value: float, digits: int = 3) -> str:
    """Rounded to a few digits, without needless zeros and without an exponent where it is readable."""
    if not math.isfinite(value):
        return "–"
    number = float(f"{value:.{digits}g}")
    return f"{number:,.0f}" if 10**digits <= abs(number) < 1e6 else f"{number:.{max(digits, 3)}g}"


def amount(value: float) -> str:
    """A count: 950, 12.3 k, 1.2 M."""
    if not math.isfinite(value):
        return plain(value)
    for size, unit in UNITS:
        if value >= 0.9995 * size:  # what would round to 1000 of the smaller unit belongs here
            return f"{plain(value / size)}{SPACE}{unit}"
    return plain(value)


def seconds(value: float) -> str:
    """A running time: 0.35 s, 12.3 s, 1,240 s."""
    return f"{plain(value)}{SPACE}s" if math.isfinite(value) else plain(value)


def quantity(value: float, measure: str) -> str:
    """So many samples, or so many seconds."""
    return seconds(value) if measure == "seconds" else amount(value)


def percent(share: float) -> str:
    """A share of one: 10 %."""
    return f"{plain(100 * share)}{SPACE}%"


def setting(value: Any) -> str:
    """A setting: numbers readable, all else as it is written."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else plain(value, 4)


def enumeration(words: list[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
