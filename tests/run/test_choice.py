"""solve without an algorithm, and runs on rates that were found: chosen in words, never away for good."""

from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax.run import choice, guard, solve
from bilevax.run.plan import Budget, Plan, record_interval
from bilevax.run.run import Run
from bilevax.schedule import RateRule, Scales
from bilevax.shards import ALONE


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
    chosen = choice.choose_method(problem, Budget(None, 10, None))
    assert chosen.algorithm.name == "ma_soba"
    assert chosen.reasons[0].startswith("The problem has one lower problem with 32 samples in all")


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
    assert more.guard.starts == whole.guard.starts > 1
    assert more.cost == whole.cost


@pytest.mark.parametrize("algorithm", ["rsvrb", 3])
def test_what_is_no_algorithm_is_refused(quadratic, algorithm):
    with pytest.raises(TypeError, match=r"algorithm must be a bilevax\.Algorithm, or left out"):
        bx.solve(quadratic.problem, algorithm, steps=1)


def counted(data):
    """Three lower problems, with these data for both losses."""
    return bx.Problem(
        upper=lambda x, y, i, batch: jnp.sum((y - x) ** 2), lower=lambda x, y, i, batch: jnp.sum((y - x) ** 2),
        x0=jnp.zeros(2), y0=jnp.zeros(2), y0_per_task=False, tasks=3, strong_convexity=2.0,
        upper_data=data, lower_data=data,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("data", "samples"),
    [
        (bx.per_task(np.zeros((3, 40))), 3 * 40),
        (bx.ragged(np.zeros(120), [0, 10, 30, 120]), 120),
        (bx.shared(np.zeros(40)), 3 * 40),  # every lower problem looks at all of them
    ],
)
def test_a_look_is_counted_by_what_all_lower_problems_look_at(data, samples):
    problem = counted(data)
    affords = lambda steps=None, samples=None, seconds=None: choice.choose_method(
        problem, Budget(steps, samples, seconds)
    )
    assert f"3 lower problems with {2 * samples} samples in all" in affords(steps=5).reasons[0]
    seconds = choice.LOOKS * choice.PASSES * 2 * samples / choice.NUMBERS_A_SECOND  # each sample is one number
    for enough in ({"samples": choice.LOOKS * 2 * samples}, {"seconds": 1.001 * seconds}):
        assert affords(**enough).algorithm.name == "implicit"
        assert affords(**{name: 0.99 * value for name, value in enough.items()}).algorithm.name == "block_soba"
    both = {"samples": choice.LOOKS * 2 * samples, "seconds": 0.99 * seconds}
    assert affords(**both).algorithm.name == "block_soba"


def test_the_words_say_where_a_run_begins_with_some_samples(monkeypatch):
    chosen = lambda: choice.choose_method(counted(bx.shared(np.zeros(20_000))), Budget(5, None, None))
    assert len(chosen().reasons) == 1
    monkeypatch.setattr("bilevax.algorithms.parts.stages.LARGE", 1)
    assert "begins with 1,366 samples of each lower problem" in chosen().reasons[1]  # 4,096 for the three


def test_without_samples_the_words_say_so_and_the_variables_count():
    problem = counted(None)
    seconds = choice.LOOKS * choice.PASSES * 2 * 3 * 2 / choice.NUMBERS_A_SECOND  # two losses, three y_i of two numbers
    enough, short = (choice.choose_method(problem, Budget(None, None, share * seconds)) for share in (1.001, 0.99))
    assert "3 lower problems without samples" in enough.reasons[0]
    assert (enough.algorithm.name, short.algorithm.name) == ("implicit", "block_soba")


def test_with_two_lower_problems_the_choice_is_one_for_several():
    problem = bx.problems.quadratic(num_tasks=2, dim_x=4, dim_y=3, noise=0.3, num_samples=16).problem
    chosen = choice.choose_method(problem, Budget(None, 10, None))
    assert chosen.algorithm.name == "block_soba"
    assert chosen.reasons[0].startswith("The problem has 2 lower problems")


class Known(NamedTuple):
    """A state of which F is x itself, and y is how far f is from it."""

    x: Any
    scales: Any
    y: Any = np.zeros(())
    initial_cost: Any = None


