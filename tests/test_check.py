"""check() accepts what is right and names what is wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from logistic import Model, lower, upper

import bilevax as bx


def altered(**changed):
    model = Model(3)
    problem = model.problem()
    fields = {
        "upper": upper,
        "lower": lower,
        "x0": problem.x0,
        "y0": problem.y0,
        "y0_per_task": True,
        "tasks": problem.tasks,
        "upper_data": problem.upper_data,
        "lower_data": problem.lower_data,
        "strong_convexity": model.lam,
    }
    return bx.Problem(**{**fields, **changed})


@jax.custom_jvp
def wrong_square(t):
    return t**2


wrong_square.defjvp(lambda primals, tangents: (primals[0] ** 2, 3 * primals[0] * tangents[0]))

WRONG = {
    "strong convexity": {"strong_convexity": 5.0},
    "∇y f": {"upper": lambda x, y, t, b: jnp.sum(wrong_square(y)) + upper(x, y, t, b)},
    "∇x f": {"upper": lambda x, y, t, b: upper(jax.lax.stop_gradient(x), y, t, b)},
    "∇y g": {"lower": lambda x, y, t, b: lower(x, y, t, b) + jnp.sum(wrong_square(y))},
    "∇²xy g": {"lower": lambda x, y, t, b: lower(jax.lax.stop_gradient(x), y, t, b)},
    "upper is a mean": {"upper": lambda x, y, t, b: upper(x, y, t, b) * b["c"].shape[0]},
    "lower is a mean": {"lower": lambda x, y, t, b: lower(x, y, t, b) + jnp.mean(b["a"] @ y) ** 2},
    "∇F": {"lower": lambda x, y, t, b: lower(jax.lax.stop_gradient(x), y, t, b)},
}


def test_a_right_problem_passes_and_says_so():
    report = bx.check(Model(3).problem())
    assert report.ok
    assert str(report).endswith("all is well")
    hessians = [Model(3).gyy(i, Model(3).x0, Model(3).y0[i], range(6)) for i in range(3)]
    assert report.smoothness >= min(np.linalg.eigvalsh(h).max() for h in hessians)
    assert report.convexity >= Model(3).lam


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name):
    report = bx.check(altered(**WRONG[name]))
    assert not report.ok
    assert not report[name].ok
    assert f"[WRONG] {name}" in str(report)


def test_a_loss_that_is_not_finite_is_named():
    report = bx.check(altered(upper=lambda x, y, t, b: upper(x, y, t, b) + jnp.log(-jnp.sum(y**2) - 1)))
    assert not report["finite losses"].ok


def test_a_sum_is_found_out_where_it_vanishes_at_the_start():
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(30, 3)))
    problem = bx.Problem(
        upper=lambda x, y, i, batch: jnp.sum(batch @ y) + jnp.sum(x**2),
        lower=lambda x, y, i, batch: jnp.sum((y - x) ** 2),
        x0=jnp.zeros(3),
        y0=jnp.zeros(3),
        upper_data=bx.shared(rows),
        strong_convexity=1.0,
    )
    assert not bx.check(problem)["upper is a mean"].ok


def test_a_lower_problem_without_curvature_is_reported_not_raised():
    report = bx.check(altered(lower=lambda x, y, t, b: jnp.sum(y) * jnp.sum(x) + 0 * jnp.mean(b["a"] @ y)))
    assert not report["strong convexity"].ok
    assert "strong convexity" in repr(report)


def test_many_variables_are_checked_by_products_alone():
    scales = jnp.concatenate([jnp.array([0.01, 40.0]), jnp.linspace(1, 2, 600)])
    problem = bx.Problem(
        upper=lambda x, y, i, batch: jnp.sum(y**2) + x[0],
        lower=lambda x, y, i, batch: 0.5 * jnp.sum(scales * (y - x[0]) ** 2),
        x0=jnp.zeros(1),
        y0=jnp.zeros(602),
        strong_convexity=0.5,
    )
    report = bx.check(problem, points=1)
    assert not report["strong convexity"].ok
    np.testing.assert_allclose([report.convexity, report.smoothness], [0.01, 40], rtol=0.05)


def test_a_loss_that_rounds_to_float32_is_reported_not_raised():
    with jax.numpy_dtype_promotion("standard"):
        report = bx.check(altered(lower=lambda x, y, t, b: lower(x, y, t, b).astype(jnp.float32)), points=2)
    assert not report["∇y g"].ok  # its finite differences are lost in rounding


def test_an_unknown_finding_is_named():
    with pytest.raises(KeyError, match="no finding 'nope'; there are finite losses"):
        bx.check(Model(1).problem(), points=1)["nope"]


def test_float32_problems_are_checked_in_float64():
    with jax.enable_x64(False):
        assert bx.check(Model(2).problem(np.float32)).ok


def test_something_else_than_a_problem_is_refused():
    with pytest.raises(TypeError, match=r"problem must be a bilevax\.Problem; got dict"):
        bx.check({})
