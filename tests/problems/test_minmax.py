"""Min-max problems: the gradient is Danskin's, no curvature is kept, sets hold y."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.problems.minmax import DY, LAMBDA, ROWS, B, D, M, loss, problem_in

import bilevax as bx
from bilevax.curvature import choose, dense, unneeded
from bilevax.exact import lower
from bilevax.problems import minmax

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
    assert problem.structure.hessian.value == "unneeded"
    assert choose(None, problem) is unneeded
    assert choose(None, problem, pulls=True) is dense
    key = jax.random.key(0)
    assert jax.tree.leaves(jax.eval_shape(bx.rsvrb(tasks_per_step=2).init, problem, key).tables.tasks.VH) == []
    assert jax.eval_shape(bx.block_soba(tasks_per_step=2).init, problem, key).tables.inverse == ()
    kept = jax.eval_shape(bx.bsvrb_v2(tasks_per_step=2).init, problem, key).tables.inverse
    assert sum(leaf.size for leaf in jax.tree.leaves(kept)) == 0
    rates = {"upper_step": 0.01, "lower_step": 0.01, "mixing": 0.1}
    result = bx.solve(problem, bx.rsvrb(tasks_per_step=2, batch_size=2, **rates), steps=3, metrics=None)
    assert result.cost.products == 0


def test_it_is_for_min_max_only():
    with pytest.raises(TypeError, match="curvature=unneeded is for min-max problems"):
        choose(unneeded, bx.problems.quadratic(num_tasks=2).problem)


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
    init, step, variables = map(jax.jit, (algorithm.init, algorithm.step, algorithm.variables))
    state = init(problem, jax.random.key(0))
    literal = None
    for t in range(15):
        before = state
        state, _ = step(problem, state, jax.random.fold_in(jax.random.key(2), t))
        drawn = np.flatnonzero(np.asarray(state.tables.tasks.visit.counts[:, 0]) == int(state.step))
        y, w = np.asarray(variables(problem, state).y), np.asarray(state.tables.tasks.w)
        if literal is not None:
            y_all, w_all = literal
            w_all = 0.8 * w_all
            w_all[drawn] = w[drawn]
            y_all = np.clip(y_all - 0.3 * w_all, -0.05, 0.04)
            np.testing.assert_allclose(y, y_all, atol=1e-12)
        else:
            y_all = y
            w_all = np.asarray(before.tables.tasks.w) * 0.8
            w_all[drawn] = w[drawn]
        literal = y_all, w_all
    assert (np.abs(y - np.clip(y, -0.049, 0.039)) > 0).any()


def test_errors_are_in_the_words_of_minmax():
    given = {"loss": lambda x, y, task, batch: x @ y - y @ y, "x0": jnp.ones(2), "y0": jnp.ones(2)}
    for value in (0.0, -1.0, "a", None):
        with pytest.raises((ValueError, TypeError), match=r"^strong_concavity must be"):
            bx.problems.minmax(**given, strong_concavity=value)
    with pytest.raises(TypeError, match=r"^data must come from"):
        bx.problems.minmax(**given, strong_concavity=1.0, data=np.ones((3, 2)))
    with pytest.raises(TypeError, match=r"^loss must be a function of \(x, y, task, batch\)"):
        bx.problems.minmax(**given | {"loss": 3}, strong_concavity=1.0)
    with pytest.raises(TypeError) as caught:
        bx.problems.minmax(**given | {"loss": lambda x, y, task: 0.0}, strong_concavity=1.0)
    assert "upper stands for loss here." in caught.value.__notes__
    with pytest.raises(ValueError, match=r"bounds\.y") as caught:
        bx.problems.minmax(**given, strong_concavity=1.0, region=-1.0)
    assert "bounds stands for region here." in caught.value.__notes__
    small = {name: np.asarray(given[name], np.float32) for name in ("x0", "y0")}
    with pytest.raises(ValueError, match=r"got 1e-300, which is 0\.0 there") as caught:
        bx.problems.minmax(**given | small, strong_concavity=1e-300)
    assert "strong_convexity stands for strong_concavity here." in caught.value.__notes__


@pytest.mark.parametrize("kind", ["box", "ball"])
def test_y_in_a_set_is_found_where_its_curvatures_differ(kind):
    """f = bᵀy − ½yᵀHy: its best y in a box is b/H, cut off, and in the ball of radius ‖(H + 2)⁻¹b‖ it is (H + 2)⁻¹b."""
    H, b = np.array([LAMBDA, 40.0, 9.0]), np.array([3.0, 8.0, -30.0])
    truth = np.clip(b / H, -0.3, 0.5) if kind == "box" else b / (H + 2)
    problem = minmax(
        loss=lambda x, y, task, batch: b @ y - 0.5 * jnp.sum(H * y**2), x0=jnp.zeros(1), y0=jnp.zeros(3),
        strong_concavity=LAMBDA, region=bx.Box(-0.3, 0.5) if kind == "box" else np.linalg.norm(truth),
    )  # fmt: skip
    for start in (jnp.zeros(3), jnp.array([9.0, -9.0, 9.0])):
        y, gradients = lower.solve_lower(problem, problem.x0, start, 0)
        np.testing.assert_allclose(y, truth, rtol=1e-12)
        assert 10 < gradients < 400  # in the ball some 270, and 690 without Nesterov's steps ahead


@pytest.mark.parametrize("name", REGIONS)
def test_what_y_still_lacks_is_told_also_where_a_set_holds_it(name):
    """Where ∇²yy g = λI, one step says all."""
    problem, x = problem_in(REGIONS[name]), jnp.asarray([0.7, -0.4, 1.1, 0.2])
    y = jnp.asarray(best(REGIONS[name], x)) * 0.9
    for i in range(M):
        gradient = problem.lower_gradient(x, y[i], i)
        np.testing.assert_allclose(y[i] + lower._remainder(problem, y[i], i, gradient), y[i] / 0.9, rtol=1e-12)
