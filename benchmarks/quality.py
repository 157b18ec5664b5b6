"""Exact F against seconds and samples, and what it takes to come within fixed gaps of the best F known.

    python -m benchmarks.quality [--short] [--json FILE] [--cases a1a-1,a1a-50] [--seconds S] [--picture FILE]

Every algorithm and curvature runs for the same number of seconds of steps (neither compilation nor evaluation counts)
from the same start, once for each step of x in a small grid, and the best of these counts: the one with the smallest F
at the end. F* is the smallest F that any of them, or L-BFGS on the exact F and ∇F, has reached. A gap of 10 % is
reached when F − F* ≤ 0.1·(F(x_0) − F*). Times are those of this machine, shared with others.
"""

import jax.numpy as jnp
import numpy as np

import bilevax as bx
from benchmarks import harness
from bilevax.curvature import dense, linear_model, tracked
from bilevax.exact import evaluation
from bilevax.lab.reference import run_lbfgs
from bilevax.lab.runs import interval, solve_for

CASES = ("a1a-1", "a8a-1", "w1a-1", "a1a-50")  # D-m: data set D with m lower problems
GAPS = (0.5, 0.2, 0.1, 0.05, 0.02)
BATCH, TASKS = 32, 10
IN_SHORT = ("svrb.linear_model", "bsvrb_v2", "soba")
LARGEST_DENSE = 2e8  # numbers in all V together


def contenders(num_tasks):
    """A function of the step of x for each algorithm and curvature."""
    share = min(TASKS, num_tasks) / num_tasks
    start = {"batch_size": BATCH, "lower_step": 0.5 * share, "mixing": 0.1 * share, "initialization": "cheap"}
    many = {**start, "tasks_per_step": min(TASKS, num_tasks)}
    if num_tasks == 1:
        own = {
            f"svrb.{c.name}": (lambda step, c=c: bx.svrb(upper_step=step, relaxation=1.0, curvature=c, **start))
            for c in (linear_model, tracked, dense)
        }
    else:
        own = {
            f"{factory.__name__}.{c.name}": (
                lambda step, c=c, factory=factory, more=more: factory(upper_step=step, curvature=c, **many, **more)
            )
            for factory, more in ((bx.rsvrb, {}), (bx.re_rsvrb, {"first_stage": 2000}))
            for c in (linear_model, tracked, dense)
        }
    blocks = {**many, "mixing": 0.1}
    return {
        **own,
        "bsvrb_v1": lambda step: bx.bsvrb_v1(upper_step=step, **blocks),
        "bsvrb_v2": lambda step: bx.bsvrb_v2(upper_step=step, **blocks),
        **all_tasks(),
    }


def all_tasks():
    """The methods that look at every task in every step; their steps of x do not shrink with the share of tasks."""
    start = {"batch_size": BATCH, "lower_step": 0.2, "initialization": "cheap"}
    series = {"neumann_step": 0.2, "neumann_terms": 20}
    own = {
        "soba": {}, "ma_soba": {"mixing": 0.1}, "saba": {}, "srba": {}, "stable": {"mixing": 0.1}, "ttsa": series,
        "stocbio": {"inner_steps": 5, **series}, "bsa": {"inner_steps": 5, **series},
        "sustain": {"mixing": 0.1, **series}, "mrbo": {"mixing": 0.1, **series},
    }  # fmt: skip
    make = lambda name: lambda step: getattr(bx, name)(upper_step=step, **start, **own[name])
    return {name: make(name) for name in own}


def run(problem, make, grid, seconds, records):
    """The run of the best step of x in the grid, with F recorded so many times; and that step."""

    algorithms = {step: make(step) for step in grid}

    def last_objective(step):
        result = bx.solve(problem, algorithms[step], seconds=seconds / 3, metrics=None, progress=False, seed=1)
        value = float(evaluation.objective(problem, jnp.asarray(result.x)))
        return value if np.isfinite(value) else np.inf

    step = min(grid, key=last_objective) if len(grid) > 1 else grid[0]
    every = interval(problem, algorithms[step], {"seconds": seconds}, records)
    return solve_for(problem, algorithms[step], {"seconds": seconds}, every, seed=0), step


def first_within(trace, gap, best, column):
    """The seconds or samples at which F − F* first was within a share of F(x_0) − F*."""
    F = np.asarray(trace["objective"])
    inside = np.flatnonzero(best + gap * (F[0] - best) >= F)
    return float(trace[column][inside[0]]) if len(inside) else float("inf")


