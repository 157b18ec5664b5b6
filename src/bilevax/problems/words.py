"""Errors in the words of the function that a user called, where that function hands its arguments on."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bilevax.samples import KINDS, MAKERS


@contextmanager
def rename_in_errors(**names: str) -> Iterator[None]:
    """Add to an error what the things that it names are called here: `rename_in_errors(upper_data="query")`."""
    try:
        yield
    except Exception as error:
        said = "\n".join([str(error), *getattr(error, "__notes__", ())])
        for word, own in names.items():
            if re.search(rf"\b{word}\b", said):
                error.add_note(f"{word} stands for {own} here.")
        raise


@contextmanager
def name_in_errors(call: str) -> Iterator[None]:
    """Add to an error which function of the user's raised it, and what that was called with."""
    try:
        yield
    except Exception as error:
        error.add_note(f"raised by {call}")
        raise


def check_function(name: str, function: Any, of: str) -> Callable[..., Any]:
    """The function; refuse what is none."""
    if not callable(function):
        raise TypeError(f"{name} must be a function of ({of}); got {function!r}.")
    return function


def check_data(name: str, data: Any) -> None:
    """Refuse what does not hold samples."""
    if data is not None and not isinstance(data, KINDS):
        raise TypeError(f"{name} must come from {MAKERS}, or be None; got {type(data).__name__}.")
