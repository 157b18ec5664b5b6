"""What the benchmarks share: compiled loops of steps, interleaved medians, the paper's problems, tables and JSON."""

import argparse
import gc
import json
import statistics
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from rich.console import Console
from rich.table import Table

from bilevax import datasets
from bilevax.lab.cases import Case, build_problem, choose_points
from bilevax.words import key_of

SHAPES = {"a1a": (1605, 123, 14), "a8a": (22696, 123, 14), "w1a": (2477, 300, 12), "w8a": (49749, 300, 12)}
TEST_ROWS = 1000  # of made-up data


def data_are_here(name):
    """Whether the data set and its test part are on this machine: where BILEVAX_DATA says, or in the cache."""
    return datasets.is_here(name) and datasets.is_here(f"{name}.t")


def load(name):
    """A data set and its test part; made-up rows of that shape where there is no file."""
    if data_are_here(name):
        return datasets.load(name), datasets.load(f"{name}.t")
    (n, p, entries), rng = SHAPES[name], np.random.default_rng(0)
    return tuple(make_up(name, size, p, entries, rng) for size in (n, TEST_ROWS))


def make_up(name, size, p, entries, rng):
    """Rows with so many ones each, and labels that a line can nearly tell apart."""
    columns = np.argsort(rng.random((size, p)), axis=1)[:, :entries]
    ends = np.arange(0, columns.size + 1, entries)
    A = sp.csr_array((np.ones(columns.size), columns.ravel(), ends), (size, p))
    return datasets.Dataset(name, A, np.where(A @ rng.normal(size=p) + rng.normal(size=size) > 0, 1.0, -1.0))


def where_from():
    """A line for titles: real data or made-up rows."""
    return "the paper's data" if data_are_here("a1a") else "made-up rows of the same shape"


def paper_problem(name, rows="dense", draw="independent"):
    """A problem of the paper's experiments by its name, D-m, as the laboratory defines it."""
    case = Case.parse(name)
    train, validation = load(case.data)
    return build_problem(case, train, choose_points(case, validation), rows, draw=draw)


class Timed:
    """One compiled loop of steps that goes on from where it was at every call."""

    def __init__(self, problem, algorithm, steps):
        def loop(problem, state, key):
            def body(k, carry):
                state, finite = carry
                state, info = algorithm.step(problem, state, key_of(key, k))
                return state, finite & info.finite

            return jax.lax.fori_loop(0, steps, body, (state, jnp.asarray(True)))

        self.problem, self.steps, self.calls, self.times = problem, steps, 0, []
        self.state = jax.block_until_ready(jax.jit(algorithm.init)(problem, jax.random.key(0)))
        self.loop = jax.jit(loop, donate_argnums=1).lower(problem, self.state, jax.random.key(0)).compile()
        self.state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(self.state))
        self.temporary_bytes = self.loop.memory_analysis().temp_size_in_bytes

    def call(self):
        """Microseconds for one step, over one call."""
        self.calls += 1
        begun = time.perf_counter()
        state, finite = jax.block_until_ready(self.loop(self.problem, self.state, jax.random.key(self.calls)))
        spent = time.perf_counter() - begun
        assert finite, "the run diverged, its time means nothing"
        self.state = state
        return spent / self.steps * 1e6


def interleaved(timed, rounds):
    """Median microseconds of each, all in turn in every round.

    Every timed call comes after one that is not: what ran before it must not decide what is in the caches.
    """
    for _ in range(rounds):
        for one in timed.values():
            one.call()
            one.times.append(one.call())
    return {name: statistics.median(one.times) for name, one in timed.items()}


def options(doc):
    """The options of every benchmark."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="small sizes, a few steps: to see that it runs")
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    return parser


def judge_halves(doc, halves, measure, tell, given):
    """Measure each table of one half or of all, by `measure(make, seed)`; `tell` shows a half and returns figures.

    What is returned is of the last half.
    """
    parser = options(doc)
    parser.add_argument("--half", choices=[*halves, "all"], default="judge", help="which tables")
    parser.add_argument("--seeds", type=int, default=5, help="draws of each table")
    chosen = parser.parse_args(given)
    warnings.simplefilter("ignore")
    everything, last = {}, {}
    for half in [*halves] if chosen.half == "all" else [chosen.half]:
        names, seeds = (list(halves[half])[:1], 1) if chosen.short else (list(halves[half]), chosen.seeds)
        found = {}
        for name in names:
            found[name] = [measure(halves[half][name], seed) for seed in range(seeds)]
            print(f"{name}: {np.mean([run['seconds'] for run in found[name]]):.2f} s a fit of ours", flush=True)
        print(f"\nThe half {half!r}:")
        last = tell(found)
        everything[half] = {"tables": found, **last}
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(everything, indent=1))
    return last


def show(title, columns, rows):
    """A table on the terminal."""
    table = Table(title=title)
    for k, column in enumerate(columns):
        table.add_column(column, justify="left" if k == 0 else "right")
    for row in rows:
        table.add_row(*map(str, row))
    Console(width=max(130, Console().width)).print(table)


def conclude(figures, path):
    """Print name=value lines, and write them where JSON was asked for."""
    for name, value in figures.items():
        print(f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}")
    if path:
        finite = {k: v if np.isfinite(v) else None for k, v in figures.items()}  # JSON has no infinity
        Path(path).write_text(json.dumps(finite, indent=1))
    gc.collect()
