"""Every public function with one valid call, and the rule of each of its arguments."""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

import bilevax as bx
from benchmarks.attack import values
from benchmarks.attack.rules import (
    EITHER,
    RIGHT,
    WRONG,
    Rule,
    array,
    as_number,
    boolean,
    choice,
    count,
    either,
    instance,
    made_for,
    not_negative,
    number,
    open_share,
    optional,
    positive,
    real_array,
    share,
    strictly_positive,
)
from benchmarks.attack.values import plain
from bilevax.algorithms.contract import DESCRIPTIONS
from bilevax.samples import KINDS

TASKS, STEPS = 3, 1000  # the run is long, and ends where it would be compiled
FEATURES = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.5, -1.0]])
LABELS = np.array([1.0, -1.0, 1.0, -1.0])


class Use(NamedTuple):
    """A function, a valid call, the rule of each argument, and what is done with the result.

    `words[name]` are other words by which an error may name the argument. A `costly` call is tried now and then where
    nothing in it is wrong.
    """

    name: str
    function: Callable[..., Any]
    given: Mapping[str, Any]
    rules: Mapping[str, Rule]
    after: Callable[[Any], Any] = lambda result: result
    words: Mapping[str, tuple[str, ...]] = {}
    required: tuple[str, ...] = ()
    costly: bool = False


def upper(x, y, task, batch):
    """A loss of x and y that takes any shapes."""
    return jnp.sum((y - 1) ** 2) + 0.1 * jnp.sum(x**2)


def lower(x, y, task, batch):
    """Strongly convex in y, for x and y of any shapes."""
    return 0.5 * jnp.sum(y**2) - jnp.sum(y) * jnp.sum(x)


@functools.cache
def problem(tasks=TASKS):
    """A tiny problem with samples."""
    return bx.problems.quadratic(num_tasks=tasks, dim_x=2, dim_y=2, num_samples=4).problem


@functools.cache
def still():
    """An algorithm that goes nowhere: a run of it costs next to nothing."""
    cost = lambda: bx.Cost(*(jnp.zeros(()) for _ in bx.Cost._fields))
    start = bx.rsvrb(initialization="cheap")

    class State(NamedTuple):
        x: Any
        initial_cost: Any

    return bx.Algorithm(
        "still",
        lambda problem, key: State(problem.x0, cost()),
        lambda problem, state, key: (state, bx.Info(cost(), jnp.asarray(True))),
        lambda problem, state: bx.Variables(state.x, jnp.zeros((problem.num_tasks, problem.dim_y), problem.dtype)),
        start.settings,
    )


def run(algorithm):
    """What a user does next with an algorithm; it ends where the run would be compiled."""
    return bx.solve(problem(1 if algorithm.name == "svrb" else TASKS), algorithm, steps=STEPS, metrics=None)


# Rules that belong to some functions alone

loss = made_for("loss")
function = made_for("function")
metrics = made_for("metrics", *values.METRICS)
optimizer = optional(made_for("optimizer", *values.OPTIMIZERS))


def schedule(rule, word):
    """A number, or a function of the step that stays in range."""
    return either(rule, made_for(word, *values.SCHEDULES))


def _mixing_of(*parts):
    return bx.Mixing(*(parts * 6)[:6])


MIXINGS = (
    values.Value("Mixing of 0.1", lambda: _mixing_of(0.1), ("mixing",)),
    values.Value("Mixing with a 2", lambda: _mixing_of(0.1, 2)),
    values.Value("Mixing with NaN", lambda: _mixing_of(0.1, float("nan"))),
    values.Value("Mixing with '0.1'", lambda: _mixing_of(0.1, "0.1")),
    values.Value("Mixing with None", lambda: _mixing_of(0.1, None)),
    values.Value("Mixing with a schedule above one", lambda: _mixing_of(0.1, lambda t: jnp.where(t < 3, 0.1, 1.5))),
)


def together(rule):
    """None, or what is right beside another argument alone."""
    given = lambda thing, value: WRONG if rule.judge(thing, value) == WRONG else EITHER
    return Rule(lambda thing, value: RIGHT if thing is None else given(thing, value), rule.own)


def mixing(rule):
    """A number or a schedule in (0, 1], or a Mixing of them."""
    return either(schedule(rule, "share"), made_for("mixing", *MIXINGS))


batch = optional(count(most=10**11))
seed = count(least=0, most=2**64 - 1)
curvature = optional(
    instance(
        bx.curvature.Curvature,
        plain("curvature.dense", bx.curvature.dense),
        plain("curvature.tracked", bx.curvature.tracked),
        plain("curvature.dense's name", "dense"),
    )
)


def _probabilities(thing, value):
    held = real_array(thing)
    right = held is not None and not sp.issparse(held) and held.shape == (TASKS,) and (held > 0).all()
    return (EITHER if right and abs(held.sum() - 1) < 1e-6 else WRONG) if right else WRONG


