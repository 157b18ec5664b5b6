"""Algorithms from outside the package: a right one runs in `solve`, a wrong one is refused before anything long."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

import bilevax as bx
from bilevax.algorithms.contract import AlgorithmState, ContractError
from bilevax.exact import lower
from bilevax.problems import quadratic

truth = quadratic(num_tasks=2, dim_x=3, dim_y=2, num_samples=4, ridge=1.0)


class State(NamedTuple):
    x: Array
    y: Array
    initial_cost: bx.Cost


def descent(step_size=0.1):
    """x ← x − γ ∇F(x), with all lower problems solved exactly: by hand, without the frame."""

    def solve_all(problem, x, y):
        of_task = lambda y, i: lower.solve_lower(problem, x, y, i, None)[0]
        return jax.vmap(of_task)(y, jnp.arange(problem.num_tasks))

    def work(problem, gradients):
        return bx.Cost(samples=problem.num_tasks * 8, gradients=gradients, products=problem.num_tasks * 8)

    def init(problem, key):
        y = solve_all(problem, problem.x0, jnp.broadcast_to(problem.y0, (problem.num_tasks, problem.dim_y)))
        return State(problem.x0, y, work(problem, 100))

    def step(problem, state, key):
        x = state.x - step_size * bx.exact_gradient(problem, state.x)
        after = state._replace(x=x, y=solve_all(problem, x, state.y))
        finite = jnp.isfinite(after.x).all() & jnp.isfinite(after.y).all()
        return jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, state), bx.Info(
            work(problem, 10), finite
        )

    def variables(problem, state):
        return bx.Variables(state.x, state.y)

    return bx.Algorithm("descent", init, step, variables, {"step_size": step_size})


def test_an_algorithm_made_by_hand_runs_and_finds_the_solution():
    result = bx.solve(truth.problem, descent(), steps=300, metrics=None)
    assert result.status == "done"
    np.testing.assert_allclose(result.x, truth.solution, atol=1e-6)
    np.testing.assert_allclose(result.y, truth.lower_solution(truth.solution), atol=1e-6)
    assert result.cost == bx.Cost(16 * 301, 100 + 10 * 300, 16 * 301)
    assert isinstance(result.state, AlgorithmState)


def test_an_algorithm_made_by_hand_can_diverge():
    result = bx.solve(truth.problem, descent(1e300), steps=20, metrics=None)
    assert result.status == "diverged"
    assert np.isfinite(result.x).all()


def plain(state):
    """A quick algorithm with this function from (x, y, cost) to a state."""
    zero = jnp.zeros((2, 2))
    right = lambda problem, key: state(problem.x0, zero, bx.Cost(1.0, 1.0, 1.0))
    step = lambda problem, state, key: (state, bx.Info(bx.Cost(1.0, 1.0, 1.0), jnp.asarray(True)))
    return bx.Algorithm("mine", right, step, lambda problem, state: bx.Variables(state.x, state.y), {})


def stepping(outcome):
    """The same with this function from (state, info) to what a step returns."""
    right = plain(State)
    return right._replace(step=lambda problem, state, key: outcome(*right.step(problem, state, key)))


class Bare(NamedTuple):
    x: Array
    y: Array


class Other(NamedTuple):
    x: Array
    y: Array
    initial_cost: bx.Cost


class Optional(NamedTuple):
    x: Array
    y: Array
    initial_cost: bx.Cost
    more: Array | None = None


class Opaque:
    """A state that JAX cannot look into."""

    def __init__(self, cost):
        self.initial_cost = cost


NO_ATTRIBUTE = "init of mine must return a state with the attribute initial_cost, a bilevax.Cost: .*; got {}, which has"
WRONG_START = {
    "no initial_cost": (lambda x, y, cost: Bare(x, y), NO_ATTRIBUTE.format("Bare")),
    "a dictionary": (lambda x, y, cost: {"x": x, "initial_cost": cost}, NO_ATTRIBUTE.format("dict")),
    "nothing": (lambda x, y, cost: None, NO_ATTRIBUTE.format("NoneType")),
    "text inside": (lambda x, y, cost: State(x, "y", cost), r"pytree of arrays, .*; state\.y is of type str"),
    "no pytree": (lambda x, y, cost: Opaque(cost), "pytree of arrays, .*; state is of type Opaque"),
    "three numbers": (
        lambda x, y, cost: State(x, y, (1.0, 2.0, 3.0)),
        "initial_cost in the state of mine must be a bilevax.Cost of three numbers, .*; got a tuple of",
    ),
    "a number": (lambda x, y, cost: State(x, y, jnp.asarray(1.0)), r"Cost of three numbers, .*; got shape \(\) of"),
    "vectors": (lambda x, y, cost: State(x, y, cost._replace(samples=x)), r"numbers, .*; samples is shape \(3,\)"),
    "truth": (lambda x, y, cost: State(x, y, cost._replace(products=True)), "products is shape .* of bool"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_START)
def test_a_state_that_is_none_is_refused(wrong):
    state, message = WRONG_START[wrong]
    with pytest.raises(ContractError, match=message):
        bx.solve(truth.problem, plain(state), steps=1)


SAME_STRUCTURE = "step of mine must return a state of the same structure as the one before"
WRONG_STEPS = {
    "the state alone": (lambda state, info: state, r"step of mine must return \(state, bilevax.Info\); got State"),
    "the cost": (lambda state, info: (state, info.cost), r"bilevax.Info\); got a tuple of \(State, Cost\)"),
    "three things": (lambda state, info: (state, info, 1), r"got a tuple of \(State, Info, int\)"),
    "another type": (lambda state, info: (Other(*state), info), f"{SAME_STRUCTURE}, .*State.*; got .*Other"),
    "no y": (lambda state, info: (state._replace(y=None), info), rf"{SAME_STRUCTURE}; state\.y is gone"),
    "two of y": (
        lambda state, info: (state._replace(y=(state.y, state.y)), info),
        rf"{SAME_STRUCTURE}; state\.y is gone, state\.y\[0\] is new, state\.y\[1\] is new",
    ),
    "another shape": (
        lambda state, info: (state._replace(y=state.y[0]), info),
        r"must keep the shape .*; state\.y had shape \(2, 2\) of float64, and has shape \(2,\) of float64 after",
    ),
    "another dtype": (
        lambda state, info: (state._replace(x=state.x.astype(np.float32)), info),
        r"state\.x had shape \(3,\) of float64, and has shape \(3,\) of float32",
    ),
    "text": (lambda state, info: (state._replace(x="x"), info), r"state\.x had shape .*, and has str after a step"),
    "no cost": (lambda state, info: (state, info._replace(cost=3.0)), "cost in the Info of mine must be a .*Cost"),
    "many truths": (
        lambda state, info: (state, info._replace(finite=state.x > 0)),
        r"finite in the Info of mine must be one truth value, .*; got shape \(3,\) of bool",
    ),
    "a number": (lambda state, info: (state, info._replace(finite=jnp.asarray(1.0))), r"one truth value.* of float64"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_STEPS)
def test_a_step_that_is_none_is_refused_before_anything_is_measured(wrong):
    outcome, message = WRONG_STEPS[wrong]
    measured = []
    with pytest.raises(ContractError, match=message):
        bx.solve(truth.problem, stepping(outcome), steps=1, metrics=lambda *given: measured.append(given))
    assert measured == []


def test_a_state_may_hold_nothing_in_some_place_but_not_from_one_step_on():
    algorithm = plain(Optional)
    assert bx.solve(truth.problem, algorithm, steps=1, metrics=None).state.more is None
    late = algorithm._replace(
        step=lambda problem, state, key: (state._replace(more=state.x), algorithm.step(problem, state, key)[1])
    )
    with pytest.raises(ContractError, match=r"state\.more is new"):
        bx.solve(truth.problem, late, steps=1, metrics=None)


WRONG_VARIABLES = {
    "a tuple": (lambda state: (state.x, state.y), "variables of mine must return bilevax.Variables.*; got a tuple of"),
    "x in a row": (
        lambda state: bx.Variables(state.x[None], state.y),
        r"x in the variables of mine must be an array of shape \(d,\) = \(3,\) .*; got shape \(1, 3\) of float64",
    ),
    "y of one": (lambda state: bx.Variables(state.x, state.y[0]), r"y .* shape \(m, d'\) = \(2, 2\) .* shape \(2,\)"),
    "y in float32": (
        lambda state: bx.Variables(state.x, state.y.astype(np.float32)), "of float64, the type of the .* float32",
    ),
    "no y": (lambda state: bx.Variables(state.x, None), "y in the variables of mine .*; got NoneType"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_VARIABLES)
def test_variables_that_are_none_are_refused(wrong):
    reached, message = WRONG_VARIABLES[wrong]
    algorithm = plain(State)._replace(variables=lambda problem, state: reached(state))
    with pytest.raises(ContractError, match=message):
        bx.solve(truth.problem, algorithm, steps=1, metrics=None)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"name": 3}, "the name of an algorithm must be text; got 3"),
        ({"step": None}, "step of mine must be a function; got None"),
        ({"settings": None}, "settings of mine must be a mapping .*; got None"),
    ],
)
def test_an_algorithm_with_a_part_that_is_none_is_refused(part, message):
    with pytest.raises(ContractError, match=message):
        bx.solve(truth.problem, plain(State)._replace(**part), steps=1)


def test_an_error_of_the_contract_is_a_type_error():
    assert issubclass(ContractError, TypeError)
