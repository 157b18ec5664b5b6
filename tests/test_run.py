"""solve(): budgets, target, divergence, Ctrl-C, resuming, recording."""

import os
import signal
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from logistic import Model
from test_linear_model import problem_of

import bilevax as bx
from bilevax import lower
from bilevax.algorithms.move import finite_move
from bilevax.curvature import tracked
from bilevax.run import _loop_of

SETTINGS = {"upper_step": 0.02, "lower_step": 0.1, "mixing": 0.1, "batch_size": 4, "initialization": "cheap"}
PER_STEP = 2 * (4 + 4)


@pytest.fixture(scope="module")
def problem():
    return Model(5).problem()


def rsvrb(**changed):
    return bx.rsvrb(tasks_per_step=2, **{**SETTINGS, **changed})


def test_a_run_ends_after_its_steps_and_records_as_asked(problem):
    result = bx.solve(problem, rsvrb(), steps=30, record_every=10)
    assert (result.status, result.steps) == ("done", 30)
    assert list(result.trace["step"]) == [0, 10, 20, 30]
    assert {"samples", "gradients", "products", "seconds", "objective", "grad_norm", "lower_gap"} <= set(
        result.trace.columns
    )
    np.testing.assert_allclose(result.trace["objective"][-1], bx.exact_objective(problem, result.x), rtol=1e-12)
    assert result.y.shape == (5, 2)


def test_the_next_run_of_an_algorithm_compiles_nothing(problem):
    traced = []

    def seen(function):
        def traced_function(*given):
            traced.append(function)
            return function(*given)

        return traced_function

    algorithm = rsvrb()
    algorithm = algorithm._replace(**{name: seen(getattr(algorithm, name)) for name in ("init", "step", "variables")})
    bx.solve(problem, algorithm, steps=2, metrics=None)
    assert len(set(traced)) == 3
    before = len(traced)
    bx.solve(problem, algorithm, steps=2, seed=1, metrics=None)
    assert len(traced) == before
    bx.solve(Model(6).problem(), algorithm, steps=2, metrics=None)
    assert len(traced) > before


def test_work_is_counted_by_hand(problem):
    result = bx.solve(problem, rsvrb(), steps=7, metrics=None)
    start, steps = 5 * (4 + 4), 7 * PER_STEP
    assert result.cost.samples == start + steps
    assert result.cost.gradients == start + 2 * steps
    assert result.cost.products == 5 * 4 * 2 * 2 + 7 * 2 * 2 * 4 * 2 * 2


def test_the_theorems_start_counts_its_samples_and_its_solves(problem):
    result = bx.solve(problem, rsvrb(initialization="theorem"), steps=0, metrics=None)
    assert result.cost.samples == 5 * (6 + 6)
    assert result.cost.gradients > 5 * (6 + 6)


def test_whole_batches_of_ragged_data_are_counted_sample_by_sample():
    problem = bx.Problem(
        upper=lambda x, y, i, batch: jnp.sum((y - 1) ** 2),
        lower=lambda x, y, i, batch: jnp.mean(((y - x)[None, :] - batch) ** 2),
        x0=jnp.zeros(1),
        y0=jnp.zeros(1),
        lower_data=bx.ragged(jnp.zeros((6, 1)), np.array([0, 1, 6])),
        strong_convexity=2.0,
    )
    algorithm = bx.rsvrb(tasks_per_step=2, batch_size=None, lower_step=0.1, initialization="cheap")
    result = bx.solve(problem, algorithm, steps=3, metrics=None)
    assert result.cost.samples == 6 + 3 * 6
    assert result.cost.gradients == (2 + 6) + 3 * 2 * (2 + 6)


@pytest.mark.parametrize(("extra", "steps"), [(0, 10), (1, 11), (PER_STEP, 11), (-10 * PER_STEP, 0)])
def test_a_run_ends_with_the_step_that_uses_its_samples_up(problem, extra, steps):
    budget = 40 + 10 * PER_STEP + extra
    result = bx.solve(problem, rsvrb(), samples=budget, metrics=None)
    assert (result.status, result.steps) == ("done", steps)
    again = bx.solve(problem, rsvrb(), samples=budget, resume=result, metrics=None)
    assert again.steps == steps


