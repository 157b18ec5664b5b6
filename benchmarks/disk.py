"""Samples on a disk beside the same samples in memory: microseconds a step, memory, and bytes read a second.

    python -m benchmarks.disk [--gigabytes 4] [--width 256] [--folder DIR] [--steps 1000] [--short] [--json FILE]
    python -m benchmarks.disk --file ROWS.npy [--steps 1000]

A file of random rows is made, and read from memory-mapped: by block SOBA, ten tasks with four samples each in a step,
f and g alike. *Cold*: nothing of the file is in the system's cache before; *warm*: the same steps once more. *In
memory*: the first rows of the file, at most a gigabyte. *Reads alone*: the rows of as many steps, read cold, by as many
threads as are quickest of 1, 8, 32 and 128, where the system is told that rows are read at random. Last lines:
microseconds a step of each; `anonymous_mb`, the memory of the process that is not the file itself;
`slower_than_limit`: a cold step over the longer of a step in memory and its reads alone; `same_bits`: whether a run on
the rows that are in memory is the same from both.
"""

import mmap
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import bilevax as bx
from benchmarks import harness

TASKS, BATCH, BLOCK = 10, 4, 2**26


def write(path, gigabytes, width):
    """A file of random rows, one block of them again and again: drawing others for each takes longer than writing."""
    rows, size = int(gigabytes * 1e9 / (4 * width)), max(1, BLOCK // width)
    block = np.random.default_rng(0).standard_normal((min(size, rows), width), np.float32)
    with open(path, "wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
        np.lib.format.write_array_header_2_0(file, header)
        for first in range(0, rows, size):
            file.write(block[: rows - first].data)


def forget(path):
    """Ask the system to drop the file from its cache."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def problem_of(rows):
    """Ten lower problems on the same rows: the first column from the others."""
    width = rows.shape[1]
    fit = lambda y, batch: 0.5 * jnp.mean((batch[:, 1:] @ y - batch[:, 0]) ** 2) / width
    return bx.Problem(
        upper=lambda x, y, i, batch: fit(y, batch),
        lower=lambda x, y, i, batch: fit(y, batch) + 0.5 * (y - x) @ (y - x),
        x0=jnp.zeros(width - 1, jnp.float32), y0=jnp.zeros(width - 1, jnp.float32), tasks=TASKS,
        upper_data=bx.shared(rows), lower_data=bx.shared(rows), strong_convexity=1.0,
    )  # fmt: skip


def pace(problem, steps, before=lambda: None):
    """Microseconds a step, after as many that compile; and x."""
    algorithm = bx.block_soba(
        upper_step=1e-3, lower_step=0.1, tasks_per_step=TASKS, batch_size=BATCH, initialization="cheap"
    )
    first = bx.solve(problem, algorithm, steps=steps, metrics=None, progress=False)
    before()
    last = bx.solve(problem, algorithm, steps=2 * steps, metrics=None, progress=False, resume=first)
    return 1e6 * (last.seconds - first.seconds) / steps, last.x


def read_alone(path, steps):
    """Microseconds for the reads of a step, cold, by the best number of threads."""

    def read(threads):
        forget(path)
        file = np.load(path, mmap_mode="r")
        file._mmap.madvise(mmap.MADV_RANDOM)
        rows = np.unique(np.random.default_rng(threads).integers(0, len(file), 2 * TASKS * BATCH * steps))
        with ThreadPoolExecutor(threads) as pool:
            begun = time.perf_counter()
            list(pool.map(file.__getitem__, np.array_split(rows, max(threads, len(rows) // 1000))))
            return 1e6 * (time.perf_counter() - begun) / steps

    return min(map(read, (1, 8, 32, 128)))


def anonymous_megabytes():
    """What the process has in memory beside files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1000


def main(arguments=None):
    """Run the benchmark and return its figures."""
    parser = harness.options(__doc__)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--folder", help="where the file is made for the time of the benchmark")
    parser.add_argument("--file", help="an .npy file of rows of single precision to use, instead of one that is made")
    parser.add_argument("--steps", type=int, default=1000)
    chosen = parser.parse_args(arguments)
    gigabytes, steps = (0.002, 30) if chosen.short else (chosen.gigabytes, chosen.steps)
    with tempfile.TemporaryDirectory(dir=chosen.folder) as home:
        path = Path(chosen.file or f"{home}/rows.npy")
        if not chosen.file:
            write(path, gigabytes, chosen.width)
        file = np.load(path, mmap_mode="r")
        figures = {"gigabytes": file.nbytes / 1e9}
        figures["cold_us"], _ = pace(problem_of(file), steps, lambda: forget(path))
        figures["warm_us"], _ = pace(problem_of(file), steps)
        figures["anonymous_mb"] = anonymous_megabytes()
        figures["reads_alone_us"] = read_alone(path, steps)
        some = file[: int(1e9 / (4 * chosen.width))]
        (figures["memory_us"], x), (_, same) = (pace(problem_of(rows), steps) for rows in (np.array(some), some))
        figures["slower_than_limit"] = figures["cold_us"] / max(figures["memory_us"], figures["reads_alone_us"])
        figures["same_bits"] = int(np.array_equal(x, same))
    harness.conclude(figures, chosen.json)
    return figures


if __name__ == "__main__":
    main()
