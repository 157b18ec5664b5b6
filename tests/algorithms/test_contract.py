"""What every algorithm promises on every problem: one program, the same bits, honest counts, a clean end.

What is compiled for a pair serves all of its tests: rates are arguments. On quadratic problems it is a whole run, in
float64. On all others it is a step, in float32: quicker to compile, and what is not float32 shows.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.logistic import Model
from reference.problems import auc, average_precision, compositional, meta_learning, minmax, reweighting, ridge

import bilevax as bx
from bilevax.algorithms.contract import DESCRIPTIONS
from bilevax.algorithms.parts.neumann import random_length
from bilevax.problems import quadratic

B, N = 3, 12  # samples in a batch, samples of a quadratic problem
THETA, TERMS = 0.4, 15
KEY = jax.random.key(5)
FEW = {"rsvrb", "re_rsvrb", "bsvrb_v1", "bsvrb_v2", "block_soba"}  # a few tasks a step
SERIES = {"neumann_step": THETA, "neumann_terms": TERMS}
OWN = {
    "re_rsvrb": {"first_stage": 400},
    "bsa": SERIES,
    "ttsa": SERIES,
    "stocbio": {"inner_steps": 3, "neumann_shrink": 0.5, **SERIES},
    "sustain": SERIES,
    "mrbo": SERIES,
    "block_soba": {"inner_steps": 2},
}
MIXED = {"svrb", "rsvrb", "re_rsvrb", "bsvrb_v1", "bsvrb_v2", "stable", "ma_soba", "block_soba", "sustain", "mrbo"}
DRAWING = [name for name in DESCRIPTIONS if name != "implicit"]  # it has no steps and no seeds, and tests of its own
CASES = ("quadratic-1", "quadratic-3", "logistic-3", "reweighting-2")
READY = {  # the ready-made problems of their own tests
    "ridge-1": ridge.problem_of,
    "meta-5": meta_learning.linear,
    "compositional-4": compositional.waves,
    "precision-2": lambda: average_precision.problem_of(group=3),
    "minmax-3": lambda: minmax.problem_in(None),
    "auc-3": auc.problem_of,
}


def pairs_of(cases):
    """All algorithms with all cases that they can take."""
    return [(name, case) for name in DRAWING for case in cases if name != "svrb" or "-1" in case]


def in_rotation(pairs):
    """A third of the pairs, for time: every algorithm with some problems, every problem with a third of them."""
    names, cases = list(DRAWING), list(READY)
    return [(name, case) for name, case in pairs if (names.index(name) + cases.index(case)) % 3 == 0 or name == "svrb"]


PAIRS, READY_PAIRS = pairs_of(CASES), in_rotation(pairs_of(READY))


@functools.cache
def truth_of(m):
    """A quadratic problem with little noise, and its closed form."""
    return quadratic(num_tasks=m, noise=0.05, num_samples=N)


@functools.cache
def solution_of(m):
    """x* of that problem, and y* there."""
    truth = truth_of(m)
    return truth.solution, truth.lower_solution(truth.solution)


@functools.cache
def problem_for(case):
    """One of the problems of this file, or a ready-made one."""
    if case in READY:
        return READY[case]()
    kind, m = case.split("-")
    made = {
        "quadratic": lambda m: truth_of(m).problem,
        "logistic": lambda m: Model(m).problem(),
        "reweighting": reweighting.problem_of,
    }
    return made[kind](int(m))


def tasks_per_step(name, problem):
    """How many tasks a step of an algorithm looks at."""
    return min(2, problem.num_tasks) if name in FEW else problem.num_tasks


def make(name, problem, upper_step=0.05, lower_step=0.1, mixing=0.1):
    """The algorithm, with rates that are harmless on all problems here."""
    settings = {"upper_step": upper_step, "lower_step": lower_step, "batch_size": B, "initialization": "cheap"}
    mixed = {"mixing": mixing} if name in MIXED else {}
    several = {"tasks_per_step": tasks_per_step(name, problem)} if name in FEW else {}
    return getattr(bx, name)(**settings, **mixed, **several, **OWN.get(name, {}))


def init(name, problem, key, *rates):
    """The first state."""
    return make(name, problem, *rates).init(problem, key)


def step(name, problem, state, key, *rates):
    """One step."""
    return make(name, problem, *rates).step(problem, state, key)


def variables(name, problem, state, *rates):
    """What has been reached."""
    return make(name, problem, *rates).variables(problem, state)


class Reached(NamedTuple):
    """The first and the last state of a run, x and y there, what the steps took, and those that were finite."""

    first: Any
    state: Any
    variables: bx.Variables
    cost: bx.Cost
    finite: Any


def run(name, problem, key, steps, *rates):
    """A run of some steps, as one program."""
    first = init(name, problem, key, *rates)

    def body(t, carry):
        state, cost, finite = carry
        state, info = step(name, problem, state, jax.random.fold_in(key, t), *rates)
        return state, jax.tree.map(lambda a, b: a + b, cost, info.cost), finite + info.finite.astype(jnp.int32)

    zero = bx.Cost(*[jnp.asarray(0.0)] * 3)
    state, cost, finite = jax.lax.fori_loop(1, steps + 1, body, (first, zero, jnp.int32(0)))
    return Reached(first, state, variables(name, problem, state, *rates), cost, finite)


class Whole:
    """All runs of a pair by one compiled program."""

    def __init__(self, name, problem):
        self.problem, self.compiled = problem, jax.jit(functools.partial(run, name))

    def __call__(self, key=KEY, steps=10, upper_step=0.05, lower_step=0.1, mixing=0.1):
        rates = (jnp.asarray(rate) for rate in (upper_step, lower_step, mixing))
        return self.compiled(self.problem, key, jnp.int32(steps), *rates)


class Stepwise:
    """All runs of a pair by one compiled step, in float32; a run ends with the first step that is not finite."""

    def __init__(self, name, problem):
        self.problem = in_float32(problem)
        self.init, self.compiled, self.variables = (
            jax.jit(functools.partial(part, name)) for part in (init, step, variables)
        )

    def __call__(self, key=KEY, steps=10, upper_step=0.05, lower_step=0.1, mixing=0.1):
        rates = [jnp.asarray(rate) for rate in (upper_step, lower_step, mixing)]
        first = state = self.init(self.problem, key, *rates)
        cost, count = np.zeros(3), 0
        for t in range(1, steps + 1):
            state, info = self.compiled(self.problem, state, jax.random.fold_in(key, t), *rates)
            cost, count = cost + np.asarray(info.cost), count + int(info.finite)
            if not info.finite:
                break
        return Reached(first, state, self.variables(self.problem, state, *rates), bx.Cost(*cost), count)


def in_float32(problem):
    """The problem with all of its floats in float32."""
    cast = lambda leaf: leaf.astype(np.float32) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
    return jax.tree.map(cast, problem)


@functools.cache
def program(name, case):
    """The compiled runs of a pair, as a function of key, steps and rates."""
    return (Whole if "quadratic" in case else Stepwise)(name, problem_for(case))


def equal(one, other):
    """Whether two pytrees of numbers have the same bits."""
    return jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(np.asarray(a), np.asarray(b)), one, other))


@pytest.mark.parametrize(("name", "case"), PAIRS + READY_PAIRS)
def test_the_state_keeps_its_structure_shapes_and_types(name, case):
    """In float32; in float64 the loop of `run` would not compile with a state that changes."""
    if "quadratic" in case:
        problem = in_float32(problem_for(case))
        state = jax.eval_shape(functools.partial(init, name), problem, KEY)
        after, info = jax.eval_shape(functools.partial(step, name), problem, state, KEY)
        reached = jax.eval_shape(functools.partial(variables, name), problem, after)
    else:
        pair = program(name, case)
        problem = pair.problem
        state, after, reached, _, _ = pair(steps=1)
        _, info = pair.compiled.eval_shape(problem, state, KEY, *[jnp.asarray(0.1)] * 3)
    described = lambda tree: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), tree)
    assert described(state) == described(after)
    assert after.x.dtype == np.float32
    assert (info.finite.shape, info.finite.dtype) == ((), bool)
    assert reached.y.shape == (problem.num_tasks, problem.dim_y)


@pytest.mark.parametrize(("name", "case"), PAIRS + READY_PAIRS)
def test_one_compilation_the_same_bits_for_the_same_seed_and_others_for_another(name, case):
    call = program(name, case)
    one, same, other = call(), call(), call(jax.random.key(6))
    assert call.compiled._cache_size() == 1
    assert equal(one, same)
    if (name, case) == ("srba", "minmax-3"):  # noise that is added to y alone cancels in its differences
        np.testing.assert_allclose(one.variables.x, other.variables.x, rtol=1e-5)
    else:
        assert not np.array_equal(one.variables.x, other.variables.x)
    assert not np.array_equal(one.variables.x, one.first.x)
    assert int(one.finite) == 10


@pytest.mark.parametrize(("name", "case"), PAIRS + READY_PAIRS)
@pytest.mark.parametrize("absurd", ["upper_step", "lower_step"], ids=["upper", "lower"])
def test_an_absurd_step_ends_the_run_and_leaves_the_last_finite_state(name, case, absurd):
    exponent = 200 if "quadratic" in case else 30
    if name in FEW | {"svrb"} and absurd == "lower_step":
        exponent /= 2  # delayed steps are of this size times their number
    call = functools.partial(program(name, case), **{absurd: 10.0**exponent})
    ended = call(steps=400)
    steps = int(ended.finite)
    assert steps < 400
    again = call(steps=steps)
    assert int(again.finite) == steps
    assert equal(again.state, ended.state)
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(ended.variables))


ACCURACY = {"saba": 1e-6, "srba": 1e-6} | dict.fromkeys(
    ["bsa", "ttsa", "stocbio", "sustain", "mrbo", "block_soba"], 0.1
)


@pytest.mark.parametrize(("name", "case"), [pair for pair in PAIRS if "quadratic" in pair[1]])
def test_the_closed_form_solution_is_reached(name, case):
    """‖x − x*‖ and ‖y − y*‖ fall to 5 % of the start; to 10 % with a Neumann series of 15 terms, which is biased by
    (1 − ϑλ)^15 = 3.5 %, or where two inner steps follow one batch; to 1e-6 where the noise vanishes with the distance
    (a finite sum). Constant steps."""
    call = program(name, case)
    truth = truth_of(int(case[-1]))
    steps = 6000
    mixing = 0.5 if name in ("ma_soba", "block_soba") else 0.05  # a moving average lags behind
    upper_step, lower_step = (0.01, 0.05) if name == "block_soba" else (0.03, 0.2)
    reached = call(steps=steps, upper_step=upper_step, lower_step=lower_step, mixing=mixing)
    assert int(reached.finite) == steps
    allowed = ACCURACY.get(name, 0.05)
    (x, y), (solution, best) = jax.tree.map(np.asarray, (tuple(reached.variables), solution_of(int(case[-1]))))
    distance = lambda x: np.linalg.norm(x - solution)
    assert distance(x) < allowed * distance(np.asarray(truth.problem.x0))
    assert np.linalg.norm(y - best) < 2 * allowed * np.linalg.norm(best)


def random_lengths(name, problem, steps):
    """The lengths of the Neumann series in all steps, in the mean over the tasks."""
    place, parts = (0, 2) if name == "sustain" else (1, 3)
    series = random_length(name, THETA, TERMS, B)
    drawn = jax.jit(
        jax.vmap(lambda t: series.draw(problem, jax.random.split(jax.random.fold_in(KEY, t), parts)[place])[0])
    )
    return sum(np.asarray(drawn(jnp.arange(1, steps + 1))).mean(axis=1))  # JAX would round it to float32


def counted_by_hand(name, problem, T):
    """(samples, gradients, products) of T steps, for one task that is looked at in each of them."""
    matrix = 2 if isinstance(problem.lower, bx.curvature.LinearModel) else 2 * problem.dim_y
    n_f, n_g = problem.upper_data.max_length, problem.lower_data.max_length
    full = len(range(0, T, -(-max(n_f, n_g) // B)))  # steps of SRBA that look at all samples
    part = B * (T - full)
    roots = sum(int(np.ceil(np.sqrt(t))) for t in range(1, T + 1))
    p = random_lengths(name, problem, T) if name in ("bsa", "ttsa", "sustain") else 0
    shrunk = sum(max(1, round(B * TERMS * 0.5**k / (2 - 0.5 ** (TERMS - 1)))) for k in range(TERMS))
    Q = TERMS
    return {
        "bsvrb_v1": (2 * B * T, 4 * B * T, 2 * (problem.dim_y + 1) * B * T),
        "bsvrb_v2": (2 * B * T, 4 * B * T, 4 * B * T),
        "block_soba": (2 * B * T, 5 * B * T, 3 * B * T),
        "soba": (2 * B * T, 2 * B * T, 2 * B * T),
        "ma_soba": (2 * B * T, 2 * B * T, 2 * B * T),
        "saba": (2 * B * T, 2 * B * T, 2 * B * T),
        "srba": ((n_f + n_g) * full + 2 * part, (n_f + n_g) * full + 4 * part, 2 * n_g * full + 4 * part),
        "ttsa": ((3 * T + p) * B, 2 * B * T, (T + p) * B),
        "bsa": ((roots + 2 * T + p) * B, (roots + T) * B, (T + p) * B),
        "stocbio": ((5 * B + shrunk) * T, 4 * B * T, (B + shrunk) * T),
        "sustain": ((3 * T + p) * B, 4 * B * T, 2 * (T + p) * B),
        "mrbo": ((3 + Q) * B * T, 4 * B * T, 2 * (1 + Q) * B * T),
        "stable": (2 * B * T, 2 * B * T, 2 * matrix * B * T),
    }.get(name, (2 * B * T, 4 * B * T, 2 * matrix * B * T))  # svrb, rsvrb, re_rsvrb


@pytest.mark.parametrize(("name", "case"), PAIRS)
def test_the_work_of_a_run_is_counted_by_hand(name, case):
    problem, steps = problem_for(case), 9
    ended = program(name, case)(steps=steps)
    tasks = tasks_per_step(name, problem)
    by_hand = [tasks * c for c in counted_by_hand(name, problem, steps)]
    np.testing.assert_allclose(tuple(map(float, ended.cost)), by_hand, rtol=1e-12)


@pytest.mark.parametrize("name", [name for name, case in PAIRS if case == "quadratic-1"])
def test_a_grid_of_step_sizes_and_seeds_is_one_program(name):
    call = program(name, "quadratic-1" if name == "svrb" else "quadratic-3")

    def final(upper_step, seed):
        return call(jax.random.key(seed), upper_step=upper_step).variables.x

    steps, seeds = np.meshgrid(np.array([0.01, 0.05]), np.arange(3), indexing="ij")
    grid = jax.jit(jax.vmap(final))(steps.ravel(), seeds.ravel()).reshape(2, 3, -1)
    alone = call(jax.random.key(2), upper_step=0.05).variables.x
    np.testing.assert_allclose(grid[1, 2], alone, rtol=1e-9)
    assert not np.array_equal(grid[0, 2], grid[1, 2])


def test_the_table_of_algorithms_tells_of_every_one_and_each_makes_its_name():
    listed = bx.list_algorithms()
    assert {facts.name for facts in listed} <= set(bx.__all__)
    assert all(all(facts) for facts in listed)
    for facts in listed:
        assert getattr(bx, facts.name)().name == facts.name
        assert facts.name in repr(listed)
