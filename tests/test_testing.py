"""`check_algorithm` is silent on a right algorithm, and says of a wrong one what is wrong with it."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

import bilevax as bx
from bilevax.algorithms.contract import DESCRIPTIONS, ContractError
from bilevax.algorithms.registry.tuning import STEPS, constant_steps
from bilevax.testing import check_algorithm

FACTS = dict.fromkeys(["paper", "loops", "batch", "samples", "tasks", "memory", "curvature", "accepts"], "?")


@pytest.fixture(autouse=True)
def forget_algorithms():
    """Algorithms that a test describes are gone after it."""
    before = dict(DESCRIPTIONS)
    yield
    DESCRIPTIONS.clear()
    DESCRIPTIONS.update(before)


@pytest.mark.parametrize("name", ["soba", "block_soba"])
def test_algorithms_of_the_package_keep_the_contract(name):
    check_algorithm(getattr(bx, name), initialization="cheap", batch_size=3)


class State(NamedTuple):
    t: Array
    x: Array
    y: Array
    initial_cost: bx.Cost


COST = bx.Cost(2.0, 2.0, 1.0)


def init(problem, key):
    y = jnp.broadcast_to(problem.y0, (problem.num_tasks, problem.dim_y))
    return State(jnp.int32(0), problem.x0, y, COST)


def advance(problem, state, key):
    """A small step along ∇x f and ∇y g of a random sample, wherever that leads."""
    i = jnp.arange(problem.num_tasks)
    sample = jax.random.randint(key, (1,), 0, 8)
    slope = lambda y, i: problem.upper_gradients(state.x, y, i, sample)[0]
    lower_slope = lambda y, i: problem.lower_gradient(state.x, y, i, sample)
    x = state.x - 0.01 * jax.vmap(slope)(state.y, i).mean(0)
    return state._replace(t=state.t + 1, x=x, y=state.y - 0.01 * jax.vmap(lower_slope)(state.y, i))


def step(problem, state, key):
    after = advance(problem, state, key)
    finite = jnp.isfinite(after.x).all() & jnp.isfinite(after.y).all()
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, state), bx.Info(COST, finite)


def variables(problem, state):
    return bx.Variables(state.x, state.y)


RIGHT = bx.Algorithm("mine", init, step, variables, {})


def described(algorithm, **more):
    """A described factory of this algorithm, named mine."""

    def mine(*, upper_step=1.0):
        return algorithm

    return bx.described(**FACTS, **more)(mine)


def test_a_small_algorithm_made_by_hand_keeps_the_contract():
    check_algorithm(described(RIGHT))


def reckless(problem, state, key):
    """Says that all is finite."""
    return advance(problem, state, key), bx.Info(COST, jnp.asarray(True))


def careless(problem, state, key):
    """Sees what is not finite, and goes there."""
    after = advance(problem, state, key)
    return after, bx.Info(COST, jnp.isfinite(after.x).all())


def hasty(problem, state, key):
    """Counts its step all the same."""
    after, info = step(problem, state, key)
    return after._replace(t=state.t + 1), info


counter = itertools.count()


def forgetful(problem, state, key):
    """Draws by something that is not its key."""
    drawn = jax.pure_callback(lambda: np.int32(next(counter)), jax.ShapeDtypeStruct((), np.int32))
    return step(problem, state, jax.random.fold_in(key, drawn))


def branching(problem, state, key):
    """Looks at a number that is not there yet."""
    return step(problem, state, key) if state.t > 0 else (state, bx.Info(COST, jnp.asarray(True)))


WRONG = {
    "not finite, not said": ({"step": reckless}, "that is not finite must be reported by info.finite = False"),
    "not finite, not kept": ({"step": careless}, r"leave the state as it was; state\.t, state\.x, state\.y changed"),
    "not finite, counted": ({"step": hasty}, r"must leave the state as it was; state\.t changed"),
    "other bits": ({"step": forgetful}, "mine must give the same bits for the same key"),
    "a branch": ({"step": branching}, "mine must work inside jax.jit, in float32; it raised TracerBoolConversionError"),
    "no draw": (
        {"step": lambda problem, state, key: step(problem, state, jax.random.key(0))}, "mine must draw by its key",
    ),
    "no move": (
        {"step": lambda problem, state, key: (state, bx.Info(COST, jnp.asarray(True)))}, "x must move; after 6 steps",
    ),
    "a plain number": (
        {"init": lambda problem, key: init(problem, key)._replace(t=0), "step": lambda problem, state, key: (
            state._replace(t=state.t * 1 + jnp.asarray(1, state.t.dtype)), bx.Info(COST, jnp.asarray(True)))},
        r"must keep the types in its state, or it is compiled twice; state\.t is a plain number",
    ),
    "no cost": (
        {"step": lambda *given: (step(*given)[0], bx.Info(bx.Cost(0, 0, 0), jnp.asarray(True)))}, "all its costs are",
    ),
    "less than no cost": (
        {"step": lambda *given: (step(*given)[0], bx.Info(bx.Cost(1, -1, 0), jnp.asarray(True)))},
        "the gradients that a step of mine counts must be finite and not negative",
    ),
    "not finite at all": (
        {"step": lambda problem, state, key: (state, bx.Info(COST, state.t > 0))}, "must be finite .*; step 1 was not",
    ),
    "another name": ({"name": "yours"}, "mine must return an algorithm of its name; it is named 'yours'"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_algorithm_is_refused_in_words(wrong):
    parts, message = WRONG[wrong]
    with pytest.raises(AssertionError, match=message):
        check_algorithm(described(RIGHT._replace(**parts)))


def test_a_state_against_the_contract_is_refused_as_solve_would():
    with pytest.raises(ContractError, match="a state with the attribute initial_cost"):
        check_algorithm(described(RIGHT._replace(init=lambda problem, key: (problem.x0, problem.y0))))


def test_a_state_that_changes_its_type_in_float32_alone_is_seen():
    wide = lambda problem, state, key: (state._replace(x=state.x + jnp.zeros(4)), step(problem, state, key)[1])
    with jax.numpy_dtype_promotion("standard"), pytest.raises(ContractError, match=r"state\.x had .* float32, and has"):
        check_algorithm(described(RIGHT._replace(step=wide)))


def test_a_factory_that_is_none_is_refused():
    def by_place(upper_step=1.0):
        return RIGHT

    cases = [
        (3, "factory must be a function; got 3"),
        (lambda: RIGHT, "must be described: put @bilevax.described"),
        (bx.described(**FACTS)(by_place), "by_place must take keyword arguments only, .*; upper_step can be given"),
        (described(None), "mine must return a bilevax.Algorithm; it returned NoneType"),
        (bx.described(**{**FACTS, "paper": " "})(lambda: RIGHT), "must say something on paper"),
    ]
    for factory, message in cases:
        with pytest.raises(AssertionError, match=message):
            check_algorithm(factory)


def test_a_tuning_whose_arguments_the_factory_does_not_take_is_refused():
    factory = described(RIGHT, tuning=bx.Tuning("Mine", STEPS, constant_steps))
    with pytest.raises(
        AssertionError, match=r"arguments in the tuning of mine must give what the factory takes, from \{"
    ):
        check_algorithm(factory)
