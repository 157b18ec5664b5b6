"""Identities that the algorithms must satisfy whatever the numbers are."""

import itertools
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from logistic import Model, lower, upper

import bilevax as bx
from bilevax import draw
from bilevax.curvature import dense
from bilevax.schedule import as_rates

family = import_module("bilevax.algorithms.rsvrb")  # the attribute of that name is the function
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
    np.testing.assert_array_equal(one.tasks.y, other.tasks.y)


def test_relabelled_tasks_give_the_relabelled_result(monkeypatch):
    model = Model(5)
    order = np.array([3, 0, 4, 1, 2])
    relabelled = Model(5)
    for name in ("theta", "a", "k", "r", "q", "c", "y0"):
        setattr(relabelled, name, getattr(model, name)[order])
    algorithm = bx.rsvrb(tasks_per_step=2, **{**STABLE, "initial_batch_size": 6})
    plain = run(model.problem(), algorithm, 60)
    original = draw.draw_step

    def renamed(problem, sampling, key):
        drawn = original(problem, sampling, key)
        place = jnp.argsort(jnp.asarray(order))
        return drawn._replace(tasks=place[drawn.tasks], direction_tasks=place[drawn.direction_tasks])

    monkeypatch.setattr(draw, "draw_step", renamed)
    other = run(relabelled.problem(), algorithm, 60)
    np.testing.assert_allclose(other.x, plain.x, rtol=1e-12)
    np.testing.assert_allclose(other.tasks.y, plain.tasks.y[order], rtol=1e-12)


@pytest.mark.parametrize("m", [1, 6])
def test_whole_batches_with_mixing_one_make_the_exact_hypergradient_step(m):
    """After the theorem's start y is y*, and every estimate true: a step of gradient descent."""
    model = Model(m)
    problem = model.problem()
    algorithm = bx.rsvrb(upper_step=0.3, lower_step=0.1, mixing=1.0, tasks_per_step=m, batch_size=None)
    state = jax.jit(algorithm.init)(problem, KEY)
    moved, _ = jax.jit(algorithm.step)(problem, state, KEY)
    gradient = bx.exact_gradient(problem, jnp.asarray(model.x0))
    np.testing.assert_allclose(state.direction, gradient, rtol=1e-9)
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


def tiny(p, size):
    """A state a few steps into a run with 3 tasks of 2 samples each, and what the step is made of."""
    problem = Model(3, n=2).problem()
    algorithm = bx.rsvrb(**{**STABLE, "batch_size": 1}, tasks_per_step=size, task_probabilities=p)
    state = run(problem, algorithm, 7)
    sampling = draw.Sampling(size, 1, p)
    timetable = family.scheduled(as_rates(0.02, 0.1, 0.5, 0.1))
    settings = family.Settings(timetable, sampling, dense, None, family.as_beginning("cheap", None, None))
    bring = lambda i: family._bring(problem, settings, state, i, jax.tree.map(lambda leaf: leaf[i], state.tasks))
    return problem, settings, state, bring


def whole_innovation(problem, settings, state, mixing, task, i):
    """The innovation of task i on all its samples, with weight one: what the mean must be."""
    return family.look(problem, settings, state.x, state.x_before, mixing, task, (i, 1.0, None, None))


def weighted_outcomes(m, size, p):
    """All sets or sequences of tasks that a step can draw, with their probabilities."""
    if p is None:
        subsets = list(itertools.combinations(range(m), size))
        return [(tasks, 1 / len(subsets), [m / size] * size) for tasks in subsets]
    sequences = itertools.product(range(m), repeat=size)
    return [(tasks, np.prod([p[i] for i in tasks]), [1 / (size * p[i]) for i in tasks]) for tasks in sequences]


@pytest.mark.parametrize(("p", "size"), [(None, 1), (None, 2), ([0.2, 0.3, 0.5], 1), ([0.2, 0.3, 0.5], 2)])
def test_every_estimator_is_unbiased(p, size):
    problem, settings, state, bring = tiny(p, size)
    mixing = family.rates_of(problem, settings, state, state.clock.now.step).mixing
    current = [bring(jnp.int32(i)) for i in range(3)]
    samples = list(itertools.product(range(2), range(2)))  # every ξ and ζ of one task, equally likely
    one = jax.jit(lambda task, *drawn: family.look(problem, settings, state.x, state.x_before, mixing, task, drawn))
    single = {
        (i, xi, zeta): one(current[i], jnp.int32(i), jnp.float64(1), jnp.array([xi]), jnp.array([zeta]))
        for i in range(3)
        for xi, zeta in samples
    }
    mean = [
        jax.tree.map(lambda *leaves: sum(leaves) / len(samples), *(single[i, xi, zeta] for xi, zeta in samples))
        for i in range(3)
    ]
    expected = [jax.tree.map(jnp.zeros_like, mean[0]) for _ in range(3)]
    for tasks, probability, weights in weighted_outcomes(3, size, p):
        contributions = [jax.tree.map(lambda leaf, w=w: w * leaf, mean[i]) for i, w in zip(tasks, weights, strict=True)]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *contributions)
        merged = draw.merged(draw.repeats(settings.sampling, jnp.array(tasks)), stacked)
        for i in set(tasks):
            place = tasks.index(i)
            expected[i] = jax.tree.map(lambda e, leaf: e + probability * leaf[place], expected[i], merged)  # noqa: B023
    for i in range(3):
        truth = whole_innovation(problem, settings, state, mixing, current[i], jnp.int32(i))
        jax.tree.map(lambda e, t: np.testing.assert_allclose(e, t, atol=1e-12), expected[i], truth)


@pytest.mark.parametrize("size", [1, 2])
def test_the_direction_is_unbiased(size, monkeypatch):
    """E_j[d_{t+1}] = (1−β)(d_t − mean_i z_{i,t}) + mean_i z_{i,t+1}, whatever tasks were updated."""
    problem, settings, state, _ = tiny(None, size)
    algorithm = family.assemble("tiny", settings, {})
    base = draw.draw_step(problem, settings.sampling, KEY)

    def stepped(tasks):
        monkeypatch.setattr(draw, "draw_step", lambda *_: base._replace(direction_tasks=tasks))
        return algorithm.step(problem, state, KEY)[0]

    @jax.jit
    def mean_hypergradient(state):
        def one(i, task):
            task = family._bring(problem, settings, state, i, task)
            return family.hypergradient(problem, settings, task)

        return jnp.mean(jax.vmap(one)(jnp.arange(3, dtype=jnp.int32), state.tasks), axis=0)

    subsets = jnp.array(list(itertools.combinations(range(3), size)), jnp.int32)
    outcomes = jax.jit(jax.vmap(stepped))(subsets)
    after = jax.tree.map(lambda leaf: leaf[0], outcomes)
    want = 0.9 * (state.direction - mean_hypergradient(state)) + mean_hypergradient(after)
    np.testing.assert_allclose(jnp.mean(outcomes.direction, axis=0), want, atol=1e-12)
