"""A script as users write it, for `bilevax launch`: every process makes its own tasks, and writes what it found.

Arguments: a file for the bits, a folder for checkpoints or none, steps, algorithms.
"""

import functools
import hashlib
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import bilevax as bx

TASKS, ROWS, WIDTH = 8, 6, 3
SETTINGS = {"upper_step": 0.05, "lower_step": 0.1}
ALGORITHMS = {
    "rsvrb": functools.partial(bx.rsvrb, **SETTINGS, mixing=0.2, tasks_per_step=4, batch_size=2),
    "rsvrb, found": functools.partial(bx.rsvrb, tasks_per_step=4, batch_size=2),
    "re_rsvrb": functools.partial(bx.re_rsvrb, **SETTINGS, mixing=0.2, tasks_per_step=4, batch_size=2),
    "bsvrb_v1": functools.partial(bx.bsvrb_v1, tasks_per_step=4, batch_size=2),
    "bsvrb_v2": functools.partial(bx.bsvrb_v2, tasks_per_step=4, batch_size=2),
    "block_soba": functools.partial(bx.block_soba, tasks_per_step=4, batch_size=2),
    "soba": functools.partial(bx.soba, batch_size=None),
    "ma_soba": functools.partial(bx.ma_soba, batch_size=2),
    "stable": functools.partial(bx.stable, batch_size=2),
}


def upper(x, y, task, batch):
    """The error on held-out rows of a task."""
    return 0.5 * jnp.mean((batch["rows"] @ y - batch["target"]) ** 2)


def lower(x, y, task, batch):
    """A ridge regression towards a common centre, as strong as the task is noisy."""
    return 0.5 * jnp.mean((batch["rows"] @ y - batch["target"]) ** 2) + 0.5 * (1 + task) * jnp.sum((y - x) ** 2)


def make_problem(first, count):
    """The problem of these tasks, of which the k-th has rows of its own, k mod 3 fewer than others."""
    held, seen, offsets = [], [], [0]
    for k in range(first, first + count):
        rng = np.random.default_rng(k)
        rows = rng.normal(size=(2, ROWS, WIDTH))
        target = rows @ (1 + rng.normal(size=WIDTH)) + rng.normal(size=(2, ROWS))
        length = ROWS - k % 3
        held.append({"rows": rows[0], "target": target[0]})
        seen.append({"rows": rows[1, :length], "target": target[1, :length]})
        offsets.append(offsets[-1] + length)
    return bx.Problem(
        upper=upper,
        lower=lower,
        x0=jnp.zeros(WIDTH),
        y0=jnp.zeros(WIDTH),
        tasks=jnp.arange(first, first + count) / TASKS,
        upper_data=bx.per_task(jax.tree.map(lambda *parts: np.stack(parts), *held)),
        lower_data=bx.ragged(jax.tree.map(lambda *parts: np.concatenate(parts), *seen), np.array(offsets)),
        strong_convexity=1.0,
    )


def bits_of(result):
    """A digest of x and of the y of each shard of this process, and the cost."""
    digest = lambda array: hashlib.sha256(np.asarray(array).tobytes()).hexdigest()[:16]
    y = {part.index[0].start or 0: digest(part.data) for part in result.y.addressable_shards}
    return {"x": digest(result.x), "y": y, "cost": list(result.cost)}


def main(out, folder, steps, *names):
    """Run each algorithm, and write what this process has of it."""
    jax.config.update("jax_enable_x64", True)
    number, found = bx.connect(), {}
    each = TASKS // jax.process_count()
    problem = bx.shard(make_problem(number * each, each))
    for name in names:
        checkpoint = None if folder == "none" else Path(folder) / name
        result = bx.solve(problem, ALGORITHMS[name](), steps=int(steps), metrics=None, checkpoint=checkpoint, every=0.0)
        found[name] = bits_of(result)
    Path(f"{out}.{number}").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
