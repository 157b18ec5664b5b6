"""What a careless or hostile user puts where something else belongs."""

import decimal
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
import scipy.sparse as sp


class Value(NamedTuple):
    """Something to be given for an argument: in words, how it is made, and what a function of it is right for."""

    words: str
    make: Callable[[], Any]
    right_for: tuple[str, ...] = ()


def plain(words, thing, *right_for):
    """A value that can be shared by all cases."""
    return Value(words, lambda: thing, right_for)


NUMBERS = [
    plain("NaN", float("nan")), plain("inf", float("inf")), plain("-inf", float("-inf")), plain("0", 0),
    plain("0.0", 0.0), plain("-1", -1), plain("-0.5", -0.5), plain("1e-300", 1e-300), plain("1e300", 1e300),
    plain("10**400", 10**400), plain("True", True), plain("np.True_", np.True_), plain("1j", 1j),
    plain("0.5+0j", 0.5 + 0j), plain("1", 1), plain("2", 2), plain("0.5", 0.5), plain("2.5", 2.5),
    plain("np.float32(0.5)", np.float32(0.5)), plain("np.int64(1)", np.int64(1)),
    Value("np.array(0.5)", lambda: np.array(0.5)), Value("jnp.float32(0.5)", lambda: jnp.float32(0.5)),
    Value("np.array([0.5])", lambda: np.array([0.5])), plain("np.ma.masked", np.ma.masked),
    plain("Decimal('0.5')", decimal.Decimal("0.5")), plain("np.datetime64", np.datetime64("2020-01-01")),
    plain("2**70", 2**70), plain("-2**70", -(2**70)), plain("10**12", 10**12),
]  # fmt: skip
THINGS = [
    plain("None", None), plain("''", ""), plain("'0.1'", "0.1"), plain("'a'", "a"), plain("b''", b""),
    plain("b'0.1'", b"0.1"), plain("()", ()), plain("(1, 2)", (1, 2)), plain("an object", object()),
    plain("the class int", int), Value("[]", list), Value("[0.1, 0.2]", lambda: [0.1, 0.2]), Value("{}", dict),
    Value("{'a': 1}", lambda: {"a": 1}), Value("{1, 2}", lambda: {1, 2}), plain("range(3)", range(3)),
    plain("slice(None)", slice(None)), plain("...", ...), plain("NotImplemented", NotImplemented),
    Value("an iterator", lambda: iter([1.0])), plain("an error", ValueError("mine")),
]  # fmt: skip
ARRAYS = [
    Value("np.zeros(0)", lambda: np.zeros(0)), Value("np.zeros((0, 2))", lambda: np.zeros((0, 2))),
    Value("np.zeros((3, 0))", lambda: np.zeros((3, 0))), Value("np.ones(3)", lambda: np.ones(3)),
    Value("np.ones((2, 2, 2, 2))", lambda: np.ones((2, 2, 2, 2))), Value("np.ones((5, 7))", lambda: np.ones((5, 7))),
    Value("an array with NaN", lambda: np.array([[1.0, np.nan], [0.0, 1.0], [2.0, 3.0], [1.0, 1.0]])),
    Value("an array with inf", lambda: np.array([[1.0, np.inf], [0.0, 1.0], [2.0, 3.0], [1.0, 1.0]])),
    Value("a vector with NaN", lambda: np.array([1.0, np.nan, 1.0, -1.0])),
    Value("an array of text", lambda: np.array([["1", "2"], ["3", "4"], ["1", "2"], ["3", "4"]])),
    Value("a vector of text", lambda: np.array(["1", "-1", "1", "-1"])),
    Value("an array of objects", lambda: np.array([[1, None], [object(), 2]], object)),
    Value("numbers as objects", lambda: np.array([[1.0, 2.0], [3.0, 4.0]], object)),
    Value("a masked array", lambda: np.ma.array(np.arange(8.0).reshape(4, 2), mask=[[0, 1], [0, 0], [1, 0], [0, 0]])),
    Value("a masked vector", lambda: np.ma.array([1.0, -1.0, 1.0, -1.0], mask=[0, 1, 0, 0])),
    Value("a complex array", lambda: np.array([[1 + 2j, 0], [0, 1], [1, 1], [0, 1j]])),
    Value("a complex vector", lambda: np.array([1 + 2j, -1, 1, -1])),
    Value("a vector of dates", lambda: np.array(["2020-01-01"] * 4, "datetime64[D]")),
    Value("a structured array", lambda: np.zeros(4, [("a", float), ("b", int)])),
    Value("whole numbers (4, 2)", lambda: np.arange(8).reshape(4, 2)),
    Value("a ragged list", lambda: [[1.0, 2.0], [3.0]]),
    Value("huge numbers (4, 2)", lambda: np.full((4, 2), 1e300)),
    Value("a complex sparse matrix", lambda: sp.csr_array(np.array([[1j, 0], [0, 1], [1, 1], [0, 1]]))),
    Value("a sparse matrix with NaN", lambda: sp.csr_array(np.array([[np.nan, 0], [0, 1], [1, 1], [0, 1]]))),
    Value("a sparse vector", lambda: sp.csr_array(np.array([1.0, -1.0, 1.0, -1.0]))),
]  # fmt: skip


def raises(*given):
    """A function of any arguments that raises an error of its own."""
    raise RuntimeError("something of the user's own went wrong")


def uses_numpy(*given):
    """A function that asks NumPy for numbers, which a traced array has not."""
    return np.asarray(given[0], float).sum() + np.sin(np.asarray(given[-1], float)).sum()


def decides(*given):
    """A function with Python's control flow on its arguments."""
    first = jnp.sum(jnp.asarray(given[0], float))
    return 0.1 if first > 0 else 0.2