probabilities = optional(
    Rule(
        _probabilities,
        (
            values.Value("probabilities of one third", lambda: np.full(3, 1 / 3)),
            values.Value("probabilities of sum 2", lambda: np.full(3, 2 / 3)),
            values.Value("probabilities for two tasks", lambda: np.full(2, 0.5)),
            values.Value("probabilities with a zero", lambda: np.array([0.5, 0.5, 0.0])),
            values.Value("complex probabilities", lambda: np.full(3, 1 / 3 + 0j)),
            values.Value("probabilities as text", lambda: np.array(["0.2", "0.3", "0.5"])),
            values.Value("masked probabilities", lambda: np.ma.array([0.2, 0.3, 0.5], mask=[0, 1, 0])),
        ),
    )
)


def _inner_steps(thing, value):
    return RIGHT if "count schedule" in value.right_for else count().judge(thing, value)


inner_steps = Rule(_inner_steps, (plain("two inner steps, as a function", lambda t: 2, "count schedule"),))

CHEAP = {"initialization": "cheap", "batch_size": 2}
RULES = {
    "upper_step": schedule(positive, "positive"),
    "lower_step": schedule(positive, "positive"),
    "inverse_step": optional(schedule(positive, "positive")),
    "relaxation": schedule(share, "share"),
    "mixing": mixing(share),
    "neumann_step": positive,
    "neumann_terms": count(),
    "memory": count(most=1000),
    "descents": count(most=100),
    "neumann_shrink": share,
    "inner_steps": count(),
    "first_stage": count(),
    "restart_from": choice("last", "random"),
    "tasks_per_step": optional(count(most=TASKS)),
    "batch_size": batch,
    "task_probabilities": probabilities,
    "upper_optimizer": optimizer,
    "curvature": curvature,
    "initialization": choice("theorem", "cheap"),
    "initial_batch_size": batch,
    "period": optional(count()),
}
SPECIAL = {
    ("bsa", "inner_steps"): inner_steps,
    ("re_rsvrb", "upper_step"): positive,
    ("re_rsvrb", "lower_step"): positive,
    ("re_rsvrb", "relaxation"): share,
    ("re_rsvrb", "mixing"): either(share, made_for("mixing", *MIXINGS)),
    ("stable", "curvature"): optional(instance(bx.curvature.Curvature, plain("curvature.dense", bx.curvature.dense))),
    ("saba", "batch_size"): optional(count()),  # a block is never larger than the data
    ("bsvrb_v1", "mixing"): mixing(open_share),
    ("bsvrb_v2", "mixing"): mixing(open_share),
}


def algorithms():
    """All factories; the result is run until it would be compiled."""
    for name in DESCRIPTIONS:
        factory = getattr(bx, name)
        parameters = inspect.signature(factory).parameters
        given = {name: value for name, value in CHEAP.items() if name in parameters}
        if "neumann_step" in parameters:
            given["neumann_step"] = 0.1
        rules = {parameter: SPECIAL.get((name, parameter), RULES[parameter]) for parameter in parameters}
        yield Use(name, factory, given, rules, run, {"upper_optimizer": ("optimizer",)})


def _tree(thing, value):
    """Pytrees of arrays: what is right depends on the losses, what is wrong does not."""
    if isinstance(thing, Iterator):  # JAX warns of it, here as in the library
        return WRONG
    leaves = jax.tree.leaves(thing)
    if not leaves or any(real_array(leaf) is None or isinstance(leaf, (bool, int)) for leaf in leaves):
        return WRONG
    whole = any(np.asarray(leaf).dtype.kind != "f" for leaf in leaves if not sp.issparse(leaf))
    return WRONG if whole or any(map(sp.issparse, leaves)) else EITHER


def _tasks(thing, value):
    if thing is None:
        return RIGHT
    if isinstance(thing, (int, np.integer)) and not isinstance(thing, bool):
        return EITHER if thing >= 1 else WRONG
    leaves = jax.tree.leaves(thing)
    if leaves and all(isinstance(leaf, range) for leaf in leaves):
        return EITHER if all(map(len, leaves)) else WRONG  # the numbers of a range are an array of whole numbers
    usual = leaves and all(isinstance(leaf, (np.ndarray, jax.Array)) for leaf in leaves)
    if not usual or any(real_array(leaf) is None or not leaf.ndim or not len(leaf) for leaf in leaves):
        return EITHER if usual and any(leaf.dtype.kind in "cb" for leaf in leaves) else WRONG
    return EITHER


tree, tasks = Rule(_tree), Rule(_tasks)
data = optional(instance(KINDS))
samples = Rule(lambda thing, value: EITHER if thing is None else data.judge(thing, value))  # these losses need a batch
bounds = optional(instance(bx.Bounds))