def test_a_budget_of_seconds_counts_steps_alone(problem):
    slow = lambda problem, variables: time.sleep(0.1) or {"objective": 0.0}
    result = bx.solve(problem, rsvrb(), seconds=0.3, record_every=500, metrics=slow)
    assert result.status == "done"
    assert 0.3 <= result.seconds < 0.3 + 0.3
    assert result.steps > 3


def test_a_target_ends_the_run(problem):
    first = bx.solve(problem, rsvrb(), steps=200, record_every=20)
    aim = first.trace["grad_norm"].min() * 1.01
    result = bx.solve(problem, rsvrb(), steps=10_000, record_every=20, target={"grad_norm": aim})
    assert result.status == "target"
    assert result.trace["grad_norm"][-1] <= aim


def test_a_diverging_run_returns_the_last_finite_state(problem):
    result = bx.solve(problem, rsvrb(upper_step=1e5), steps=1000, metrics=None)
    assert result.status == "diverged"
    assert f"step {result.steps + 1} left the finite numbers" in result.message
    assert jnp.isfinite(result.x).all()
    assert jnp.isfinite(result.y).all()
    assert result.steps > 0
    again = bx.solve(problem, rsvrb(upper_step=1e5), steps=result.steps, metrics=None)
    np.testing.assert_array_equal(again.x, result.x)
    np.testing.assert_array_equal(again.y, result.y)


def test_numbers_so_large_that_a_delayed_update_could_overflow_count_as_diverged(problem):
    result = bx.solve(problem, rsvrb(lower_step=1e200), steps=50, metrics=None)
    assert result.status == "diverged"
    assert jnp.abs(result.y).max() < 1e154


def test_ctrl_c_returns_what_was_reached(problem):
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))

    records = []

    def interrupt_later(problem, variables):
        records.append(variables)
        if len(records) == 2:  # after the first steps, when all is compiled
            timer.start()
        return {}

    before = signal.getsignal(signal.SIGINT)
    result = bx.solve(problem, rsvrb(), steps=100_000_000, record_every=500, metrics=interrupt_later)
    assert result.status == "interrupted"
    assert 0 < result.steps < 100_000_000
    assert jnp.isfinite(result.x).all()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_resumed_run_has_the_bits_of_one_uninterrupted_run(problem):
    whole = bx.solve(problem, rsvrb(), steps=60, record_every=20, seed=4)
    half = bx.solve(problem, rsvrb(), steps=33, record_every=20, seed=4)
    resumed = bx.solve(problem, rsvrb(), steps=60, record_every=20, resume=half)
    np.testing.assert_array_equal(resumed.x, whole.x)
    np.testing.assert_array_equal(resumed.y, whole.y)
    assert resumed.cost == whole.cost
    np.testing.assert_array_equal(half.trace["step"], [0, 20, 33])  # the first half is left as it was
    again = bx.solve(problem, rsvrb(), steps=60, record_every=20, resume=half)
    np.testing.assert_array_equal(again.x, whole.x)


def test_a_resumed_run_may_have_a_target_that_the_first_did_not_record(problem):
    first = bx.solve(problem, rsvrb(), steps=2, metrics=None)
    result = bx.solve(problem, rsvrb(), steps=4, resume=first, target={"objective": 1e9})
    assert (result.status, result.steps) == ("target", 2)


def test_only_a_run_of_the_same_kind_is_resumed(problem):
    result = bx.solve(problem, rsvrb(), steps=2, metrics=None)
    staged = bx.re_rsvrb(tasks_per_step=2, **SETTINGS)
    for other_problem, algorithm in [(problem, staged), (Model(6).problem(), rsvrb())]:
        with pytest.raises(ValueError, match="resume must come from a run of"):
            bx.solve(other_problem, algorithm, steps=4, resume=result, metrics=None)


