"""Compositional problems: what is known of ∇²yy g is seen and not estimated, and F is what it should be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax import draw
from bilevax.algorithms.block_inverse import FLOORED, KNOWN, served
from bilevax.curvature import chosen, dense, known
from bilevax.problem import Problem
from bilevax.problems import compositional

M, N, D = 4, 6, 3
RNG = np.random.default_rng(0)
ROWS, SHIFTS = RNG.normal(size=(N, D)), RNG.normal(size=(M, 2))


def inner(x, task, batch):
    scores = batch @ x
    return {"wave": jnp.mean(jnp.sin(scores)) + task[0], "square": jnp.mean(scores**2, keepdims=True)}


def outer(u, task):
    return (u["wave"] - task[1]) ** 2 + jnp.sum(jnp.log1p(u["square"]))


def waves():
    return compositional(outer=outer, inner=inner, x0=jnp.full(D, 0.5), tasks=SHIFTS, data=bx.shared(ROWS))


def composed(x):
    """F(x) = (1/m) Σ_i f_i(mean over all rows of g_i(x)), written down directly."""
    scores = ROWS @ x
    wave, square = jnp.mean(jnp.sin(scores)), jnp.mean(scores**2)
    return jnp.mean((wave + SHIFTS[:, 0] - SHIFTS[:, 1]) ** 2) + jnp.log1p(square)


def test_the_exact_objective_and_its_gradient_are_those_of_the_composition():
    problem, x = waves(), jnp.asarray([0.3, -1.2, 0.7])
    np.testing.assert_allclose(bx.exact_objective(problem, x), composed(x), rtol=1e-13)
    np.testing.assert_allclose(bx.exact_gradient(problem, x), jax.grad(composed)(x), rtol=1e-12)
    assert bx.check(problem).ok


def lower_loss(kind):
    g = lambda x, batch: jnp.mean(jnp.sin(batch @ x[:, None]), axis=0) * jnp.ones(2)
    return {
        "known, by a product": lambda x, y, task, batch: 1.5 * (y @ y) - y @ g(x, batch),
        "known, by a square": lambda x, y, task, batch: 1.5 * jnp.sum((y - g(x, batch)) ** 2),
        "another number": lambda x, y, task, batch: 2.0 * (y @ y) - y @ g(x, batch),
        "not quadratic": lambda x, y, task, batch: 1.5 * (y @ y) + jnp.sum(y**4) - y @ g(x, batch),
        "of the samples": lambda x, y, task, batch: 1.5 * (y @ y) * (1 + jnp.mean(batch**2)) - y @ g(x, batch),
        "of x": lambda x, y, task, batch: 1.5 * (y @ y) * (1 + x @ x) - y @ g(x, batch),
        "of the task": lambda x, y, task, batch: 1.5 * (y @ y) * (1 + task.astype(float)) - y @ g(x, batch),
        "not diagonal": lambda x, y, task, batch: 1.5 * (y @ y) + 0.1 * y[0] * y[1] - y @ g(x, batch),
    }[kind]


def with_lower(kind):
    return Problem(
        upper=lambda x, y, task, batch: y @ y, lower=lower_loss(kind), x0=jnp.ones(D), y0=jnp.zeros(2),
        tasks=3, y0_per_task=False, lower_data=bx.shared(ROWS), strong_convexity=3.0,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["known, by a product", "known, by a square"])
def test_a_hessian_that_is_known_is_seen(kind):
    problem = with_lower(kind)
    assert problem.hessian == "known"
    assert chosen(None, problem) is known
    assert served(FLOORED, problem) is KNOWN


@pytest.mark.parametrize(
    "kind", ["another number", "not quadratic", "of the samples", "of x", "of the task", "not diagonal"]
)
def test_a_hessian_that_is_not_known_is_estimated(kind):
    problem = with_lower(kind)
    assert problem.hessian == "estimated"
    assert chosen(None, problem) is dense
    assert served(FLOORED, problem) is FLOORED
    with pytest.raises(TypeError, match="curvature=known needs a lower loss whose"):
        chosen(known, problem)


def after(algorithm, problem, steps=25):
    state = jax.jit(algorithm.init)(problem, jax.random.key(0))
    step = jax.jit(algorithm.step)
    for t in range(steps):
        state, _ = step(problem, state, jax.random.fold_in(jax.random.key(1), t))
    return algorithm.variables(problem, state)


@pytest.mark.parametrize("bounds", [None, bx.Bounds(f_y=0.6, g_xy=0.4, y=1.0)])
@pytest.mark.parametrize("probabilities", [None, [0.1, 0.2, 0.3, 0.4]])
def test_nothing_changes_but_the_cost_where_the_hessian_is_known(bounds, probabilities):
    """RSVRB with the paper's matrices, the known ridge apart, makes the same steps."""
    problem = waves().replace(bounds=bx.Bounds() if bounds is None else jax.tree.map(jnp.asarray, bounds))
    settings = {
        "upper_step": 0.05, "lower_step": 0.3, "mixing": 0.3, "tasks_per_step": 2, "batch_size": 2,
        "task_probabilities": probabilities,
    }  # fmt: skip
    ours, paper = (after(bx.rsvrb(curvature=kept, **settings), problem) for kept in (None, dense))
    np.testing.assert_allclose(ours.x, paper.x, rtol=1e-10)
    np.testing.assert_allclose(ours.y, paper.y, rtol=1e-10)
    assert jnp.linalg.norm(ours.x - problem.x0) > 0.01


