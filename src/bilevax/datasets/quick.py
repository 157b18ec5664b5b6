"""Well-formed text read by whole arrays, several times as fast as token by token.

Whatever is not plain here (comments, quotes, words, blanks where none are usual, an index out of order) gives `None`:
the slow readers then take the text, and say what is wrong with it, or that nothing is.
"""

from typing import NamedTuple

import numpy as np

PIECE = 2**17  # bytes that are looked at together: all that is made of them stays in the processor's cache
BAD, NUMBER, BLANK, NEWLINE, COLON, COMMA = range(6)
KINDS = np.full(256, BAD, np.uint8)
KINDS[list(b"0123456789+-.eE")] = NUMBER
KINDS[list(b" \t")], KINDS[list(b"\r\n")], KINDS[list(b":")], KINDS[list(b",")] = BLANK, NEWLINE, COLON, COMMA
ZERO, DOT, MINUS, PLUS = b"0.-+"
MOST_DIGITS = 15  # a whole number of so many digits, and 10 to that power, are exact: their quotient is rounded once
POWERS = 10.0 ** np.arange(MOST_DIGITS + 1)
MOST_WIDTH = 32  # bytes of a number
LONG = 10  # digits of an index that may be too large for 32 bits


class Rows(NamedTuple):
    """Sparse rows as they stand in a text: labels, and columns and values one row after the other."""

    labels: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    ends: np.ndarray


class _Tokens(NamedTuple):
    """Where the numbers of a piece are, what stands right before and behind each, and its line."""

    text: np.ndarray
    kinds: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    before: np.ndarray
    behind: np.ndarray


def _pieces(content: bytes) -> list[bytes]:
    """The text in pieces of whole lines."""
    pieces, first = [], 0
    while first < len(content):
        last = len(content) if first + PIECE >= len(content) else content.find(b"\n", first + PIECE) + 1
        pieces.append(content[first : last or len(content)])
        first = last or len(content)
    return pieces


def _tokens(piece: bytes) -> _Tokens | None:
    text = np.frombuffer(b"\n" + piece + b"\n" + bytes(MOST_WIDTH), np.uint8)
    kinds = KINDS[text[:-MOST_WIDTH]]
    if not kinds.all():
        return None
    edges = np.flatnonzero(np.diff(kinds == NUMBER)).astype(np.int32)
    starts, ends = edges[::2] + 1, edges[1::2] + 1
    lengths = ends - starts
    if lengths.max(initial=0) > MOST_WIDTH:
        return None
    return _Tokens(text, kinds, starts, lengths, kinds[starts - 1], kinds[ends])


