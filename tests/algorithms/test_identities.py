"""Identities that the algorithms must satisfy whatever the numbers are."""

import itertools
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference.logistic import Model, lower, upper

import bilevax as bx
from bilevax import draw, tasks
from bilevax.algorithms import rsvrb as family
from bilevax.algorithms.start import FirstBatch
from bilevax.curvature import dense
from bilevax.schedule import as_rates

KEY = jax.random.key(5)
STABLE = {
    "upper_step": 0.02,
    "lower_step": 0.1,
    "relaxation": 0.5,
    "mixing": 0.1,
    "batch_size": 3,
    "initialization": "cheap",
}


def runner(algorithm, steps):
    """A compiled run: the state after some steps, as a function of problem and key."""

    def run(problem, key):
        body = lambda t, state: algorithm.step(problem, state, jax.random.fold_in(key, t))[0]
        return jax.lax.fori_loop(1, steps + 1, body, algorithm.init(problem, key))

    return jax.jit(run)


def run(problem, algorithm, steps):
    """The state after some steps."""
    return runner(algorithm, steps)(problem, KEY)


def test_svrb_is_rsvrb_with_one_task():
    problem = Model(1).problem()
    one, other = (run(problem, make(**STABLE), 60) for make in (bx.svrb, bx.rsvrb))
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_array_equal(one.tables.tasks.y, other.tables.tasks.y)


@pytest.mark.parametrize("kept", ["dense", "tracked"])
def test_relabelled_tasks_give_the_relabelled_result(kept, monkeypatch):
    """Every task has bounds of its own, which bind: those of another would show."""
    own = np.linspace(0.5, 1.5, 5)
    bounds = {"C_fx": 0.2 * own, "C_fy": 0.6 * own[::-1]}
    if kept == "dense":  # V and Y_i are not projected without matrices
        bounds |= {"C_gxy": 0.15 * own, "R_y": 0.35 * own}
    model, relabelled = Model(5, **bounds), Model(5)
    if kept == "tracked":  # more than there is, so that the ball of h binds
        model.lam = relabelled.lam = 2.0
    order = np.array([3, 0, 4, 1, 2])
    for name in ("theta", "a", "k", "r", "q", "c", "y0", *bounds):
        setattr(relabelled, name, getattr(model, name)[order])
    curvature = getattr(bx.curvature, kept)
    algorithm = bx.rsvrb(tasks_per_step=2, curvature=curvature, **{**STABLE, "initial_batch_size": 6})
    plain = run(model.problem(), algorithm, 60)
    original = draw.draw_step

    def renamed(problem, sampling, key):
        drawn = original(problem, sampling, key)
        place = jnp.argsort(jnp.asarray(order))
        return drawn._replace(tasks=place[drawn.tasks], direction_tasks=place[drawn.direction_tasks])

    monkeypatch.setattr(draw, "draw_step", renamed)
    other = run(relabelled.problem(), algorithm, 60)
    np.testing.assert_allclose(other.x, plain.x, rtol=1e-12)
    np.testing.assert_allclose(other.tables.tasks.y, plain.tables.tasks.y[order], rtol=1e-12)


@pytest.mark.parametrize("name", ["soba", "block_soba", "bsvrb_v2"])
def test_relabelled_tasks_with_bounds_of_their_own_give_the_relabelled_result_without_sampling(name):
    """All tasks and all samples in every step: nothing but the bounds, data and start of each task tells it apart."""
    own = jnp.linspace(0.1, 0.5, 4)
    problem = Model(4).problem().replace(bounds=bx.Bounds(f_y=own, y=own if name == "block_soba" else None))
    order = jnp.array([3, 0, 2, 1])
    of_tasks = {part: getattr(problem, part) for part in ("y0", "tasks", "upper_data", "lower_data", "bounds")}
    relabelled = problem.replace(**jax.tree.map(lambda leaf: leaf[order], of_tasks))
    every = {"tasks_per_step": 4} if name in ("block_soba", "bsvrb_v2") else {}
    algorithm = getattr(bx, name)(upper_step=0.1, lower_step=0.5, batch_size=None, initialization="cheap", **every)

    @jax.jit
    def reached(problem):
        body = lambda t, state: algorithm.step(problem, state, jax.random.fold_in(KEY, t))[0]
        return algorithm.variables(problem, jax.lax.fori_loop(0, 8, body, algorithm.init(problem, KEY)))

    free, plain, other = (reached(p) for p in (problem.replace(bounds=loose(problem.bounds)), problem, relabelled))
    np.testing.assert_allclose(other.x, plain.x, rtol=1e-12)
    np.testing.assert_allclose(other.y, plain.y[order], rtol=1e-12)
    assert np.abs(free.x - plain.x).max() > 1e-4  # the bounds bind


def loose(bounds):
    """Bounds that never bind."""
    return jax.tree.map(lambda bound: 1e6 * bound, bounds)


