"""Rates found by trying many: what is best goes on, and the table says what was tried."""

import jax
import matplotlib.image
import numpy as np
import pytest

import bilevax as bx
from bilevax import trials
from bilevax.algorithms.frame import rate_at
from bilevax.schedule import RateRule, Scales


@pytest.fixture(scope="module")
def quadratic():
    return bx.problems.quadratic(num_tasks=4, dim_x=4, dim_y=3, noise=0.1, num_samples=8)


@pytest.fixture(scope="module")
def tuned(quadratic):
    return bx.tune(quadratic.problem, bx.block_soba, seconds=0.05, settings={"batch_size": 4})


def test_the_algorithm_has_the_rates_of_the_best_row(tuned):
    table = tuned.table
    assert len(table) == 16
    ends = np.array([row["last_round"] for row in table])
    reached = int(np.isfinite(ends).sum())
    assert reached >= 1
    assert (np.diff(ends[:reached]) >= 0).all()
    assert np.isnan(ends[reached:]).all()
    own = bx.block_soba().settings["upper_step"]
    chosen = tuned.algorithm.settings["upper_step"]
    assert isinstance(chosen, RateRule)
    assert chosen.factor == pytest.approx(own.factor * table[0]["upper_factor"])
    assert tuned.algorithm.settings["batch_size"] == 4


def test_what_is_found_itself_is_among_what_is_tried(tuned):
    factors = [(row["upper_factor"], row["lower_factor"], row["mixing_factor"]) for row in tuned.table]
    assert (1.0, 1.0, 1.0) in factors


def test_f_is_lower_with_it_than_at_the_start(quadratic, tuned):
    result = bx.solve(quadratic.problem, tuned.algorithm, steps=500, metrics=None)
    assert float(quadratic.objective(result.x)) < float(quadratic.objective(quadratic.problem.x0))


def test_the_table_can_be_drawn_and_printed(tuned, tmp_path):
    tuned.plot(tmp_path / "tuned.png")
    assert matplotlib.image.imread(tmp_path / "tuned.png").std() > 0.01
    assert "best of 16 settings: block_soba(upper_step=found(" in repr(tuned)
    assert len(tuned.to_pandas()) == 16


def test_rates_that_are_given_leave_nothing_to_tune(quadratic):
    with pytest.raises(ValueError, match="nothing to tune"):
        bx.tune(quadratic.problem, bx.soba, settings={"upper_step": 0.1, "lower_step": 0.1})
    with pytest.raises(ValueError, match="nothing to tune"):
        bx.tune(quadratic.problem, bx.implicit)


@pytest.mark.parametrize(
    ("wrong", "words"), [({"seconds": 0}, "seconds"), ({"seed": -1}, "seed"), ({"progress": 1}, "progress")]
)
def test_wrong_arguments_are_named(quadratic, wrong, words):
    with pytest.raises((ValueError, TypeError), match=words):
        bx.tune(quadratic.problem, bx.soba, **wrong)


@pytest.mark.parametrize("factory", ["soba", int, bx.soba()])
def test_a_factory_that_makes_no_algorithm_is_named(quadratic, factory):
    with pytest.raises(TypeError, match="factory must be a function that makes a"):
        bx.tune(quadratic.problem, factory)


def test_an_error_of_the_factory_says_with_what_it_was_called(quadratic):
    with pytest.raises(TypeError, match="batch_sise") as caught:
        bx.tune(quadratic.problem, bx.soba, settings={"batch_sise": 2})
    assert "settings={'batch_sise': 2}" in caught.value.__notes__[0]
    with pytest.raises(TypeError, match="settings must be a dictionary"):
        bx.tune(quadratic.problem, bx.soba, settings=[2])


def test_a_row_has_the_rates_that_its_factors_make_of_those_that_are_found(quadratic, tuned):
    own = next(row for row in tuned.table if row["upper_factor"] == row["lower_factor"] == 1)
    for row in tuned.table:
        assert row["upper_step"] == pytest.approx(row["upper_factor"] * own["upper_step"])
        assert row["lower_step"] == pytest.approx(row["lower_factor"] * own["lower_step"])
    found = bx.solve(quadratic.problem, bx.block_soba(batch_size=4), steps=1, metrics=None).state.scales
    assert own["lower_step"] == pytest.approx(0.5 / float(found.smoothness), rel=0.5)  # L_g of another batch
    assert own["start"] == pytest.approx(float(quadratic.objective(quadratic.problem.x0)), rel=1e-3)