@pytest.fixture
def run(monkeypatch):
    """A run that the tests move by hand."""
    monkeypatch.setattr(guard, "excerpt_look", lambda problem, x, y, key: (x, y))
    state = Known(jnp.asarray(10.0), Scales(*map(jnp.asarray, (1.0, 3.0, 1.0, 1.0, 1.0))))
    made = SimpleNamespace(
        problem=SimpleNamespace(shards=ALONE), algorithm=SimpleNamespace(settings={}), state=state, steps=0,
        seconds=0.0, key=None, variables=lambda problem, state: bx.Variables(state.x, state.y),
    )  # fmt: skip
    made.spend = partial(Run.spend, made)
    return made


def move(run, watch, F):
    """The run comes to a point with this F when the next look is due; whether it goes back."""
    run.steps, run.state = watch.next_look, run.state._replace(x=jnp.asarray(F))
    before = watch.retreats
    watch.look(run)
    assert float(run.state.x) == (F if watch.retreats == before else watch.best)
    return watch.retreats > before


def test_a_run_goes_back_to_its_best_point_where_f_has_risen_by_half_of_its_fall(run):
    watch = guard.Guard.of(run)
    assert watch.steps_left(run) == 16
    assert not move(run, watch, 4.0)
    assert not move(run, watch, 6.9)
    assert run.steps + watch.steps_left(run) == 64
    assert run.seconds > 0
    assert move(run, watch, 7.1)
    assert watch.steps_left(run) == 16
    assert (float(run.state.scales.step), float(run.state.scales.smoothness)) == (0.25, 6.0)
    assert move(run, watch, np.inf)
    assert move(run, watch, np.nan)
    assert (float(run.state.scales.step), float(run.state.scales.smoothness)) == (0.25**3, 24.0)
    assert [note[:34] for note in watch.notes] == [
        "After 64 steps F rose to 7.1: the ",
        "After 80 steps F was no longer fin",
        "After 96 steps F was no longer fin",
    ]
    assert not move(run, watch, 3.0)  # a better point is the best one from then on
    assert watch.best == 3.0


@pytest.mark.parametrize(("steps", "rise"), [(16, 0.5), (160, 0.05)])
def test_a_start_that_swings_is_let_pass_but_ever_less_of_it(run, steps, rise):
    watch = guard.Guard.of(run)
    watch.next_look = steps
    assert not move(run, watch, 10 + 0.98 * rise)  # 5 % of |F(x_0)| after 16 steps
    watch.next_look = steps
    assert move(run, watch, 10 + 1.02 * rise)


def move_to(run, watch, steps, F):
    """The run goes to a point with this F by so many steps, in a straight line; whether it went back on the way."""
    begun, first, before = run.steps, float(run.state.x), watch.retreats
    while run.steps < steps:
        share = (min(steps, watch.next_look) - begun) / (steps - begun)
        watch.next_look = min(steps, watch.next_look)
        if move(run, watch, first + share * (F - first)):
            break
    return watch.retreats > before


def test_steps_on_x_grow_while_f_falls_steadily_and_are_as_found_where_it_does_not(run):
    watch = guard.Guard.of(run)
    step = lambda: float(run.state.scales.step)
    assert not move_to(run, watch, 128, 9.5)
    assert step() == 1.0  # any F falls in a straight line at first
    assert not move_to(run, watch, 256, 9.0)
    assert step() == 4.0
    assert watch.steps_left(run) == 16  # it looks soon where steps are new
    assert not move_to(run, watch, 512, 8.1)  # 0.9 of 1.9: as steady as before
    assert step() == 4.0 * 4.0
    assert not move_to(run, watch, 1024, 8.0)  # still at its best, but no longer steady
    assert step() == 16.0
    assert not move_to(run, watch, 2048, 8.05)
    assert step() == 4.0
    assert move_to(
        run, watch, 4096, 10.0
    )  # back to the best point, where it was 16, with a step that was good for long
    assert (step(), float(run.state.scales.smoothness), float(run.state.x)) == (4.0, 3.0, 8.0)
    assert watch.notes[:2] == [
        f"After {steps} steps F falls steadily: the step on x becomes four times as long." for steps in (256, 512)
    ]
    assert watch.notes[2].endswith("the run went back to its best point, with a step on x four times smaller.")
    assert not move_to(run, watch, 2 * 4096, 8.1)
    assert not move_to(run, watch, 4 * 4096, 8.1)
    assert step() == 1.0  # not below what was found


