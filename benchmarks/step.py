"""Microseconds and bytes of one step: every algorithm and curvature on the paper's problems, float32.

    python -m benchmarks.step [--short] [--json FILE] [--cases a8a-1,a8a-100] [--without-transcription]

D-m is data set D with m lower problems, 10 tasks a step (one for m = 1) and 32 samples for each. `sparse_rows` holds
the features by their non-zeros, all others hold them as an array; `by_cholesky` solves for h by a factorisation, not
by conjugate gradients. Their limits are those of plain linear_model.

- `times`: how many times faster than the literal NumPy transcription of the paper's box from the tests (Algorithm 1
  for m = 1, Algorithm 2 else), the quickest of three steps on the same draws;
- `limit`: the bytes that a step of this algorithm with this curvature must move, at the speed of copying arrays of
  about that size on this machine (small ones stay in its caches), plus its floating-point operations, at the speed of
  a large matrix product, both measured in the same run; `over` is the time divided by it. `count` below says what
  is counted. Not counted is what is no arithmetic: some 100 to 200 operations of a compiled step at a fraction of a
  microsecond each, and its random numbers. That is most of a step that takes less than 100 µs.

The cases of one problem are timed in turn, several rounds, and the median counts: the machine is shared.
"""

import contextlib
import time

import jax
import jax.numpy as jnp
import numpy as np

import bilevax as bx
from benchmarks import harness
from bilevax import draw, lapack
from bilevax.algorithms.parts import one_linear_model
from bilevax.curvature import dense, linear_model, tracked
from bilevax.curvature.linear import solve_ridge
from bilevax.linear_model import low_rank
from tests.reference import boxes

CASES = ("a1a-1", "a8a-1", "w8a-1", "a1a-200", "a8a-100", "w1a-500")
BATCH, TASKS = 32, 10


def algorithms(num_tasks):
    """Every algorithm and curvature, by name; steps shrink with the share of tasks that a step looks at.

    With one task β = 0.03 is what SVRB's default schedule has after some 1,500 steps; a smaller β makes
    linear_model faster (all rows come up to date every 5/β steps).
    """
    share = min(TASKS, num_tasks) / num_tasks
    mixing = 0.03 if num_tasks == 1 else 0.3 * share
    rates = {"upper_step": 10 * share, "lower_step": 0.3 * share, "mixing": mixing, "batch_size": BATCH}
    start = {"initialization": "cheap", **rates}
    many = {"tasks_per_step": min(TASKS, num_tasks), **start}
    family = (lambda **c: bx.svrb(**start, **c)) if num_tasks == 1 else (lambda **c: bx.rsvrb(**many, **c))
    name = "svrb" if num_tasks == 1 else "rsvrb"
    return {
        f"{name}.linear_model": family(curvature=linear_model),
        f"{name}.tracked": family(curvature=tracked),
        f"{name}.dense": family(curvature=dense),
        "bsvrb_v2": bx.bsvrb_v2(**many),
        "bsvrb_v1": bx.bsvrb_v1(**many),
        **(_single_loop() if num_tasks == 1 else {}),
    }


def _single_loop():
    """SOBA, and SABA with its table of past directions: rows of 2·d + 3·d' numbers, n/b of them."""
    common = {"upper_step": 1.0, "lower_step": 0.1, "batch_size": BATCH, "initialization": "cheap"}
    return {"soba": bx.soba(**common), "saba": bx.saba(**common)}


