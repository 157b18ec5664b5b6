"""On quadratic problems with a closed form the algorithms reach the solution, at the rate of the theorem."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax.problems import quadratic


def squared_gradients(truth, algorithm, steps, seeds):
    """‖∇F(x_t)‖² after every step, the mean over seeds, from the closed form."""

    def run(key):
        def body(state, t):
            state, info = algorithm.step(truth.problem, state, jax.random.fold_in(key, t))
            return state, (jnp.sum(truth.gradient(state.x) ** 2), info.finite)

        state = algorithm.init(truth.problem, key)
        return jax.lax.scan(body, state, jnp.arange(1, steps + 1))[1]

    values, finite = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), seeds))
    assert finite.all()
    return np.asarray(values).mean(axis=0)


def slope(values, first):
    """The exponent of a power law fitted to means over windows that are even on a logarithmic axis."""
    edges = np.unique(np.geomspace(first, len(values), 13).astype(int))
    middles = np.sqrt(edges[:-1] * edges[1:])
    means = [values[a:b].mean() for a, b in itertools.pairwise(edges)]
    return np.polyfit(np.log(middles), np.log(means), 1)[0]


def test_svrb_with_decreasing_steps_converges_at_least_as_fast_as_t_to_the_minus_055():
    """Theorem 1 says T^(−2/3) up to logarithms; a plain stochastic gradient has T^(−1/2) at best."""
    truth = quadratic(num_tasks=1, noise=1.0)
    algorithm = bx.svrb(
        upper_step=bx.power(0.4, 8, 1 / 3),
        lower_step=0.3,
        relaxation=bx.power(2, 8, 1 / 3),
        mixing=bx.power(1, 8, 2 / 3),
        batch_size=8,
    )
    values = squared_gradients(truth, algorithm, 30_000, seeds=8)
    assert slope(values, first=400) <= -0.55
    running_mean = np.cumsum(values) / np.arange(1, len(values) + 1)  # what the theorem bounds
    assert slope(running_mean, first=400) <= -0.55


def test_restarts_with_smaller_steps_go_on_where_constant_steps_stand_still():
    truth = quadratic(num_tasks=20, noise=0.25)
    settings = {"upper_step": 0.05, "lower_step": 0.3, "relaxation": 0.3, "mixing": 0.02, "tasks_per_step": 5}
    constant = squared_gradients(truth, bx.rsvrb(**settings), 8_000, seeds=4)
    staged = squared_gradients(truth, bx.re_rsvrb(first_stage=500, **settings), 8_000, seeds=4)
    assert staged[-2000:].mean() < 0.3 * constant[-2000:].mean()


def test_without_noise_the_solution_is_reached_to_rounding():
    truth = quadratic(num_tasks=6, noise=0.0)
    algorithm = bx.rsvrb(upper_step=0.3, lower_step=0.3, mixing=1.0, tasks_per_step=6, batch_size=2)
    result = bx.solve(truth.problem, algorithm, steps=1500, metrics=None)
    np.testing.assert_allclose(result.x, truth.solution, rtol=1e-8)
    np.testing.assert_allclose(result.y, truth.lower_solution(truth.solution), rtol=1e-7)


@pytest.mark.parametrize(
    ("changed", "match"),
    [({"num_tasks": 0}, "num_tasks"), ({"noise": -1}, "noise must be"), ({"smoothness": 0.1}, "smoothness")],
)
def test_wrong_arguments_are_refused(changed, match):
    with pytest.raises(ValueError, match=match):
        quadratic(**changed)