@pytest.mark.parametrize("unit", ["step", "1/smoothness", "1"])
def test_what_is_tried_is_what_the_algorithm_gets(unit):
    factors, found = trials.Multipliers(2.0, 3.0, 5.0), Scales(0.1, 7.0, 0.5, 0.2)
    rate = RateRule(0.25, unit, 0.5, 10, 0.5, 0.5)
    tried, given = rate_at(float, factors.apply(found), 4, rate), rate_at(float, found, 4, factors.of(rate))
    assert float(tried) == pytest.approx(float(given))
    factor = {"step": 2, "1/smoothness": 3, "1": 5}[unit]
    assert float(given) == pytest.approx(factor * float(rate_at(float, found, 4, rate)))


def test_what_is_tried_fills_the_ranges_evenly_in_their_logarithms():
    field = trials._field(65)
    assert field[0] == (1, 1, 1)
    for tried, (low, high) in zip(zip(*field[1:], strict=True), trials.RANGES.values(), strict=True):
        places = np.log(np.asarray(tried) / low) / np.log(high / low)
        np.testing.assert_allclose(np.sort(places), (np.arange(64) + 0.5) / 64, atol=0.05)


def test_fewer_settings_are_tried_where_memory_asks_for_it(monkeypatch):
    for available, tries in [(None, 16), (8 * 10_000, 10), (8 * 3_000, 4), (8 * 10**6, 16)]:
        monkeypatch.setattr("bilevax.device.available_bytes", lambda available=available: available)
        assert trials._affordable(1000, 4, 16) == tries


def test_a_try_takes_its_state_and_where_that_is_large_the_batches_of_a_step(quadratic, monkeypatch):
    problem, algorithm = quadratic.problem, bx.soba(batch_size=1000)
    state = algorithm.init(problem, jax.random.key(0))
    own = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    assert trials._bytes_of_try(problem, algorithm, state) == (own, 0)
    monkeypatch.setattr(trials, "LARGE_STATE", 0)
    batches = problem.num_tasks * 1000 * 8  # of one number of each sample
    assert trials._bytes_of_try(problem, algorithm, state)[1] > batches


def test_settings_in_groups_end_where_they_end_side_by_side(quadratic):
    problem, algorithm = quadratic.problem, bx.soba(batch_size=4)
    state = algorithm.init(problem, jax.random.key(0))
    states = [state._replace(scales=factors.apply(state.scales)) for factors in trials._field(5)]
    arguments = (problem, jax.tree.map(lambda *leaves: jax.numpy.stack(leaves), *states), jax.numpy.ones(5, bool))
    by_group = {
        group: trials._Contest(problem, algorithm, 0, group).advance(*arguments, jax.random.key(1), 1, 4)
        for group in (2, 5)
    }
    for two, five in zip(jax.tree.leaves(by_group[2]), jax.tree.leaves(by_group[5]), strict=True):
        np.testing.assert_allclose(two, five, rtol=1e-12)


def test_where_the_best_diverge_later_the_next_ones_go_on(quadratic, monkeypatch):
    """The four that were best after the first round leave the finite numbers in the second."""
    run, ends = trials._Contest.run, iter([np.full(4, np.inf), np.array([-4.0, -3.0, -2.0, -1.0])])

    def end_so(self, states, finite, begin, *rest):
        states, finite, F, at, spent = run(self, states, finite, begin, *rest)
        return states, finite, F if begin == 1 else next(ends), at, spent

    monkeypatch.setattr(trials._Contest, "run", end_so)
    found = bx.tune(quadratic.problem, bx.block_soba, seconds=0.05, tries=12, settings={"batch_size": 4})
    assert [row["last_round"] for row in found.table[:4]] == [-4, -3, -2, -1]
    assert np.isnan([row["last_round"] for row in found.table[4:]]).all()
    places = np.argsort(np.argsort([row["first_round"] for row in found.table], kind="stable"), kind="stable")
    assert list(places[:4]) == [4, 5, 6, 7]
    assert next(ends, None) is None


def test_where_every_setting_leaves_the_finite_numbers_that_is_told(quadratic):
    giant = lambda **rates: bx.soba(**({"upper_step": RateRule(1e200, "step")} | rates))
    with pytest.raises(RuntimeError, match="every setting of soba diverged"):
        bx.tune(quadratic.problem, giant, seconds=0.01, tries=4)


def test_a_share_that_is_found_and_multiplied_stays_one_at_most():
    found = trials.Multipliers(1.0, 1.0, 4.0).apply(Scales(0.1, 7.0, 1.0, 1.0))
    assert float(rate_at(float, found, 1, RateRule(0.5, "1"))) == 1
    assert float(rate_at(float, found, 1, RateRule(0.2, "1"))) == pytest.approx(0.8)