def count(name, n, p, num_tasks, width):
    """(bytes, operations) that a step cannot do without; n samples, p variables, numbers of `width` bytes.

    Always: the drawn rows of both losses (b·p for each of B tasks); a gradient of each at two points is two products
    with the rows a point, 16·b·p for both losses. Then:
    - linear_model, one task: M read and written, its low-rank change (2·b·p²), one product with it (2·p²).
    - linear_model, many: M of B drawn tasks read and written and of J = B asked ones read, their low-rank changes, one
      factorisation (p³/3) for each asked one; q of J tasks read; A read once for J products (2·n·p·J); x and d read
      and written.
    - dense: V and H of B tasks read and written, of J read (one task: J = 0); 2·n·p for V h (twice for many), 2·b·p²
      at two points for H, p³/3 for a factorisation; x and d read and written.
    - tracked: k (n numbers) of B tasks read and written, of J read; two products with the drawn rows at two points for
      ∇²g·h (8·b·p); x and d read and written.
    - bsvrb_v1: H of B tasks read and written, 2·b·p² at two points, two factorisations each; x and z read and written.
    - bsvrb_v2: ∇²g·h as for tracked; x and z read and written. soba: gradients and ∇²g·h at one point (half of it), x
      read and written. saba: the same, and the drawn row of the table and the mean of it read and written (n numbers).
    """
    B = min(TASKS, num_tasks)
    asked = 0 if num_tasks == 1 else B
    numbers, operations = 2 * B * BATCH * p, 16 * B * BATCH * p
    vectors, low_rank, products = 4 * n, 2 * B * BATCH * p**2, 8 * B * BATCH * p
    if name == "svrb.linear_model":
        numbers += 2 * p**2
        operations += low_rank + 2 * p**2
    elif name == "rsvrb.linear_model":
        numbers += 3 * B * p**2 + asked * n + n * p + vectors
        operations += low_rank + asked * (p**3 / 3 + 2 * n * p)
    elif name.endswith(".dense"):
        numbers += (2 * B + asked) * (n * p + p**2) + vectors
        operations += 2 * low_rank + (1 if asked == 0 else 2 * asked) * (p**3 / 3 + 2 * n * p)
    elif name.endswith(".tracked"):
        numbers += (2 * B + asked) * n + vectors
        operations += products
    elif name == "bsvrb_v1":
        numbers += 2 * B * p**2 + vectors
        operations += 2 * low_rank + 2 * B * p**3 / 3
    elif name in ("soba", "saba"):
        numbers += 2 * n if name == "soba" else 6 * n
        operations = (operations + products) / 2
    else:
        numbers += vectors
        operations += products
    return numbers * width, operations


COPIES = (2**16, 2**20, 2**24, 2**28)  # bytes read and written


def best_of(function, given, repeats):
    """Seconds of one call, the best of five times so many in a compiled loop."""
    many = jax.jit(lambda given: jax.lax.fori_loop(0, repeats, lambda _, a: function(a), given))
    jax.block_until_ready(many(given))
    spent = []
    for _ in range(5):
        begun = time.perf_counter()
        jax.block_until_ready(many(given))
        spent.append(time.perf_counter() - begun)
    return min(spent) / repeats