def _bound(thing, value, tasks=TASKS):
    if thing is None:
        return RIGHT
    held = real_array(thing)
    if as_number(thing) == float("inf"):
        return EITHER  # "not projected"
    if held is None or sp.issparse(held) or held.shape not in [(), (tasks,)] or not (held > 0).all():
        return WRONG
    return EITHER


def _end(thing, value):
    """Of a box: any number, or one for each task; with its other end it may still be no box."""
    held = real_array(thing)
    of_each = held is not None and not sp.issparse(held) and held.shape == (TASKS,)
    return EITHER if of_each or as_number(thing) is not None else WRONG


bound = Rule(_bound)
region = Rule(
    _bound,
    (
        values.Value("a Box whose low is above high", lambda: bx.Box(1.0, 0.0)),
        values.Value("a Box with NaN", lambda: bx.Box(float("nan"), 1.0)),
        values.Value("a Box with text", lambda: bx.Box("0", "1")),
        values.Value("a Box with None", lambda: bx.Box(None, 1.0)),
        values.Value("a Box of complex numbers", lambda: bx.Box(0j, 1 + 0j)),
    ),
)


def problems_of_the_users_own():
    """Problem, its bounds and its data."""
    rules = {
        "upper": loss,
        "lower": loss,
        "x0": tree,
        "y0": tree,
        "y0_per_task": optional(boolean),
        "tasks": tasks,
        "upper_data": data,
        "lower_data": data,
        "strong_convexity": strictly_positive,
        "ridge": boolean,
        "bounds": bounds,
    }
    given = {"upper": upper, "lower": lower, "x0": jnp.ones(2), "y0": jnp.zeros(2), "strong_convexity": 1.0}
    words = {"x0": ("upper", "lower"), "y0": ("upper", "lower"), "tasks": ("upper", "lower", "y0_per_task")}
    yield Use("Problem", bx.Problem, given, rules, words=words)
    bounded = lambda **sets: bx.Problem(**given, tasks=TASKS, bounds=bx.Bounds(**sets))
    yield Use("Bounds", bounded, {}, {"f_x": bound, "f_y": bound, "g_xy": bound, "y": region})
    boxed = lambda low, high: bx.Problem(**given, tasks=TASKS, bounds=bx.Bounds(y=bx.Box(low, high)))
    words = {"low": ("y",), "high": ("y",)}
    yield Use("Box", boxed, {"low": -1.0, "high": 1.0}, {"low": Rule(_end), "high": Rule(_end)}, words=words)


def _samples(axes):
    def judge(thing, value):
        leaves = jax.tree.leaves(thing)
        usual = leaves and all(isinstance(leaf, (np.ndarray, jax.Array)) for leaf in leaves)
        if not usual or any(np.ma.isMaskedArray(leaf) or leaf.dtype.kind not in "iufcb" for leaf in leaves):
            return WRONG
        if any(leaf.ndim < axes or 0 in leaf.shape[:axes] or not np.isfinite(leaf).all() for leaf in leaves):
            return WRONG
        return RIGHT if all(leaf.dtype.kind in "iuf" and (np.abs(leaf) < 1e30).all() for leaf in leaves) else EITHER

    return Rule(judge)


def _offsets(thing, value):
    try:
        held = np.asarray(thing)
    except (ValueError, TypeError):
        return WRONG
    whole = held.dtype.kind in "iu" and held.ndim == 1 and not np.ma.isMaskedArray(thing)
    return EITHER if whole and held.size > 1 and held[0] == 0 and held[-1] == 4 else WRONG


offsets = Rule(
    _offsets,
    (
        values.Value("offsets that go back", lambda: np.array([0, 3, 1, 4])),
        values.Value("offsets of floats", lambda: np.array([0.0, 2.0, 4.0])),
        values.Value("offsets beyond the rows", lambda: np.array([0, 2, 5])),
        values.Value("offsets beyond 2**31", lambda: np.array([0, 2**31 + 64])),
        values.Value("offsets of 64 unsigned bits", lambda: np.array([0, 2**63 + 4], np.uint64)),
        values.Value("negative offsets", lambda: np.array([-1, 4])),
        values.Value("masked offsets", lambda: np.ma.array([0, 2, 4], mask=[0, 1, 0])),
    ),
)


def holders_of_data():
    """shared, per_task and ragged."""
    yield Use("shared", bx.shared, {"arrays": FEATURES}, {"arrays": _samples(1)})
    yield Use("per_task", bx.per_task, {"arrays": FEATURES}, {"arrays": _samples(2)})
    # with other arrays the offsets need not fit any more
    arrays = Rule(lambda thing, value: WRONG if _samples(1).judge(thing, value) == WRONG else EITHER)
    yield Use(
        "ragged",
        bx.ragged,
        {"arrays": FEATURES, "offsets": np.array([0, 1, 4])},
        {"arrays": arrays, "offsets": offsets},
        words={"arrays": ("offsets",)},
    )


