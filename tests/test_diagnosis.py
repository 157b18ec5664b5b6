"""check() accepts what is right and names what is wrong."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.logistic import Model
from reference.logistic import lower as lower_loss
from reference.logistic import upper as upper_loss

import bilevax as bx
from bilevax.exact import lower


def altered(**changed):
    model = Model(3)
    problem = model.problem()
    fields = {
        "upper": upper_loss,
        "lower": lower_loss,
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

LARGEST = Model(3).theta.max()  # that of one task alone: it is enough that one is wrong
WRONG = {
    "strong convexity": {"strong_convexity": 5.0},
    "∇y f": {"upper": lambda x, y, t, b: jnp.where(t == LARGEST, jnp.sum(wrong_square(y)), 0) + upper_loss(x, y, t, b)},
    "∇x f": {"upper": lambda x, y, t, b: upper_loss(jax.lax.stop_gradient(x), y, t, b)},
    "∇y g": {"lower": lambda x, y, t, b: lower_loss(x, y, t, b) + jnp.sum(wrong_square(y))},
    "∇²xy g and ∇F": {"lower": lambda x, y, t, b: lower_loss(jax.lax.stop_gradient(x), y, t, b)},
    "upper is a mean": {"upper": lambda x, y, t, b: upper_loss(x, y, t, b) * b["c"].shape[0]},
    "lower is a mean": {"lower": lambda x, y, t, b: lower_loss(x, y, t, b) + jnp.mean(b["a"] @ y) ** 2},
}


def test_a_right_problem_passes_and_says_so():
    report = bx.check(Model(3).problem())
    assert report.ok, str(report)
    assert str(report).endswith("all is well")
    hessians = [Model(3).gyy(i, Model(3).x0, Model(3).y0[i], range(6)) for i in range(3)]
    assert report.smoothness >= min(np.linalg.eigvalsh(h).max() for h in hessians)
    assert report.convexity >= Model(3).lam
    model, first = Model(3), np.random.default_rng(0).permutation(3)[0]  # the task at which x0 and y0 are looked at
    at = first, model.x0, model.y0[first], [first]
    there = {"∇x f": model.fx(*at), "∇y f": model.fy(*at), "∇y g": model.gy(*at)}
    assert all(report.scales[name] >= np.linalg.norm(value) * (1 - 1e-12) for name, value in there.items())


def scalar_problem(strong_convexity=1.5):
    """f = 3x·ξ + 5y·ξ and g = ¾y² + 2xy + 7y·ζ with ξ = 1, −1 and ζ = −½, −½, 1: every derivative is known."""
    xi, zeta = (bx.shared(jnp.array(values)) for values in ([1.0, -1.0], [-0.5, -0.5, 1.0]))
    return bx.Problem(
        upper=lambda x, y, i, batch: jnp.mean(batch) * (3 * x[0] + 5 * y[0]),
        lower=lambda x, y, i, batch: 0.75 * y[0] ** 2 + 2 * x[0] * y[0] + 7 * jnp.mean(batch) * y[0],
        x0=jnp.zeros(1), y0=jnp.zeros(1), y0_per_task=False, tasks=3, upper_data=xi, lower_data=zeta,
        strong_convexity=strong_convexity,
    )  # fmt: skip


def test_the_scales_are_the_norms_on_one_sample():
    """At x0 = y0 = 0 in task 2, so on the first sample of f and the last of g; on all all but the last are zero."""
    report = bx.check(scalar_problem(), points=1)
    assert report.ok
    wanted = {"∇x f": 3.0, "∇y f": 5.0, "∇y g": 7.0, "∇²xy g": 2.0}
    assert report.scales.keys() == wanted.keys()
    np.testing.assert_allclose(list(report.scales.values()), list(wanted.values()), rtol=1e-12)
    for name, value in wanted.items():
        assert f"{name} {value:.3g}" in findings_of(report)


def test_a_convexity_that_is_claimed_too_large_by_little_is_found_out():
    report = bx.check(scalar_problem(1.5001), points=1)
    assert [finding.name for finding in report.findings if not finding.ok] == ["strong convexity"]
    np.testing.assert_allclose([report.convexity, report.smoothness], 1.5, rtol=1e-12)


def findings_of(report):
    """As it prints, without the rates, which take the longest to find."""
    return str(replace(report, find_rates=dict))


@pytest.mark.parametrize("names", WRONG)
def test_what_is_wrong_is_named(names):
    report = bx.check(altered(**WRONG[names]))
    assert not report.ok
    for name in names.split(" and "):
        assert not report[name].ok
        assert f"[WRONG] {name}" in findings_of(report)


@pytest.mark.parametrize("task", range(3))
def test_it_is_enough_that_one_task_is_wrong(task):
    problem = bx.Problem(
        upper=lambda x, y, i, batch: jnp.where(i == task, wrong_square(y[0]), y[0]) + x[0],
        lower=lambda x, y, i, batch: (y[0] - x[0]) ** 2, x0=jnp.ones(1), y0=jnp.ones(1), y0_per_task=False, tasks=3,
        strong_convexity=2.0,
    )  # fmt: skip
    assert not bx.check(problem, points=3)["∇y f"].ok


def test_a_loss_that_is_not_finite_is_named():
    report = bx.check(altered(upper=lambda x, y, t, b: upper_loss(x, y, t, b) + jnp.log(-jnp.sum(y**2) - 1)))
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
    scales = jnp.concatenate([jnp.array([0.01, 40.0]), jnp.linspace(1, 2, lower.DENSE_UP_TO)])
    problem = bx.Problem(
        upper=lambda x, y, i, batch: jnp.sum(y**2) + x[0],
        lower=lambda x, y, i, batch: 0.5 * jnp.sum(scales * (y - x[0]) ** 2),
        x0=jnp.zeros(1),
        y0=jnp.zeros(len(scales)),
        strong_convexity=0.5,
    )
    report = bx.check(problem, points=1)
    assert not report["strong convexity"].ok
    np.testing.assert_allclose([report.convexity, report.smoothness], [0.01, 40], rtol=0.05)


def test_a_loss_that_rounds_to_float32_is_reported_not_raised():
    with jax.numpy_dtype_promotion("standard"):
        report = bx.check(altered(lower=lambda x, y, t, b: lower_loss(x, y, t, b).astype(jnp.float32)), points=2)
    assert not report["∇y g"].ok  # its finite differences are lost in rounding


def test_an_unknown_finding_is_named():
    with pytest.raises(KeyError, match="no finding 'nope'; there are finite losses"):
        bx.check(Model(1).problem(), points=1)["nope"]


def test_float32_problems_are_checked_in_float64():
    with jax.enable_x64(False):
        assert bx.check(Model(2).problem(np.float32)).ok


def test_more_points_than_fit_in_memory_are_refused():
    with pytest.raises(MemoryError, match=r"points needs .* TB and .* are available"):
        bx.check(Model(1).problem(), points=10**12)


def test_something_else_than_a_problem_is_refused():
    with pytest.raises(TypeError, match=r"problem must be a bilevax\.Problem; got dict"):
        bx.check({})
