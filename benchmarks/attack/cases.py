"""What all kinds of attack share: a verdict for a case, and the words for it."""

from typing import NamedTuple

CLEAR, UNCLEAR, SILENT, PARTIAL, CRASHED = "clear", "unclear", "silent", "partial", "crashed"
FAILURES = (UNCLEAR, SILENT, PARTIAL, CRASHED)


class Verdict(NamedTuple):
    """`CLEAR` where all is well, else how it failed; the case and what came of it, in words."""

    kind: str
    case: str
    what: str
