"""Table 1 carried out: the measured rates of every method, each stored as soon as it is known."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from bilevax.lab.rates import EPSILONS, QUICK_SEEDS, SEEDS, Entrant, entrants, exponent, measure
from bilevax.lab.record import Record
from bilevax.lab.runs import Tell
from bilevax.lab.store import find_run, keep_folder, make_once, run_key, store_run

TABLE = "table1"
TASKS, QUICK_TASKS = (1, 10, 100), (1, 10)
QUICK_SHARE = 0.4  # of the samples


def conduct_table1(folder: Path, quick: bool = False, tell: Tell = lambda line: None) -> None:
    """Measure what the folder does not hold yet; quick: fewer tasks, seeds and samples."""
    requests = [
        _request(tasks, name, entrant, quick)
        for tasks in (QUICK_TASKS if quick else TASKS)
        for name, entrant in entrants(tasks).items()
    ]
    with keep_folder(folder, [("runs", request) for request in requests]):
        for request in requests:
            find, make = partial(find_run, folder, request), partial(_make, folder, request, tell)
            make_once(folder, run_key(request), find, make, tell)


def _request(tasks: int, name: str, entrant: Entrant, quick: bool) -> Record:
    """The measurement of one method."""
    seeds, share = (QUICK_SEEDS, QUICK_SHARE) if quick else (SEEDS, 1.0)
    options = {key: str(values) for key, values in entrant.grid.items()}
    return Record(
        TABLE, f"m = {tasks}", name, entrant.label, options=options, seeds=seeds, share=share, tasks=tasks,
        theory=entrant.theory,
    )  # fmt: skip


def _make(folder: Path, request: Record, tell: Tell) -> None:
    """Measure one method."""
    tasks, seeds, share = request.tasks or 1, request.seeds or 1, request.share or 1.0
    start = time.perf_counter()
    best = measure(request.algorithm, tasks, seeds, share)
    slope = exponent([1 / epsilon for epsilon in EPSILONS], [one.samples for one in best])
    rows = tuple(
        {"epsilon": float(epsilon), **({"samples": one.samples} if one.setting else {})}
        for epsilon, one in zip(EPSILONS, best, strict=True)
    )
    store_run(folder, replace(request, rows=rows, status="done", exponent=slope))
    tell(f"{request.problem}, {request.label}: exponent {slope:.2f}, {time.perf_counter() - start:.0f} s")