def machine(side=1500):
    """Seconds per byte of copies of several sizes (read and written), and per operation of a large product."""

    copies = {
        size: best_of(lambda a: a + 1, jnp.zeros(size // 8, jnp.float32), max(3, 2**26 // size)) / size
        for size in COPIES
    }
    return copies, best_of(lambda a: a @ a * 1e-3, jnp.ones((side, side), jnp.float32), 3) / (2 * side**3)


def lowest(moved, operations, speeds):
    """Microseconds that so many bytes and operations take at the speeds of this machine."""
    nearest = min(COPIES, key=lambda size: abs(np.log(size / moved)))
    return (moved * speeds[0][nearest] + operations * speeds[1]) * 1e6


class NumPyModel:
    """The derivatives of a re-weighting problem with logistic loss, by hand, in float64."""

    def __init__(self, problem):
        self.m, self.lam = problem.num_tasks, float(problem.strong_convexity)
        self.C_fx = self.C_fy = self.C_gxy = self.R_y = None
        numpy = lambda data, name: np.asarray(data.arrays[name], float)
        self.A, self.b = numpy(problem.lower_data, "features"), numpy(problem.lower_data, "labels")[:, 0]
        self.T, self.t = numpy(problem.upper_data, "features"), numpy(problem.upper_data, "labels")[:, 0]
        self.sigma = np.asarray(problem.tasks["temperature"], float)

    def slopes(self, i, y, rows, labels):
        """dℓ/d(aᵀy) and d²ℓ/d(aᵀy)²."""
        p = 1 / (1 + np.exp(labels * (rows @ y) / self.sigma[i]))
        return -labels * p / self.sigma[i], p * (1 - p) / self.sigma[i] ** 2

    def fx(self, i, x, y, xi):
        return np.zeros_like(x)

    def fy(self, i, x, y, xi):
        rows = self.T[xi]
        return self.slopes(i, y, rows, self.t[xi])[0] @ rows / len(rows)

    def gy(self, i, x, y, zeta):
        rows, weight = self.A[zeta], 1 / (1 + np.exp(-x[zeta]))
        return (weight * self.slopes(i, y, rows, self.b[zeta])[0]) @ rows / len(rows) + self.lam * y

    def gyy(self, i, x, y, zeta):
        rows, weight = self.A[zeta], 1 / (1 + np.exp(-x[zeta]))
        curved = weight * self.slopes(i, y, rows, self.b[zeta])[1]
        return rows.T @ (curved[:, None] * rows) / len(rows) + self.lam * np.eye(len(y))

    def gxy(self, i, x, y, zeta):
        rows, weight = self.A[zeta], 1 / (1 + np.exp(-x[zeta]))
        V = np.zeros((len(x), len(y)))
        slopes = weight * (1 - weight) * self.slopes(i, y, rows, self.b[zeta])[0]
        np.add.at(V, zeta, slopes[:, None] * rows / len(rows))
        return V


def transcription_microseconds(problem, steps):
    """Microseconds per step of the literal box on the draws of the library; the quickest of a few steps."""
    model, m = NumPyModel(problem), problem.num_tasks
    size = min(TASKS, m)
    rng = np.random.default_rng(0)
    first = [(rng.integers(0, len(model.t), BATCH), rng.integers(0, len(model.b), BATCH)) for _ in range(m)]
    y0 = [np.zeros(problem.dim_y) for _ in range(m)]
    theta = boxes.Theta(model, np.asarray(problem.x0, float), y0, first)
    draws, drawn = [], jax.jit(lambda t: draw.draw_step(problem, draw.Sampling(size, BATCH), jax.random.key(t)))
    for t in range(steps):
        d = jax.tree.map(np.asarray, drawn(t))
        draws.append(boxes.Drawn(d.tasks, d.weights, d.upper, d.lower, d.direction_tasks))
    share = size / m
    rates = [boxes.Rates(10 * share, 0.3 * share, 1.0, *[0.03 if m == 1 else 0.3 * share] * 6)] * steps
    path = (boxes.algorithm_1 if m == 1 else boxes.algorithm_2)(model, theta, draws, rates)
    spent = []
    for _ in range(steps):
        begun = time.perf_counter()
        next(path)
        spent.append((time.perf_counter() - begun) * 1e6)
    return min(spent)


@contextlib.contextmanager
def by_cholesky():
    """Within it, SVRB by rows is compiled with a Cholesky factorisation in place of conjugate gradients."""
    kept = one_linear_model.solve_near
    one_linear_model.solve_near = lambda problem, hessian, v, guess: solve_ridge(problem, hessian, v)
    try:
        yield
    finally:
        one_linear_model.solve_near = kept


def contenders(case, problem, short):
    """Problem and algorithm of every row of the table; in short mode only those of the paper."""
    m = case.split("-")[1]
    chosen = {label: (problem, algorithm) for label, algorithm in algorithms(int(m)).items()}
    if short:
        return {label: given for label, given in chosen.items() if "svrb." in label}
    label, (_, algorithm) = next(iter(chosen.items()))
    chosen[f"{label}.sparse_rows"] = harness.paper_problem(case, rows="sparse"), algorithm
    if m == "1":
        chosen[f"{label}.by_cholesky"] = problem, algorithm
    return chosen


def measure(case, rounds, call_seconds, transcribed, speeds, short):
    """The figures of one problem: rows of the table, and values by name."""
    num_tasks = int(case.split("-")[1])
    problem, timed = harness.paper_problem(case), {}
    for label, given in contenders(case, problem, short).items():
        steps = 20
        if call_seconds:
            pace = harness.Timed(*given, 2).call()  # a first guess, compiled on its own
            steps = int(np.clip(call_seconds * 1e6 / max(pace, 20), 2, 2000))
        with by_cholesky() if label.endswith("by_cholesky") else contextlib.nullcontext():
            timed[label] = harness.Timed(*given, steps)
    times = harness.interleaved(timed, rounds)
    literal = transcription_microseconds(problem, transcribed) if transcribed else float("nan")
    rows, figures = [], {}
    for label, took in times.items():
        kind = label.removesuffix(".sparse_rows").removesuffix(".by_cholesky")
        moved, operations = count(kind, problem.dim_x, problem.dim_y, num_tasks, 4)
        limit = lowest(moved, operations, speeds)
        one = timed[label]
        rows.append((
            f"{case} {label}", f"{took:,.0f}", f"{literal / took:,.0f}", f"{limit:,.1f}", f"{took / limit:,.1f}",
            f"{one.state_bytes / 1e6:,.1f}", f"{one.temporary_bytes / 1e6:,.2f}",
        ))  # fmt: skip
        figures |= {
            f"{case}.{label}.microseconds": took,
            f"{case}.{label}.times_faster_than_numpy": literal / took,
            f"{case}.{label}.over_limit": took / limit,
            f"{case}.{label}.state_megabytes": one.state_bytes / 1e6,
        }
    figures[f"{case}.numpy.microseconds"] = literal
    return rows, figures


def profile(case, speeds):
    """What the parts of an RSVRB step with linear_model take alone, and what they need at the speeds of the machine.

    The product with A, the solves and the low-rank changes are the step's arithmetic; what is left is reading and
    writing of state, random numbers, and the small operations of a compiled step.
    """
    problem, (n, p) = harness.paper_problem(case), harness.SHAPES[case.split("-")[0]][:2]
    A, key = problem.lower_data.arrays["features"], jax.random.key(0)
    q, G = jax.random.normal(key, (TASKS, n)), jax.random.normal(key, (TASKS, p + 1))
    M = jax.vmap(lambda k: jnp.cov(jax.random.normal(k, (p + 1, 4 * p))) + jnp.eye(p + 1))(jax.random.split(key, TASKS))
    rows = jax.random.normal(key, (TASKS, BATCH, p + 1))
    parts = {
        "product_with_A": (
            lambda G: G + 1e-30 * jnp.sum(q.T * (A @ G.T)), G, TASKS * 2 * n * p, 4 * (n * p + TASKS * n),
        ),
        "two_solves_a_task": (
            lambda v: v + 1e-9 * jax.vmap(solve_twice)(M, v), G, TASKS * 2 * p**3 / 3, 4 * TASKS * p**2,
        ),
        "low_rank_changes": (
            lambda M: M + 1e-9 * jax.vmap(low_rank)(rows, rows[:, :, 0]), M, TASKS * 2 * BATCH * p**2, 8 * TASKS * p**2,
        ),
    }  # fmt: skip
    figures, table = {}, []
    for part, (function, given, operations, moved) in parts.items():
        took = best_of(function, given, 10) * 1e6
        limit = lowest(moved, operations, speeds)
        table.append((f"{case} {part}", f"{took:,.0f}", f"{limit:,.0f}"))
        figures[f"{case}.profile.{part}.microseconds"] = took
        figures[f"{case}.profile.{part}.limit"] = limit
    harness.show("parts of an RSVRB step with linear_model, alone", ("part", "µs", "limit"), table)
    return figures


def solve_twice(matrix, v):
    """Two solves with two matrices, as a task of the direction needs them."""
    return lapack.solve_positive(matrix, v) + lapack.solve_positive(2 * matrix, v)


def main(arguments=None):
    """Run the benchmark and return its figures."""
    parser = harness.options(__doc__)
    parser.add_argument("--cases", default=None, help="some of " + ",".join(CASES))
    parser.add_argument("--without-transcription", action="store_true", help="leave the slow NumPy steps out")
    chosen = parser.parse_args(arguments)
    cases = chosen.cases.split(",") if chosen.cases else (("a1a-1", "a1a-20") if chosen.short else CASES)
    rounds, call_seconds, transcribed = (3, None, 1) if chosen.short else (9, 0.15, 3)
    speeds = machine(500 if chosen.short else 1500)
    figures = {f"copy_{size // 1024}kB_gigabytes_per_second": 1e-9 / pace for size, pace in speeds[0].items()}
    figures["product_gigaflops"] = 1e-9 / speeds[1]
    table = []
    for case in cases:
        transcribed = 0 if chosen.without_transcription else transcribed
        rows, more = measure(case, rounds, call_seconds, transcribed, speeds, chosen.short)
        table += rows
        figures |= more
        if not (case.endswith("-1") or chosen.short):
            figures |= profile(case, speeds)
        harness.show(
            f"µs per step, float32, {harness.where_from()}",
            ("problem, algorithm, curvature", "µs", "times", "limit", "over", "state MB", "temporary MB"),
            rows,
        )
    harness.conclude(figures, chosen.json)
    return figures


if __name__ == "__main__":
    main()
