"""A standing attack: generated misuse of everything public. All figures but the first are to be zero.

    python -m benchmarks.attack [--cases N] [--seed S] [--kinds api,files,html,kills] [--only K]

- api: a valid call of each public function and class, with one or two arguments replaced by something wrong.
- files: damaged LIBSVM, CSV, Parquet and run files, through the readers and `bilevax report`, `clean`, `compare`.
- html: markup in every name that a user can give; none may reach a page unescaped.
- kills: `bilevax clean` and `report` killed at random moments; all files of one run are there, or none.

Every case follows from the seed and its number (but for the moment of a kill), so `--only K` repeats it. The last line
is cases=, unclear=, silent=, partial=, crashed=:

- unclear: refused late, without the argument's or the file's name, or by an error from deep inside.
- silent: accepted though it is wrong, read with other values than the file has, or unescaped.
- partial: files of two runs beside each other, or what was left over is not swept.
- crashed: a traceback from the command line, a signal, or no end.
"""

import argparse
import collections
import os
import tempfile
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.attack import api, files, kills, pages
from benchmarks.attack.cases import FAILURES

KINDS = {"api": api.Attack, "files": files.Attack, "html": pages.Attack, "kills": kills.Attack}
SHARES = {"api": 0.85, "files": 0.133, "html": 0.015, "kills": 0.002}  # a page takes a second, a kill ten


def counts(cases, kinds):
    """How many cases of each kind; at least two of each."""
    whole = sum(SHARES[kind] for kind in kinds)
    each = {kind: max(2, round(cases * SHARES[kind] / whole)) for kind in kinds}
    each[kinds[0]] = max(1, cases - sum(number for kind, number in each.items() if kind != kinds[0]))
    return each


def carry_out(cases, seed, kinds, only=None, tell=print):
    """All verdicts by kind of failure; each failure is told as it comes."""
    found = collections.Counter()
    bar = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, Progress(*bar, transient=True) as progress:
        try:
            for kind, number in counts(cases, kinds).items():
                own = Path(folder) / kind
                own.mkdir()
                attack = KINDS[kind](own)
                for k in progress.track(range(number) if only is None else [only], description=kind):
                    verdict = attack.carry_out(k, seed)
                    found["cases"] += 1
                    found[verdict.kind] += 1
                    if verdict.kind in FAILURES or only is not None:
                        tell(f"{kind} {k}: {verdict.kind}: {verdict.case}: {verdict.what}")
        finally:
            os.chdir(home)
    return {name: found[name] for name in ("cases", *FAILURES)}


def main(arguments=None):
    """Carry the attack out; the figures, and whether anything failed as the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS), help="separated by commas")
    parser.add_argument("--only", type=int, help="one case of each kind, by its number")
    chosen = parser.parse_args(arguments)
    kinds = chosen.kinds.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        parser.error(f"--kinds must be some of {', '.join(KINDS)}; got {unknown[0]!r}")
    figures = carry_out(chosen.cases, chosen.seed, kinds, chosen.only)
    print(" ".join(f"{name}={number}" for name, number in figures.items()))
    return figures


if __name__ == "__main__":
    raise SystemExit(any(number for name, number in main().items() if name != "cases"))
