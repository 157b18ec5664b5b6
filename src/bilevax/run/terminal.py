"""What a run shows on a terminal and hears from it: a bar, and Ctrl-C."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Report = Callable[[int, float, Mapping[str, Any]], None]  # step, share of the budget, what was recorded last


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C sets a flag, so that no state is lost in the middle of a chunk; a second one raises."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    caught: list[int] = []

    def note(number: int, frame: Any) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(caught)
    finally:
        signal.signal(signal.SIGINT, before)


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

        yield update
