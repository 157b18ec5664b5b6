"""solve without an algorithm, and runs on rates that were found: chosen in words, never away for good."""

import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax.run import choice
from bilevax.run.plan import Budget, Plan, record_interval
from bilevax.schedule import Scales


@pytest.fixture(scope="module")
def quadratic():
    return bx.problems.quadratic(num_tasks=12, dim_x=4, dim_y=3, noise=0.3, num_samples=16)


def test_a_small_problem_is_solved_without_a_word_on_how(quadratic):
    result = bx.solve(quadratic.problem, seconds=20)
    np.testing.assert_allclose(result.x, quadratic.solution, atol=1e-3)
    assert "bilevax.implicit" in result.explain()
    assert "12 lower problems" in result.explain()
    assert result.seconds < 10  # it ends by itself
    assert list(result.trace["step"][:6]) == [0, 1, 2, 3, 4, 6]


def test_without_a_number_of_steps_records_come_at_steps_that_do_not_depend_on_when_a_run_was_resumed():
    plan = Plan(Budget(None, None, 1.0), {}, record_interval(None, Budget(None, None, 1.0)), None)
    due = [steps + plan.steps_to_record(steps) for steps in range(60)]
    assert sorted(set(due)) == [1, 2, 3, 4, 6, 9, 13, 19, 28, 42, 63]
    assert all(step < at for step, at in enumerate(due))


@pytest.mark.parametrize(
    ("budget", "name"),
    [
        (Budget(None, None, 30.0), "implicit"),
        (Budget(100, None, None), "implicit"),
        (Budget(None, 10_000, None), "implicit"),
        (Budget(None, 3_000, None), "block_soba"),  # not twenty looks at 2 · 12 · 16 samples
        (Budget(None, None, 1e-6), "block_soba"),
    ],
)
def test_the_choice_is_made_by_what_the_budget_affords(quadratic, budget, name):
    chosen = choice.choose_method(quadratic.problem, budget)
    assert chosen.algorithm.name == name
    assert name in " ".join(chosen.reasons)


def test_with_one_lower_problem_the_choice_is_one_for_that():
    problem = bx.problems.quadratic(num_tasks=1, dim_x=4, dim_y=3, noise=0.3, num_samples=16).problem
    assert choice.choose_method(problem, Budget(None, 10, None)).algorithm.name == "ma_soba"


@pytest.fixture
def giant_steps(monkeypatch):
    """Rates that are found ten thousand times too large."""
    from bilevax.algorithms import frame

    def measure(problem, key, size, share):
        one = jnp.ones((), problem.dtype)
        return Scales(1e4 * one, 1e-2 * one, share * one, one), 0.0, 0.0

    monkeypatch.setattr(frame, "measure_scales", measure)


def test_a_run_on_found_rates_goes_back_instead_of_diverging(quadratic, giant_steps):
    result = bx.solve(quadratic.problem, bx.rsvrb(), steps=3000, metrics=None)
    assert result.status == "done"
    assert "went back" in result.explain()
    first, last = (float(quadratic.objective(x)) for x in (quadratic.problem.x0, result.x))
    assert last < 0.5 * (first + float(quadratic.objective(quadratic.solution)))


def test_a_run_on_rates_of_the_users_own_is_left_alone(quadratic):
    result = bx.solve(quadratic.problem, bx.soba(upper_step=1e4, lower_step=1e3), steps=3000, metrics=None)
    assert result.status == "diverged"
    assert result.explain().startswith("All steps and settings were given.")


def test_a_guarded_run_resumes_with_the_bits_of_an_uninterrupted_one(quadratic, giant_steps, tmp_path):
    algorithm = bx.rsvrb()
    whole = bx.solve(quadratic.problem, algorithm, steps=400, metrics=None)
    half = bx.solve(quadratic.problem, algorithm, steps=200, metrics=None)
    half.save(tmp_path / "half.npz")
    more = bx.solve(quadratic.problem, algorithm, steps=400, metrics=None, resume=bx.Result.load(tmp_path / "half.npz"))
    np.testing.assert_array_equal(more.x, whole.x)
    assert more.guard.retreats == whole.guard.retreats > 0


@pytest.mark.parametrize("algorithm", ["rsvrb", 3])
def test_what_is_no_algorithm_is_refused(quadratic, algorithm):
    with pytest.raises(TypeError, match=r"algorithm must be a bilevax\.Algorithm, or left out"):
        bx.solve(quadratic.problem, algorithm, steps=1)