def test_a_start_that_is_not_finite_is_said(problem):
    broken = problem.replace(x0=problem.x0 * jnp.inf)
    result = bx.solve(broken, rsvrb(), steps=4, metrics=None)
    assert (result.status, result.steps) == ("diverged", 0)
    assert "the losses do at x0, y0, or a step is far too large" in result.message


def test_the_next_run_of_an_algorithm_is_not_compiled_again(problem):
    algorithm = rsvrb()
    bx.solve(problem, algorithm, steps=3, metrics=None)
    compiled = _loop_of(algorithm.step)._cache_size()
    bx.solve(problem, algorithm, steps=3, seed=1, metrics=None)
    assert _loop_of(algorithm.step)._cache_size() == compiled == 1


def test_a_random_iterate_is_an_iterate_of_the_run(problem):
    result = bx.solve(problem, rsvrb(), steps=40, iterate="random", seed=3, metrics=None)
    assert 0 <= result.steps <= 40
    same = bx.solve(problem, rsvrb(), steps=result.steps, seed=3, metrics=None)
    np.testing.assert_array_equal(same.x, result.x)
    longer = bx.solve(problem, rsvrb(), steps=41, seed=3, metrics=None)
    with pytest.raises(ValueError, match="random iterate"):
        bx.solve(problem, rsvrb(), steps=40, iterate="random", resume=longer, metrics=None)
    drawn = {int(np.random.default_rng(seed).integers(0, 41)) for seed in range(300)}
    assert {0, 40} <= drawn


def test_a_run_can_start_in_another_thread(problem):
    results = []
    thread = threading.Thread(target=lambda: results.append(bx.solve(problem, rsvrb(), steps=3, metrics=None)))
    thread.start()
    thread.join()
    assert results[0].steps == 3


def test_progress_is_shown_when_asked_for_and_silent_elsewhere(problem, capsys):
    bx.solve(problem, rsvrb(), steps=5, metrics=None)
    assert capsys.readouterr().err == ""
    bx.solve(problem, rsvrb(), steps=5, metrics=None, progress=True)
    assert "step 5" in capsys.readouterr().err


def test_float32_runs_stay_in_float32():
    with jax.enable_x64(False):
        result = bx.solve(Model(3).problem(np.float32), bx.rsvrb(**SETTINGS), steps=20)
        assert result.x.dtype == np.float32
        assert np.isfinite(result.trace["objective"]).all()


def test_without_data_the_losses_are_handed_none():
    problem = bx.Problem(
        upper=lambda x, y, i, batch: jnp.sum((y - 1) ** 2) if batch is None else jnp.nan,
        lower=lambda x, y, i, batch: jnp.sum((y - x) ** 2),
        x0=jnp.zeros(2),
        y0=jnp.zeros(2),
        strong_convexity=2.0,
    )
    with pytest.raises(ValueError, match="samples cannot be the only budget"):
        bx.solve(problem, bx.svrb(), samples=100)
    result = bx.solve(problem, bx.svrb(upper_step=0.2, lower_step=0.2), steps=300)
    np.testing.assert_allclose(result.x, 1, atol=1e-3)
    assert result.cost.samples == 0