def measure(case, seconds, records, grid, only):
    """All contenders on one problem, or only some: results by name, steps of x, F*."""
    problem, m = harness.paper_problem(case), case.split("-")[1]
    scale = problem.dim_x * min(TASKS, int(m)) / int(m)  # ∇F has entries of order 1/n
    runs, together = {}, all_tasks()
    for label, make in contenders(int(m)).items():
        if only and label not in only:
            continue
        if label.endswith(".dense") and problem.dim_x * problem.dim_y * int(m) > LARGEST_DENSE:
            print(
                f"{case} {label}: left out, its state would have {4e-9 * problem.dim_x * problem.dim_y * int(m):.1f} GB"
            )
            continue
        own_scale = problem.dim_x if label in together else scale
        runs[label] = run(problem, make, [own_scale * g for g in grid], seconds, records)
        print(f"{case} {label}: {runs[label][0]}", flush=True)
    traces = [run_lbfgs(problem, 4 * seconds), *(result.trace for result, _ in runs.values())]
    return runs, min(min(trace["objective"]) for trace in traces)


def draw_picture(outcomes, path):
    """F − F* against seconds and against samples, one column for each problem."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, len(outcomes), figsize=(4.2 * len(outcomes), 7), layout="constrained", squeeze=False)
    shades, colors = plt.get_cmap("tab20").colors, {}
    for place, (case, (runs, best)) in enumerate(outcomes.items()):
        for row, column in enumerate(("seconds", "samples")):
            axis = axes[row, place]
            for label, (result, _) in runs.items():
                color = colors.setdefault(label, shades[len(colors) % len(shades)])
                gap = np.asarray(result.trace["objective"]) - best
                since = np.asarray(result.trace[column]) - result.trace[column][0]
                axis.semilogy(since, np.maximum(gap, 1e-9), label=label, color=color)
            start = max(result.trace["objective"][0] for result, _ in runs.values()) - best
            axis.set(title=case, xlabel=column, ylabel="F − F*", ylim=(start / 300, 1.5 * start))
    handles = [plt.Line2D([], [], color=color, label=label) for label, color in colors.items()]
    figure.legend(handles=handles, loc="outside right center", fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(arguments=None):
    """Run the benchmark and return its figures."""
    parser = harness.options(__doc__)
    parser.add_argument("--cases", help="some of " + ",".join(CASES))
    parser.add_argument("--seconds", type=float, help="seconds of steps for each run")
    parser.add_argument("--picture", metavar="FILE", help="draw the curves there")
    chosen = parser.parse_args(arguments)
    cases, seconds, records, grid = (("a1a-1",), 0.2, 4, (1,)) if chosen.short else (CASES, 5.0, 15, (0.1, 1, 10))
    cases, seconds = chosen.cases.split(",") if chosen.cases else cases, chosen.seconds or seconds
    outcomes, figures = {}, {}
    for case in cases:
        runs, best = outcomes[case] = measure(case, seconds, records, grid, IN_SHORT if chosen.short else ())
        first = next(iter(runs.values()))[0].trace["objective"][0]
        title = f"{case}, {harness.where_from()}: F(x_0) = {first:.5f}, F* = {best:.5f}"
        figures |= {f"{case}.best_objective": best, f"{case}.first_objective": float(first)}
        for column in ("seconds", "samples"):
            rows = []
            for label, (result, step) in runs.items():
                reached = [first_within(result.trace, gap, best, column) for gap in GAPS]
                last = float(result.trace["objective"][-1])
                shown = (f"{value:.3g}" if np.isfinite(value) else "-" for value in reached)
                rows.append((label, f"{step:.3g}", f"{result.steps:,}", f"{last:.5f}", *shown))
                figures[f"{case}.{label}.objective"] = last
                figures |= {f"{case}.{label}.{column}_to_{g}": value for g, value in zip(GAPS, reached, strict=True)}
            columns = ("algorithm, curvature", "step of x", "steps", "last F", *(f"{gap:.0%}" for gap in GAPS))
            harness.show(f"{title}; {column} to a gap", columns, rows)
        if chosen.picture:
            draw_picture(outcomes, chosen.picture)
    harness.conclude(figures, chosen.json)
    return figures


if __name__ == "__main__":
    main()
