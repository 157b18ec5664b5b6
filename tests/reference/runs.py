"""Runs of the library and of the transcriptions on the same draws, and how they are compared."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from reference import boxes

import bilevax as bx
from bilevax import draw

STEPS = 250
KEY = jax.random.key(7)


def walk(problem, algorithm, state, steps):
    """The state after some steps; x, y and whether all was finite after each of them. To be compiled."""

    def body(state, t):
        state, info = algorithm.step(problem, state, jax.random.fold_in(KEY, t))
        return state, (algorithm.variables(problem, state), info.finite)

    return jax.lax.scan(body, state, jnp.arange(1, steps + 1))


def path_of(reached):
    """x (steps, d) and y (steps, m, d') after every step, and the final state."""
    state, (variables, finite) = reached
    assert np.asarray(finite).all()
    return np.asarray(variables.x), np.asarray(variables.y), state


def library_run(problem, algorithm, steps=STEPS):
    """One run of one algorithm: its path and its final state."""
    run = jax.jit(lambda problem: walk(problem, algorithm, algorithm.init(problem, KEY), steps))
    return path_of(run(problem))


class Power(NamedTuple):
    """The numbers of a rate scale/(offset + t)^exponent; it is constant where the exponent is zero."""

    scale: float
    offset: float = 8.0
    exponent: float = 0.0

    def at(self, t):
        """The rate of step t."""
        return self.scale / (self.offset + t) ** self.exponent


def as_schedules(numbers):
    """Rates as the library takes them, from numbers that a compiled run is given."""
    is_power = lambda leaf: isinstance(leaf, Power)
    return jax.tree.map(lambda leaf: bx.power(*leaf) if is_power(leaf) else leaf, numbers, is_leaf=is_power)


NOT_OF_THE_START = ("tasks_per_step", "task_probabilities", "inner_steps")


@functools.cache
def first_state(factory, **settings):
    """The first state as a compiled function of the problem, and of numbers that it has no use for."""
    return jax.jit(lambda problem, numbers: factory(**settings, **as_schedules(numbers)).init(problem, KEY))


@functools.cache
def all_steps(factory, steps, **settings):
    """All steps as a compiled function of the problem, the numbers of all rates, and the first state."""
    make = lambda numbers: factory(**settings, **as_schedules(numbers))
    return jax.jit(lambda problem, numbers, state: walk(problem, make(numbers), state, steps))


def shared_run(factory, problem, numbers, start, steps=STEPS, **settings):
    """The path of a run by programs that are compiled once: for all numbers, and all problems of one structure.

    `start` are settings of the first state alone. It serves all runs that start alike, whatever their steps look at.
    """
    of_start = {name: value for name, value in settings.items() if name not in NOT_OF_THE_START}
    state = first_state(factory, **of_start, **start)(problem, numbers)
    return path_of(all_steps(factory, steps, **settings)(problem, numbers, state))


def draws_of(problem, sampling, steps=STEPS):
    """The draws that the library makes in the same steps, for the transcription."""
    one = lambda t: draw.draw_step(problem, sampling, jax.random.fold_in(KEY, t))
    d = jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(jnp.arange(1, steps + 1)))
    every = zip(d.tasks, d.weights, d.upper, d.lower, d.direction_tasks, strict=True)
    return [boxes.Drawn(*of_step) for of_step in every]


def first_theta(model):
    """Θ_0 with y_0 as given and the estimates from all samples (a cheap start with whole batches)."""
    everything = range(model.a.shape[1])
    y0 = [boxes.project_ball(y, model.R_y) for y in model.y0]
    return boxes.Theta(model, model.x0, y0, [(everything, everything)] * model.m)


def schedules(kind, m, tasks_per_step):
    """The numbers of all rates, and the rates as the box takes them; steps shrink with m/B as the theorem's."""
    scale = tasks_per_step / m
    eta, tau = 0.1 * scale, 0.6 * scale
    if kind == "constant":
        upper_step, relaxation, betas = Power(eta), Power(0.8), bx.Mixing(*[Power(0.2 * scale)] * 6)
    else:
        upper_step, relaxation = Power(2 * eta, 8.0, 1 / 3), Power(2.0, 8.0, 1 / 3)
        betas = bx.Mixing(*(Power(4 * b * scale, 8.0, 2 / 3) for b in (0.3, 0.35, 0.4, 0.45, 0.5, 0.55)))
    numbers = {"upper_step": upper_step, "lower_step": tau, "relaxation": relaxation, "mixing": betas}
    box = [
        boxes.Rates(upper_step.at(t), tau, relaxation.at(t), *(beta.at(t) for beta in betas))
        for t in range(1, STEPS + 1)
    ]
    return numbers, box


def assert_same_path(library, box):
    """Every step of two runs agrees to relative 1e-9."""
    xs, ys, _ = library
    box_x, box_y = map(np.stack, zip(*((x, np.stack(y)) for x, y in box), strict=True))
    np.testing.assert_allclose(xs, box_x, rtol=1e-9, atol=1e-11, err_msg="x after each step")
    np.testing.assert_allclose(ys, box_y, rtol=1e-9, atol=1e-11, err_msg="y after each step")