@pytest.mark.parametrize(
    ("changed", "error", "match"),
    [
        ({}, ValueError, "needs a budget: give steps=, samples= or seconds="),
        ({"steps": -1}, ValueError, "steps must be a whole number of at least 0; got -1"),
        ({"steps": 1.5}, TypeError, "steps must be a whole number"),
        ({"seconds": 0}, ValueError, "seconds must be a finite number > 0; got 0"),
        ({"steps": 1, "record_every": 0}, ValueError, "record_every must be"),
        (
            {"steps": 1, "target": {"loss": 1}},
            ValueError,
            "target names 'loss', which is no recorded metric; the metrics are",
        ),
        ({"steps": 1, "iterate": "best"}, ValueError, "iterate must be one of 'last', 'random'; got 'best'"),
        ({"seconds": 1, "iterate": "random"}, ValueError, "give steps="),
        ({"steps": 1, "target": {"step": 3}}, ValueError, "target names 'step', which is no recorded metric"),
        ({"steps": 1, "target": 0.3}, TypeError, "target must be a mapping such as"),
        ({"steps": 1, "metrics": "objective"}, TypeError, "metrics must be a function"),
        ({"steps": 1, "metrics": lambda p, v: 1.0}, TypeError, "metrics must return numbers by name.*float"),
        ({"steps": 1, "metrics": lambda p, v: {"step": 9}}, ValueError, "metrics must not name a metric 'step'"),
        ({"steps": 1, "metrics": lambda p, v: {"x": v.x}}, ValueError, r"single numbers; 'x' has shape \(3,\)"),
        ({"steps": 1, "resume": bx.Trace()}, TypeError, "resume must be a bilevax.Result; got Trace"),
        ({"step": 1}, TypeError, "solve.. has no argument 'step': did you mean 'steps'"),
    ],
)
def test_wrong_arguments_are_refused(problem, changed, error, match):
    with pytest.raises(error, match=match):
        bx.solve(problem, rsvrb(), **changed)


def test_something_else_than_an_algorithm_is_refused(problem):
    with pytest.raises(TypeError, match=r"algorithm must be a bilevax\.Algorithm; got str"):
        bx.solve(problem, "rsvrb", steps=1)


def test_importing_the_library_stays_light():
    code = "import sys, bilevax; print(sorted({'pandas', 'sklearn', 'matplotlib', 'click'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_work_of_the_tracked_curvature_is_counted_by_hand(problem):
    result = bx.solve(problem, rsvrb(curvature=tracked), steps=7, metrics=None)
    assert result.cost.products == 2 * (5 * 4 + 7 * 2 * 2 * 4)


@pytest.mark.parametrize("m", [1, 3])
def test_work_of_linear_models_is_counted_by_hand(m):
    """m = 1 goes row by row."""
    result = bx.solve(problem_of(m), bx.rsvrb(**SETTINGS), steps=7, metrics=None)
    assert result.cost.samples == m * (4 + 4) + 7 * (4 + 4)
    assert result.cost.gradients == m * (4 + 4) + 2 * 7 * (4 + 4)
    assert result.cost.products == 2 * (m * 4 + 2 * 7 * 4)


@pytest.mark.parametrize(
    "changed", [{"upper_step": 1e200}, {"upper_optimizer": optax.sgd(1e200)}], ids=["plain", "optax"]
)
def test_a_step_that_would_take_x_too_far_is_not_taken(changed):
    result = bx.solve(Model(5).problem(), bx.rsvrb(tasks_per_step=2, **{**SETTINGS, **changed}), steps=5, metrics=None)
    assert (result.status, result.steps) == ("diverged", 0)


def test_a_move_is_finite_where_all_its_squares_are():
    x, d = jnp.ones(3), jnp.ones(3)
    assert finite_move(None, x, 0.1, d)
    assert not finite_move(None, x, 1e200, d)
    assert not finite_move(None, x, 1e-200, 1e200 * d)
    assert not finite_move(optax.sgd(1.0), 1e200 * x, 0.1, d)
    assert finite_move(optax.sgd(1.0), x, 1e200, d)  # the step is not used


def test_the_theorems_start_counts_every_sample_of_every_gradient_of_its_solves():
    problem = Model(5).problem()
    result = bx.solve(problem, bx.rsvrb(**{**SETTINGS, "initialization": "theorem"}), steps=0, metrics=None)
    solves = [int(lower.solve(problem, problem.x0, problem.y0_of(i), jnp.int32(i))[1]) for i in range(5)]
    assert min(solves) > 0
    assert result.cost.gradients == 5 * (6 + 6) + 6 * sum(solves)
