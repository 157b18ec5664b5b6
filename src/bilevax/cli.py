"""The command line: `bilevax demo`, `algorithms`, `clean`, `reproduce`, `compare`, `report` and `launch`."""

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

EXTRAS = {
    "click": "cli", "sklearn": "sklearn", "matplotlib": "plots", "plotly": "plots", "pooch": "data", "pandas": "tables",
    "jinja2": "plots",
}  # fmt: skip
PLUGIN = "A module, or a .py file, that describes algorithms; may be given several times."
INTERRUPT_CODE = 130  # the exit code of a command that was interrupted


def _require(command: str, *modules: str) -> None:
    """Say how to install what is missing, before anything starts."""
    missing = []
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError:
            missing.append(EXTRAS[module])
    if missing:
        extras = ",".join(dict.fromkeys(missing))
        raise SystemExit(f"{command} needs extras that are not installed: pip install 'bilevax[{extras}]'")


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

    _add_first_looks(bilevax)
    _add_clean(bilevax)
    _add_experiments(bilevax)
    _add_compare(bilevax)
    _add_launch(bilevax)
    return bilevax


def _add_launch(bilevax: Any) -> None:
    import click

    @bilevax.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
    @click.option("-n", "--processes", type=click.IntRange(min=1), required=True, help="How many.")
    @click.option("--shards", type=click.IntRange(min=1), help="Parts of the tasks in all, by default one a process.")
    @click.argument("command", nargs=-1, required=True, metavar="SCRIPT [ARGUMENTS]...")
    def launch(processes: int, shards: int | None, command: tuple[str, ...]) -> None:
        """Run a Python SCRIPT in several processes of this machine that share one run.

        The script calls bilevax.connect() first, makes the problem of its own tasks and solves bilevax.shard(problem).
        """
        from bilevax.scale.processes import launch as run_all

        with _plain_errors(""):
            status = run_all(command, processes, shards, say=lambda line: click.echo(line, err=True))
        raise SystemExit(status)


def _add_first_looks(bilevax: Any) -> None:
    import click

    folder = click.Path(file_okay=False, path_type=Path)

    @bilevax.command()
    @click.option("--out", type=folder, default=Path("demo-out"), show_default=True)
    @click.option("--steps", type=click.IntRange(min=1), default=1500, show_default=True)
    @click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
    def demo(out: Path, steps: int, seed: int) -> None:
        """Find mislabelled digits: ten classifiers share one weight for each training sample."""
        _require("bilevax demo", "sklearn", "matplotlib")
        with _plain_errors("Nothing was written."):
            _demo(out, steps, seed)

    @bilevax.command()
    @click.option("--plugin", "plugins", multiple=True, help=PLUGIN)
    def algorithms(plugins: tuple[str, ...]) -> None:
        """List all algorithms, and what is known of each."""
        with _plain_errors():
            _load_plugins(plugins)
            _list_algorithms()


def _add_clean(bilevax: Any) -> None:
    import click

    file, folder = click.Path(path_type=Path), click.Path(file_okay=False, path_type=Path)

    @bilevax.command()
    @click.argument("table", type=file)
    @click.option("--label", required=True, help="The column of labels.")
    @click.option("--trusted", type=file, help="A table of rows whose labels are right; a few tens help much.")
    @click.option("--out", type=folder, required=True, help="Where table, model and page are written.")
    @click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
    def clean(table: Path, label: str, trusted: Path | None, out: Path, seed: int) -> None:
        """Find the rows of TABLE, CSV or parquet, whose labels are suspicious, and say which would be right.

        Models that have not seen a row say what its label should be; trusted rows tell how far to believe them.
        """
        _require("bilevax clean", "sklearn", "pandas", "matplotlib", "jinja2")
        with _plain_errors("Nothing was written."):
            _clean(table, label, trusted, out, seed)


def _add_experiments(bilevax: Any) -> None:
    import click

    folder, positive = click.Path(file_okay=False, path_type=Path), click.FloatRange(min=0, min_open=True)

    @bilevax.command()
    @click.argument("what", type=click.Choice(["figure1", "figure2", "table1"]))
    @click.option("--quick", is_flag=True, help="The same picture, coarser, within minutes.")
    @click.option("--seconds", type=positive, help="Seconds of steps for each run of a figure.")
    @click.option("--tune", is_flag=True, help="Find the settings anew, and write them to DIR/tuned.")
    @click.option("--out", type=folder, required=True, help="Where runs are stored and the report is written.")
    def reproduce(what: str, quick: bool, seconds: float | None, tune: bool, out: Path) -> None:
        """Run one of the paper's experiments, and report on it.

        Every run is stored as soon as it ends; the same command again makes only those that are missing. A run with
        other settings takes the place of the one that was there.
        """
        _require("bilevax reproduce", "matplotlib", "plotly", "jinja2", "pooch")
        if what == "table1" and (seconds is not None or tune):
            raise click.UsageError("--seconds and --tune are for figures; table1 has a grid and budgets of its own.")
        with _plain_errors():
            _reproduce(what, quick, seconds, tune, out)

    @bilevax.command()
    @click.argument("directory", type=folder)
    def report(directory: Path) -> None:
        """Make one HTML page, PNG and SVG figures from the runs that are stored in DIRECTORY."""
        _require("bilevax report", "matplotlib", "plotly", "jinja2")
        with _plain_errors():
            _report(directory)


