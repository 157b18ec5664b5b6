"""Samples to reach ‖∇F‖ ≤ ε on noisy quadratic problems, the exponents of 1/ε and of m, beside the paper's Table 1.

    python -m benchmarks.rates [--short] [--json FILE] [--picture FILE] [--tasks 10,100]

F and ∇F are known in closed form; f, g and their derivatives are sampled with noise of variance 1. Each method runs
with all settings of a grid and several seeds as one compiled program (`GRIDS` has the grids; steps follow the schedule
of the method's paper, the grid scales them). For each ε the best setting counts: the fewest samples after which
‖∇F(x_t)‖, averaged over seeds and over the steps since t/2, is at most ε. The exponent is fitted over all ε that the
method reaches within its budget (`BUDGETS`): a factor of 10 for one lower problem, less for many (see `down to`).

Table 1 bounds the worst case of non-convex F. This F is strongly convex, so that ∇F is known in closed form, and a
method can do better than its bound: in the long run the noise asks for ε⁻² of each, and at large ε, where the noise
does not matter yet, the fit is flatter still.
"""

import itertools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import bilevax as bx
from benchmarks import harness
from bilevax.problems import quadratic

EPSILONS = tuple(np.geomspace(0.8, 0.08, 9))
SEEDS = 4
BATCH = 4
SERIES = {"neumann_step": 0.3, "neumann_terms": 24}  # a bias of (1 − ϑλ)^Q = 0.02
BUDGETS = {"svrb": 3e5, "stable": 4e5, "ttsa": 1.5e6, "stocbio": 1.5e6, "bsa": 1.5e6}  # samples, for one lower problem
BUDGETS_PER_TASK = {"rsvrb": 8e3, "stable": 1e4, "ttsa": 1.5e5, "stocbio": 1.5e5, "bsa": 1.5e5}  # for many
TARGET = 0.34  # the ε for which the cost is compared over m


class Contest(NamedTuple):
    """A method: how it is made from a point of its grid, the grid, its exponent in Table 1."""

    make: Callable[..., bx.Algorithm]
    grid: dict[str, tuple]
    theory: int
    batches: tuple[int, ...] = (BATCH,)


def svrb(upper, lower, mixing, batch):
    """SVRB with Theorem 1's schedules."""
    return bx.svrb(
        upper_step=bx.power(upper, 8, 1 / 3), lower_step=lower, relaxation=bx.power(2, 8, 1 / 3),
        mixing=bx.power(mixing, 8, 2 / 3), batch_size=batch, initialization="cheap",
    )  # fmt: skip


def rsvrb(upper, lower, mixing, batch, share):
    """RSVRB with the same schedules, scaled with the share of tasks that a step looks at."""
    return bx.rsvrb(
        upper_step=bx.power(upper * share, 8, 1 / 3), lower_step=lower * share, relaxation=bx.power(2, 8, 1 / 3),
        mixing=bx.power(mixing * share, 8, 2 / 3), batch_size=batch, initialization="cheap",
    )  # fmt: skip


def stable(upper, lower, mixing, batch):
    """STABLE: all steps ∝ t^(−1/2)."""
    return bx.stable(
        upper_step=bx.power(upper, 8, 1 / 2), lower_step=bx.power(lower, 8, 1 / 2), mixing=bx.power(mixing, 8, 1 / 2),
        batch_size=batch, initialization="cheap",
    )  # fmt: skip


def ttsa(upper, lower, batch):
    """TTSA: x on the slower scale t^(−3/5), y on t^(−2/5)."""
    return bx.ttsa(
        upper_step=bx.power(upper, 8, 3 / 5), lower_step=bx.power(lower, 8, 2 / 5), batch_size=batch,
        initialization="cheap", **SERIES,
    )  # fmt: skip


def stocbio(upper, lower, batch):
    """StocBio: constant steps; the batch is what ε asks for, so it is part of the tuning."""
    return bx.stocbio(
        upper_step=upper, lower_step=lower, inner_steps=4, batch_size=batch, initialization="cheap",
        neumann_shrink=0.85, **SERIES,
    )  # fmt: skip


def bsa(upper, lower, batch):
    """BSA: x ∝ t^(−1/2), ⌈√t⌉ steps on y with steps ∝ t^(−1/4), about one over the root of their number."""
    return bx.bsa(
        upper_step=bx.power(upper, 8, 1 / 2), lower_step=bx.power(lower, 8, 1 / 4), batch_size=batch,
        initialization="cheap", **SERIES,
    )  # fmt: skip


