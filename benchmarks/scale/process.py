"""What each process of the benchmark does: its own tasks, a run, and how long a step of it takes.

Arguments: a file for what was found, m, d, tasks in a step, k, steps.
"""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import bilevax as bx

BATCH, ROWS = 8, 16


def main(out, tasks, size, per_step, sync, steps):
    """Steps after as many others, timed."""
    number = bx.connect()
    own, rng = tasks // jax.process_count(), np.random.default_rng(number)
    rows = lambda *shape: rng.normal(size=(own, ROWS, *shape)).astype(np.float32)
    make = lambda: bx.per_task({"a": rows(size), "b": rows()})
    fit = lambda y, batch: 0.5 * jnp.mean((batch["a"] @ y - batch["b"]) ** 2) / size
    problem = bx.Problem(
        upper=lambda x, y, i, batch: fit(y, batch),
        lower=lambda x, y, i, batch: fit(y, batch) + 0.5 * (y - x) @ (y - x),
        x0=jnp.zeros(size, jnp.float32), y0=jnp.zeros(size, jnp.float32), y0_per_task=False, strong_convexity=1.0,
        upper_data=make(), lower_data=make(),
    )  # fmt: skip
    algorithm = bx.block_soba(
        upper_step=1e-3, lower_step=0.1, tasks_per_step=per_step, batch_size=BATCH, initialization="cheap"
    )
    split = bx.shard(problem, sync_every=sync)
    first = bx.solve(split, algorithm, steps=steps, metrics=None, progress=False)
    last = bx.solve(split, algorithm, steps=2 * steps, metrics=None, progress=False, resume=first)
    if number == 0:
        found = [(last.seconds - first.seconds) / steps, (last.cost.samples - first.cost.samples) / steps]
        Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
