"""What rates are made of: right where it is known, and free of units."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax import scales

KEY = jax.random.key(0)


def quadratic_of(m=3):
    return bx.problems.quadratic(num_tasks=m, dim_x=4, dim_y=3, noise=0.0, seed=1)


def measured(problem, share=1.0):
    return scales.measure_scales(problem, KEY, None, share)[0]


def test_the_smoothness_is_the_largest_eigenvalue_over_the_tasks():
    quadratic = quadratic_of()
    right = max(np.linalg.eigvalsh(A).max() for A in np.asarray(quadratic.A))
    assert 0.9 * right < float(measured(quadratic.problem).smoothness) <= right * (1 + 1e-9)


def test_the_step_is_that_to_the_minimum_along_the_gradient_to_a_factor_of_four():
    """For a quadratic F, F(x − t∇F) falls by at least t‖∇F‖²/2 up to t = ‖∇F‖²/(∇Fᵀ∇²F∇F)."""
    quadratic = quadratic_of()
    x, g = quadratic.problem.x0, quadratic.gradient(quadratic.problem.x0)
    bend = g @ (quadratic.gradient(x + g) - quadratic.gradient(x))
    longest = float(g @ g / bend)
    assert 0.24 * longest <= float(measured(quadratic.problem).step) <= 1.01 * longest


def scaled(f=1.0, g=1.0, x=1.0, y=1.0):
    """A problem that is not quadratic, with losses and variables in other units."""
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(3, 20, 4)), np.sign(rng.normal(size=(3, 20)))
    data = bx.per_task({"A": A, "b": b})
    fit = lambda v, batch: jnp.mean(jax.nn.softplus(-batch["b"] * (batch["A"] @ v)))
    return bx.Problem(
        upper=lambda u, v, i, batch: f * fit(v / y, batch),
        lower=lambda u, v, i, batch: g * (fit(v / y, batch) + 0.5 * jnp.sum((0.1 + (u / x) ** 2) * (v / y) ** 2)),
        x0=x * jnp.ones(4),
        y0=jnp.zeros(4),
        strong_convexity=0.1 * g / y**2,
        lower_data=data,
        upper_data=data,
        y0_per_task=False,
    )


@pytest.mark.parametrize("units", [{"f": 1e3, "x": 1e-3}, {"g": 1e-3, "y": 1e3}])
def test_units_change_rates_as_they_must_and_what_is_found_not_at_all(units):
    plain, other = measured(scaled()), measured(scaled(**units))
    f, g, x, y = (units.get(name, 1.0) for name in "fgxy")
    np.testing.assert_allclose(other.step, plain.step * x**2 / f, rtol=1e-5)
    np.testing.assert_allclose(other.smoothness, plain.smoothness * g / y**2, rtol=1e-5)
    np.testing.assert_allclose(other.condition, plain.condition, rtol=1e-5)
    first, second = (bx.solve(problem, steps=60, metrics=None) for problem in (scaled(), scaled(**units)))
    np.testing.assert_allclose(second.x / x, first.x, rtol=2e-2, atol=2e-3)
    assert abs(second.steps - first.steps) <= 10


def test_losses_that_are_not_finite_leave_a_scale_that_is_a_number():
    problem = bx.Problem(
        upper=lambda x, y, i, batch: jnp.sum(jnp.log(x) + y),
        lower=lambda x, y, i, batch: 0.5 * jnp.sum((y - x) ** 2),
        x0=-jnp.ones(2), y0=jnp.zeros(2), strong_convexity=1.0,
    )  # fmt: skip
    assert all(np.isfinite(value) and value > 0 for value in measured(problem))


def test_the_report_tells_the_rates_that_runs_would_find():
    problem = quadratic_of(20).problem
    report = bx.check(problem, points=1)
    result = bx.solve(problem, bx.rsvrb(), steps=1, metrics=None)
    assert f"upper_step = {report.rates['rsvrb']['upper_step']:.3g}" in str(report)
    assert report.rates["rsvrb"]["lower_step"] == pytest.approx(
        0.5 / (3 * float(result.state.scales.smoothness)), rel=0.3
    )


def bowl(c, upper_data=None, lower_data=None, tasks=None):
    """y_i* = x + the mean of the lower samples, and F = c + ½(y − the mean of the upper samples)² in the mean."""
    mean = lambda batch: 0.0 if batch is None else jnp.mean(batch)
    return bx.Problem(
        upper=lambda x, y, task, batch: c + 0.5 * (y[0] - mean(batch)) ** 2,
        lower=lambda x, y, task, batch: 0.5 * task * jnp.sum((y - x - mean(batch)) ** 2),
        x0=jnp.ones(1), y0=jnp.zeros(1), y0_per_task=False, strong_convexity=1.0,
        tasks=jnp.ones(1) if tasks is None else tasks, upper_data=upper_data, lower_data=lower_data,
    )  # fmt: skip


@pytest.mark.parametrize("c", [0.0, 1000.0, -0.4999, -0.5])
def test_the_step_is_found_wherever_the_search_begins(c):
    """F = c + ½x² from x = 1 falls by t/2 at least up to t = 1; the search begins with |F|, or with one where F = 0."""
    assert 0.25 <= float(measured(bowl(c)).step) <= 1


def test_an_excerpt_of_many_samples_is_drawn_from_all_of_those_of_its_loss():
    few, many = bx.per_task(np.full((1, 20), 5.0)), bx.per_task(np.linspace(0, 1, 4000)[None])
    F = lambda **data: float(scales.excerpt_objective(bowl(0.0, **data), jnp.zeros(1), KEY))
    assert F(upper_data=many, lower_data=few) == pytest.approx(0.5 * 4.5**2, rel=0.02)
    assert F(upper_data=few, lower_data=many) == pytest.approx(0.5 * 4.5**2, rel=0.02)
    assert F(upper_data=few, lower_data=few) == pytest.approx(0.0, abs=1e-9)


def test_a_look_says_how_far_f_is_from_its_value_at_the_solutions_of_the_lower_problems():
    """y* = x = 0, and f = ½y² of the tasks that are looked at: 512 of the 600, evenly spread."""
    problem, y = bowl(0.0, tasks=jnp.ones(600)), jnp.arange(600.0)[:, None]
    F, lag = scales.excerpt_look(problem, jnp.zeros(1), y, KEY)
    tasks = np.asarray(scales.evenly(600, 512))
    assert float(F) == pytest.approx(0, abs=1e-12)
    assert float(lag) == pytest.approx(np.mean(0.5 * tasks**2))


@pytest.mark.parametrize(("samples", "tasks"), [(1, 512), (64, 128), (400, 20), (5000, 16)])
def test_more_tasks_are_looked_at_where_each_has_few_samples(samples, tasks):
    """About as many samples in all: 16 tasks with 512 of them."""
    data = bx.shared(np.zeros((samples, 1)))
    assert scales.count_tasks(bowl(0.0, lower_data=data), 600) == tasks
    assert scales.count_tasks(bowl(0.0, lower_data=data), 3) == 3


def test_fewer_tasks_are_looked_at_where_x_is_long():
    problem = bowl(0.0, tasks=jnp.ones(600))
    assert scales.count_tasks(problem.replace(x0=jnp.zeros(100)), 600) == 512
    assert scales.count_tasks(problem.replace(x0=jnp.zeros(6400)), 600) == 81
    assert scales.count_tasks(problem.replace(x0=jnp.zeros(10**6)), 600) == 16


def test_some_tasks_are_spread_evenly_over_all():
    np.testing.assert_array_equal(scales.evenly(5, 16), np.arange(5))
    np.testing.assert_array_equal(scales.evenly(12, 4), [0, 3, 6, 9])
    steep = measured(bowl(0.0, tasks=jnp.linspace(1, 200, 200)))
    assert 196 <= float(steep.smoothness) <= 200
    assert float(steep.condition) == pytest.approx(1 / float(steep.smoothness))


def test_what_was_looked_at_is_counted():
    """F of two tasks with 7 samples of f and 5 of g at each look, and batches of 3 of g for L_g."""
    data = {"upper_data": bx.per_task(np.zeros((2, 7))), "lower_data": bx.per_task(np.zeros((2, 5)))}
    found, samples, gradients = scales.measure_scales(bowl(0.0, tasks=jnp.ones(2), **data), KEY, 3, 0.5)
    assert float(samples) == 2 * (7 + 5) + 2 * 3
    assert float(gradients) == 3 * float(samples)  # at t = 0, ½ and 2
    assert float(found.share) == 0.5


def test_the_smoothness_is_found_where_one_direction_is_far_steeper_than_all_others():
    steepness = jnp.ones(30).at[7].set(100.0)
    problem = bx.Problem(
        upper=lambda x, y, i, batch: jnp.sum(y**2),
        lower=lambda x, y, i, batch: 0.5 * jnp.sum(steepness * (y - x) ** 2),
        x0=jnp.ones(30), y0=jnp.zeros(30), strong_convexity=1.0,
    )  # fmt: skip
    assert 99 < float(measured(problem).smoothness) < 100.001