STEPS, LOWER, MIXING = (0.1, 0.3, 1.0), (0.1, 0.3), (0.3, 1.0, 3.0)
GRIDS = {
    "svrb": Contest(svrb, {"upper": STEPS, "lower": LOWER, "mixing": MIXING}, 3),
    "stable": Contest(stable, {"upper": (0.3, 1.0, 3.0), "lower": (0.5, 1.5), "mixing": (0.5, 1.0, 2.0)}, 4),
    "ttsa": Contest(ttsa, {"upper": (0.1, 0.3, 1.0, 3.0), "lower": (0.3, 1.0)}, 5),
    "stocbio": Contest(stocbio, {"upper": (0.03, 0.1, 0.3), "lower": (0.03, 0.1, 0.3)}, 4, (4, 16, 64)),
    "bsa": Contest(bsa, {"upper": (0.1, 0.3, 1.0, 3.0), "lower": (0.1, 0.3)}, 6),
}


IN_SHORT = ("svrb", "rsvrb", "stable", "ttsa")


def contests(num_tasks):
    """The methods for so many lower problems: RSVRB takes the place of SVRB beyond one."""
    if num_tasks == 1:
        return GRIDS
    own = GRIDS["svrb"]
    few = Contest(lambda **point: rsvrb(share=1 / num_tasks, **point), own.grid, own.theory)
    return {"rsvrb": few, **{name: contest for name, contest in GRIDS.items() if name != "svrb"}}


class Path(NamedTuple):
    """Windows of steps: the samples used at their ends, and the mean of ‖∇F‖ since half of that (settings, windows)."""

    samples: np.ndarray
    gradients: np.ndarray
    settings: list[dict[str, Any]]


def edges_of(steps):
    """The ends of windows, four in each doubling."""
    return np.unique(np.geomspace(8, steps, 1 + int(4 * np.log2(steps / 8))).astype(int))


def follow(truth, contest, batch, edges, seeds):
    """All settings and seeds of a method as one program."""
    names, points = list(contest.grid), list(itertools.product(*contest.grid.values()))

    def run(values, key):
        algorithm = contest.make(batch=batch, **dict(zip(names, values, strict=True)))
        state = algorithm.init(truth.problem, key)
        samples = jnp.asarray(state.initial_cost.samples, float)

        def step(t, carry):
            state, samples, total = carry
            state, info = algorithm.step(truth.problem, state, jax.random.fold_in(key, t))
            norm = jnp.linalg.norm(truth.gradient(state.x))
            return state, samples + info.cost.samples, total + jnp.where(info.finite, norm, jnp.inf)

        def window(carry, ends):
            state, samples = carry
            zero = jnp.asarray(0, truth.problem.dtype)
            state, samples, total = jax.lax.fori_loop(ends[0] + 1, ends[1] + 1, step, (state, samples, zero))
            return (state, samples), (samples, total)

        ends = jnp.stack([jnp.concatenate([jnp.zeros(1, jnp.int32), edges[:-1]]), edges], axis=1)
        return jax.lax.scan(window, (state, samples), ends)[1]

    edges = jnp.asarray(edges, jnp.int32)
    grid = jax.jit(jax.vmap(jax.vmap(run, (None, 0)), (0, None)))
    samples, totals = jax.tree.map(np.asarray, grid(jnp.asarray(points), jax.random.split(jax.random.key(0), seeds)))
    return samples.mean(axis=1), halves(np.asarray(edges), totals.mean(axis=1)), [
        {**dict(zip(names, point, strict=True)), "batch": batch} for point in points
    ]  # fmt: skip


def halves(edges, totals):
    """The mean over the steps since half of each edge, from the sums over windows; infinite where a run ended."""
    first = np.searchsorted(edges, edges / 2)
    begins = np.concatenate([[0], edges[:-1]])
    with np.errstate(invalid="ignore"):
        sums = np.stack([totals[:, a : k + 1].sum(axis=1) for k, a in enumerate(first)], axis=1)
    return np.where(np.isfinite(sums), sums / (edges - begins[first]), np.inf)


def fewest(paths, epsilons):
    """The fewest samples of any setting for each ε, and that setting; infinite where none gets there."""
    best = []
    for epsilon in epsilons:
        reached = [(np.inf, {})]
        for path in paths:
            for samples, gradients, setting in zip(*path, strict=True):
                inside = np.flatnonzero(gradients <= epsilon)
                if len(inside):
                    reached.append((float(samples[inside[0]]), setting))
        best.append(min(reached, key=lambda pair: pair[0]))
    return best


def exponent(sizes, counts):
    """The slope of log counts over log sizes, where counts are finite; NaN for fewer than three."""
    sizes, counts = np.asarray(sizes, float), np.asarray(counts, float)
    known = np.isfinite(counts)
    return float(np.polyfit(np.log(sizes[known]), np.log(counts[known]), 1)[0]) if known.sum() >= 3 else float("nan")


