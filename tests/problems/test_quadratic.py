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

    one_by_one = jax.jit(lambda keys: jax.lax.map(run, keys))  # side by side both branches of a step would be taken
    values, finite = one_by_one(jax.random.split(jax.random.key(0), seeds))
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
    truth = quadratic(num_tasks=8, noise=0.25)
    settings = {"upper_step": 0.05, "lower_step": 0.3, "relaxation": 0.3, "mixing": 0.02, "tasks_per_step": 2}
    constant = squared_gradients(truth, bx.rsvrb(**settings), 8_000, seeds=4)
    staged = squared_gradients(truth, bx.re_rsvrb(first_stage=500, **settings), 8_000, seeds=4)
    assert staged[-2000:].mean() < 0.3 * constant[-2000:].mean()


def test_without_noise_the_solution_is_reached_to_rounding():
    truth = quadratic(num_tasks=6, noise=0.0)
    algorithm = bx.rsvrb(upper_step=0.3, lower_step=0.3, mixing=1.0, tasks_per_step=6, batch_size=2)
    result = bx.solve(truth.problem, algorithm, steps=1500, metrics=None)
    np.testing.assert_allclose(result.x, truth.solution, rtol=1e-8)
    np.testing.assert_allclose(result.y, truth.lower_solution(truth.solution), rtol=1e-7)


def test_every_derivative_on_a_sample_is_the_one_of_its_formula():
    """∇²yy g = A + s I, ∇²xy g = −(1 + s')Bᵀ, ∇y g, ∇x f and ∇y f with the noise of that sample."""
    truth = quadratic(num_tasks=2, dim_x=3, dim_y=2, noise=0.4, num_samples=5, ridge=0.3)
    problem, rng, k = truth.problem, np.random.default_rng(1), 3
    x, y = (jnp.asarray(rng.normal(size=n)) for n in (3, 2))
    at = x, y, jnp.int32(1), jnp.array([k])
    A, B, c, b = (values[1] for values in (truth.A, truth.B, truth.c, truth.b))
    held = problem.upper_data, problem.lower_data
    f, g = ({name: values[k] for name, values in data.arrays.items()} for data in held)

    @jax.jit
    def derivatives(*at):
        g_y, second = problem.lower_derivatives(*at)
        return problem.upper_gradients(*at), g_y, jax.vmap(second)(jnp.eye(2))

    (f_x, f_y), g_y, (cross, hessian) = derivatives(*at)
    close = lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-11)
    close(hessian, A + g["scale"] * jnp.eye(2))
    close(cross, -(1 + g["cross"]) * B)
    close(g_y, (A + g["scale"] * jnp.eye(2)) @ y - (1 + g["cross"]) * (B @ x) - c - g["push"])
    close(f_x, 0.3 * x + f["push_x"])
    close(f_y, y - b + f["push_y"])


def test_whole_numbers_of_any_length_are_numbers():
    numbers = 2**70, 2.0**70
    whole, real = (quadratic(dim_x=2, dim_y=2, num_samples=2, ridge=n, noise=n, smoothness=n) for n in numbers)
    for one, other in zip(jax.tree.leaves(whole.problem), jax.tree.leaves(real.problem), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(whole.gradient(jnp.ones(2)), real.gradient(jnp.ones(2)))


def test_the_curvature_lies_between_the_numbers_asked_for():
    truth = quadratic(num_tasks=3, dim_y=4, strong_convexity=0.7, smoothness=2.5)
    np.testing.assert_allclose(np.linalg.eigvalsh(truth.A), [[0.7, 1.3, 1.9, 2.5]] * 3, rtol=1e-12)
    assert float(truth.problem.strong_convexity) == 0.7
    assert len({float(a[0, 1]) for a in truth.A}) == 3  # every task has its own


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"num_tasks": 0}, "num_tasks"),
        ({"noise": -1}, "noise must be"),
        ({"noise": np.inf}, "noise must be"),
        ({"smoothness": 0.1}, "smoothness"),
        ({"smoothness": np.inf}, "smoothness"),
        ({"seed": -1}, "seed must be"),
        ({"seed": "a"}, "seed must be"),
        ({"dim_y": 10**12}, "quadratic needs .* TB and .* are available; .* dim_y"),
        ({"num_tasks": 10**4, "dim_x": 10**9, "num_samples": 2}, "quadratic needs .* TB .* parts: num_tasks"),
    ],
)
def test_wrong_arguments_are_refused(changed, match):
    with pytest.raises((ValueError, TypeError, MemoryError), match=match):
        quadratic(**changed)