MAYBE = ("maybe positive", "maybe share", "maybe penalty")
FUNCTIONS = [
    plain("a function without arguments", lambda: 0.1),
    plain("a function of nine arguments", lambda a, b, c, d, e, f, g, h, i: 0.1),
    plain("a function that raises", raises),
    plain("a function with NumPy inside", uses_numpy),
    plain("a function with an if inside", decides),
    plain("a function that returns text", lambda *given: "0.1"),
    plain("a function that returns None", lambda *given: None),
    plain("a function that returns a list", lambda *given: [0.1, 0.2], "maybe inner"),
    plain("a function that returns a dict", lambda *given: {"a": 0.1}, "metrics", "maybe inner"),
    plain("a function that returns 1j", lambda *given: jnp.asarray(1j)),
    plain("a function that returns a vector", lambda *given: jnp.ones(2), "maybe inner"),
    plain("a function that returns a whole number", lambda *given: jnp.int32(1), "count schedule", *MAYBE),
    plain("a function that returns NaN", lambda *given: jnp.asarray(jnp.nan), "loss", "penalty", "maybe inner"),
    plain("a function that returns -1.0", lambda *given: jnp.asarray(-1.0), "loss", "penalty", "maybe inner"),
]  # fmt: skip

BOTH, ABOVE_ONE = ("positive", "share"), ("positive",)
SCHEDULES = [
    plain("a constant function", lambda t: 0.1, *BOTH),
    plain("a falling function", lambda t: 0.1 / (1.0 + jnp.asarray(t, jnp.float32)), *BOTH),
    plain("optax.cosine_decay_schedule", optax.cosine_decay_schedule(0.1, 10_000), "maybe positive", "maybe share"),
    plain("a function that is negative from t = 2", lambda t: 1.5 - jnp.asarray(t, jnp.float32)),
    plain("a function that is negative from t = 500", lambda t: jnp.where(t < 500, 0.1, -0.1)),
    plain("a function that is zero from t = 2", lambda t: jnp.where(t < 2, 0.1, 0.0), *BOTH),
    plain("a function that is NaN from t = 10", lambda t: jnp.where(t < 10, 0.1, jnp.nan)),
    plain("a function that is inf from t = 10", lambda t: jnp.where(t < 10, 0.1, jnp.inf)),
    plain("a function that is above one from t = 3", lambda t: jnp.where(t < 3, 0.1, 1.5), *ABOVE_ONE),
    plain("a function that is complex from t = 2", lambda t: jnp.where(t < 2, 0.1, 0.1j)),
    plain("a function that grows without end", lambda t: 0.1 * 10.0 ** jnp.asarray(t, jnp.float32)),
]


def _optimizer(update):
    return optax.GradientTransformation(lambda parameters: (), lambda d, state, parameters=None: (update(d), state))


def _grows():
    """An optimizer whose state has another shape after each step."""
    return optax.GradientTransformation(
        lambda parameters: jnp.zeros(1), lambda d, state, parameters=None: (d, jnp.concatenate([state, state]))
    )


OPTIMIZERS = [
    Value("optax.adam(0.01)", lambda: optax.adam(0.01), ("optimizer",)),
    Value("optax.sgd(0.1)", lambda: optax.sgd(0.1), ("optimizer",)),
    plain("optax.adam", optax.adam),
    Value("an optimizer that doubles the shape", lambda: _optimizer(lambda d: jnp.concatenate([d, d]))),
    Value("an optimizer that returns one number", lambda: _optimizer(jnp.sum)),
    Value("an optimizer that returns None", lambda: _optimizer(lambda d: None)),
    Value("an optimizer that returns text", lambda: _optimizer(lambda d: "text")),
    Value("an optimizer that returns a dict", lambda: _optimizer(lambda d: {"a": d})),
    Value("an optimizer that returns complex numbers", lambda: _optimizer(lambda d: d * 1j)),
    Value("an optimizer that raises", lambda: _optimizer(raises)),
    Value("an optimizer with an if inside", lambda: _optimizer(lambda d: d if d[0] > 0 else -d)),
    Value("an optimizer whose state grows", _grows),
    Value("two functions", lambda: (raises, raises)),
]


def _rows(value):
    return lambda problem, variables: value


METRICS = [
    plain("a metric that counts", _rows({"mine": 1.0}), "metrics"),
    plain("metrics without a metric", _rows({}), "metrics"),
    plain("a metric of a 0-d array", _rows({"mine": np.array(1.0)}), "metrics"),
    plain("a metric that is text", _rows({"mine": "text"})),
    plain("a metric that is '0.5'", _rows({"mine": "0.5"})),
    plain("a metric that is None", _rows({"mine": None})),
    plain("a metric that is a list", _rows({"mine": [1.0, 2.0]})),
    plain("a metric that is a list of one", _rows({"mine": [1.0]})),
    plain("a metric that is complex", _rows({"mine": 1j})),
    plain("a metric that is a complex array", _rows({"mine": np.array(1j)})),
    plain("a metric that is a vector", _rows({"mine": np.ones(3)})),
    plain("a metric that is an object", _rows({"mine": object()})),
    plain("a metric that is 10**400", _rows({"mine": 10**400})),
    plain("a metric that is a date", _rows({"mine": np.datetime64("2020-01-01")})),
    plain("a metric named 3", _rows({3: 1.0})),
    plain("a metric named step", _rows({"step": 1.0})),
    plain("metrics that are a list", _rows([1.0])),
]  # fmt: skip

POOL = [*NUMBERS, *THINGS, *ARRAYS, *FUNCTIONS]