def test_a_run_that_went_back_grows_again_where_f_falls_steadily_for_as_long_as_it_had_run(run):
    watch = guard.Guard.of(run)
    step = lambda: float(run.state.scales.step)
    move_to(run, watch, 300, 9.9)
    assert move(run, watch, 20.0)
    begun, long = run.steps, step()
    assert not move_to(run, watch, 2 * begun - 100, 9.1)
    assert step() == long
    assert not move_to(run, watch, 2 * begun, 8.8)
    assert step() == 4 * long
    assert move(run, watch, 20.0)
    assert watch.notes[-1].endswith("with a step on x as before it grew.")
    assert step() == long


@pytest.mark.parametrize(("spent", "starts"), [(399, 1), (400, 2), (600, 3)])
def test_a_run_that_goes_back_starts_anew_there_where_starts_cost_less_than_its_steps(run, spent, starts):
    """A start takes a hundred gradients: the second one is made with four hundred in all, the third with six."""
    begun, price = [], bx.Cost(*np.array([0.0, 100.0, 0.0]))

    def start_at(x):
        begun.append(float(x))
        return Known(x, None, np.zeros(()), price)

    rule = RateRule(0.25, "step")
    run.algorithm.settings |= {"upper_step": rule, "upper_optimizer": None, "initialization": "theorem"}
    run.state = run.state._replace(initial_cost=price)
    run.start_at, run.cost = start_at, bx.Cost(0, spent, 0)
    watch = guard.Guard.of(run)
    for F in (5.0, 4.0):
        move(run, watch, F)
        assert move(run, watch, 20.0)
        assert move(run, watch, 20.0)  # once for a point
    assert begun == [5.0, 4.0][: starts - 1]
    assert sum("with new estimates and a step" in note for note in watch.notes) == starts - 1
    assert float(run.state.scales.step) == 0.25**4


def test_estimates_after_a_fresh_start_are_those_of_the_first_start_at_that_point(quadratic):
    """d of RSVRB is the mean of all z_i then: ∇F, as all samples tell it."""
    run = solve._begin(quadratic.problem, bx.rsvrb(), 0, {}, None, Plan(Budget(1, None, None), {}, 1, None))
    x, before = quadratic.problem.x0 + 0.3, run.cost
    state = run.start_at(x)
    np.testing.assert_allclose(state.own.d, bx.exact_gradient(quadratic.problem, x), rtol=1e-6, atol=1e-9)
    assert run.cost.samples == before.samples + int(state.initial_cost.samples)


def test_a_run_from_where_f_is_zero_is_not_taken_for_lost(run):
    run.state = run.state._replace(x=jnp.asarray(0.0))
    watch = guard.Guard.of(run)
    run.state = run.state._replace(y=jnp.asarray(0.4))
    assert not move(run, watch, 0.0)  # there is no unit yet
    assert not move(run, watch, -0.5)
    assert watch.best == -0.5


def test_a_run_whose_y_falls_behind_has_no_new_best_point(run):
    watch = guard.Guard.of(run)
    run.state = run.state._replace(y=jnp.asarray(10.1))  # |F(x_0)| is ten
    assert not move(run, watch, 5.0)
    assert watch.best == 10.0
    run.state = run.state._replace(y=jnp.asarray(9.9))
    assert not move(run, watch, 5.0)
    assert watch.best == 5.0


def test_where_steps_become_shorter_f_falls_steadily_along_the_way_that_they_allow(run):
    """Steps ∝ t^(−1/2) come 29 % of their way in the second half of them."""
    run.algorithm.settings["upper_step"] = RateRule(0.5, "step", 0, 1e-6, 1 / 2)
    watch = guard.Guard.of(run)
    move_to(run, watch, 128, 9.0)
    move_to(run, watch, 256, 9.0 - 0.38)  # 1.38 of √2: steady
    assert float(run.state.scales.step) == 4.0
    del run.algorithm.settings["upper_step"]
    run.steps, run.state = 0, run.state._replace(x=jnp.asarray(10.0))
    watch = guard.Guard.of(run)
    move_to(run, watch, 128, 9.0)
    move_to(run, watch, 256, 9.0 - 0.38)
    assert float(run.state.scales.step) == 4.0  # as it was: constant steps would have come twice as far


