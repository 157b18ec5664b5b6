"""Does a run survive? Processes that are killed at random moments, and files that are damaged.

    python -m benchmarks.survive [--kills 1000] [--seed 0] [--short] [--json FILE]

A child process runs `bx.solve(..., checkpoint=folder)` with a checkpoint after every chunk of steps, again and again on
one folder until it is done; kill -9 ends it at a random moment. Every second kill waits for a write to begin (a hidden
part in the folder), and comes within the next two milliseconds. Between two runs, now and then, one of these:

- a file of the newest checkpoint is cut, or one of its bits is flipped: it must be passed over with a warning;
- the disk is full: the child may not write a file of more than a few kilobytes (RLIMIT_FSIZE);
- it writes its checkpoints in a thread, as those of large states are;
- its clock stands still (`time.monotonic` and `time.perf_counter` return a constant);
- a second process is started on the folder: it must be refused, and the first one must not notice.

When a run is done, its x, y and cost are compared with those of one that nobody disturbed. The last lines:

- `kills`, `bit_equal` of `ends`: kills so far; runs that ended with the same bits, of all.
- `corrupt_loaded`: damaged checkpoints that were not passed over; `refused`: second processes that were, of `seconds`.
"""

import contextlib
import hashlib
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import jax
import numpy as np

import bilevax as bx
from benchmarks import harness
from bilevax.run import checkpoint, run
from bilevax.run.checkpoint import MANIFEST, PART, SHARD

STEPS, SHORT_STEPS = 40_000, 4000
NURSERY = multiprocessing.get_context("forkserver")  # imports JAX once; children are forked before it starts
NURSERY.set_forkserver_preload(["bilevax", "benchmarks.harness"])


def solve(disturbance, folder, steps):
    """The run of a child: bits of its x and y, its cost, the rows of its trace."""
    checkpoint.LARGEST_SHARE, run.CHUNK_SECONDS = 1e9, 0.005
    if disturbance == "clock":
        time.monotonic = time.perf_counter = lambda: 1.0
        run.CHUNK_SECONDS = 0.0
    if disturbance == "thread":
        checkpoint.LARGE = 0
    if disturbance == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    problem = bx.problems.quadratic(dim_x=6, dim_y=4, num_tasks=20, num_samples=8, noise=1.0).problem
    algorithm = bx.bsvrb_v2(upper_step=1e-3, lower_step=1e-2, initialization="cheap")
    result = bx.solve(problem, algorithm, steps=steps, metrics=None, checkpoint=folder, every=0, progress=False)
    bits = hashlib.sha256(np.asarray(result.x).tobytes() + np.asarray(result.y).tobytes()).hexdigest()
    return [bits, list(result.cost), len(result.trace.rows)]


def be_child(pipe, cache, *arguments):
    """A child: it sends what its run ends with, and then its warnings; or what it was ended by."""
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            found = solve(*arguments)
        except Exception:
            pipe.send((None, traceback.format_exc()))
        else:
            pipe.send((found, "\n".join(str(warning.message) for warning in told)))


class Child:
    """A process that solves, and what it told at its end."""

    def __init__(self, *arguments):
        self.pipe, end = NURSERY.Pipe(duplex=False)
        self.process = NURSERY.Process(target=be_child, args=(end, *arguments))
        self.process.start()
        end.close()

    def lives(self):
        """Whether it has not ended."""
        return self.process.is_alive()

    def end(self):
        """What its run ended with (None where it was killed or failed), and its words."""
        told = None, "killed"
        with contextlib.suppress(EOFError):
            told = self.pipe.recv()
        self.process.join()
        return told


