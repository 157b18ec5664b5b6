"""Modules as x and y: what is no variable in them is kept aside, and comes back."""

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevax as bx
from bilevax.aside import bring_back, set_aside

rng = np.random.default_rng(0)
A = rng.normal(size=(40, 3))
B = np.sin(A[:, 0])


def fit(x, y, batch):
    return jnp.mean((jax.vmap(x)(batch["A"]) @ y - batch["b"]) ** 2)


@pytest.fixture(scope="module")
def problem():
    data = bx.shared({"A": A, "b": B})
    network = equinox.nn.MLP(3, 4, 5, 1, key=jax.random.key(0), dtype=jnp.float64)
    return bx.Problem(
        upper=lambda x, y, i, batch: fit(x, y, batch),
        lower=lambda x, y, i, batch: fit(x, y, batch) + 0.05 * jnp.sum(y**2),
        x0=network, y0=jnp.zeros(4), strong_convexity=0.1, lower_data=data, upper_data=data,
    )  # fmt: skip


@pytest.mark.parametrize("algorithm", [bx.implicit(), bx.soba(upper_optimizer=optax.adam(1e-2))])
def test_a_module_of_equinox_is_optimised_and_comes_back_as_one(problem, algorithm):
    result = bx.solve(problem, algorithm, steps=30)
    assert isinstance(result.x, equinox.nn.MLP)
    assert jax.vmap(result.x)(jnp.asarray(A)).shape == (40, 4)
    assert result.trace["objective"][-1] < result.trace["objective"][0]
    np.testing.assert_allclose(bx.exact_objective(problem, result.x), result.trace["objective"][-1], rtol=1e-9)


def test_its_gradient_is_that_of_its_arrays(problem):
    network = bx.solve(problem, bx.implicit(), steps=1, metrics=None).x
    gradient = bx.exact_gradient(problem, network)
    along = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), gradient)
    moved = lambda t: equinox.apply_updates(network, jax.tree.map(lambda leaf: t * leaf, along))
    slope = (bx.exact_objective(problem, moved(1e-5)) - bx.exact_objective(problem, moved(-1e-5))) / 2e-5
    products = jax.tree.map(jnp.vdot, gradient, along)
    np.testing.assert_allclose(slope, sum(jax.tree.leaves(products)), rtol=1e-5)


def test_numbers_in_plain_containers_are_variables_and_whole_ones_are_refused():
    assert set_aside({"a": 1.0, "b": jnp.ones(2)})[1] is None
    variables, aside = set_aside({"a": jnp.ones(2), "name": "tanh"})
    assert variables == {"a": variables["a"], "name": None}
    assert bring_back(variables, aside)["name"] == "tanh"
    with pytest.raises(TypeError, match="floating type"):
        bx.Problem(
            upper=lambda x, y, i, b: y.sum(), lower=lambda x, y, i, b: (y**2).sum(), x0={"a": jnp.arange(3)},
            y0=jnp.zeros(2), strong_convexity=1.0,
        )  # fmt: skip


def test_the_lower_problem_of_a_new_task_is_solved():
    m, n = 4, 12
    A = rng.normal(size=(m + 1, n, 3))
    b = rng.normal(size=(m + 1, n))
    problem = bx.Problem(
        upper=lambda x, y, task, batch: jnp.mean((batch["A"] @ y - batch["b"]) ** 2),
        lower=lambda x, y, task, batch: jnp.mean((batch["A"] @ y - batch["b"]) ** 2) + task * jnp.sum((y - x) ** 2),
        x0=jnp.ones(3), y0=jnp.zeros(3), strong_convexity=1.0, tasks=jnp.arange(1.0, m + 1), y0_per_task=False,
        lower_data=bx.per_task({"A": A[:m], "b": b[:m]}), upper_data=bx.per_task({"A": A[:m], "b": b[:m]}),
    )  # fmt: skip

    def by_hand(k, penalty):
        return np.linalg.solve(A[k].T @ A[k] / n + penalty * np.eye(3), A[k].T @ b[k] / n + penalty * np.ones(3))

    x = problem.x0
    np.testing.assert_allclose(bx.lower_solution(problem, x, task=2), by_hand(2, 3.0), rtol=1e-9)
    new = bx.lower_solution(problem, x, task=jnp.asarray(0.5), data={"A": A[m], "b": b[m]})
    np.testing.assert_allclose(new, by_hand(m, 0.5), rtol=1e-9)
    for wrong, words in [
        ({}, "data="), ({"task": m}, "task"), ({"data": {"A": A[m], "b": b[m]}}, "task="),
        ({"task": 0, "data": {"A": A[m]}}, "data must be like lower_data"),
        ({"task": jnp.ones(2), "data": {"A": A[m], "b": b[m]}}, "task must be like"),
    ]:  # fmt: skip
        with pytest.raises((TypeError, ValueError), match=words):
            bx.lower_solution(problem, x, **wrong)