def test_svrb_projects_neither_u_nor_y():
    """Algorithm 1 has no Π around u and y, whatever the bounds of the problem are."""
    problem = (
        Model(1).problem().replace(bounds=bx.Bounds(f_x=jnp.asarray(1e-3), f_y=jnp.asarray(1e-3), y=jnp.asarray(1e-3)))
    )
    begun = jax.jit(bx.svrb(**STABLE).init)(problem, KEY).tables.tasks
    assert min(float(jnp.linalg.norm(kept)) for kept in (begun.u, begun.y)) > 1e-2
    np.testing.assert_allclose(jnp.linalg.norm(begun.v), 1e-3, rtol=1e-12)


@pytest.mark.parametrize("m", [1, 6])
def test_whole_batches_with_mixing_one_make_the_exact_hypergradient_step(m):
    """After the theorem's start y is y*, and every estimate true: a step of gradient descent."""
    model = Model(m)
    problem = model.problem()
    algorithm = bx.rsvrb(upper_step=0.3, lower_step=0.1, mixing=1.0, tasks_per_step=m, batch_size=None)
    state = jax.jit(algorithm.init)(problem, KEY)
    moved, _ = jax.jit(algorithm.step)(problem, state, KEY)
    gradient = bx.exact_gradient(problem, jnp.asarray(model.x0))
    np.testing.assert_allclose(state.own.d, gradient, rtol=1e-9)
    np.testing.assert_allclose(moved.x, model.x0 - 0.3 * gradient, rtol=1e-9)


def test_a_plain_optax_step_is_the_plain_step():
    problem = Model(5).problem()
    plain = run(problem, bx.rsvrb(tasks_per_step=2, **STABLE), 30)
    settings = {name: value for name, value in STABLE.items() if name != "upper_step"}
    through = run(problem, bx.rsvrb(tasks_per_step=2, upper_optimizer=optax.sgd(0.02), **settings), 30)
    np.testing.assert_allclose(through.x, plain.x, rtol=1e-12)


def test_pytrees_and_flat_vectors_make_the_same_run():
    model = Model(3)
    flat = model.problem()
    x0 = {"first": jnp.asarray(model.x0[:1]), "rest": (jnp.asarray(model.x0[1:]),)}
    join = lambda x: jnp.concatenate([x["first"], x["rest"][0]])
    tree = bx.Problem(
        upper=lambda x, y, task, batch: upper(join(x), y["y"], task, batch),
        lower=lambda x, y, task, batch: lower(join(x), y["y"], task, batch),
        x0=x0,
        y0={"y": jnp.asarray(model.y0)},
        y0_per_task=True,
        tasks=jnp.asarray(model.theta),
        upper_data=flat.upper_data,
        lower_data=flat.lower_data,
        strong_convexity=model.lam,
    )
    settings = {**STABLE, "tasks_per_step": 2}
    one, other = (bx.solve(p, bx.rsvrb(**settings), steps=30, metrics=None) for p in (flat, tree))
    np.testing.assert_allclose(join(other.x), one.x, rtol=1e-12)
    np.testing.assert_allclose(other.y["y"], one.y, rtol=1e-12)


# Unbiasedness, by enumerating all that can be drawn in one step of a tiny problem.


@cache
def tiny(p, size):
    """A state a few steps into a run with 3 tasks of 2 samples each, and what the step is made of."""
    problem = Model(3, n=2).problem()
    algorithm = bx.rsvrb(**{**STABLE, "batch_size": 1}, tasks_per_step=size, task_probabilities=p)
    state = run(problem, algorithm, 7)
    first = FirstBatch("cheap", None)
    method = family.RSVRB(as_rates(0.02, 0.1, 0.5, 0.1), draw.Sampling(size, 1, p), first, curvature=dense)
    return problem, method, state


def all_caught_up(problem, method, state):
    """Every task of a state, up to date; to be compiled."""
    rates_at = partial(method.rates_at, problem, state)
    _, eras = tasks.tick(state.own.clock, state.tables.eras, rates_at(state.step))
    catch_up = partial(family.catch_up, problem, dense, rates_at, state.own.clock, eras)
    return jax.vmap(catch_up)(state.tables.tasks, jax.vmap(problem.bounds_of)(jnp.arange(problem.num_tasks)))


def look(problem, state, mixing, *drawn):
    """What a sample tells the five estimates."""
    return family.innovate(problem, dense, mixing, state.x, state.own.x_before, *drawn)


def weighted_outcomes(m, size, p):
    """All sets or sequences of tasks that a step can draw, with their probabilities."""
    if p is None:
        subsets = list(itertools.combinations(range(m), size))
        return [(tasks, 1 / len(subsets), [m / size] * size) for tasks in subsets]
    sequences = itertools.product(range(m), repeat=size)
    return [(tasks, np.prod([p[i] for i in tasks]), [1 / (size * p[i]) for i in tasks]) for tasks in sequences]


