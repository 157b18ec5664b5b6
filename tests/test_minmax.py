"""Min-max problems: the gradient is Danskin's, no curvature is kept, sets hold y."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax.curvature import chosen, dense, unneeded
from bilevax.problems import minmax

M, N, D, DY = 3, 8, 4, 2
RNG = np.random.default_rng(1)
B, ROWS = RNG.normal(size=(M, DY, D)), RNG.normal(size=(N, DY))
ROWS -= ROWS.mean(0)
LAMBDA = 1.5


def loss(x, y, task, batch):
    """yᵀ(B_i x + ζ) − λ/2 ‖y‖² + ½‖x − 1‖², so y_i* is the projection of B_i x/λ on Ω_i."""
    pushed = task @ x + jnp.mean(batch, axis=0)
    return y @ pushed - LAMBDA / 2 * (y @ y) + 0.5 * jnp.sum((x - 1) ** 2)


def problem_in(region):
    return minmax(
        loss=loss, x0=jnp.full(D, 0.5), y0=jnp.zeros(DY), y0_per_task=False, tasks=B, data=bx.shared(ROWS),
        strong_concavity=LAMBDA, region=region,
    )  # fmt: skip


REGIONS = {"free": None, "ball": 0.4, "box": bx.Box(-0.3, 0.5), "balls": np.array([0.1, 0.4, 9.0])}


def best(region, x):
    """y_i*(x) of every task, by the closed form."""
    free = B @ np.asarray(x) / LAMBDA
    if region is None:
        return free
    if isinstance(region, bx.Box):
        return np.clip(free, region.low, region.high)
    lengths = np.linalg.norm(free, axis=1)
    return free * np.minimum(1, region / lengths)[:, None]


def highest(region, x):
    """F(x) by the closed form."""
    y = best(region, x)
    return np.mean(np.sum(y * (B @ np.asarray(x)), 1) - LAMBDA / 2 * np.sum(y**2, 1)) + 0.5 * np.sum(
        (np.asarray(x) - 1) ** 2
    )


@pytest.mark.parametrize("name", REGIONS)
def test_the_exact_objective_and_its_gradient_are_those_of_the_maximum(name):
    region, x = REGIONS[name], jnp.asarray([0.7, -0.4, 1.1, 0.2])
    problem = problem_in(region)
    np.testing.assert_allclose(bx.exact_objective(problem, x), highest(region, x), rtol=1e-12)
    gradient = bx.exact_gradient(problem, x)
    for k in range(D):
        step = 1e-5 * np.eye(D)[k]
        slope = (highest(region, x + step) - highest(region, x - step)) / 2e-5
        np.testing.assert_allclose(gradient[k], slope, rtol=1e-7, atol=1e-8)


def test_no_curvature_is_kept():
    problem = problem_in(None)
    assert problem.hessian == "unneeded"
    assert chosen(None, problem) is unneeded
    assert chosen(None, problem, pulls=True) is dense
    key = jax.random.key(0)
    assert jax.tree.leaves(jax.eval_shape(bx.rsvrb(tasks_per_step=2).init, problem, key).tasks.curvature) == []
    assert jax.eval_shape(bx.block_soba(tasks_per_step=2).init, problem, key).blocks.h.size == 0
    kept = jax.eval_shape(bx.bsvrb_v2(tasks_per_step=2).init, problem, key).blocks.inverse
    assert sum(leaf.size for leaf in jax.tree.leaves(kept)) == 0
    result = bx.solve(problem, bx.rsvrb(tasks_per_step=2, batch_size=2), steps=3, metrics=None)
    assert result.cost.products == 0


def test_it_is_for_min_max_only():
    with pytest.raises(TypeError, match="curvature=unneeded is for min-max problems"):
        chosen(unneeded, bx.problems.quadratic(num_tasks=2).problem)


@pytest.mark.parametrize("method", ["rsvrb", "block_soba"])
@pytest.mark.parametrize("name", ["free", "ball", "box"])
def test_the_saddle_point_is_reached_and_y_stays_in_its_set(name, method):
    from scipy.optimize import minimize

    region = REGIONS[name]
    problem = problem_in(region)
    truth = minimize(
        lambda x: highest(region, x),
        np.asarray(problem.x0),
        method="Nelder-Mead",
        options={"xatol": 1e-7, "fatol": 1e-12, "maxiter": 10_000},
    )
    lower_step = 0.3 if method == "rsvrb" else bx.power(3.0, 100.0, 0.6)  # no estimate: y keeps the noise of its step
    algorithm = getattr(bx, method)(
        upper_step=bx.power(1.0, 100.0, 0.7),
        lower_step=lower_step,
        mixing=bx.power(10.0, 100.0, 0.9),
        tasks_per_step=2,
        batch_size=4,
    )
    result = bx.solve(problem, algorithm, steps=20_000, metrics=None)
    assert highest(region, result.x) < truth.fun + 1e-3 < highest(region, problem.x0) - 0.05
    np.testing.assert_allclose(result.y, best(region, result.x), atol=0.05)
    if region is not None:
        inside = lambda y: (
            np.abs(np.clip(y, region.low, region.high) - y).max()
            if name == "box"
            else np.linalg.norm(y, axis=1).max() - region
        )
        assert inside(np.asarray(result.y)) < 1e-12


def test_bsvrb_reaches_the_saddle_point_where_y_is_free():
    problem = problem_in(None)
    algorithm = bx.bsvrb_v2(
        upper_step=bx.power(1.0, 100.0, 0.7),
        lower_step=0.2,
        mixing=bx.power(10.0, 100.0, 0.9),
        tasks_per_step=2,
        batch_size=4,
    )
    result = bx.solve(problem, algorithm, steps=20_000, metrics=None)
    # F is quadratic: ½‖x − 1‖² + mean ‖B_i x‖²/(2λ)
    curved = np.eye(D) + np.mean(B.transpose(0, 2, 1) @ B, axis=0) / LAMBDA
    np.testing.assert_allclose(result.x, np.linalg.solve(curved, np.ones(D)), atol=0.02)


@pytest.mark.parametrize("name", ["svrb", "bsvrb_v2", "soba", "stable"])
def test_methods_that_do_not_project_refuse_a_set(name):
    problem = problem_in(0.4)
    if name == "svrb":
        problem = minmax(loss=loss, x0=jnp.ones(D), y0=jnp.zeros(DY), tasks=B[:1], y0_per_task=False,
                         data=bx.shared(ROWS), strong_concavity=LAMBDA, region=0.4)  # fmt: skip
    with pytest.raises(TypeError, match="does not keep y in a set"):
        bx.solve(problem, getattr(bx, name)(batch_size=2), steps=1, metrics=None)


@pytest.mark.parametrize("region", [bx.Box(1.0, -1.0), bx.Box(np.zeros(2), 1.0), -2.0])
def test_a_set_that_is_none_is_refused(region):
    with pytest.raises(ValueError, match=r"bounds\.y must be a"):
        problem_in(region)


def test_a_box_that_presses_is_replayed_as_if_every_step_had_been_made():
    """Delayed updates of a sleeping task equal Algorithm 2 with every task brought up to date in every step."""
    problem = problem_in(bx.Box(-0.05, 0.04))
    algorithm = bx.rsvrb(upper_step=0.05, lower_step=0.3, mixing=0.2, tasks_per_step=1, batch_size=4)
    state = algorithm.init(problem, jax.random.key(0))
    step, variables = jax.jit(algorithm.step), jax.jit(algorithm.variables)
    literal = None
    for t in range(15):
        before = state
        state, _ = step(problem, state, jax.random.fold_in(jax.random.key(2), t))
        drawn = np.flatnonzero(np.asarray(state.tasks.visit.counts[:, 0]) == int(state.clock.now.step))
        y, w = np.asarray(variables(problem, state).y), np.asarray(state.tasks.g_y)
        if literal is not None:
            y_all, w_all = literal
            w_all = 0.8 * w_all
            w_all[drawn] = w[drawn]
            y_all = np.clip(y_all - 0.3 * w_all, -0.05, 0.04)
            np.testing.assert_allclose(y, y_all, atol=1e-12)
        else:
            y_all = y
            w_all = np.asarray(before.tasks.g_y) * 0.8
            w_all[drawn] = w[drawn]
        literal = y_all, w_all
    assert (np.abs(y - np.clip(y, -0.049, 0.039)) > 0).any()
