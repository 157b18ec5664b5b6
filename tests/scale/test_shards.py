"""Tasks on several devices: the same method, on draws of every shard; and what cannot be split is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from scale.one_run import ALGORITHMS, TASKS, make_problem

import bilevax as bx

STEPS = 12
WHOLE = {"tasks_per_step": TASKS, "batch_size": None}
RATES = {"upper_step": 0.05, "lower_step": 0.1}
ON_ALL_SAMPLES = {  # without a draw both ways are one computation; but for power iterations that start anywhere
    "rsvrb": (lambda: bx.rsvrb(**WHOLE), 1e-5),
    "block_soba": (lambda: bx.block_soba(**RATES, **WHOLE), 1e-12),
    "implicit": (bx.implicit, 1e-12),
}


SETTINGS = {"lower_step": 0.1, "mixing": 0.2, "batch_size": 2}
HALF = bx.rsvrb(upper_step=0.05, tasks_per_step=2, **SETTINGS)


@pytest.fixture(scope="module")
def problem():
    """Eight tasks with ragged data."""
    return make_problem(0, TASKS)


@pytest.mark.parametrize("name", ON_ALL_SAMPLES)
def test_without_draws_two_shards_find_what_one_finds(problem, name):
    make, near = ON_ALL_SAMPLES[name]
    one, two = (
        bx.solve(made, make(), steps=STEPS, metrics=None, progress=False) for made in (problem, bx.shard(problem))
    )
    np.testing.assert_allclose(two.x, one.x, rtol=0, atol=near)
    np.testing.assert_allclose(two.y, one.y, rtol=0, atol=near)
    assert two.cost.samples == one.cost.samples


def test_metrics_are_those_of_all_tasks(problem):
    x, y = jnp.arange(3.0) / 3, jnp.arange(3.0 * TASKS).reshape(TASKS, 3) / 9
    one, two = (bx.exact_metrics(made, bx.Variables(x, y)) for made in (problem, bx.shard(problem)))
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, rtol=1e-12, atol=1e-15)
    for value in (bx.exact_objective, bx.exact_gradient):
        np.testing.assert_allclose(value(bx.shard(problem), x), value(problem, x), rtol=1e-12)


@pytest.fixture(scope="module")
def two_runs():
    """RSVRB on each half of the tasks: the first states, its step, the problems, and the keys of step t."""
    halves = [make_problem(0, TASKS // 2), make_problem(TASKS // 2, TASKS // 2)]
    init_key, step_key = jax.random.split(jax.random.key(0))
    own = lambda key: [jax.random.fold_in(key, k) for k in range(2)]
    states = [HALF.init(half, key) for half, key in zip(halves, own(init_key), strict=True)]
    return states, jax.jit(HALF.step), halves, lambda t: own(jax.random.fold_in(step_key, t))


def test_x_moves_by_the_mean_of_the_directions_of_two_runs_on_their_own_tasks(problem, two_runs):
    algorithm, step = ALGORITHMS["rsvrb"](), 0.05
    states, take, halves, keys_of = two_runs
    for t in range(1, STEPS + 1):
        x = states[0].x
        states = [take(*given)[0] for given in zip(halves, states, keys_of(t), strict=True)]
        x = x - step * (states[0].own.d + states[1].own.d) / 2
        states = [state._replace(x=x) for state in states]
    together = bx.solve(bx.shard(problem), algorithm, steps=STEPS, metrics=None, progress=False)
    np.testing.assert_allclose(together.x, x, rtol=0, atol=1e-13)
    y = [HALF.variables(*given).y for given in zip(halves, states, strict=True)]
    np.testing.assert_allclose(together.y, jnp.concatenate(y), rtol=0, atol=1e-13)


def test_each_shard_draws_by_the_probabilities_of_its_own_tasks(problem):
    """x_2 − x_1 is the step along the mean of two directions, each of a run on a half with p as it is there."""
    p = np.arange(1.0, TASKS + 1) / (TASKS * (TASKS + 1) / 2)
    make = lambda p, size: bx.rsvrb(upper_step=0.05, tasks_per_step=size, task_probabilities=p, **SETTINGS)
    init_key, step_key = jax.random.split(jax.random.key(0))
    directions = []
    for k, own in enumerate(np.split(p, 2)):
        half, algorithm = make_problem(k * TASKS // 2, TASKS // 2), make(own / own.sum(), 2)
        state = algorithm.init(half, jax.random.fold_in(init_key, k))
        state, _ = algorithm.step(half, state, jax.random.fold_in(jax.random.fold_in(step_key, 1), k))
        directions.append(state.own.d)
    together = bx.solve(bx.shard(problem), make(p, 4), steps=1, metrics=None, progress=False)
    np.testing.assert_allclose(together.x, problem.x0 - 0.05 * np.mean(directions, axis=0), rtol=0, atol=1e-13)


def test_a_task_is_told_its_number_among_all_tasks():
    number = lambda task: task.astype(float)
    upper = lambda x, y, task, batch: 0.5 * jnp.sum((y - number(task)) ** 2)
    lower = lambda x, y, task, batch: 0.5 * jnp.sum((y - x * number(task)) ** 2)
    problem = bx.Problem(upper=upper, lower=lower, x0=jnp.zeros(1), y0=jnp.zeros(1), tasks=6, strong_convexity=1.0)
    x = jnp.full(1, 0.5)
    assert float(bx.exact_objective(bx.shard(problem), x)) == pytest.approx(np.mean((np.arange(6) * 0.5) ** 2) / 2)


def test_a_run_on_shards_that_was_interrupted_ends_with_the_same_bits(problem, tmp_path):
    made, algorithm = bx.shard(problem), ALGORITHMS["rsvrb"]()
    go = lambda steps, **more: bx.solve(made, algorithm, steps=steps, metrics=None, progress=False, **more)
    whole = go(20)
    go(10, checkpoint=tmp_path / "folder")
    assert sorted(path.name for path in (tmp_path / "folder" / "000000").iterdir()) == [
        "manifest.json", "shard-00000.npz", "shard-00001.npz"
    ]  # fmt: skip
    after = go(20, checkpoint=tmp_path / "folder")
    half = go(10)
    half.save(tmp_path / "half.npz")
    for end in (after, go(20, resume=half), go(20, resume=bx.Result.load(tmp_path / "half.npz"))):
        np.testing.assert_array_equal(end.x, whole.x)
        np.testing.assert_array_equal(end.y, whole.y)
        assert end.cost == whole.cost
    with pytest.raises(ValueError, match="is of a run on 2 shards; this problem has 1"):
        bx.solve(problem, algorithm, steps=20, checkpoint=tmp_path / "folder", progress=False)


def test_a_damaged_file_of_one_shard_is_named_and_the_checkpoint_before_it_is_used(problem, tmp_path):
    made, algorithm = bx.shard(problem), ALGORITHMS["rsvrb"]()
    for steps in (5, 10):
        bx.solve(made, algorithm, steps=steps, metrics=None, checkpoint=tmp_path, progress=False)
    path = tmp_path / "000001" / "shard-00001.npz"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=r"shard-00001\.npz is not as it was written"):
        found = bx.solve(made, algorithm, steps=10, metrics=None, checkpoint=tmp_path, progress=False)
    np.testing.assert_array_equal(found.x, bx.solve(made, algorithm, steps=10, metrics=None, progress=False).x)


def test_a_mesh_of_one_device_leaves_the_problem_as_it_is(problem):
    assert bx.shard(problem, Mesh(np.array(jax.devices()[:1]), ("any",))) is problem


BAD = {
    "no problem": (lambda p: bx.shard(3), "problem must be a bilevax.Problem; got int"),
    "split already": (lambda p: bx.shard(bx.shard(p)), "problem must not be split yet; its tasks are on 2 shards"),
    "no mesh": (lambda p: bx.shard(p, 2), "mesh must be a jax.sharding.Mesh"),
    "an odd number of tasks": (lambda p: bx.shard(make_problem(0, 7)), "must be a multiple of the 2 devices"),
    "odd draws": (
        lambda p: bx.solve(bx.shard(p), bx.rsvrb(tasks_per_step=3), steps=1), "tasks_per_step must be a multiple"
    ),
    "too many draws": (
        lambda p: bx.solve(bx.shard(p), bx.rsvrb(tasks_per_step=10), steps=1), "at most the number of tasks, 8; got 10"
    ),
    "an algorithm that knows nothing of shards": (
        lambda p: bx.solve(bx.shard(p), bx.soba()._replace(on_shards=False), steps=1), "algorithm must run on shards"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_split_is_refused(problem, case):
    call, message = BAD[case]
    with pytest.raises((TypeError, ValueError), match=message):
        call(problem)


def test_x_is_the_mean_of_the_shards_own_in_every_third_step(problem, two_runs):
    algorithm, every = ALGORITHMS["rsvrb"](), 3
    states, take, halves, keys_of = two_runs
    for t in range(1, STEPS + 1):
        states = [take(*given)[0] for given in zip(halves, states, keys_of(t), strict=True)]
        if t % every == 0:
            x = (states[0].x + states[1].x) / 2
            states = [state._replace(x=x) for state in states]
    split = bx.shard(problem, sync_every=every)
    together = bx.solve(split, algorithm, steps=STEPS, metrics=None, progress=False)
    np.testing.assert_allclose(together.x, x, rtol=0, atol=1e-13)
    in_every_step = bx.solve(bx.shard(problem), algorithm, steps=STEPS, metrics=None, progress=False)
    assert together.cost == in_every_step.cost
    assert np.abs(together.x - in_every_step.x).max() > 1e-6
