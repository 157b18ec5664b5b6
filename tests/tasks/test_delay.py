"""Delayed updates equal the updates made one by one, for any schedule and any gap."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax import tasks
from bilevax.schedule import as_rates


def rates_of(mixing, relaxation, lower_step=0.3, dtype=float):
    schedules = as_rates(0.1, lower_step, relaxation, mixing)
    at = lambda rate, t: jnp.asarray(rate(t) if callable(rate) else rate, dtype)
    return lambda t: jax.tree.map(lambda rate: at(rate, t), schedules)


def clocks(rates, dtype=float, eras=tasks.ERAS):
    """The clock and its eras before step 1, and what they are after some steps, the way a run ticks it."""
    first = tasks.start_clock(dtype), jnp.zeros((eras, 3), dtype)
    body = lambda _, at: tasks.tick(*at, rates(at[0].now.counts[0]))

    def run(at, steps):
        clock, eras = jax.lax.fori_loop(0, steps, body, at)
        return clock, tasks.tick(clock, eras, rates(clock.now.counts[0]))[1]

    return first, jax.jit(run)


@functools.cache
def numbers(rates):
    """The rates of the first steps, for NumPy."""
    every = jax.tree.map(np.asarray, jax.jit(jax.vmap(rates))(jnp.arange(1, 500, dtype=jnp.int32)))
    return [None, *(jax.tree.map(lambda leaf, s=s: leaf[s], every) for s in range(499))]


def one_by_one(y, w, radius, rates, begin, end):
    """Line 15 of Algorithm 2 for a task that is not drawn, in NumPy."""
    before = y
    for r in numbers(rates)[begin:end]:
        w = (1 - float(r.mixing.g_y)) * w
        trial = y - float(r.lower_step) * w
        if radius is not None and np.linalg.norm(trial) > radius:
            trial = trial * (radius / np.linalg.norm(trial))
        before, y = y, y + float(r.relaxation) * (trial - y)
    return y, before, w


SCHEDULES = {
    "constant": (0.1, 0.5),
    "nearly one": (0.95, 0.9),
    "one": (1.0, 1.0),
    "tiny": (1e-4, 0.7),
    "decreasing": (bx.power(1.5, 2, 2 / 3), bx.power(1.2, 2, 1 / 3)),
    "rising": (lambda t: 0.5 - 0.49 / t.astype(float), lambda t: 1 - 0.9 / t.astype(float)),
}


def bring(at, visit, kept, radius, rates):
    """A task as it is now."""
    return tasks.catch_up(tasks.absence_since(*at, visit, rates), kept, radius)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("radius", [None, 1.3], ids=["free", "ball"])
def test_a_task_brought_up_to_date_is_where_single_steps_take_it(name, radius):
    rates = rates_of(*SCHEDULES[name])
    rng = np.random.default_rng(1)
    y, w = rng.normal(size=3), 3 * rng.normal(size=3)
    y *= 0.9 / np.linalg.norm(y)
    kept = tasks.Lower(jnp.asarray(y), jnp.asarray(y - 1), jnp.asarray(w))
    first, run = clocks(rates)
    visit = run(first, 37)
    brought = jax.jit(lambda clock: bring(clock, visit[0].now, kept, radius, rates))
    for gap in (0, 1, 2, 7, 60, 400):
        got = brought(run(visit, gap))
        want_y, want_before, want_w = one_by_one(y, w, radius, rates, 38, 38 + gap)
        np.testing.assert_allclose(got.y, want_y, rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(got.y_before, y - 1 if gap == 0 else want_before, rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(got.w, want_w, rtol=1e-11, atol=1e-300)


def test_a_step_that_was_large_once_is_not_forgotten_where_a_set_holds_y():
    """τ = 4, then 0.01: y itself would stay in the ball, but the first trial point y − τw does not."""
    step = lambda t: jnp.where(t == 1, 4.0, 0.01)
    rates = rates_of(0.5, 0.1, lower_step=step)
    first, run = clocks(rates)
    kept = tasks.Lower(jnp.zeros(1), jnp.zeros(1), jnp.array([-1.0]))
    now = run(first, 3)
    got, free = (bring(now, first[0].now, kept, radius, rates) for radius in (1.0, None))
    for brought, radius in [(got, 1.0), (free, None)]:
        want_y, want_before, _ = one_by_one(np.zeros(1), np.array([-1.0]), radius, rates, 1, 4)
        np.testing.assert_allclose(brought.y, want_y, rtol=1e-12)
        np.testing.assert_allclose(brought.y_before, want_before, rtol=1e-12)
    assert float(free.y[0]) > 1.5 * float(got.y[0])


def test_a_forgotten_era_is_replayed():
    rates = rates_of(0.6, 0.5)
    kept = tasks.Lower(jnp.array([1.0, 2.0]), jnp.zeros(2), jnp.array([3.0, -1.0]))
    first, run = clocks(rates, eras=4)
    clock = run(first, 300)
    assert not bool(tasks.absence_since(*clock, first[0].now, rates).known)
    got = bring(clock, first[0].now, kept, None, rates)
    want_y, _, _ = one_by_one(np.array([1.0, 2.0]), np.array([3.0, -1.0]), None, rates, 1, 301)
    np.testing.assert_allclose(got.y, want_y, rtol=1e-12)


@pytest.mark.parametrize("steps", [1_000_000])
def test_float32_readings_stay_exact_after_a_million_steps(steps):
    """An uncompensated float32 sum would be off by percents here: its spacing at 1e5 is 0.008."""
    rates = rates_of(0.1, 0.5, dtype=np.float32)
    first, run = clocks(rates, np.float32)
    visit = run(first, steps)
    passed = tasks.absence_since(*run(visit, 25), visit[0].now, rates)
    decay = 0.9**25
    np.testing.assert_allclose(passed.decay.g_y, decay, rtol=2e-5)
    np.testing.assert_allclose(passed.length, 0.15 * 0.9 * (1 - decay) / 0.1, rtol=2e-4)


def test_float32_lengths_are_right_for_tiny_mixing():
    rates = rates_of(1e-5, 0.5, dtype=np.float32)
    first, run = clocks(rates, np.float32)
    length = tasks.absence_since(*run(first, 300_000), first[0].now, rates).length
    beta = float(np.float32(1e-5))
    np.testing.assert_allclose(length, 0.15 * (1 - beta) * -np.expm1(300_000 * np.log1p(-beta)) / beta, rtol=2e-5)