def _target(thing, value):
    if not isinstance(thing, Mapping):
        return WRONG if thing is not None else RIGHT
    return EITHER if not thing else WRONG  # the only metrics of the run are its own


target = Rule(
    _target,
    (
        values.Value("a target of text", lambda: {"objective": "0.1"}),
        values.Value("a target of NaN", lambda: {"objective": float("nan")}),
        values.Value("a target of a list", lambda: {"objective": [1.0]}),
        values.Value("a target of 1j", lambda: {"objective": 1j}),
        values.Value("a target that is no metric", lambda: {"objektive": 0.1}),
    ),
)


def runs():
    """solve, check and the exact values."""
    rules = {
        "problem": instance(bx.Problem),
        "algorithm": optional(instance(bx.Algorithm)),
        "steps": optional(count(0)),
        "samples": optional(count(0)),
        "seconds": optional(positive),
        "seed": optional(seed),
        "target": target,
        "record_every": optional(count()),
        "metrics": optional(metrics),
        "iterate": choice("last", "random"),
        "resume": optional(instance(bx.Result)),
        "every": not_negative,
        "progress": optional(boolean),
    }
    given = {"problem": problem(), "algorithm": still(), "steps": STEPS, "metrics": None}
    words = {"steps": ("budget",), "target": ("metrics",)}
    only = Rule(lambda thing, value: EITHER if thing is None else count(0).judge(thing, value))  # a run needs a budget
    yield Use("solve", bx.solve, given, {**rules, "steps": only}, words=words)
    with_default = {**given, "seconds": 1.0}
    yield Use("solve with seconds", bx.solve, with_default, rules, words=words)
    yield Use(
        "check",
        bx.check,
        {"problem": problem(), "points": 1, "seed": 0},
        {"problem": instance(bx.Problem), "points": count(), "seed": seed},
    )
    x = array(lambda held: not sp.issparse(held) and held.shape == (2,))
    for function in (bx.exact_objective, bx.exact_gradient, bx.exact_values):
        rules = {"problem": instance(bx.Problem), "x": x}
        yield Use(function.__name__, function, {"problem": problem(), "x": jnp.ones(2)}, rules)
    yield from adaptations(x)
    yield from trials()
    variables = bx.Variables(jnp.ones(2), jnp.ones((TASKS, 2)))
    rules = {"problem": instance(bx.Problem), "variables": instance(bx.Variables), "all_tasks": boolean}
    yield Use("exact_metrics", bx.exact_metrics, {"problem": problem(), "variables": variables}, rules)
    after = number(lambda v: v > -1 and np.isfinite(v))
    rules = {"scale": positive, "offset": after, "exponent": positive}
    yield Use("power", bx.power, {"scale": 1.0, "offset": 1.0, "exponent": 0.5}, rules)


def told():
    """What the losses of the tiny problem are told of a task."""
    return jax.tree.map(lambda leaf: leaf[0], problem().tasks)


def rows():
    """Samples of a task of the tiny problem."""
    return {"push": np.zeros((5, 2)), "scale": np.zeros(5), "cross": np.zeros(5)}


def adaptations(x):
    """lower_solution, of a task of the problem and of a new one."""
    of_new = (
        values.Value("the facts of a task", told),
        values.Value("the facts of a task without c", lambda: {k: v for k, v in told().items() if k != "c"}),
        values.Value("the facts of a task as text", lambda: jax.tree.map(str, told())),
        values.Value("the facts of all tasks", lambda: problem().tasks),
        values.Value("facts that are NaN", lambda: jax.tree.map(lambda leaf: leaf * np.nan, told())),
    )
    fits = lambda thing: jax.tree.map(np.shape, thing) == jax.tree.map(np.shape, told())
    finite = lambda thing: all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(thing))
    is_told = lambda thing: isinstance(thing, dict) and "A" in thing and fits(thing) and finite(thing)
    task = Rule(lambda thing, value: RIGHT if is_told(thing) else _number_of_task(thing), of_new)
    given = {"problem": problem(), "x": jnp.ones(2), "task": 0, "data": rows()}
    yield Use(
        "lower_solution", bx.lower_solution, given, {"problem": _this_problem, "x": x, "task": task, "data": _rows}
    )


def _number_of_task(thing):
    whole = isinstance(thing, (int, np.integer)) and not isinstance(thing, bool)
    return RIGHT if whole and 0 <= thing < TASKS else WRONG


def _held(thing, value):
    """Samples like those of the tiny problem, as many as one likes."""
    if thing is None:
        return RIGHT  # the task's own
    if not isinstance(thing, dict) or set(thing) != set(rows()):
        return WRONG
    held = [real_array(thing[name]) for name in rows()]
    if any(leaf is None or sp.issparse(leaf) or not leaf.ndim for leaf in held):
        return WRONG
    shapes = [leaf.shape for leaf in held]
    return RIGHT if shapes[0][1:] == (2,) and shapes[1] == shapes[2] == shapes[0][:1] and shapes[0][0] else WRONG