@pytest.mark.parametrize(("p", "size"), [(None, 1), (None, 2), ((0.2, 0.3, 0.5), 1), ((0.2, 0.3, 0.5), 2)])
def test_every_estimator_is_unbiased(p, size):
    problem, method, state = tiny(p, size)
    mixing = method.rates_at(problem, state, state.step).mixing
    every = jax.jit(partial(all_caught_up, problem, method))(state)
    current = [jax.tree.map(lambda leaf, i=i: leaf[i], every) for i in range(3)]
    samples = list(itertools.product(range(2), range(2)))  # every ξ and ζ of one task, equally likely
    one = jax.jit(partial(look, problem, state, mixing))
    numpy = partial(jax.tree.map, np.asarray)
    single = {
        (i, xi, zeta): numpy(one(current[i], jnp.int32(i), jnp.float64(1), jnp.array([xi]), jnp.array([zeta])))
        for i in range(3)
        for xi, zeta in samples
    }
    merge = jax.jit(draw.merge)
    mean = [
        jax.tree.map(lambda *leaves: sum(leaves) / len(samples), *(single[i, xi, zeta] for xi, zeta in samples))
        for i in range(3)
    ]
    expected = [jax.tree.map(np.zeros_like, mean[0]) for _ in range(3)]
    for numbers, probability, weights in weighted_outcomes(3, size, p):
        pairs = zip(numbers, weights, strict=True)
        contributions = [jax.tree.map(lambda leaf, w=w: w * leaf, mean[i]) for i, w in pairs]
        merged = jax.tree.map(lambda *leaves: np.stack(leaves), *contributions)
        if p is not None and size > 1:
            merged = numpy(merge(np.equal.outer(numbers, numbers), merged))
        for i in set(numbers):
            place = numbers.index(i)
            expected[i] = jax.tree.map(lambda e, leaf: e + probability * leaf[place], expected[i], merged)  # noqa: B023
    on_all = jax.jit(lambda task, i: look(problem, state, mixing, task, i, 1.0, None, None))  # samples of the task
    for i in range(3):
        truth = on_all(current[i], jnp.int32(i))
        jax.tree.map(lambda e, t: np.testing.assert_allclose(e, t, atol=1e-12), expected[i], truth)


@pytest.mark.parametrize("size", [1, 2])
def test_the_direction_is_unbiased(size, monkeypatch):
    """E_j[d_{t+1}] = (1−β)(d_t − mean_i z_{i,t}) + mean_i z_{i,t+1}, whatever tasks were updated."""
    problem, method, state = tiny(None, size)
    algorithm = family.assemble_family("tiny", method, {})
    base = draw.draw_step(problem, method.sampling, KEY)

    def stepped(numbers):
        monkeypatch.setattr(draw, "draw_step", lambda *_: base._replace(direction_tasks=numbers))
        return algorithm.step(problem, state, KEY)[0]

    @jax.jit
    def mean_hypergradient(state):
        task = all_caught_up(problem, method, state)
        return jnp.mean(jax.vmap(partial(family.z, problem, dense))(task.u, task.VH, task.v), axis=0)

    subsets = jnp.array(list(itertools.combinations(range(3), size)), jnp.int32)
    outcomes = jax.jit(jax.vmap(stepped))(subsets)
    after = jax.tree.map(lambda leaf: leaf[0], outcomes)
    want = 0.9 * (state.own.d - mean_hypergradient(state)) + mean_hypergradient(after)
    np.testing.assert_allclose(jnp.mean(outcomes.own.d, axis=0), want, atol=1e-12)


@cache
def free_run():
    """An algorithm, and its run on a problem without bounds."""
    algorithm = bx.rsvrb(tasks_per_step=2, **STABLE)
    return algorithm, run(Model(3).problem(), algorithm, 10)


@pytest.mark.parametrize("name", ["f_x", "f_y", "g_xy", "y"])
def test_infinite_bounds_are_none(name):
    """For all tasks, and for those that have none."""
    named = {"f_x": "C_fx", "f_y": "C_fy", "g_xy": "C_gxy", "y": "R_y"}[name]
    algorithm, free = free_run()
    assert getattr(Model(3, **{named: np.inf}).problem().bounds, name) is None
    some = run(Model(3, **{named: np.array([np.inf, 1e6, np.inf])}).problem(), algorithm, 10)
    np.testing.assert_allclose(some.x, free.x, rtol=1e-10)
    np.testing.assert_allclose(some.tables.tasks.y, free.tables.tasks.y, rtol=1e-10)


def test_the_stages_of_re_rsvrb_reach_the_step_of_an_optimizer():
    problem, settings = Model(3).problem(), {**STABLE, "first_stage": 5}
    plain = run(problem, bx.re_rsvrb(**settings), 30)
    through = run(problem, bx.re_rsvrb(upper_optimizer=optax.sgd(STABLE["upper_step"]), **settings), 30)
    np.testing.assert_allclose(through.x, plain.x, rtol=1e-12)
