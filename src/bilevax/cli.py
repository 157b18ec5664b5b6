"""The command line: `bilevax demo`, `bilevax algorithms`."""

import importlib
from pathlib import Path
from typing import Any

EXTRAS = {"click": "cli", "sklearn": "sklearn", "matplotlib": "plots"}


def _require(command: str, *modules: str) -> None:
    """Say how to install what is missing, before anything starts."""
    missing = []
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError:
            missing.append(EXTRAS[module])
    if missing:
        raise SystemExit(f"{command} needs extras that are not installed: pip install 'bilevax[{','.join(missing)}]'")


def main() -> None:
    """Entry point of the `bilevax` command."""
    _require("bilevax", "click")
    _commands()()


def _commands() -> Any:
    import click

    from bilevax import __version__

    @click.group()
    @click.version_option(__version__)
    def bilevax() -> None:
        """Stochastic bilevel optimization with one or very many lower-level problems."""

    @bilevax.command()
    @click.option(
        "--out", type=click.Path(file_okay=False, path_type=Path), default=Path("demo-out"), show_default=True
    )
    @click.option("--steps", type=click.IntRange(min=1), default=1500, show_default=True)
    @click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
    def demo(out: Path, steps: int, seed: int) -> None:
        """Find mislabelled digits: ten classifiers share one weight for each training sample."""
        _require("bilevax demo", "sklearn", "matplotlib")
        _demo(out, steps, seed)

    @bilevax.command()
    def algorithms() -> None:
        """List all algorithms, and what is known of each."""
        _algorithms()

    return bilevax


def _algorithms() -> None:
    from rich.console import Console
    from rich.table import Table

    from bilevax.algorithms.base import Facts
    from bilevax.algorithms.base import algorithms as listing

    table = Table(caption="samples: to an ε-stationary point, for one lower problem; memory: for a task, beside y")
    for field in Facts._fields:
        table.add_column(field)
    for facts in listing():
        table.add_row(*facts)
    console = Console()
    Console(width=console.width if console.is_terminal else 200).print(table)


def _demo(out: Path, steps: int, seed: int) -> None:
    from rich.console import Console
    from rich.table import Table

    from bilevax import demo

    console = Console()
    console.print(
        f"{demo.TRAIN} handwritten digits, {demo.CORRUPTED_SHARE:.0%} of the labels wrong, {demo.TRUSTED} trusted "
        f"images. Learning one weight for each sample, shared by {demo.CLASSES} digit-against-rest tasks ..."
    )
    outcome = demo.run(out, steps, seed)
    table = Table(title="Cleaning mislabelled digits with RSVRB, 5 of 10 tasks a step")
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in outcome.figures.items():
        whole = name.startswith("samples")
        table.add_row(name, f"{value:,.0f}" if whole else f"{value:.1%}" if "accuracy" in name else f"{value:.3f}")
    console.print(table)
    console.print(
        f"{outcome.result.status}: {outcome.result.message}. Written: {out / 'digits.png'}, {out / 'trace.json'}"
    )


if __name__ == "__main__":
    main()