@pytest.mark.parametrize("exponent", [0, 1 / 3, 1 / 2, 1])
def test_the_way_of_a_rule_is_the_sum_of_its_rates(exponent):
    rule, t = RateRule(0.5, "step", 0, 100, exponent), np.arange(1, 5001)
    np.testing.assert_allclose(rule.way(5000), np.sum((100 / (100 + t)) ** exponent), rtol=1e-2)


def test_a_run_that_stays_above_its_best_point_goes_back_there_with_a_shorter_step_on_x(run):
    watch = guard.Guard.of(run)
    move_to(run, watch, 64, 5.0)
    assert not move_to(run, watch, 255, 5.6)  # more than a tenth of the fall, less than half of it
    assert move(run, watch, 5.6)  # where its pace is judged
    assert (float(run.state.scales.step), float(run.state.scales.smoothness)) == (0.25, 3.0)
    assert watch.notes[-1].endswith("with a step on x four times smaller.")
    assert not move_to(run, watch, 2 * run.steps, 5.4)  # about as good as the best


@pytest.mark.parametrize("first", [0.0, 30.0])
def test_a_run_whose_y_has_run_away_goes_back_however_low_f_is(run, first):
    run.state = run.state._replace(y=jnp.asarray(first))
    watch, most = guard.Guard.of(run), 10 * max(10.0, first)  # |F(x_0)| is ten
    assert not move(run, watch, 5.0)
    run.state = run.state._replace(y=jnp.asarray(0.99 * most))
    assert not move(run, watch, 5.0)
    for far in (1.01 * most, np.nan):
        run.steps, run.state = watch.next_look, run.state._replace(x=jnp.asarray(1.0), y=jnp.asarray(far))
        assert float(watch.choose_end(run)[0].x) == 5.0
        watch.look(run)
        assert (float(run.state.x), watch.best) == (5.0, 5.0)
    assert watch.notes[-1].startswith("After 80 steps y had run away")


def test_after_a_change_of_steps_looks_come_soon_and_ever_less_often_again(run):
    watch = guard.Guard.of(run)
    move_to(run, watch, 200, 5.0)
    assert watch.retreat(run, "so")
    looks = []
    for _ in range(4):
        looks.append(watch.next_look - run.steps)
        assert not move(run, watch, 4.9)
    assert looks == [16, 16, 32, 64]


def test_a_run_that_was_turned_back_twenty_times_is_not_turned_back_again(run):
    watch = guard.Guard.of(run)
    assert all(watch.retreat(run, "so") for _ in range(20))
    left = run.state
    assert not watch.retreat(run, "so")
    assert run.state is left


def test_what_is_returned_is_the_best_point_where_f_has_risen_since_and_nothing_changes_for_one_that_goes_on(run):
    watch = guard.Guard.of(run)
    move(run, watch, 4.0)
    before = dict(vars(watch))
    for F, expected, words in [(3.0, 3.0, ""), (4.59, 4.59, ""), (4.61, 4.0, "; x and y are those after 16 steps")]:
        run.state = run.state._replace(x=jnp.asarray(F))
        end, told = watch.choose_end(run)
        assert float(end.x) == expected
        assert told.startswith(words)
        assert bool(told) == bool(words)
        assert float(run.state.x) == F
    assert vars(watch) == before


def test_a_run_is_guarded_where_its_rates_were_found_f_can_be_told_and_a_copy_fits(run, monkeypatch):
    run.steps = 30
    assert guard.Guard.of(run).next_look == 60
    known = run.state
    for wrong in (known._replace(x=jnp.asarray(np.nan)), known._replace(scales=())):
        run.state = wrong
        assert guard.Guard.of(run) is None
    run.state = known
    monkeypatch.setattr("bilevax.device.available_bytes", lambda: 8)
    assert guard.Guard.of(run) is None
