"""x and y of a run on very many tasks: y is made for those who ask, and only for the tasks that they ask for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax.run import reached, watch
from bilevax.scales import excerpt_look, tasks_of_excerpt

TRUTH = bx.problems.quadratic(num_tasks=6, dim_x=3, dim_y=2, noise=0.1, num_samples=4)
KEY = jax.random.key(2)
ALGORITHM = bx.rsvrb(tasks_per_step=2, upper_step=0.01, lower_step=0.1)


@pytest.fixture
def lazy(monkeypatch):
    monkeypatch.setattr(reached, "MANY", 0)


def at_start():
    state = ALGORITHM.init(TRUTH.problem, jax.random.key(0))
    return state, ALGORITHM.variables(TRUTH.problem, state)


def test_who_asks_for_x_alone_does_not_pay_for_y(lazy):
    def refuse(problem, state):
        raise AssertionError("y was made")

    state, both = at_start()
    programs = reached.programs_of(ALGORITHM.name, ALGORITHM.variables)._replace(both=refuse)
    found = reached.reach(programs, TRUTH.problem, state)
    np.testing.assert_array_equal(found.x, both.x)
    np.testing.assert_array_equal(found[0], both.x)
    some = jnp.array([4, 1])
    np.testing.assert_array_equal(found.y_of(TRUTH.problem, some), both.y[some])
    np.testing.assert_array_equal(both.y_of(TRUTH.problem, some), both.y[some])
    with pytest.raises(AssertionError, match="y was made"):
        found.y  # noqa: B018


def test_in_every_other_way_it_is_the_pair_that_it_stands_for(lazy):
    state, both = at_start()
    found = reached.reach(reached.programs_of(ALGORITHM.name, ALGORITHM.variables), TRUTH.problem, state)
    assert isinstance(found, bx.Variables)
    x, y = found
    for pair in [(x, y), (found.x, found.y), (found[0], found[-1]), jax.tree.leaves(found)]:
        jax.tree.map(np.testing.assert_array_equal, list(pair), list(both))
    norm = jax.jit(lambda v: jnp.linalg.norm(v.x) + jnp.linalg.norm(v.y))
    assert norm(found) == norm(both)


@pytest.mark.parametrize("name", ["rsvrb", "bsvrb_v2", "block_soba", "soba"])
def test_what_a_run_looks_at_itself_needs_no_y_of_all_tasks(lazy, name):
    """The guard's looks and those at the curvature: y of the tasks that they look at has the same bits as all of it."""
    problem, made, algorithm = TRUTH.problem, [], getattr(bx, name)(upper_step=0.01, lower_step=0.1)
    result = bx.solve(problem, algorithm, steps=5, metrics=None)
    programs = reached.programs_of(algorithm.name, algorithm.variables)
    both = programs.both(problem, result.state)
    counted = lambda *given: made.append(given) or programs.both(*given)
    found = reached.reach(programs._replace(both=counted), problem, result.state)
    some = jnp.array([5, 0, 3])
    np.testing.assert_array_equal(found.y_at_hand(problem, lambda: some), both.y[some])
    which = lambda: tasks_of_excerpt(problem, problem.num_tasks)
    one, other = (excerpt_look(problem, at.x, at.y_at_hand(problem, which), KEY) for at in (found, both))
    assert one == other
    watch.look_at(problem, found, 5)
    assert not made


def test_an_algorithm_that_gives_no_y_of_some_tasks_gives_that_of_all(lazy):
    state, both = at_start()
    programs = reached.programs_of("mine", lambda problem, state: ALGORITHM.variables(problem, state))
    found, some = reached.reach(programs, TRUTH.problem, state), jnp.array([2, 2])
    np.testing.assert_array_equal(found.y_of(TRUTH.problem, some), both.y[some])


def test_it_is_told_that_a_run_has_gone_on(lazy):
    kept = []
    metrics = lambda problem, variables: kept.append(variables) or {}
    bx.solve(TRUTH.problem, ALGORITHM, steps=2, record_every=1, metrics=metrics)
    with pytest.raises(RuntimeError, match="must be read inside metrics"):
        kept[2].y  # noqa: B018


def test_a_run_records_the_same_either_way(monkeypatch):
    run = lambda: bx.solve(TRUTH.problem, ALGORITHM, steps=4, record_every=2)
    before = run()
    monkeypatch.setattr(reached, "MANY", 0)
    after = run()
    np.testing.assert_array_equal(before.y, after.y)
    for name in ("objective", "grad_norm", "lower_gap"):
        np.testing.assert_array_equal(before.trace[name], after.trace[name])


def test_copies_of_a_large_state_do_not_take_the_time_of_a_run(monkeypatch):
    """Where a copy takes as long as all steps, one is made at the start and none at later records."""
    copies, algorithm = [], bx.soba(upper_step=0.01, lower_step=0.1)
    monkeypatch.setattr("bilevax.device.has_room_for_copy", lambda state: copies.append(1) or True)
    monkeypatch.setattr("bilevax.run.run.SMALL_STATE", 0)
    monkeypatch.setattr("bilevax.run.run.COPY_SHARE", 1e-9)
    bx.solve(TRUTH.problem, algorithm, steps=6, record_every=1, metrics=None)
    assert len(copies) == 1
    monkeypatch.setattr("bilevax.run.run.COPY_SHARE", 1e9)
    bx.solve(TRUTH.problem, algorithm, steps=6, record_every=1, metrics=None)
    assert len(copies) == 1 + 7
