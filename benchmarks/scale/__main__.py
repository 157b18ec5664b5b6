"""What do several processes cost, and what do they bring? Steps and samples a second against processes, m, d and k.

    python -m benchmarks.scale [--processes 1,2,4] [--tasks 1000,100000] [--sizes 8,256] [--sync 1,10,100]
                               [--steps 300] [--short] [--json FILE]

Processes of this machine, one device each, that share one run of block SOBA on m lower problems with x and y of d
numbers (`bilevax launch`, gloo). *Strong*: ten tasks a step for all together, or the next number that all can share.
*Weak*: ten for each process, and m tasks for each. k is `sync_every`. Each row: microseconds a step, samples a second
of all processes, and "words": what a step costs beyond that of one process. On a machine with fewer cores than
processes the steps themselves wait for one another.

The last lines fit what one agreement costs, a + b·P + c·P·d microseconds for P processes, by least squares over the
rows with k = 1, and extrapolate weak scaling to 1,000 hosts with a core each: a model, not a measurement. It knows
nothing of anybody's network; between processes of one machine there is none.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import harness

TASKS_A_STEP = 10
HOSTS = 1000
SCRIPT = Path(__file__).with_name("process.py")


def measure(processes, *arguments):
    """Seconds and samples of a step, in so many processes."""
    with tempfile.TemporaryDirectory() as home:
        out = Path(home) / "pace.json"
        command = [sys.executable, "-m", "bilevax.cli", "launch", "-n", processes, SCRIPT, out, *arguments]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=1200)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        return json.loads(out.read_text())


def cases(chosen):
    """Each case: scaling, processes, tasks, size, tasks in a step, k."""
    for m, d in ((m, d) for m in chosen.tasks for d in chosen.sizes):
        for processes in chosen.processes:
            share = -(-TASKS_A_STEP // processes) * processes
            for k in chosen.sync if processes > 1 else chosen.sync[:1]:
                yield "strong", processes, m // processes * processes, d, share, k
                if processes > 1:
                    yield "weak", processes, m * processes, d, TASKS_A_STEP * processes, k


def fit(rows):
    """a, b and c of the cost of an agreement, by least squares; none without two numbers of processes and two sizes."""
    told = [(P, d, words) for _, P, _, d, k, _, _, words in rows if P > 1 and k == 1]
    if len({P for P, _, _ in told}) < 2 or len({d for _, d, _ in told}) < 2:
        return None
    P, d, words = (np.array(column, float) for column in zip(*told, strict=True))
    return np.linalg.lstsq(np.stack([np.ones_like(P), P, P * d], 1), words, rcond=None)[0]


def main(arguments=None):
    """Run the benchmark and return its figures."""
    numbers = lambda text: [int(word) for word in text.split(",")]
    parser = harness.options(__doc__)
    parser.add_argument("--processes", type=numbers, default=[1, 2, 4])
    parser.add_argument("--tasks", type=numbers, default=[1000, 100_000])
    parser.add_argument("--sizes", type=numbers, default=[8, 256])
    parser.add_argument("--sync", type=numbers, default=[1, 10, 100])
    parser.add_argument("--steps", type=int, default=300)
    chosen = parser.parse_args(arguments)
    if chosen.short:
        chosen.processes, chosen.tasks, chosen.sizes, chosen.sync, chosen.steps = [1, 2], [40], [4], [1], 20
    rows, figures, alone = [], {}, {}
    for kind, processes, m, d, per_step, k in cases(chosen):
        seconds, samples = measure(processes, m, d, per_step, k, chosen.steps)
        if processes == 1:
            alone[m, d] = seconds
        first = alone.get((m if kind == "strong" else m // processes, d), np.nan)
        words = 1e6 * (seconds - first)
        rows.append((kind, processes, m, d, k, 1e6 * seconds, samples / seconds, words))
        figures[f"{kind}.P{processes}.m{m}.d{d}.k{k}.us"] = 1e6 * seconds
        print(f"{kind}, {processes} processes, m = {m}, d = {d}, k = {k}: {1e6 * seconds:.0f} µs a step", flush=True)
    shown = [(*row[:5], f"{row[5]:.0f}", f"{row[6]:,.0f}", f"{row[7]:.0f}") for row in rows]
    harness.show("", ("", "processes", "m", "d", "k", "µs a step", "samples a second", "words, µs"), shown)
    found = fit(rows)
    if found is not None:
        figures |= dict(
            zip(("agreement_us", "agreement_us_per_process", "agreement_us_per_number"), found, strict=True)
        )
        for d in chosen.sizes:
            step = np.mean([1e6 * seconds for (_, size), seconds in alone.items() if size == d])
            cost = found @ [1, HOSTS, HOSTS * d]
            for k in chosen.sync:
                figures[f"model.hosts{HOSTS}.d{d}.k{k}.gain"] = HOSTS * step / (step + cost / k)
    harness.conclude(figures, chosen.json)
    return figures


if __name__ == "__main__":
    main()
