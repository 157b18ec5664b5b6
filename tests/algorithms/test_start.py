"""How a run starts: how many samples, where y_0 is, and what that takes, with more samples of g than of f."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference.logistic import Model

import bilevax as bx
from bilevax import tasks
from bilevax.algorithms import frame, start
from bilevax.algorithms.contract import Cost
from bilevax.samples import NoData
from bilevax.schedule import as_rates

M, N_F, N_G = 3, 4, 6


def unequal():
    """Three tasks with four samples of f and six of g."""
    problem = Model(M).problem()
    return problem.replace(upper_data=bx.per_task({k: v[:, :N_F] for k, v in problem.upper_data.arrays.items()}))


@pytest.mark.parametrize(
    ("given", "sizes"), [(None, (None, None)), (3, (3, 3)), (4, (None, 4)), (5, (None, 5)), (6, (None, None))]
)
def test_a_first_batch_is_everything_where_there_is_no_more_than_asked_for(given, sizes):
    problem, first = unequal(), start.FirstBatch("cheap", given)
    assert (first.size_of(problem.upper_data), first.size_of(problem.lower_data)) == sizes


def test_the_theorem_starts_from_all_samples_and_the_cheap_start_from_a_batch():
    assert start.first_batch_of("theorem", None, 7) == ("theorem", None)
    assert start.first_batch_of("cheap", None, 7) == ("cheap", 7)
    assert start.first_batch_of("theorem", 5, 7) == ("theorem", 5)
    assert start.first_batch_of("cheap", 5, 7) == ("cheap", 5)


def numbers(spent):
    """A cost as three numbers."""
    return tuple(map(float, spent))


def test_the_cost_of_a_start_is_counted_for_both_losses_apart():
    """Five gradients to solve each lower problem; two products for a sample."""
    problem, solves = unequal(), jnp.array([5, 5, 5])
    theorem, cheap = start.FirstBatch("theorem", None), start.FirstBatch("cheap", 3)
    assert numbers(start._cost_of_solving(problem, theorem, solves)) == (0, M * N_G * 5, 0)
    assert numbers(start._cost_of_solving(problem, start.FirstBatch("theorem", 5), solves)) == (0, M * 5 * 5, 0)
    assert numbers(start.cost_of_points(problem, theorem, solves)) == (M * N_G, M * N_G * 5, 0)
    assert numbers(start.cost_of_points(problem, cheap, 0 * solves)) == (0, 0, 0)
    assert numbers(start.cost_of_estimates(problem, cheap, 2, 0 * solves)) == (M * 6, M * 6, M * 3 * 2)
    every = (M * (N_F + N_G), M * (N_F + N_G + 5 * N_G), M * N_G * 2)
    assert numbers(start.cost_of_estimates(problem, theorem, 2, solves)) == every


def test_gradients_of_a_lower_problem_without_data_count_one_each():
    problem = unequal().replace(lower_data=NoData())
    assert numbers(start._cost_of_solving(problem, start.FirstBatch("theorem", None), jnp.array([1, 2, 3]))) == (
        0,
        6,
        0,
    )


def test_work_is_samples_times_what_is_done_with_each():
    problem, two = unequal(), jnp.arange(2)
    done = frame.count_cost(problem.upper_data, two, 3, times=2.0, gradients=5, products=7)
    assert numbers(done) == (2 * 6, 2 * 6 * 5, 2 * 6 * 7)
    assert numbers(frame.count_cost(NoData(), two, 3, times=4.0, gradients=5, products=7)) == (0, 40, 56)
    assert numbers(done + done + done) == tuple(3 * value for value in numbers(done))
    both = frame.count_both(problem, two, None, points=2, products=2)
    assert numbers(both) == (2 * (N_F + N_G), 2 * 2 * (N_F + N_G), 2 * 2 * N_G * 2)
    assert numbers(frame.count_both(problem, two, 3, points=2, products=0)) == (2 * 6, 2 * 2 * 6, 0)
    empty = problem.replace(upper_data=NoData(), lower_data=NoData())
    assert numbers(frame.count_both(empty, two, 3, points=2, products=5)) == (0, 2 * 2 * 2, 2 * 2 * 5)


def test_a_step_is_finite_where_direction_and_next_point_are():
    problem, x, d = unequal(), jnp.array([1.0, 2.0, 3.0]), jnp.array([3.0, 4.0, 5.0])

    def finite(optimizer, x, step, d):
        carried = () if optimizer is None else optimizer.init(x)
        state = frame.State(1, x, None, None, carried, None)
        return bool(frame.move_x(problem, optimizer, state, step, d).finite)

    assert finite(None, x, 0.1, d)
    assert not finite(None, x, 0.1, d * jnp.nan)
    assert not finite(None, x, 1e200, d)
    assert not finite(None, x, 1e-200, d * 1e200)
    assert finite(optax.sgd(1.0), x, 1e100, d)
    assert not finite(optax.sgd(1.0), x * jnp.inf, 0.1, d)
    assert not finite(optax.sgd(1.0), x, 0.1, d * jnp.inf)


def test_one_number_that_is_not_finite_is_seen_in_any_leaf():
    fine = {"a": jnp.ones(3), "b": jnp.ones((2, 2)), "n": jnp.array(7)}
    assert frame.all_finite(fine)
    assert not frame.all_finite({**fine, "b": jnp.array([[1.0, jnp.nan]])})
    assert not frame.all_finite({**fine, "a": jnp.array([1e200, 0.0])})  # its square is not finite


class OneStep(frame.Method):
    """x goes to 1 and y to `y`, with a table of one row."""

    rates, optimizer = as_rates(1.0, 1.0, 1.0, 1.0), None

    def __init__(self, y):
        self.y = y

    def start(self, problem, key):
        return frame.Start(jnp.zeros(2), jnp.zeros((1, 2)), Cost(0.0, 0.0, 0.0))

    def step(self, problem, rates_at, state, key, move):
        write = lambda keep: tasks.write(state.tables, jnp.array([0]), self.y[None], keep)
        return frame.Change(move(state.x - 1), self.y, Cost(1.0, 1.0, 1.0), self.y, write)


@pytest.mark.parametrize(("y", "finite"), [(2.0, True), (jnp.nan, False), (1e200, False)])
def test_a_step_that_is_not_finite_leaves_all_as_it_was(y, finite):
    algorithm, problem = frame.assemble("one", OneStep(jnp.full(2, y)), {}), unequal()
    state = algorithm.init(problem, jax.random.key(0))
    after, info = algorithm.step(problem, state, jax.random.key(0))
    assert bool(info.finite) is finite
    assert int(after.step) == (2 if finite else 1)
    np.testing.assert_allclose(after.x, jnp.ones(3) if finite else problem.x0, rtol=1e-15)
    for kept in (after.own, after.tables[0]):
        np.testing.assert_array_equal(kept, y if finite else 0.0)


def test_a_cheap_start_leaves_y_where_it_was_given_inside_its_ball():
    problem, given = unequal(), Model(M).y0[1]
    first_point = lambda region: start.first_point(
        problem, start.FirstBatch("cheap", None), region, jax.random.key(0), jnp.int32(1)
    )
    free, held = first_point(None), first_point(0.01)
    np.testing.assert_array_equal(free.y, given)
    np.testing.assert_allclose(held.y, given * 0.01 / np.linalg.norm(given), rtol=1e-12)
    assert (int(free.gradients), free.upper, free.lower) == (0, None, None)


SERIES = {"neumann_step": 0.1, "neumann_terms": 3}
WHOLE = {  # samples, gradients and products of a step on all samples, for one task
    "soba": ({}, (N_F + N_G, N_F + N_G, 2 * N_G)),
    "block_soba": ({"inner_steps": 2, "tasks_per_step": M}, (N_F + N_G, 3 * N_F + 2 * N_G, 3 * N_G)),
    "stocbio": ({"inner_steps": 2, **SERIES}, (N_F + 6 * N_G, N_F + 2 * N_G, 4 * N_G)),
    "mrbo": (SERIES, (N_F + 5 * N_G, 2 * (N_F + N_G), 8 * N_G)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_step_on_all_samples_counts_those_of_each_loss(name):
    """Of the step nothing but its cost is computed, from a state of zeros."""
    own, wanted = WHOLE[name]
    problem, key = unequal(), jax.random.key(0)
    algorithm = getattr(bx, name)(batch_size=None, initialization="cheap", **own)
    state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(algorithm.init, problem, key))
    cost = jax.jit(lambda state: algorithm.step(problem, state, key)[1].cost)(state)
    assert numbers(cost) == tuple(M * count for count in wanted)
