"""Table 1 carried out: the measured rates of every method, each stored as soon as it is known."""

import time
from pathlib import Path

from bilevax.experiments.rates import EPSILONS, QUICK_SEEDS, SEEDS, entrants, exponent, measure
from bilevax.experiments.store import store, stored
from bilevax.experiments.work import Told
from bilevax.trace import Trace

TASKS, QUICK_TASKS = (1, 10, 100), (1, 10)
QUICK_SHARE = 0.4  # of the samples


def conduct_table1(folder: Path, quick: bool = False, told: Told = lambda line: None) -> None:
    """Measure what the folder does not hold yet; quick: fewer tasks, seeds and samples."""
    seeds, share = (QUICK_SEEDS, QUICK_SHARE) if quick else (SEEDS, 1.0)
    for tasks in QUICK_TASKS if quick else TASKS:
        for name, entrant in entrants(tasks).items():
            asked = {
                "experiment": "table1", "problem": f"m = {tasks}", "algorithm": name, "label": entrant.label, "seed": 0,
                "seeds": seeds, "share": share, "tasks": tasks, "theory": entrant.theory,
                "options": {key: str(values) for key, values in entrant.grid.items()},
            }  # fmt: skip
            if stored(folder, asked) is not None:
                continue
            begun, best = time.perf_counter(), measure(name, tasks, seeds, share)
            fitted = exponent([1 / epsilon for epsilon in EPSILONS], [one.samples for one in best])
            rows = [
                {"epsilon": float(epsilon), **({"samples": one.samples} if one.setting else {})}
                for epsilon, one in zip(EPSILONS, best, strict=True)
            ]
            store(folder, asked, Trace(rows, {"status": "done", "exponent": fitted}))
            told(f"m = {tasks}, {entrant.label}: exponent {fitted:.2f}, {time.perf_counter() - begun:.0f} s")
