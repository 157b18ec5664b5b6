"""What a run shows on a terminal and hears from outside: a bar, Ctrl-C, and the system's word that it must end."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bilevax import chunks

Report = Callable[[int, float, Mapping[str, Any]], None]  # step, share of the budget, what was recorded last


CTRL_C, SIGTERM = "Ctrl-C", "SIGTERM"


@contextlib.contextmanager
def interruptible(by_system: bool) -> Iterator[Callable[[], str | None]]:
    """What stopped the run, if something did, so that no state is lost in the middle of a chunk.

    Ctrl-C; a second one raises. With `by_system` SIGTERM too, which is sent again when all is written: the process
    ends with the status that it would have had, unless its user handles the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    caught: list[int] = []

    def note(number: int, frame: Any) -> None:
        if number == signal.SIGINT and number in caught:
            raise KeyboardInterrupt
        caught.append(number)

    heard = {signal.SIGINT: CTRL_C, **({signal.SIGTERM: SIGTERM} if by_system else {})}
    before = {number: signal.signal(number, note) for number in heard}
    try:
        yield lambda: heard[signal.Signals(caught[0])] if caught else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if signal.SIGTERM in caught:
            signal.raise_signal(signal.SIGTERM)


@contextlib.contextmanager
def progress(asked: bool | None) -> Iterator[Report]:
    """A bar on a terminal, nothing elsewhere unless asked for."""
    if not (sys.stderr.isatty() if asked is None else asked):
        yield lambda step, share, row: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[row]}"))
    with Progress(*columns, console=Console(stderr=True, force_terminal=asked), transient=True) as bar:
        task = bar.add_task("starting and compiling", total=1.0, row="")

        def update(step: int, share: float, row: Mapping[str, Any]) -> None:
            shown = "  ".join(f"{name} {row[name]:.4g}" for name in ("objective", "grad_norm") if name in row)
            bar.update(task, description=f"step {step}", completed=share, row=shown)

        with chunks.heard(lambda share: bar.update(task, description="all tasks", completed=share)):
            yield update