def _add_compare(bilevax: Any) -> None:
    import click

    folder, positive = click.Path(file_okay=False, path_type=Path), click.FloatRange(min=0, min_open=True)

    @bilevax.command()
    @click.option("--data", required=True, help="a1a, a8a, w1a, w8a, or a LIBSVM or CSV file.")
    @click.option("--validation", help="A file with validation data.  [default: the test part, or every fifth row]")
    @click.option("--label", help="The column of labels in a CSV file.  [default: the last]")
    @click.option("--tasks", type=click.IntRange(min=1), default=1, show_default=True, help="Lower problems.")
    @click.option("--algorithms", required=True, help="Their names, separated by commas; see `bilevax algorithms`.")
    @click.option("--plugin", "plugins", multiple=True, help=PLUGIN)
    @click.option("--seconds", type=positive, help="Seconds of steps for each run.  [default: 5]")
    @click.option("--steps", type=click.IntRange(min=1), help="Steps of each run, instead.")
    @click.option("--samples", type=click.IntRange(min=1), help="Samples of each run, instead.")
    @click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True)
    @click.option("--out", type=folder, required=True, help="Where runs are stored and the report is written.")
    def compare(out: Path, algorithms: str, plugins: tuple[str, ...], **options: Any) -> None:
        """Compare algorithms on a data set of your own: tune all with the same effort, run, report.

        The same command may be started many times on one folder, on one machine or on many that share it: they divide
        the work. With --steps or --samples what it finds does not depend on how busy a machine is.
        """
        _require("bilevax compare", "matplotlib", "plotly", "jinja2", "pooch")
        with _plain_errors():
            _load_plugins(plugins)
            _compare(out, tuple(name.strip() for name in algorithms.split(",")), **options)


RESUME_NOTE = "What has ended is stored; the same command goes on from there."


@contextlib.contextmanager
def _plain_errors(note: str = RESUME_NOTE) -> Iterator[None]:
    """What a user can mend is one line, not a traceback; Ctrl-C says what is there."""
    from bilevax.algorithms.contract import ContractError
    from bilevax.lab import Interruption

    try:
        yield
    except (ValueError, OSError, MemoryError, RuntimeError, ContractError) as error:
        raise SystemExit(f"Error: {error}") from error
    except (Interruption, KeyboardInterrupt):
        print(f"\nStopped. {note}")
        raise SystemExit(INTERRUPT_CODE) from None


def _say(line: str) -> None:
    """Progress, one line for each thing that has ended."""
    print(line, flush=True)


def _reproduce(what: str, quick: bool, seconds: float | None, tune: bool, out: Path) -> None:
    from bilevax import lab

    if what == "table1":
        lab.conduct_table1(out, quick, _say)
    else:
        experiment = lab.FIGURES[what]
        experiment = experiment.quick() if quick else experiment
        experiment = experiment if seconds is None else replace(experiment, seconds=seconds)
        tunings = lab.tune_all(experiment, out, _say) if tune else lab.read_package_tuning()
        lab.conduct(experiment, tunings, out, _say)
    _report(out)


def _compare(
    out: Path, algorithms: tuple[str, ...], seconds: float | None, steps: int | None, samples: int | None, seeds: int,
    **case: Any,
) -> None:  # fmt: skip
    from bilevax import lab

    seconds = 5.0 if seconds is steps is samples is None else seconds
    cases = (lab.Case(**case),)
    experiment = lab.Experiment("compare", cases, algorithms, seconds, seeds, steps=steps, samples=samples)
    lab.conduct(experiment, lab.tune_all(experiment, out, _say), out, _say)
    _report(out)


def _report(out: Path) -> None:
    from bilevax.lab.report import write_report

    for path in write_report(out):
        _say(f"written: {path}")


def _clean(table: Path, label: str, trusted: Path | None, out: Path, seed: int) -> None:
    from bilevax.cleaning import clean_table

    for path in clean_table(table, label, trusted, out, seed=seed, tell=_say):
        _say(f"written: {path}")


def _load_plugins(plugins: tuple[str, ...]) -> None:
    """Algorithms of installed packages, and of the modules that the user names."""
    from bilevax.algorithms.registry.plugins import load_installed, load_plugin

    load_installed()
    for plugin in plugins:
        load_plugin(plugin)


def _list_algorithms() -> None:
    from rich.console import Console
    from rich.table import Table

    from bilevax.algorithms.contract import Facts, list_algorithms

    table = Table(caption="samples: to an ε-stationary point, for one lower problem; memory: for a task, beside y")
    for field in Facts._fields:
        table.add_column(field)
    for facts in list_algorithms():
        table.add_row(*facts)
    console = Console()
    Console(width=console.width if console.is_terminal else 200).print(table)


def _demo(out: Path, steps: int, seed: int) -> None:
    from rich.console import Console

    from bilevax import demo

    console = Console()
    console.print(
        f"{demo.TRAIN} handwritten digits, {demo.CORRUPTED_SHARE:.0%} of the labels wrong, {demo.TRUSTED} trusted "
        f"images. Learning one weight for each sample, shared by {demo.CLASSES} digit-against-rest tasks ..."
    )
    found: list[demo.CleaningResult] = []
    try:
        result = demo.run(out, steps, seed, found.append).result
    finally:  # figures are not lost where no file can be written
        for outcome in found:
            console.print(_figures_of(outcome.figures))
    console.print(f"{result.status}: {result.message}. Written: {out / demo.PICTURE}, {out / demo.TRACE}")


def _figures_of(figures: Mapping[str, float]) -> Any:
    """What the demo found, as a table."""
    from rich.table import Table

    table = Table(title="Cleaning mislabelled digits with RSVRB, 5 of 10 tasks a step")
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in figures.items():
        whole = name.startswith("samples")
        table.add_row(name, f"{value:,.0f}" if whole else f"{value:.1%}" if "accuracy" in name else f"{value:.3f}")
    return table


if __name__ == "__main__":
    main()