_this_problem = Rule(lambda thing, value: RIGHT if thing is problem() else WRONG)
_rows = Rule(
    _held,
    (
        values.Value("samples of a task", rows),
        values.Value("samples with NaN", lambda: {**rows(), "push": np.full((5, 2), np.nan)}),
        values.Value("samples of other lengths", lambda: {**rows(), "scale": np.zeros(4)}),
        values.Value("samples of another shape", lambda: {**rows(), "push": np.zeros((5, 3))}),
        values.Value("samples without scale", lambda: {k: v for k, v in rows().items() if k != "scale"}),
        values.Value("no samples", lambda: {k: v[:0] for k, v in rows().items()}),
        values.Value("masked samples", lambda: {**rows(), "scale": np.ma.array(np.zeros(5), mask=[1, 0, 0, 0, 0])}),
        values.Value("samples of text", lambda: {**rows(), "scale": np.array(["0"] * 5)}),
        values.Value("complex samples", lambda: {**rows(), "scale": np.zeros(5, complex)}),
        values.Value("samples in a holder", lambda: bx.shared(rows())),
    ),
)


def trials():
    """tune: it ends where the settings would be compiled."""
    factories = (
        plain("bilevax.soba", bx.soba, "factory"),
        plain("bilevax.implicit, which finds no rate", bx.implicit),
        plain("an algorithm instead of its factory", bx.rsvrb()),
        plain("a factory that asks for an argument", lambda *, mine: bx.rsvrb(upper_step=mine)),
        plain("a factory of something else", lambda **given: "rsvrb"),
        plain(
            "a factory that gives all rates", lambda **given: bx.soba(upper_step=0.1, lower_step=0.1, inverse_step=0.1)
        ),
    )
    settings = (
        values.Value("{'batch_size': 2}", lambda: {"batch_size": 2}, ("settings",)),
        values.Value("{'batch_sise': 2}", lambda: {"batch_sise": 2}),
        values.Value("{'batch_size': -2}", lambda: {"batch_size": -2}),
        values.Value("{2: 3}", lambda: {2: 3}),
    )
    own = lambda thing, value: RIGHT if thing is None or thing == {} or "settings" in value.right_for else WRONG
    yield Use(
        "tune",
        bx.tune,
        {"problem": problem(), "factory": bx.rsvrb, "seconds": 0.01},
        {
            "problem": instance(bx.Problem),
            "factory": made_for("factory", *factories),
            "seconds": positive,
            "tries": count(4, 10_000),
            "seed": seed,
            "progress": optional(boolean),
            "settings": Rule(
                lambda thing, value: own(thing, value) if not hasattr(thing, "shape") else WRONG, settings
            ),
        },
        words={"settings": ("batch_sise", "batch_size"), "factory": ("settings",)},
    )


features = array(lambda held: held.ndim == 2 and held.shape[0] == 4 and held.shape[1] > 0)
fitting = array(lambda held: held.ndim == 2 and held.shape == (4, 2))
signs = array(
    lambda held: (
        not sp.issparse(held)
        and held.shape in [(4,), (4, 1)]
        and np.isin(held, (-1, 1)).all()
        and len(np.unique(held)) == 2
    ),
    values.Value("labels 0 and 1", lambda: np.array([0.0, 1.0, 0.0, 1.0])),
    values.Value("labels of three", lambda: np.array([1.0, -1.0, 1.0])),
    values.Value("whole labels", lambda: np.array([1, -1, 1, -1])),
    values.Value("labels as text", lambda: np.array(["1", "-1", "1", "-1"])),
    values.Value("masked labels", lambda: np.ma.array([1.0, -1.0, 1.0, -1.0], mask=[0, 0, 1, 0])),
    values.Value("complex labels", lambda: np.array([1, -1, 1, -1], complex)),
)
any_labels = array(lambda held: not sp.issparse(held) and held.shape in [(4,), (4, 1)])
sigma = array(
    lambda held: not sp.issparse(held) and held.ndim == 1 and held.size and (held > 0).all(),
    values.Value("complex temperatures", lambda: np.array([1.0 + 1j, 2.0])),
    values.Value("temperatures as text", lambda: np.array(["1", "2"])),
    values.Value("masked temperatures", lambda: np.ma.array([1.0, 2.0], mask=[1, 0])),
)


def _two_parts(name, build, other, more, rules):
    parts = {f"train_{kind}": held for kind, held in [("features", FEATURES), ("labels", LABELS)]}
    parts |= {f"{other}_{kind}": held for kind, held in [("features", FEATURES), ("labels", LABELS)]}
    own = {
        f"{part}_{kind}": rule for part in ("train", other) for kind, rule in [("features", fitting), ("labels", signs)]
    }
    words = {f"{part}_{kind}": (part, f"{part} data") for part in ("train", other) for kind in ("features", "labels")}
    shared = {
        "loss": choice("logistic", "squared", "squared_hinge"),
        "rows": optional(choice("dense", "sparse")),
        "bounds": bounds,
    }
    return Use(name, build, parts | more, own | shared | rules, words=words)


