"""solve(): budgets, target, divergence, Ctrl-C, resuming, recording."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference.logistic import Model
from reference.problems import reweighting

import bilevax as bx
from bilevax import device, schedule
from bilevax.curvature import tracked
from bilevax.exact import lower
from bilevax.run import metrics, plan, watch
from bilevax.run.run import CHUNK_SECONDS, Run
from bilevax.run.solve import _loop_of
from bilevax.samples import NoData

SETTINGS = {"upper_step": 0.02, "lower_step": 0.1, "mixing": 0.1, "batch_size": 4, "initialization": "cheap"}
PER_STEP = 2 * (4 + 4)


@pytest.fixture(scope="module")
def problem():
    return Model(5).problem()


@functools.cache
def rsvrb(**changed):
    """The same algorithm whenever the same is asked for: what is compiled for it is compiled once."""
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
    rates = {"upper_step": 0.1, "lower_step": 0.1, "mixing": 0.1}
    algorithm = bx.rsvrb(tasks_per_step=2, batch_size=None, initialization="cheap", **rates)
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
    algorithm = rsvrb(upper_step=0.021)  # of this test alone
    bx.solve(problem, algorithm, steps=3, metrics=None)
    compiled = _loop_of(algorithm.name, algorithm.step)._cache_size()
    bx.solve(problem, algorithm, steps=3, seed=1, metrics=None)
    assert _loop_of(algorithm.name, algorithm.step)._cache_size() == compiled == 1


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
    with pytest.raises(
        TypeError, match=r"algorithm must be a bilevax\.Algorithm, or left out for one to be chosen; got str"
    ):
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
    result = bx.solve(reweighting.problem_of(m), bx.rsvrb(tasks_per_step=1, **SETTINGS), steps=7, metrics=None)
    assert result.cost.samples == m * (4 + 4) + 7 * (4 + 4)
    assert result.cost.gradients == m * (4 + 4) + 2 * 7 * (4 + 4)
    assert result.cost.products == 2 * (m * 4 + 2 * 7 * 4)


@pytest.mark.parametrize(
    "changed", [{"upper_step": 1e200}, {"upper_optimizer": optax.sgd(1e200)}], ids=["plain", "optax"]
)
def test_a_step_that_would_take_x_too_far_is_not_taken(changed):
    result = bx.solve(Model(5).problem(), rsvrb(**changed), steps=5, metrics=None)
    assert (result.status, result.steps) == ("diverged", 0)


def test_the_theorems_start_counts_every_sample_of_every_gradient_of_its_solves():
    problem = Model(5).problem()
    result = bx.solve(problem, bx.rsvrb(**{**SETTINGS, "initialization": "theorem"}), steps=0, metrics=None)
    solve = jax.jit(lambda i: lower.solve_lower(problem, problem.x0, problem.y0_of(i), i)[1])
    solves = [int(solve(jnp.int32(i))) for i in range(5)]
    assert min(solves) > 0
    assert result.cost.gradients == 5 * (6 + 6) + 6 * sum(solves)


class Worn:
    """A metric that raises the third time."""

    def __init__(self):
        self.calls = 0

    def __call__(self, problem, variables):
        self.calls += 1
        if self.calls == 3:
            raise OSError("no space left on device")
        return {"size": float(jnp.sum(variables.x**2))}


def test_a_metric_that_raises_loses_nothing(problem):
    with pytest.raises(OSError, match="no space left on device") as caught:
        bx.solve(problem, rsvrb(), steps=50, record_every=10, seed=2, metrics=Worn())
    saved = caught.value.result
    assert (saved.status, saved.steps, len(saved.trace)) == ("interrupted", 20, 2)
    assert "resume=error.result" in caught.value.__notes__[-1]
    whole = bx.solve(problem, rsvrb(), steps=50, record_every=10, seed=2, metrics=None)
    resumed = bx.solve(problem, rsvrb(), steps=50, record_every=10, resume=saved, metrics=None)
    np.testing.assert_array_equal(resumed.x, whole.x)


@pytest.mark.parametrize("metrics", [int, lambda problem, variables: float(problem)])
def test_an_error_of_the_users_metrics_says_where_it_comes_from(problem, metrics):
    with pytest.raises(TypeError) as caught:
        bx.solve(problem, rsvrb(), steps=1, metrics=metrics)
    told = "raised by metrics(problem, variables), called by solve at x0 and y0 before the run starts"
    assert caught.value.__notes__ == [told]


NO_NUMBERS = ["text", [1.0], None, 1j, {"loss": "text"}, {"loss": [1.0]}, {"loss": None}, {"loss": 1j}]


@pytest.mark.parametrize("returned", NO_NUMBERS, ids=str)
def test_metrics_that_are_no_numbers_are_refused_before_the_start_is_compiled(problem, monkeypatch, returned):
    own = rsvrb()
    fresh = own._replace(init=lambda problem, key: own.init(problem, key))  # nothing is compiled for it yet
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda self: pytest.fail("the start was compiled"))
    with pytest.raises(TypeError, match=r"metrics(: 'loss' must be a real number| must return numbers by name)"):
        bx.solve(problem, fresh, steps=1, metrics=lambda problem, variables: returned)


@pytest.mark.parametrize("returned", NO_NUMBERS, ids=str)
def test_metrics_that_are_no_numbers_are_refused_before_a_resumed_run_goes_on(problem, monkeypatch, returned):
    first = bx.solve(problem, rsvrb(), steps=2, metrics=None)
    monkeypatch.setattr(Run, "compile", lambda self, loop: pytest.fail("the loop was compiled"))
    with pytest.raises(TypeError, match="metrics"):
        bx.solve(problem, rsvrb(), steps=4, resume=first, metrics=lambda problem, variables: returned)


def test_metrics_that_are_no_numbers_later_in_the_run_lose_nothing(problem):
    metrics = lambda problem, variables: {"loss": 1.0 if (variables.x == problem.x0).all() else "text"}
    with pytest.raises(TypeError, match="metrics: 'loss' must be a real number; got 'text'") as caught:
        bx.solve(problem, rsvrb(), steps=50, record_every=10, metrics=metrics)
    assert (caught.value.result.steps, len(caught.value.result.trace)) == (10, 1)


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("per_task", [False, True])
def test_metrics_are_tried_with_what_a_run_hands_over(m, per_task):
    y0 = jnp.arange(1.0, 3.0)
    problem = bx.Problem(
        upper=lambda x, y, i, batch: jnp.sum((y - 1) ** 2), lower=lambda x, y, i, batch: jnp.sum((y - x) ** 2),
        x0=jnp.zeros(2), y0=jnp.stack([y0] * m) if per_task else y0, y0_per_task=per_task, tasks=jnp.arange(m),
        strong_convexity=2.0,
    )  # fmt: skip
    seen = []
    keep = lambda problem, variables: seen.append(variables) or {}
    bx.solve(problem, bx.soba(upper_step=0.1, lower_step=0.1, initialization="theorem"), steps=1, metrics=keep)
    assert len(seen) == 3  # the trial, the start, which has solved the lower problems, and the step
    np.testing.assert_array_equal(seen[0].x, problem.x0)
    np.testing.assert_array_equal(seen[0].y, [y0] * m)
    assert len({tuple(map(jax.typeof, variables)) for variables in seen}) == 1


def test_a_trial_of_metrics_is_the_first_record_of_a_run_that_starts_there(problem):
    seen = []
    keep = lambda problem, variables: seen.append(variables) or {"calls": len(seen)}
    result = bx.solve(problem, rsvrb(), steps=2, record_every=1, metrics=keep)
    np.testing.assert_array_equal(result.trace["calls"], [1, 2, 3])


def test_the_exact_metrics_are_not_tried(problem, monkeypatch):
    calls = []
    exact = metrics.exact
    monkeypatch.setattr(metrics, "exact", lambda *given: calls.append(given) or exact(*given))
    result = bx.solve(problem, rsvrb(initialization="theorem"), steps=2, record_every=1)
    assert len(calls) == len(result.trace) == 3


def test_a_loss_that_raises_in_a_later_chunk_leaves_the_last_record():
    calls = []

    def refuse(y):
        calls.append(y)
        if len(calls) > 200:
            raise OSError("the disk is gone")
        return np.ones(())

    def upper(x, y, i, batch):
        one, fixed = jax.ShapeDtypeStruct((), float), jax.lax.stop_gradient(y)
        return jax.pure_callback(refuse, one, fixed, vmap_method="sequential") * jnp.sum((y - 1) ** 2)

    problem = bx.Problem(
        upper=upper, lower=lambda x, y, i, batch: jnp.sum((y - x) ** 2), x0=jnp.zeros(1), y0=jnp.zeros(1),
        y0_per_task=False, strong_convexity=2.0,
    )  # fmt: skip
    with pytest.raises(Exception, match="the disk is gone") as caught:
        bx.solve(problem, bx.soba(upper_step=0.1, lower_step=0.1), steps=5000, record_every=10, metrics=None)
    assert caught.value.result.steps >= 10
    assert jnp.isfinite(caught.value.result.x).all()


@pytest.mark.parametrize("told", [{"strong_convexity": 100.0}, {"strong_convexity": 5.0, "ridge": True}])
def test_a_run_says_when_its_lower_problems_are_less_curved_than_was_said(told):
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(30, 3)))
    problem = bx.Problem(
        upper=lambda x, y, i, batch: jnp.sum((y - 1) ** 2),
        lower=lambda x, y, i, batch: jnp.mean((batch @ (y - x)) ** 2),
        x0=jnp.zeros(3), y0=jnp.zeros(3), y0_per_task=False, lower_data=bx.shared(rows), **told,
    )  # fmt: skip
    with pytest.warns(bx.AssumptionWarning, match="strong_convexity is .* a direction of curvature"):
        bx.solve(problem, bx.soba(upper_step=0.01, lower_step=0.1), steps=1, metrics=None)


def test_a_neumann_step_far_above_one_over_the_curvature_is_said(problem):
    with pytest.warns(bx.AssumptionWarning, match="neumann_step must be at most 1/L_g .* it is 50"):
        bx.solve(problem, bx.ttsa(neumann_step=50.0, upper_step=1e-9, lower_step=0.1), steps=1, metrics=None)


@pytest.mark.parametrize(
    ("schedule", "match"),
    [
        (
            lambda t: 0.2 - 0.01 * jnp.asarray(t, float),
            "upper_step must stay finite and at least 0 in every step; at step",
        ),
        (lambda t: jnp.where(t < 10, 0.1, jnp.nan), "upper_step must stay finite"),
        (
            lambda t: 0.1 if t > 3 else 0.2,
            "upper_step must be a number, or a function of the step t that JAX can trace",
        ),
        (lambda t: np.sqrt(t), "upper_step must be a number, or a function of the step t that JAX can trace"),
        (lambda t: jnp.ones(2), "upper_step must be a number, or a function of the step that returns one"),
        (lambda t: "0.1", "upper_step must be a number"),
        ("0.1", "upper_step must be a finite number > 0; got '0.1'"),
        (10**400, "upper_step must be a finite number > 0; got a whole number of more digits"),
        (np.True_, "upper_step must be a finite number > 0"),
        (0.1j, "upper_step must be a finite number > 0"),
    ],
)
def test_a_step_that_is_none_is_refused_at_once(schedule, match):
    with pytest.raises((ValueError, TypeError), match=match):
        bx.soba(upper_step=schedule)


@pytest.mark.parametrize("mixing", [lambda t: 0.1 * t, 1e-300, "0.1", bx.Mixing(*[0.1] * 5, lambda t: 0.3 * t)])
def test_a_mixing_that_leaves_its_range_is_refused_at_once(mixing):
    with pytest.raises((ValueError, TypeError), match="mixing"):
        bx.rsvrb(mixing=mixing)


def test_a_schedule_that_leaves_its_range_in_any_step_of_the_run_is_refused(problem):
    """Step 1333 is none of those at which a factory looks."""
    falls = rsvrb(upper_step=lambda t: jnp.where(t == 1333, -1.0, 0.01))
    with pytest.raises(ValueError, match=r"upper_step must stay .* in every step; at step 1333 it is -1"):
        bx.solve(problem, falls, steps=1400, metrics=None)
    assert bx.solve(problem, falls, steps=5, metrics=None).status == "done"
    with pytest.raises(ValueError, match="at step 1333 it is -1") as caught:
        bx.solve(problem, falls, samples=10**7, metrics=None)
    assert caught.value.result.steps < 1333


def test_what_an_optimizer_must_not_do_is_named(problem):
    doubles = optax.GradientTransformation(lambda x: (), lambda g, s, p=None: (jnp.concatenate([g, g]), s))
    raises = optax.GradientTransformation(lambda x: (), lambda g, s, p=None: 1 / 0)
    with pytest.raises(ValueError, match="upper_optimizer must give updates like x0"):
        bx.solve(problem, rsvrb(upper_optimizer=doubles), steps=1, metrics=None)
    with pytest.raises(ZeroDivisionError) as caught:
        bx.solve(problem, rsvrb(upper_optimizer=raises), steps=1, metrics=None)
    assert any("upper_optimizer" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("value", ["a", None, [1.0], 1j, np.datetime64("2020-01-01")])
def test_a_metric_that_is_no_number_is_named(problem, value):
    with pytest.raises((TypeError, ValueError), match="metrics: 'loss' must be a real number"):
        bx.solve(problem, rsvrb(), steps=1, metrics=lambda problem, variables: {"loss": value})


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"seed": 2**70}, "seed must be a whole number from 0 to"),
        ({"steps": 2**63}, "steps must be a whole number from 0 to 9223372036854775807; got one of 64 bits"),
        ({"seconds": "5"}, "seconds must be a finite number > 0; got '5'"),
        ({"seconds": 10**400}, "seconds must be a finite number > 0"),
        ({"progress": "yes"}, "progress must be True, False or None; got 'yes'"),
        ({"iterate": np.ones(2)}, "iterate must be one of"),
    ],
)
def test_more_wrong_arguments_are_refused(problem, changed, match):
    with pytest.raises((ValueError, TypeError), match=match):
        bx.solve(problem, rsvrb(), **{"steps": 1, **changed})


def test_a_batch_that_does_not_fit_is_refused(problem):
    with pytest.raises(MemoryError, match="batch_size must be so small that a batch fits in memory"):
        bx.solve(problem, rsvrb(batch_size=10**12), steps=1, metrics=None)
    several = device.available_bytes() // (8 * problem.num_tasks)  # of one task they would fit
    with pytest.raises(MemoryError, match=f"for each of {problem.num_tasks} tasks"):
        bx.solve(problem, bx.soba(batch_size=np.int64(several)), steps=1, metrics=None)


@pytest.mark.parametrize("few", [128, 1])
def test_the_curvature_that_a_run_sees_lies_between_the_outermost_eigenvalues(few, monkeypatch):
    """At them for few variables, inside for many; also where all are equal, and power iterations end at once."""
    monkeypatch.setattr(watch, "FEW", few)
    for values in (np.full(4, 3.0), np.geomspace(1, 50, 4)):
        problem = bx.Problem(
            upper=lambda x, y, i, batch: jnp.sum(y),
            lower=lambda x, y, i, batch, H=values: 0.5 * jnp.sum(H * (y - x) ** 2 + 0.1 * y**4),
            x0=jnp.zeros(4), y0=jnp.zeros(4), y0_per_task=False, strong_convexity=1.0,
        )  # fmt: skip
        smallest, largest = watch.curvature_at(problem, problem.x0, jnp.zeros((1, 4)), jax.random.key(0))
        np.testing.assert_allclose(largest, values.max(), rtol=1e-6)
        assert values.min() * (1 - 1e-9) <= smallest <= (1 + 1e-9 if few > 4 else 4) * values.min()


def test_the_curvature_that_a_run_sees_is_that_of_every_task_at_its_own_point():
    """g_i = c_i/2·y² + y⁴/12, so ∇²yy g_i = c_i + y²: three tasks are drawn, and each of four is seen at times."""
    own, y = jnp.array([1.0, 4.0, 16.0, 64.0]), jnp.array([[0.5], [1.0], [1.5], [2.0]])
    problem = bx.Problem(
        upper=lambda x, y, c, batch: jnp.sum(y), lower=lambda x, y, c, batch: c / 2 * y[0] ** 2 + y[0] ** 4 / 12,
        x0=jnp.zeros(1), y0=jnp.zeros(1), tasks=own, strong_convexity=1.0,
    )  # fmt: skip
    seen = np.array([watch.curvature_at(problem, problem.x0, y, jax.random.key(seed)) for seed in range(30)])
    there = np.asarray(own + y[:, 0] ** 2)
    ends = np.abs(seen[:, :, None] - there).argmin(2)
    np.testing.assert_allclose(seen, there[ends], rtol=1e-12)
    assert {0, 1} <= set(ends[:, 0])
    assert {2, 3} <= set(ends[:, 1])
    assert (ends[:, 0] < ends[:, 1]).any()
    assert (ends[:, 0] <= ends[:, 1]).all()


@pytest.mark.parametrize(
    ("claim", "neumann_step", "told"),
    [
        (7.6, None, None),
        (8.4, None, "strong_convexity is 8.4"),
        (1.0, 0.45, None),
        (1.0, np.float32(0.55), "neumann_step must"),
    ],
)
def test_a_run_warns_of_half_the_curvature_and_of_a_series_that_cannot_converge(claim, neumann_step, told):
    """∇²yy g = 4 at y = 0: less than half of what was claimed, and a factor I − ϑ∇²yy g of norm above one."""
    problem = bx.Problem(
        upper=lambda x, y, i, batch: jnp.sum(y), lower=lambda x, y, i, batch: 2 * y[0] ** 2 + y[0] ** 4,
        x0=jnp.zeros(1), y0=jnp.zeros(1), strong_convexity=claim,
    )  # fmt: skip
    warned = contextlib.nullcontext()  # warnings are errors
    if told is not None:
        warned = pytest.warns(bx.AssumptionWarning, match=f"{told}.* at step 7")
    with warned:
        watch.look_at(problem, bx.Variables(problem.x0, jnp.zeros((1, 1))), 7, neumann_step)


def test_a_run_looks_at_its_curvature_after_1_2_4_and_8_records(problem, monkeypatch):
    looks = []
    monkeypatch.setattr(watch, "look_at", lambda *given: looks.append(given))
    for records in range(1, 12):
        Run.look(
            SimpleNamespace(
                problem=problem, variables=lambda problem, state: ("x", "y"), state=None, steps=10 * records,
                trace=SimpleNamespace(rows=[{}] * records), algorithm=bx.ttsa(neumann_step=0.3),
            )
        )  # fmt: skip
    assert looks == [(problem, ("x", "y"), steps, 0.3) for steps in (10, 20, 40, 80)]


@pytest.mark.parametrize("last", [333, 2**20])
def test_every_schedule_is_looked_at_from_the_first_to_the_last_step_of_a_run(last):
    """Also where there are too many steps to look at all of them: the last one is among those."""
    leaves = lambda t: jnp.where(t == last, 1.5, 0.5)
    parts = bx.Mixing(*[0.1] * 5, leaves)
    for settings, name in [({"relaxation": leaves}, "relaxation"), ({"mixing": parts}, "mixing.direction")]:
        with pytest.raises(ValueError, match=rf"{name} must stay in \[0, 1\] in every step; at step {last} it is 1.5"):
            schedule.check_all(settings, 1, last)
        schedule.check_all(settings, 1, last - 1)
        schedule.check_all(settings, last + 1, last + 9)
    with pytest.raises(ValueError, match=f"at step {last}"):
        schedule.check_all({"relaxation": leaves}, last, last)
    schedule.check_all({"upper_step": leaves, "lower_step": lambda t: 0.0}, 1, last)  # steps may exceed one


def spent(steps=0, samples=0, seconds=0.0, pace=0.01):
    """A run that has used up so much."""
    return SimpleNamespace(
        steps=steps, cost=bx.Cost(samples, 0, 0), seconds=seconds, pace=pace, guard=None, ahead=None, converged=False
    )


def test_a_budget_is_used_by_the_largest_share_and_ends_with_the_first_that_is_used_up():
    budget = plan.Budget(100, 1000, 10.0)
    assert budget.share(spent(50, 800, 1.0)) == 0.8
    assert budget.share(spent(50, 800, 9.0)) == 0.9
    assert plan.Budget(None, 1000, None).share(spent(50, 300, 1.0)) == 0.3
    assert budget.used_up(spent(99, 999, 9.9)) is None
    ends = {"10 seconds": spent(99, 999, 10.0), "100 steps": spent(100, 0), "1000 samples": spent(0, 1000)}
    for why, run in ends.items():
        assert budget.used_up(run).startswith(why)
    assert budget.samples_left(spent(0, 400)) == 600
    assert budget.steps_left(spent(40)) == 60
    assert (
        plan.Budget(None, 5, None).steps_left(spent(40))
        == plan.CHUNK
        == plan.Budget(10**6, 5, None).steps_left(spent())
    )


def test_samples_are_a_budget_where_one_of_the_losses_draws_some(problem):
    both = {"upper_data": problem.upper_data, "lower_data": problem.lower_data}
    none = SimpleNamespace(**dict.fromkeys(both, NoData()))
    for name, data in both.items():
        plan.Budget(None, 5, None).check_for(SimpleNamespace(**{**vars(none), name: data}))
    plan.Budget(5, 5, None).check_for(none)
    plan.Budget(None, 5, 1.0).check_for(none)
    with pytest.raises(ValueError, match="samples cannot be the only budget, this problem draws none"):
        plan.Budget(None, 5, None).check_for(none)


def test_there_are_twenty_records_unless_others_are_asked_for():
    every = lambda given, steps: plan.record_interval(given, plan.Budget(steps, 9, None))
    assert [every(None, 200), every(None, 7), every(None, None), every(3, 200)] == [10, 1, None, 3]


def test_a_chunk_ends_at_the_next_record_and_before_the_clock_is_needed():
    def size(run, record_every=100, steps=1000, seconds=None):
        return Run.chunk_size(run, plan.Plan(plan.Budget(steps, None, seconds), {}, record_every, None))

    assert size(spent(pace=float("nan"))) == 8  # until it is known how long a step takes
    assert size(spent(97, pace=1e-6)) == 3
    assert size(spent(100, pace=1e-6)) == 100
    assert size(spent(pace=1e-6), record_every=10**6) == 1000
    assert size(spent(pace=CHUNK_SECONDS / 20.5)) == 20
    assert size(spent(seconds=9.0, pace=0.3 * CHUNK_SECONDS), seconds=9.0 + 0.7 * CHUNK_SECONDS) == 2
    assert size(spent(seconds=11.0), seconds=10.0) == size(spent(pace=1e3)) == 1


def test_a_state_is_copied_only_where_eight_of_them_would_fit(monkeypatch):
    run = Run(*[None] * 4, jnp.zeros(1000), 3, *[None] * 6)
    for available, copied in [(None, True), (8 * 8000 + 1, True), (8 * 8000, False)]:
        monkeypatch.setattr(device, "available_bytes", lambda available=available: available)
        run.saved = None
        run._save()
        assert (run.saved is not None) == copied


def test_a_neumann_step_is_looked_at_also_where_the_curvature_is_known():
    problem = bx.Problem(
        upper=lambda x, y, i, batch: jnp.sum(y**2), lower=lambda x, y, i, batch: 0.5 * jnp.sum((y - x) ** 2),
        x0=jnp.zeros(2), y0=jnp.zeros(2), y0_per_task=False, strong_convexity=1.0,
    )  # fmt: skip
    assert problem.structure.hessian.value == "known"
    watch.look_at(problem, bx.Variables(problem.x0, jnp.zeros((1, 2))), 0, 1.0)
    with pytest.warns(bx.AssumptionWarning, match="neumann_step must be at most 1/L_g .* it is 3"):
        watch.look_at(problem, bx.Variables(problem.x0, jnp.zeros((1, 2))), 0, 3.0)
