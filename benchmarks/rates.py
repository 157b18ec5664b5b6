"""Samples to reach ‖∇F‖ ≤ ε on noisy quadratic problems, the exponents of 1/ε and of m, beside the paper's Table 1.

    python -m benchmarks.rates [--short] [--json FILE] [--picture FILE] [--tasks 10,100]

The experiment is `bilevax.lab.rates`, which says how it is done; `bilevax reproduce table1` stores it and
makes a report. This prints its tables with the best settings, and how the cost grows with m.
"""

import time

import numpy as np

from benchmarks import harness
from bilevax.lab.rates import EPSILONS, SEEDS, entrants, exponent, measure

TARGET = 0.34  # the ε for which the cost is compared over m
IN_SHORT = ("svrb", "rsvrb")
SHORT_SHARE = 0.01  # of the samples


def measure_all(num_tasks, short):
    """Every method on the problem with so many tasks: the fewest samples for each ε."""
    found = {}
    for name in entrants(num_tasks):
        if short and name not in IN_SHORT:
            continue
        begun = time.perf_counter()
        found[name] = measure(name, num_tasks, 2, SHORT_SHARE) if short else measure(name, num_tasks, SEEDS)
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
            axis.loglog(1 / np.asarray(EPSILONS), [one.samples for one in best], marker="o", label=name)
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
    many = ["3"] if chosen.short else chosen.tasks.split(",")
    found, figures = {}, {}
    for m in [1, *map(int, many)]:
        found[m] = measure_all(m, chosen.short)
        rows = []
        for name, best in found[m].items():
            counts, theory = [one.samples for one in best], entrants(m)[name].theory
            fitted = exponent(1 / np.asarray(EPSILONS), counts)
            figures[f"m{m}.{name}.exponent"] = fitted
            figures |= {f"m{m}.{name}.samples_to_{e:.3f}": c for e, c in zip(EPSILONS, counts, strict=True)}
            last = [(e, one.setting) for e, one in zip(EPSILONS, best, strict=True) if np.isfinite(one.samples)]
            down, setting = last[-1] if last else (np.inf, {})
            told = " ".join(f"{key}={value}" for key, value in setting.items())
            rows.append((name, str(theory), f"{fitted:.2f}", f"{down:.2f}", *map(shown, counts[::2]), told))
        columns = ("method", "Table 1", "measured", "down to", *(f"ε = {e:.2f}" for e in EPSILONS[::2]), "best there")
        harness.show(f"m = {m}: samples to ‖∇F‖ ≤ ε, exponents of 1/ε", columns, rows)
    nearest = int(np.argmin(np.abs(np.log(np.asarray(EPSILONS) / TARGET))))
    rows = []
    for name in ("svrb / rsvrb", *list(found[1])[1:]):
        counts = [found[m]["svrb" if m == 1 else "rsvrb"] if "svrb" in name else found[m][name] for m in found]
        counts = [best[nearest].samples for best in counts]
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
