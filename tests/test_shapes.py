"""A wrong shape or type in an annotation is seen by the tests, whoever calls the function."""

import collections
import importlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shapes
from beartype.roar import BeartypeCallHintViolation

import bilevax as bx

SOURCE = """
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Rows = Float[Array, "n d"]

def product(a: Rows, v: Float[Array, " d"]) -> Float[Array, " n"]:
    return a @ v

def total(a: Rows | None, count: Int[Array, ""] | int) -> Float[Array, " n"]:  # it returns a number
    return jnp.sum(a) * 1.0

def pairs(both: tuple[Rows, Float[Array, " n"]]) -> Float[Array, ""]:
    return both[1] @ both[0] @ both[0].T @ both[1]

def given(v: Float[Any, " d"], name: int) -> str:
    return name

class Sum:
    def of(self, v: Float[Array, " d"]) -> Float[Array, ""]:
        return sum(v)

def outer(v):
    def inner(v: Float[Array, " d"]) -> Float[Array, "d d"]:
        return v[:, None] * v[None, :]
    return inner(v)
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """A module whose shapes are checked, and which no cache of compiled files knows."""
    folder = tmp_path_factory.mktemp("checked")
    (folder / "annotated.py").write_text(SOURCE)
    before = list(sys.meta_path)
    sys.path.insert(0, str(folder))
    shapes.check_package("annotated")
    yield importlib.import_module("annotated")
    sys.path.remove(str(folder))
    sys.meta_path[:] = before
    assert [path.name for path in folder.iterdir()] == ["annotated.py"]


A, V = jnp.ones((2, 3)), jnp.ones(3)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.product(A, jnp.ones(2)),
        lambda m: m.product(A, v=jnp.ones(3, int)),
        lambda m: m.product(np.ones((2, 2, 2)), V),
        lambda m: m.total(A, 1),
        lambda m: m.pairs((A, V)),
        lambda m: m.Sum().of(A),
        lambda m: m.outer(A),
        lambda m: jax.eval_shape(m.product, A, jnp.ones(2)),
        lambda m: jax.vmap(m.product, (None, 0))(A, jnp.ones((5, 2))),
    ],
)
def test_what_does_not_fit_its_annotation_is_seen(checked, call):
    with pytest.raises(BeartypeCallHintViolation):
        call(checked)


def test_what_fits_passes_also_from_numpy_and_under_transformations(checked):
    assert checked.product(np.ones((2, 3)), V).shape == (2,)
    assert jax.vmap(checked.product, (None, 0))(A, jnp.ones((5, 3))).shape == (5, 2)
    assert checked.pairs((A, jnp.ones(2))) == 12
    assert checked.Sum().of(jax.grad(checked.Sum().of)(V)) == 3
    assert checked.outer(V).shape == (3, 3)


def test_what_users_give_and_what_has_no_shape_is_not_looked_at(checked):
    assert checked.given("a text", "no number") == "no number"


def test_the_functions_of_bilevax_are_checked(monkeypatch):
    monkeypatch.setattr(shapes, "calls", collections.Counter())  # none is used up yet
    with pytest.raises(BeartypeCallHintViolation, match="upper_gradients"):
        bx.Problem.upper_gradients(None, jnp.ones((2, 2)), V, 0, None)