def test_bsvrb_takes_h_from_the_fresh_sample_where_the_hessian_is_known():
    """v1 that has to estimate ∇²yy g, though it is λI, makes the same steps: MSVR of a constant is the constant."""
    problem = waves()
    unseen = problem.replace(hessian="estimated")
    settings = {"upper_step": 0.05, "lower_step": 0.3, "mixing": 0.3, "tasks_per_step": 2, "batch_size": 2}
    v1, v2 = after(bx.bsvrb_v1(**settings), problem), after(bx.bsvrb_v2(**settings), problem)
    estimated = after(bx.bsvrb_v1(**settings), unseen)
    np.testing.assert_allclose(v1.x, estimated.x, rtol=1e-10)
    np.testing.assert_allclose(v2.x, v1.x, rtol=1e-12)
    assert jnp.linalg.norm(v1.x - problem.x0) > 0.01


def test_nothing_of_the_hessian_is_kept():
    problem = waves()
    key = jax.random.key(0)
    kept = jax.eval_shape(bx.rsvrb(tasks_per_step=2).init, problem, key).tasks.curvature
    assert [leaf.shape for leaf in jax.tree.leaves(kept)] == [(M, D, 2)]
    assert jax.eval_shape(bx.block_soba(tasks_per_step=2).init, problem, key).blocks.h.size == 0
    kept = jax.eval_shape(bx.bsvrb_v2(tasks_per_step=2).init, problem, key).blocks.inverse
    assert sum(leaf.size for leaf in jax.tree.leaves(kept)) == 0


def test_block_soba_is_a_moving_average_of_each_inner_value_and_the_gradient_through_it():
    """u_i ← (1−ρ)u_i + ρ g_i(x; ζ) for the drawn i, x ← x − γ mean_i ∇g_i(x; ζ)·∇f_i(u_i): SOX with one sample."""
    problem, rho, gamma, size = waves(), 0.3, 0.1, 2
    algorithm = bx.block_soba(
        lower_step=rho, upper_step=gamma, mixing=1.0, tasks_per_step=size, batch_size=3, initialization="cheap"
    )
    key, flat = jax.random.key(4), lambda u: jax.flatten_util.ravel_pytree(u)[0]
    state, x, u = algorithm.init(problem, key), problem.x0, problem.y0
    u = jnp.broadcast_to(u, (M, u.shape[-1]))
    for t in range(1, 6):
        drawn = draw.draw_step(problem, draw.Sampling(size, 3), jax.random.fold_in(key, t))
        slopes = []
        for i, zeta in zip(drawn.tasks, drawn.lower, strict=True):
            value = lambda x, i=i, zeta=zeta: flat(inner(x, SHIFTS[i], ROWS[zeta]))
            u = u.at[i].set((1 - rho) * u[i] + rho * value(x))
            through = jax.grad(lambda v, i=i: outer(problem.unravel_y(v), SHIFTS[i]))(u[i])
            slopes.append(jax.jacobian(value)(x).T @ through)
        x = x - gamma * jnp.mean(jnp.stack(slopes), axis=0)
        state, _ = algorithm.step(problem, state, jax.random.fold_in(key, t))
        np.testing.assert_allclose(state.blocks.y, u, rtol=1e-10)
        np.testing.assert_allclose(state.x, x, rtol=1e-10)


@pytest.mark.parametrize("name", ["rsvrb", "bsvrb_v2", "block_soba"])
def test_it_reaches_the_stationary_point_of_the_composition(name):
    from scipy.optimize import minimize

    problem = waves()
    found = minimize(
        lambda x: float(composed(x)), np.asarray(problem.x0), jac=lambda x: np.asarray(jax.grad(composed)(x))
    )
    algorithm = getattr(bx, name)(
        upper_step=bx.power(2.0, 100.0, 0.7),
        lower_step=bx.power(5.0, 100.0, 0.5) if name == "block_soba" else 0.5,  # a moving average keeps its noise
        mixing=bx.power(20.0, 100.0, 0.9),
        tasks_per_step=2,
        batch_size=2,
    )
    result = bx.solve(problem, algorithm, steps=40_000, metrics=None)
    assert float(composed(result.x)) < found.fun + 1e-3 < float(composed(problem.x0)) - 0.1


def test_bad_arguments_are_named():
    with pytest.raises(TypeError, match="outer must be a function; got 3"):
        compositional(outer=3, inner=inner, x0=jnp.ones(D), data=bx.shared(ROWS))