def steps_for(name, num_tasks, batch, budget):
    """About as many steps as use up a budget of samples."""
    terms, m = SERIES["neumann_terms"], num_tasks
    each = {
        "svrb": 2 * batch, "rsvrb": 2 * batch, "stable": 3 * batch * m, "ttsa": (3 + terms / 2) * batch * m,
        "stocbio": (6 + terms) * batch * m, "bsa": (12 + terms / 2 + 0.02 * np.sqrt(budget)) * batch * m,
    }[name]  # fmt: skip
    return int(max(64, budget / each))


def budget_of(name, num_tasks, short):
    """Samples that a method may use."""
    if short:
        return 2e3 * num_tasks
    return BUDGETS[name] if num_tasks == 1 else BUDGETS_PER_TASK[name] * num_tasks


def measure(num_tasks, seeds, short):
    """Every method on the problem with so many tasks: the fewest samples for each ε."""
    truth = quadratic(num_tasks=num_tasks, noise=1.0)
    found = {}
    for name, contest in contests(num_tasks).items():
        if short and name not in IN_SHORT:
            continue
        begun, budget = time.perf_counter(), budget_of(name, num_tasks, short)
        paths = [
            Path(*follow(truth, contest, batch, edges_of(steps_for(name, num_tasks, batch, budget)), seeds))
            for batch in (contest.batches[:1] if short else contest.batches)
        ]
        found[name] = fewest(paths, EPSILONS)
        print(f"m = {num_tasks}, {name}: {time.perf_counter() - begun:.0f} s", flush=True)
    return found


def shown(value):
    """A count for a table."""
    return f"{value:,.0f}" if np.isfinite(value) else "-"


def draw_picture(found, path):
    """Samples against 1/ε for one lower problem and for many."""
    import matplotlib.ticker

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(found), figsize=(4.5 * len(found), 4), layout="constrained", squeeze=False)
    for axis, (m, methods) in zip(axes[0], found.items(), strict=True):
        for name, best in methods.items():
            axis.loglog(1 / np.asarray(EPSILONS), [count for count, _ in best], marker="o", label=name)
        axis.set(
            title=f"m = {m}", xlabel="1/ε", ylabel="samples to ‖∇F‖ ≤ ε", xticks=[2, 4, 8], xticklabels=["2", "4", "8"]
        )
        axis.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
        axis.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(arguments=None):
    """Run the benchmark and return its figures."""
    parser = harness.options(__doc__)
    parser.add_argument("--tasks", default="10,100", help="numbers of lower problems beside one")
    parser.add_argument("--picture", metavar="FILE", help="draw the curves there")
    chosen = parser.parse_args(arguments)
    seeds, many = (2, ["3"]) if chosen.short else (SEEDS, chosen.tasks.split(","))
    found, figures = {}, {}
    for m in [1, *map(int, many)]:
        found[m] = measure(m, seeds, chosen.short)
        rows = []
        for name, best in found[m].items():
            counts, theory = [count for count, _ in best], contests(m)[name].theory
            fitted = exponent(1 / np.asarray(EPSILONS), counts)
            figures[f"m{m}.{name}.exponent"] = fitted
            figures |= {f"m{m}.{name}.samples_to_{e:.3f}": c for e, c in zip(EPSILONS, counts, strict=True)}
            last = [(e, setting) for e, (count, setting) in zip(EPSILONS, best, strict=True) if np.isfinite(count)]
            down, setting = last[-1] if last else (np.inf, {})
            told = " ".join(f"{key}={value}" for key, value in setting.items())
            rows.append((name, str(theory), f"{fitted:.2f}", f"{down:.2f}", *map(shown, counts[::2]), told))
        columns = ("method", "Table 1", "measured", "down to", *(f"ε = {e:.2f}" for e in EPSILONS[::2]), "best there")
        harness.show(f"m = {m}: samples to ‖∇F‖ ≤ ε, exponents of 1/ε", columns, rows)
    nearest = int(np.argmin(np.abs(np.log(np.asarray(EPSILONS) / TARGET))))
    rows = []
    for name in ("svrb / rsvrb", *list(found[1])[1:]):
        counts = [found[m]["svrb" if m == 1 else "rsvrb"] if "svrb" in name else found[m][name] for m in found]
        counts = [best[nearest][0] for best in counts]
        growth = exponent(list(found), counts)
        rows.append((name, *map(shown, counts), f"{growth:.2f}"))
        figures[f"{name.split()[-1]}.exponent_of_m"] = growth
    columns = ("method", *(f"m = {m}" for m in found), "exponent of m")
    harness.show(f"samples to ‖∇F‖ ≤ {EPSILONS[nearest]:.2f}; Table 1: at most m¹ for all", columns, rows)
    if chosen.picture:
        draw_picture(found, chosen.picture)
    harness.conclude(figures, chosen.json)
    return figures


if __name__ == "__main__":
    main()