def score(x, rows):
    """A linear score."""
    return rows @ x


def represent(body, rows):
    """One layer."""
    return rows @ body


def inner(x, task, batch):
    """g_i of a compositional problem."""
    return jnp.mean(batch, axis=0) * jnp.sum(x)


def outer(u, task):
    """f_i of a compositional problem."""
    return jnp.sum(u**2)


def task_loss(parameters, task, batch):
    """A loss for meta-learning."""
    return jnp.mean((batch @ parameters["w"]) ** 2)


def _names(thing, value):
    if thing is None:
        return RIGHT
    return RIGHT if isinstance(thing, (list, tuple)) and list(thing) == ["w"] else WRONG


def ready_made_problems():
    """bx.problems.*"""
    make = bx.problems
    held = lambda: bx.shared(FEATURES)
    yield _two_parts(
        "reweighting",
        make.reweighting,
        "trusted",
        {},
        {"temperatures": optional(sigma), "ridge": strictly_positive, "weights": choice("sigmoid", "raw")},
    )
    ends = {"start": number(lambda v: 1e-4 < v < 1), "floor": number(lambda v: 0 < v < 1e-2, precision=True)}
    ends["ceiling"] = number(lambda v: 1e-2 < v < np.inf)
    yield _two_parts("ridge", make.ridge, "validation", {}, ends)
    yield Use(
        "auc",
        make.auc,
        {
            "features": FEATURES,
            "labels": LABELS,
            "represent": represent,
            "body0": jnp.ones((2, 2)),
            "heads0": np.ones((1, 2)),
        },
        {
            "features": fitting,
            "labels": signs,
            "represent": function,
            "body0": tree,
            "ridge": not_negative,
            "heads0": array(lambda held: not sp.issparse(held) and held.shape == (1, 2)),
        },
        words={"body0": ("represent",), "heads0": ("represent",)},
    )
    yield Use(
        "average_precision",
        make.average_precision,
        {"features": FEATURES, "labels": LABELS, "score": score, "x0": jnp.ones(2)},
        {
            "features": fitting,
            "labels": signs,
            "score": function,
            "x0": tree,
            "surrogate": choice("sigmoid", "squared_hinge"),
            "width": optional(positive),
            "group": count(),
            "ridge": not_negative,
            "penalty": made_for("penalty"),
            "bounds": bounds,
        },
        words={"x0": ("score",)},
    )
    yield Use(
        "compositional",
        make.compositional,
        {"outer": outer, "inner": inner, "x0": jnp.ones(2), "data": held()},
        {
            "outer": made_for("loss"),
            "inner": made_for("inner"),
            "x0": tree,
            "data": samples,
            "tasks": tasks,
            "penalty": optional(made_for("penalty")),
            "bounds": bounds,
        },
        words={"x0": ("inner",), "tasks": ("inner",), "data": ("inner",)},
    )
    yield Use(
        "meta_learning",
        make.meta_learning,
        {"loss": task_loss, "x0": {"w": jnp.ones(2)}, "support": held(), "query": held(), "ridge": 1.0},
        {
            "loss": made_for("loss"),
            "x0": tree,
            "support": samples,
            "query": samples,
            "ridge": strictly_positive,
            "adapts": Rule(_names, (values.Value("['w']", lambda: ["w"]), values.Value("['v']", lambda: ["v"]))),
            "tasks": tasks,
            "strong_convexity": optional(strictly_positive),
            "bounds": bounds,
        },
        words={"x0": ("loss",), "support": ("loss",), "query": ("loss",), "tasks": ("loss",)},
    )
    saddle = lambda x, y, task, batch: -0.5 * jnp.sum(y**2) + jnp.sum(y) * jnp.sum(x)
    yield Use(
        "minmax",
        make.minmax,
        {"loss": saddle, "x0": jnp.ones(2), "y0": jnp.ones(2), "strong_concavity": 1.0},
        {
            "loss": loss,
            "x0": tree,
            "y0": tree,
            "strong_concavity": strictly_positive,
            "y0_per_task": together(boolean),
            "tasks": tasks,
            "data": data,
            "region": Rule(lambda t, v: EITHER if t is None else _bound(t, v, tasks=1), region.own),
        },
        words={
            "x0": ("loss",),
            "y0": ("loss",),
            "tasks": ("loss", "y0_per_task"),
            "region": ("region.low", "region.high"),
        },
    )
    small = count(most=10**6)
    yield Use(
        "quadratic",
        make.quadratic,
        {"num_tasks": 2, "dim_x": 2, "dim_y": 2, "num_samples": 4},
        {
            "num_tasks": small,
            "dim_x": small,
            "dim_y": small,
            "num_samples": count(2, 10**6),
            "noise": not_negative,
            "strong_convexity": number(lambda v: 0 < v <= 2, precision=True),
            "ridge": not_negative,
            "bounds": bounds,
            "smoothness": number(lambda v: 0.5 <= v < np.inf),
            "seed": count(0),
        },
    )