def _digits(text: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray | None:
    """Whole numbers without a sign; None where there are other signs, or too many digits."""
    most = int(lengths.max(initial=0))
    if most >= LONG:
        return None
    found = np.zeros(len(starts), np.int32)
    for k in range(most):
        digit = text[starts + np.int32(k)] - np.uint8(ZERO)  # what is less wraps to more than 9
        inside = lengths > k
        if (inside & (digit > 9)).any():
            return None
        found = np.where(inside, 10 * found + digit, found)
    return found


def _numbers(text: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray | None:
    """Finite numbers, each as `float` reads it; None where one is none."""
    digit = text[starts] - np.uint8(ZERO)
    found = digit.astype(float)
    short = np.flatnonzero(((lengths != 1) | (digit > 9)) & (lengths <= MOST_DIGITS + 2))
    values, plain = _decimals(text, starts[short], lengths[short])
    found[short] = values
    rest = np.concatenate([short[~plain], np.flatnonzero(lengths > MOST_DIGITS + 2)])
    if len(rest):
        width = int(lengths[rest].max())
        letters = np.lib.stride_tricks.sliding_window_view(text, width)[starts[rest]]
        letters[np.arange(width) >= lengths[rest, None]] = 0
        try:
            found[rest] = letters.reshape(-1).view(f"S{width}").astype(float)
        except ValueError:
            return None
    return found if np.isfinite(found).all() else None


def _decimals(text: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers with few digits and no exponent, and which of these are such."""
    first = text[starts]
    signed = (first == MINUS) | (first == PLUS)
    begin, count = starts + signed, lengths - signed
    mantissa, places, dots = np.zeros(len(starts)), np.zeros(len(starts), np.int8), np.zeros(len(starts), np.int8)
    plain = count > 0
    for k in range(int(count.max(initial=0))):
        sign = text[begin + np.int32(k)]
        digit, inside = sign - np.uint8(ZERO), count > k
        is_digit, is_dot = inside & (digit <= 9), inside & (sign == DOT)
        plain &= is_digit | is_dot | ~inside
        mantissa = np.where(is_digit, 10 * mantissa + digit, mantissa)
        places += is_digit & (dots > 0)
        dots += is_dot
    plain &= (dots <= 1) & (count > dots) & (count - dots <= MOST_DIGITS)
    return np.where(first == MINUS, -mantissa, mantissa) / POWERS[np.minimum(places, MOST_DIGITS)], plain


def read_rows(content: bytes, most: int) -> Rows | None:
    """Rows `label index:value ...` with indices that rise, from 1 to `most`."""
    found = []
    for piece in _pieces(content):
        rows = _rows_of(piece, most)
        if rows is None:
            return None
        found.append(rows)
    if not found:
        return None
    labels, columns, values, counts = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Rows(labels, columns, values, np.concatenate([[0], np.cumsum(counts)]))


def _rows_of(piece: bytes, most: int) -> Rows | None:
    """The same of some lines, with the number of pairs of each in the place of their ends."""
    tokens = _tokens(piece)
    if tokens is None:
        return None
    text, kinds, starts, lengths, before, behind = tokens
    is_index, is_value = behind == COLON, before == COLON
    is_label = np.concatenate([[True], _has_newline(tokens)]) if len(starts) else np.zeros(0, bool)
    whole = (
        np.array_equal(is_label, ~is_index & ~is_value)
        and np.array_equal(is_index[:-1], is_value[1:])
        and (starts[1:] - starts[:-1] - lengths[:-1] == 1)[is_value[1:]].all()
        and not is_index[-1:].any()
        and np.count_nonzero(kinds == COLON) == np.count_nonzero(is_index)
        and not (kinds == COMMA).any()
    )
    if not whole:
        return None
    index = _digits(text, starts[is_index], lengths[is_index])
    values = _numbers(text, starts[is_value], lengths[is_value])
    labels = _numbers(text, starts[is_label], lengths[is_label])
    if index is None or values is None or labels is None:
        return None
    counts = np.diff(np.append(np.flatnonzero(is_label), len(starts))) // 2
    begins = (np.cumsum(counts) - counts)[counts > 0]
    steps = np.diff(index, prepend=np.int32(0))
    steps[begins] = index[begins]
    if len(index) and (steps.min() < 1 or index.max() > most):
        return None
    return Rows(labels, index - np.int32(1), values, counts)


def _has_newline(tokens: _Tokens) -> np.ndarray:
    """Whether a line ends between each number and the next."""
    newlines = np.cumsum(tokens.kinds == NEWLINE, dtype=np.int32)[tokens.starts]
    return np.diff(newlines) > 0


def read_table(content: bytes, width: int) -> np.ndarray | None:
    """The numbers of lines of so many cells, parted by commas; blank lines are none."""
    found = []
    for piece in _pieces(content):
        tokens = _tokens(piece)
        if tokens is None:
            return None
        text, kinds, starts, lengths, before, behind = tokens
        if len(starts) % width:
            return None
        last = np.arange(len(starts)) % width == width - 1
        whole = (
            np.array_equal(behind, np.where(last, NEWLINE, COMMA))
            and np.array_equal(before, np.where(np.roll(last, 1), NEWLINE, COMMA))
            and np.count_nonzero(kinds == COMMA) == np.count_nonzero(~last)
            and not ((kinds == BLANK) | (kinds == COLON)).any()
        )
        values = _numbers(text, starts, lengths) if whole else None
        if values is None:
            return None
        found.append(values.reshape(-1, width))
    return np.concatenate(found) if found else None
