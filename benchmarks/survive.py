"""Does a run survive? Processes that are killed at random moments, and files that are damaged.

    python -m benchmarks.survive [--kills 1000] [--seed 0] [--short] [--json FILE]

A child process runs `bx.solve(..., checkpoint=folder)` with a checkpoint after every chunk of steps, again and again on
one folder until it is done; kill -9 ends it at a random moment. Every second kill waits for a write to begin (a hidden
part in the folder), and comes within the next two milliseconds. Between two runs, now and then, one of these:

- a file of the newest checkpoint is cut, or one of its bits is flipped: it must be passed over with a warning;
- the disk is full: the child may not write a file of more than a few kilobytes (RLIMIT_FSIZE);
- its clock stands still (`time.monotonic` and `time.perf_counter` return a constant);
- a second process is started on the folder: it must be refused, and the first one must not notice.

When a run is done, its x, y and cost are compared with those of one that nobody disturbed. The last lines:

- `kills`, `bit_equal` of `ends`: kills so far; runs that ended with the same bits, of all.
- `corrupt_loaded`: damaged checkpoints that were not passed over; `refused`: second processes that were, of `seconds`.
"""

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import harness
from bilevax.run.checkpoint import MANIFEST, PART, SHARD

STEPS, SHORT_STEPS = 40_000, 4000
CHILD = """
import json, sys, time
disturbance, folder, out, steps = sys.argv[1:]
import jax
jax.config.update("jax_compilation_cache_dir", sys.argv[3] + ".cache")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
import bilevax as bx
from bilevax.run import checkpoint, run
checkpoint.LARGEST_SHARE, run.CHUNK_SECONDS = 1e9, 0.005
if disturbance == "clock":
    time.monotonic = time.perf_counter = lambda: 1.0
    run.CHUNK_SECONDS = 0.0
if disturbance == "full":
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
problem = bx.problems.quadratic(dim_x=6, dim_y=4, num_tasks=20, num_samples=8, noise=1.0).problem
algorithm = bx.bsvrb_v2(upper_step=1e-3, lower_step=1e-2, initialization="cheap")
folder = None if folder == "none" else folder
result = bx.solve(problem, algorithm, steps=int(steps), metrics=None, checkpoint=folder, every=0, progress=False)
import hashlib, numpy as np
bits = hashlib.sha256(np.asarray(result.x).tobytes() + np.asarray(result.y).tobytes()).hexdigest()
print(json.dumps([bits, list(result.cost), len(result.trace.rows), result.seconds]))
"""


class Trial:
    """Child processes on one folder, and what became of them."""

    def __init__(self, home, steps, rng):
        self.home, self.steps, self.rng = home, steps, rng
        self.counts = dict.fromkeys(
            ("kills", "ends", "bit_equal", "corrupt", "corrupt_loaded", "seconds", "refused"), 0
        )
        self.counts |= dict.fromkeys(("full", "clock"), 0)
        self.folder = home / "run"

    def start(self, disturbance="", folder=None):
        """A child on the folder."""
        arguments = [disturbance, folder or self.folder, self.home / "out", self.steps]
        return subprocess.Popen(
            [sys.executable, "-W", "always", "-c", CHILD, *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def undisturbed(self):
        """What a run ends with, and the seconds of a child."""
        begun = time.perf_counter()
        out, error = self.start(folder="none").communicate()
        assert out, error
        return json.loads(out.splitlines()[-1]), time.perf_counter() - begun

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
        while child.poll() is None and time.perf_counter() < limit:
            time.sleep(0.002)
        while inside and child.poll() is None and not any(self.folder.glob(f"{PART}*")):
            time.sleep(0.0001)
        if inside:
            time.sleep(self.rng.uniform(0, 0.002))
        if child.poll() is not None:
            return False
        child.send_signal(signal.SIGKILL)
        child.communicate()
        self.counts["kills"] += 1
        return True

    def round(self, expected, longest):
        """One child, disturbed or not; the folder is emptied where it has ended."""
        disturbance = self.rng.choice(("", "", "", "damage", "full", "clock", "second"))
        kept = len(list(self.folder.glob("[0-9]*"))) if self.folder.exists() else 0
        damaged = self.damage() if disturbance == "damage" and kept > 1 else None
        child = self.start(disturbance)
        if disturbance in ("full", "clock"):
            self.counts[disturbance] += 1
        if disturbance == "second":
            self.second(child)
        if damaged or not self.kill(child, longest):
            self.end(child, expected, damaged)

    def second(self, child):
        """Another child, once the first one has written something."""
        before = self.newest()
        while child.poll() is None and self.newest() == before:
            time.sleep(0.01)
        if child.poll() is None:
            other = self.start()
            _, error = other.communicate()
            if child.poll() is None:  # else the folder was free
                self.counts["seconds"] += 1
                self.counts["refused"] += "another process is running in" in error

    def end(self, child, expected, damaged):
        """Wait for a child, and compare."""
        out, error = child.communicate()
        assert child.returncode == 0, error
        if damaged:
            self.counts["corrupt_loaded"] += f"{damaged}: " not in error
        self.counts["ends"] += 1
        same = json.loads(out.splitlines()[-1])[:3] == expected[:3]
        self.counts["bit_equal"] += same
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
            trial.round(expected, 1.5 * longest)
            rounds += 1
            if rounds % 20 == 0:
                print(trial.counts, flush=True)
    harness.conclude(trial.counts, chosen.json)
    return trial.counts


if __name__ == "__main__":
    main()