def _path(right):
    own = (
        values.Value("a file that is not there", lambda: Path("no") / "such file"),
        values.Value("the name of a file that is not there", lambda: "no such file"),
        values.Value("a folder", lambda: Path(__file__).parent),
        values.Value("a name with a NUL byte", lambda: "a\0b"),
        values.Value("a name of 5000 letters", lambda: "a" * 5000),
    )
    return Rule(lambda thing, value: EITHER if str(thing) == str(right) else WRONG, own)


def readers(folder):
    """bx.datasets and Trace; the files are made in the folder."""
    rows, table, kept = folder / "rows.libsvm", folder / "rows.csv", folder / "trace.json"
    rows.write_text("+1 1:0.5 2:1\n-1 2:3\n")
    table.write_text("a,b,kind\n1,2,0\n3,4,1\n")
    bx.Trace([{"step": 0}], {"algorithm": "none"}).save(kept)
    path = {"path": ("path", "file", "folder", "directory")}
    yield Use(
        "read_libsvm",
        bx.datasets.read_libsvm,
        {"path": rows},
        {"path": _path(rows), "n_features": optional(count(2))},
        words=path,
    )
    column = optional(choice("a", "b", "kind"))
    yield Use("read_csv", bx.datasets.read_csv, {"path": table}, {"path": _path(table), "label": column}, words=path)
    known = choice(*bx.datasets.REGISTRY)
    for reader in (bx.datasets.load, bx.datasets.is_here):
        given = {"name": "a1a"}
        rule = Rule(lambda thing, value: EITHER if known.judge(thing, value) == RIGHT else WRONG)
        yield Use(reader.__name__, reader, given, {"name": rule}, words={"name": ("data set",)})
    sparse = Rule(lambda thing, value: EITHER if isinstance(thing, sp.csr_array) else WRONG)
    yield Use(
        "Dataset",
        bx.datasets.Dataset,
        {"name": "mine", "features": sp.csr_array(FEATURES), "labels": LABELS},
        {"features": sparse, "labels": Rule(lambda t, v: EITHER if signs.judge(t, v) != WRONG else WRONG, signs.own)},
    )
    yield Use("Trace.load", bx.Trace.load, {"path": kept}, {"path": _path(kept)}, words=path)
    yield Use("Trace.save", bx.Trace([], {}).save, {"path": kept}, {"path": _saved(kept, folder)}, words=path)
    yield from results(folder, path)


def ended():
    """A result that was not run for."""
    trace = bx.Trace([{"step": 0, "seconds": 0.0, "samples": 0, "objective": 1.0}], {})
    return bx.Result(
        jnp.ones(2),
        jnp.ones((TASKS, 2)),
        "done",
        "",
        1,
        bx.Cost(0, 0, 0),
        0.0,
        trace,
        (jnp.ones(2),),
        0,
        {"by": "hand"},
    )


def results(folder, path):
    """Files and pictures of a Result."""
    whole, cut, other, picture = (folder / name for name in ("run.npz", "cut.npz", "other.npz", "run.png"))
    ended().save(whole)
    cut.write_bytes(whole.read_bytes()[:-50])
    np.savez(other, page=np.zeros(3))
    damaged = [
        values.Value(f"a file that is {words}", lambda file=file: file)
        for words, file in [("cut off", cut), ("of somebody else's", other)]
    ]
    rule = _path(whole)
    rules = {"path": rule._replace(own=(*rule.own, *damaged)), "problem": optional(_this_problem)}
    yield Use("Result.load", bx.Result.load, {"path": whole}, rules, words=path)
    yield Use("Result.save", ended().save, {"path": whole}, {"path": _saved(whole, folder)}, words=path)
    drawn = Rule(
        lambda thing, value: RIGHT if thing is None else _saved(picture, folder).judge(thing, value),
        _saved(picture, folder).own,
    )
    yield Use("Result.plot", ended().plot, {"path": picture}, {"path": drawn}, words=path, costly=True)


def _saved(right, folder):
    own = (
        values.Value("a file in a folder that is not there", lambda: folder / "no" / "such" / "file"),
        values.Value("a folder", lambda: folder),
        values.Value("a name with a NUL byte", lambda: "a\0b"),
    )
    names = lambda thing: isinstance(thing, (str, Path)) and str(thing) in ("", "0.1", "a")
    return Rule(lambda thing, value: EITHER if thing is right or names(thing) else WRONG, own)


def _hidden(thing, value):
    sizes = isinstance(thing, (tuple, list, range)) or (isinstance(thing, np.ndarray) and thing.ndim > 0)
    if not sizes:
        return WRONG
    each = [count().judge(size, value) for size in thing]
    return WRONG if WRONG in each else EITHER