class Trial:
    """Child processes on one folder, and what became of them."""

    def __init__(self, home, steps, rng):
        self.home, self.steps, self.rng = home, steps, rng
        self.counts = dict.fromkeys(
            ("kills", "ends", "bit_equal", "corrupt", "corrupt_loaded", "seconds", "refused"), 0
        )
        self.counts |= dict.fromkeys(("full", "clock", "thread"), 0)
        self.folder = home / "run"

    def start(self, disturbance="", folder="run"):
        """A child on the folder."""
        return Child(self.home / "cache", disturbance, folder and str(self.folder), self.steps)

    def undisturbed(self):
        """What a run ends with, and the seconds of a child."""
        begun = time.perf_counter()
        found, words = self.start(folder=None).end()
        assert found, words
        return found, time.perf_counter() - begun

    def newest(self):
        """The last checkpoint, if there is one."""
        return max(self.folder.glob("[0-9]*"), default=None)

    def damage(self):
        """Cut a file of the newest checkpoint, or flip a bit of it; its name."""
        path = self.newest() / self.rng.choice((SHARD.format(0), MANIFEST))
        content = bytearray(path.read_bytes())
        if self.rng.random() < 0.5:
            content = content[: self.rng.randrange(len(content))]
        else:
            content[self.rng.randrange(len(content))] ^= 1 << self.rng.randrange(8)
        path.write_bytes(content)
        self.counts["corrupt"] += 1
        return path.parent.name

    def kill(self, child, longest):
        """kill -9 at a random moment, or within a write; whether it came before the end."""
        inside, limit = self.rng.random() < 0.5, time.perf_counter() + self.rng.uniform(0, longest)
        while child.lives() and time.perf_counter() < limit:
            time.sleep(0.002)
        while inside and child.lives() and not any(self.folder.glob(f"{PART}*")):
            time.sleep(0.0001)
        if inside:
            time.sleep(self.rng.uniform(0, 0.002))
        if not child.lives():
            return False
        child.process.kill()
        child.end()
        self.counts["kills"] += 1
        return True

    def round(self, expected, longest):
        """One child, disturbed or not; the folder is emptied where it has ended."""
        disturbance = self.rng.choice(("", "", "thread", "thread", "damage", "full", "clock", "second"))
        kept = len(list(self.folder.glob("[0-9]*"))) if self.folder.exists() else 0
        damaged = self.damage() if disturbance == "damage" and kept > 1 else None
        child = self.start(disturbance)
        if disturbance in ("full", "clock", "thread"):
            self.counts[disturbance] += 1
        if disturbance == "second":
            self.second(child)
        if damaged or not self.kill(child, longest):
            self.end(child, expected, damaged)

    def second(self, child):
        """Another child, once the first one has written something."""
        before = self.newest()
        while child.lives() and self.newest() == before:
            time.sleep(0.01)
        if child.lives():
            _, words = self.start().end()
            if child.lives():  # else the folder was free
                self.counts["seconds"] += 1
                self.counts["refused"] += "another process is running in" in words

    def end(self, child, expected, damaged):
        """Wait for a child, and compare."""
        found, words = child.end()
        assert found, words
        if damaged:
            self.counts["corrupt_loaded"] += f"{damaged}: " not in words
        self.counts["ends"] += 1
        self.counts["bit_equal"] += found == expected
        for path in sorted(self.folder.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()


def main(arguments=None):
    """Run the benchmark and return its figures."""
    parser = harness.options(__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    chosen = parser.parse_args(arguments)
    kills = 1 if chosen.short else chosen.kills
    with tempfile.TemporaryDirectory() as home:
        trial = Trial(Path(home), SHORT_STEPS if chosen.short else STEPS, random.Random(chosen.seed))
        if not chosen.short:
            trial.undisturbed()  # compiles, so that the next one tells how long a child takes
        expected, longest = trial.undisturbed()
        rounds = 0
        while trial.counts["kills"] < kills or not trial.counts["ends"]:
            trial.round(expected, longest)
            rounds += 1
            if rounds % 20 == 0:
                print(trial.counts, flush=True)
    harness.conclude(trial.counts, chosen.json)
    return trial.counts


if __name__ == "__main__":
    main()
