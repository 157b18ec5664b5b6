"""A run on very many tasks: what it takes beside its steps.

    python -m benchmarks.many [--tasks 1000000,10000000] [--methods block_soba] [--steps 1000] [--short] [--json FILE]

Five variables for each task, four samples each for f and for g, float32. Each run is made twice, and the second is
timed, so that compilation does not count. For each m and method: seconds of the steps with the start, as the run counts
them; seconds of the whole call with no metrics, with one of x alone, and with the metrics of every run. Last lines:
those, and `metrics_share`: what metrics took over what the steps took, in the worst case.
"""

import time

import jax.numpy as jnp
import numpy as np

import bilevax as bx
from benchmarks import harness

WIDTH, ROWS = 5, 4
METRICS = {"none": None, "of x": lambda problem, at: {"norm": jnp.linalg.norm(at.x)}, "default": bx.exact_metrics}


def build(m):
    """m ridge models whose centre is learned."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((m, 2 * ROWS, WIDTH), np.float32)
    b = A @ np.ones(WIDTH, np.float32) + rng.standard_normal((m, 2 * ROWS), np.float32)
    halves = [{"A": A[:, part], "b": b[:, part]} for part in (slice(ROWS), slice(ROWS, None))]
    fit = lambda y, batch: jnp.mean((batch["A"] @ y - batch["b"]) ** 2)
    return bx.Problem(
        upper=lambda x, y, i, batch: fit(y, batch),
        lower=lambda x, y, i, batch: fit(y, batch) + 0.5 * jnp.sum((y - x) ** 2),
        x0=jnp.zeros(WIDTH, jnp.float32), y0=jnp.zeros(WIDTH, jnp.float32), y0_per_task=False, strong_convexity=1.0,
        lower_data=bx.per_task(halves[0]), upper_data=bx.per_task(halves[1]),
    )  # fmt: skip


def seconds_of(problem, algorithm, steps, metrics):
    """Seconds that the second of two runs counts itself, and those of the call."""
    for _ in range(2):
        begun = time.perf_counter()
        result = bx.solve(problem, algorithm, steps=steps, metrics=metrics, progress=False)
        took = time.perf_counter() - begun
    return result.seconds, took


def main(arguments=None):
    """Run the benchmark and return its figures."""
    parser = harness.options(__doc__)
    parser.add_argument("--tasks", default="1000000,10000000")
    parser.add_argument("--methods", default="block_soba")
    parser.add_argument("--steps", type=int, default=1000)
    chosen = parser.parse_args(arguments)
    counts = [30_000] if chosen.short else [int(m) for m in chosen.tasks.split(",")]
    rows, figures, shares = [], {}, []
    for m in counts:
        problem = build(m)
        for name in chosen.methods.split(","):
            algorithm = getattr(bx, name)(initialization="cheap")
            found = {words: seconds_of(problem, algorithm, chosen.steps, of) for words, of in METRICS.items()}
            own, calls = found["none"][0], {words: call for words, (_, call) in found.items()}
            shares += [(call - calls["none"]) / own for words, call in calls.items() if words != "none"]
            rows.append((f"{m:,}", name, f"{own:.3g}", *(f"{call:.3g}" for call in calls.values())))
            figures |= {f"{name}-{m}.steps": own} | {f"{name}-{m}.{words}": call for words, call in calls.items()}
    harness.show("seconds", ("tasks", "method", "steps", *(f"metrics: {words}" for words in METRICS)), rows)
    figures["metrics_share"] = max(shares)
    harness.conclude(figures, chosen.json)
    return figures


if __name__ == "__main__":
    main()