hidden = Rule(
    _hidden,
    (
        plain("32", 32),
        plain("(-3,)", (-3,)),
        plain("(0,)", (0,)),
        plain("(2.5,)", (2.5,)),
        plain("('4',)", ("4",)),
        plain("(True,)", (True,)),
        plain("(4, None)", (4, None)),
        plain("((4,),)", ((4,),)),
        plain("(10**12,)", (10**12,)),
        plain("(4,)", (4,)),
    ),
)


def _state(thing, value):
    whole = isinstance(thing, (int, np.integer)) and not isinstance(thing, bool)
    return EITHER if thing is None or isinstance(thing, bool) or (whole and 0 <= thing < 2**32) else WRONG


def _classes(thing, value):
    usual = isinstance(thing, np.ndarray) and not np.ma.isMaskedArray(thing) and thing.dtype.kind not in "cV"
    return EITHER if usual and thing.shape in [(4,), (4, 1), (4, 2)] else WRONG


state = Rule(_state)
two_classes = Rule(
    _classes,
    (
        values.Value("labels of one class", lambda: np.ones(4)),
        values.Value("labels with NaN", lambda: np.array([0, 1, np.nan, 1])),
        values.Value("labels with None", lambda: np.array(["a", None, "b", "a"], object)),
        values.Value("labels of three rows", lambda: np.array([0, 1, 0])),
        values.Value("complex labels", lambda: np.array([0, 1j, 0, 1])),
        values.Value("masked labels", lambda: np.ma.array([0, 1, 0, 1], mask=[0, 1, 0, 0])),
    ),
)


verbose = Rule(
    lambda t, v: RIGHT if isinstance(t, (bool, np.bool_)) else EITHER if isinstance(t, int) or callable(t) else WRONG
)


def models():
    """The scikit-learn models: fit ends where something would be compiled."""
    from bilevax import models as made

    usual = {
        "steps": count(),
        "batch_size": count(),
        "learning_rate": positive,
        "mixing": share,
        "hidden": hidden,
        "random_state": state,
        "verbose": verbose,
        "X": features,
        "y": two_classes,
    }
    own = {
        made.AveragePrecisionClassifier: {
            "C": optional(positive),
            "surrogate": choice("sigmoid", "squared_hinge"),
            "width": optional(positive),
        },
        made.MultiTaskAUCClassifier: {"tasks_per_step": optional(count()), "ridge": optional(not_negative)},
        made.TrustedReweighter: {
            "X_trusted": together(fitting),
            "y_trusted": together(two_classes),
        },
    }
    for model, rules in own.items():
        parameters = inspect.signature(model).parameters
        rules = {name: rule for name, rule in usual.items() if name in (*parameters, "X", "y")} | rules
        yield Use(
            model.__name__,
            functools.partial(_fit, model, tuple(parameters)),
            {"X": FEATURES, "y": LABELS > 0},
            rules,
            words={"X_trusted": ("y_trusted",), "y_trusted": ("X_trusted",)},
            costly=True,
        )


def _fit(model, parameters, **given):
    settings = {name: value for name, value in given.items() if name in parameters}
    return model(**settings).fit(**{name: value for name, value in given.items() if name not in parameters})


def linear_models():
    """The lower loss of re-weighting, by hand."""

    def build(**parts):
        train = {"features": jnp.asarray(FEATURES), "labels": jnp.asarray(LABELS)[:, None], "row": jnp.arange(4)}
        return bx.Problem(
            upper=upper,
            lower=bx.curvature.LinearModel(**parts),
            x0=jnp.zeros(4),
            y0=jnp.zeros(2),
            tasks={"temperature": jnp.ones(1), "column": jnp.zeros(1, int)},
            lower_data=bx.shared(train),
            strong_convexity=0.01,
            ridge=True,
        )

    exactly = number(lambda v: abs(v - 0.01) < 1e-8)
    ridge = Rule(lambda thing, value: EITHER if exactly.judge(thing, value) == RIGHT else WRONG)
    given = {"loss": lambda score, label: jax.nn.softplus(-score * label), "weight": jax.nn.sigmoid, "ridge": 0.01}
    yield Use(
        "LinearModel",
        build,
        given,
        {"loss": loss, "weight": loss, "ridge": ridge},
        words={"loss": ("lower", "LinearModel"), "weight": ("lower", "LinearModel"), "ridge": ("LinearModel",)},
    )


def all_uses(folder):
    """Everything public."""
    uses = itertools.chain(
        algorithms(),
        problems_of_the_users_own(),
        holders_of_data(),
        runs(),
        ready_made_problems(),
        readers(folder),
        models(),
        linear_models(),
    )
    return [use._replace(required=tuple(_required(use.function))) for use in uses]


def _required(function):
    """Arguments without a default."""
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            yield name
