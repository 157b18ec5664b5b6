"""Compositional problems: what is known of ∇²yy g is seen and not estimated, and F is what it should be."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.problems.compositional import ROWS, SHIFTS, D, M, inner, outer, waves

import bilevax as bx
from bilevax import draw
from bilevax.curvature import choose, dense, known
from bilevax.problem import Problem
from bilevax.problems import compositional
from bilevax.structure import Hessian


def composed(x):
    """F(x) = (1/m) Σ_i f_i(mean over all rows of g_i(x)), written down directly."""
    scores = ROWS @ x
    wave, square = jnp.mean(jnp.sin(scores)), jnp.mean(scores**2)
    return jnp.mean((wave + SHIFTS[:, 0] - SHIFTS[:, 1]) ** 2) + jnp.log1p(square)


def first_blocks(problem):
    """The shapes of what BSVRB v1 keeps of every block."""
    return jax.eval_shape(bx.bsvrb_v1().init, problem, jax.random.key(0)).tables


def test_the_exact_objective_and_its_gradient_are_those_of_the_composition():
    problem, x = waves(), jnp.asarray([0.3, -1.2, 0.7])
    np.testing.assert_allclose(bx.exact_objective(problem, x), composed(x), rtol=1e-13)
    np.testing.assert_allclose(bx.exact_gradient(problem, x), jax.grad(composed)(x), rtol=1e-12)
    assert bx.check(problem).ok


def test_the_penalty_of_each_task_is_added():
    x = jnp.asarray([0.3, -1.2, 0.7])
    penalised = bx.exact_objective(waves(penalty=lambda x, task: task[1] * jnp.sum(x**2)), x)
    np.testing.assert_allclose(penalised, composed(x) + SHIFTS[:, 1].mean() * jnp.sum(x**2), rtol=1e-13)


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
    assert problem.structure.hessian.value == "known"
    assert choose(None, problem) is known
    assert jax.tree.leaves(first_blocks(problem).inverse) == []


def test_a_known_hessian_divides_by_its_number():
    """λ = 3: V H⁻¹ v and H⁻¹ Vᵀ dx; and F(x) = ‖g(x)‖² where the lower loss is 3/2 ‖y − g(x)‖²."""
    problem, rng = with_lower("known, by a square"), np.random.default_rng(0)
    V, v, dx = (jnp.asarray(rng.normal(size=shape)) for shape in ((D, 2), 2, D))
    np.testing.assert_allclose(known.correction(problem, V, v), V @ v / 3, rtol=1e-14)
    np.testing.assert_allclose(known.pull(problem, V, dx), V.T @ dx / 3, rtol=1e-14)
    F = lambda x: 2 * jnp.mean(jnp.sin(jnp.asarray(ROWS) @ x)) ** 2
    x = jnp.asarray([0.3, -1.2, 0.7])
    np.testing.assert_allclose(bx.exact_gradient(problem, x), jax.grad(F)(x), rtol=1e-12)


@pytest.mark.parametrize("name", ["block_soba", "bsvrb_v2"])
def test_a_lower_loss_times_a_number_and_steps_divided_by_it_make_the_same_run(name):
    """∇²yy g = cI is known: y*(x) and ∇F do not depend on c."""

    def lower(x, y, task, batch):
        return task["c"] / 2 * jnp.sum((y - jnp.sin(batch @ x).mean() * jnp.ones(2) - task["shift"]) ** 2)

    tasks = lambda c: {"c": jnp.full(M, c), "shift": jnp.asarray(SHIFTS)}
    problem = Problem(
        upper=lambda x, y, task, batch: jnp.sum(jnp.cos(y)) + 0.1 * x @ x, lower=lower, x0=jnp.ones(D), y0=jnp.zeros(2),
        tasks=tasks(1.0), y0_per_task=False, lower_data=bx.shared(ROWS), strong_convexity=1.0,
    )  # fmt: skip
    problem = problem.replace(structure=replace(problem.structure, hessian=Hessian.IDENTITY))

    @jax.jit
    def reached(problem, step):
        algorithm = getattr(bx, name)(
            upper_step=0.1, lower_step=step, mixing=0.3, tasks_per_step=2, batch_size=2, initialization="cheap"
        )
        body = lambda t, state: algorithm.step(problem, state, jax.random.key(t))[0]
        state = jax.lax.fori_loop(0, 12, body, algorithm.init(problem, jax.random.key(99)))
        return algorithm.variables(problem, state)

    one = reached(problem, jnp.asarray(0.3))
    three = reached(problem.replace(tasks=tasks(3.0), strong_convexity=jnp.asarray(3.0)), jnp.asarray(0.1))
    np.testing.assert_allclose(three.x, one.x, rtol=1e-11)
    np.testing.assert_allclose(three.y, one.y, rtol=1e-11)
    assert jnp.linalg.norm(one.x - problem.x0) > 0.01


@pytest.mark.parametrize(
    "kind", ["another number", "not quadratic", "of the samples", "of x", "of the task", "not diagonal"]
)
def test_a_hessian_that_is_not_known_is_estimated(kind):
    problem = with_lower(kind)
    assert problem.structure.hessian.value == "estimated"
    assert choose(None, problem) is dense
    assert jax.tree.leaves(first_blocks(problem).inverse) != []
    with pytest.raises(TypeError, match="curvature=known needs a lower loss whose"):
        choose(known, problem)


def after(algorithm, problem, steps=25):
    @jax.jit
    def run(problem):
        body = lambda t, state: algorithm.step(problem, state, jax.random.fold_in(jax.random.key(1), t))[0]
        state = jax.lax.fori_loop(0, steps, body, algorithm.init(problem, jax.random.key(0)))
        return algorithm.variables(problem, state)

    return run(problem)


@pytest.mark.parametrize(
    ("bounds", "probabilities"),
    [(None, None), (bx.Bounds(f_y=0.6, g_xy=0.4, y=1.0), None), (None, [0.1, 0.2, 0.3, 0.4])],
)
def test_nothing_changes_but_the_cost_where_the_hessian_is_known(bounds, probabilities):
    """RSVRB with the paper's matrices, the known ridge apart, makes the same steps."""
    problem = waves().replace(bounds=bx.Bounds() if bounds is None else jax.tree.map(jnp.asarray, bounds))
    settings = {
        "upper_step": 0.05, "lower_step": 0.3, "mixing": bx.Mixing(0.6, 0.5, 0.4, 0.3, 0.2, 0.1), "tasks_per_step": 2,
        "batch_size": 2, "task_probabilities": probabilities,
    }  # fmt: skip
    ours, paper = (after(bx.rsvrb(curvature=kept, **settings), problem) for kept in (None, dense))
    np.testing.assert_allclose(ours.x, paper.x, rtol=1e-10)
    np.testing.assert_allclose(ours.y, paper.y, rtol=1e-10)
    assert jnp.linalg.norm(ours.x - problem.x0) > 0.01


def test_bsvrb_takes_h_from_the_fresh_sample_where_the_hessian_is_known():
    """v1 that has to estimate ∇²yy g, though it is λI, makes the same steps: MSVR of a constant is the constant."""
    problem = waves()
    unseen = problem.replace(structure=replace(problem.structure, hessian=Hessian.ESTIMATE))
    settings = {"upper_step": 0.05, "lower_step": 0.3, "mixing": 0.3, "tasks_per_step": 2, "batch_size": 2}
    v1, v2 = after(bx.bsvrb_v1(**settings), problem), after(bx.bsvrb_v2(**settings), problem)
    estimated = after(bx.bsvrb_v1(**settings), unseen)
    np.testing.assert_allclose(v1.x, estimated.x, rtol=1e-10)
    np.testing.assert_allclose(v2.x, v1.x, rtol=1e-12)
    assert jnp.linalg.norm(v1.x - problem.x0) > 0.01


def test_nothing_of_the_hessian_is_kept():
    problem = waves()
    key = jax.random.key(0)
    kept = jax.eval_shape(bx.rsvrb(tasks_per_step=2).init, problem, key).tables.tasks.VH
    assert [leaf.shape for leaf in jax.tree.leaves(kept)] == [(M, D, 2)]
    assert jax.eval_shape(bx.block_soba(tasks_per_step=2).init, problem, key).tables.inverse == ()
    kept = jax.eval_shape(bx.bsvrb_v2(tasks_per_step=2).init, problem, key).tables.inverse
    assert sum(leaf.size for leaf in jax.tree.leaves(kept)) == 0


def test_block_soba_is_a_moving_average_of_each_inner_value_and_the_gradient_through_it():
    """u_i ← (1−ρ)u_i + ρ g_i(x; ζ) for the drawn i, x ← x − γ mean_i ∇g_i(x; ζ)·∇f_i(u_i): SOX with one sample."""
    problem, rho, gamma, size = waves(), 0.3, 0.1, 2
    algorithm = bx.block_soba(
        lower_step=rho, upper_step=gamma, mixing=1.0, tasks_per_step=size, batch_size=3, initialization="cheap"
    )
    key, flat = jax.random.key(4), lambda u: jax.flatten_util.ravel_pytree(u)[0]
    state, x, u = jax.jit(algorithm.init)(problem, key), problem.x0, problem.y0
    step, draws = jax.jit(algorithm.step), jax.jit(lambda key: draw.draw_step(problem, draw.Sampling(size, 3), key))
    u = jnp.broadcast_to(u, (M, u.shape[-1]))
    for t in range(1, 6):
        drawn = draws(jax.random.fold_in(key, t))
        slopes = []
        for i, zeta in zip(drawn.tasks, drawn.lower, strict=True):
            value = lambda x, i=i, zeta=zeta: flat(inner(x, SHIFTS[i], ROWS[zeta]))
            u = u.at[i].set((1 - rho) * u[i] + rho * value(x))
            through = jax.grad(lambda v, i=i: outer(problem.unravel_y(v), SHIFTS[i]))(u[i])
            slopes.append(jax.jacobian(value)(x).T @ through)
        x = x - gamma * jnp.mean(jnp.stack(slopes), axis=0)
        state, _ = step(problem, state, jax.random.fold_in(key, t))
        np.testing.assert_allclose(state.tables.y, u, rtol=1e-10)
        np.testing.assert_allclose(state.x, x, rtol=1e-10)


@pytest.mark.parametrize("name", ["rsvrb", "bsvrb_v2", "block_soba"])
def test_it_reaches_the_stationary_point_of_the_composition(name):
    from scipy.optimize import minimize

    problem = waves()
    both = jax.jit(jax.value_and_grad(composed))
    found = minimize(lambda x: tuple(map(np.asarray, both(x))), np.asarray(problem.x0), jac=True)
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
    with pytest.raises(TypeError, match=r"outer must be a function of \(u, task\); got 3"):
        compositional(outer=3, inner=inner, x0=jnp.ones(D), data=bx.shared(ROWS))


def test_errors_are_in_the_words_of_compositional():
    given = {"outer": outer, "inner": inner, "x0": jnp.ones(D), "data": bx.shared(ROWS), "tasks": SHIFTS}
    bad = {
        "outer": lambda u, task: "text",
        "inner": lambda x, task, batch: jnp.ones(2) if x[0] > 0 else jnp.zeros(2),
        "x0": jnp.ones(D + 1),
        "penalty": lambda x: 0.0,
    }
    words = {"outer": "upper stands for outer here", "inner": "raised by inner", "x0": "called with x0"}
    for name, value in bad.items():
        with pytest.raises((ValueError, TypeError)) as caught:
            compositional(**given | {name: value})
        assert words.get(name, "upper stands for outer and penalty here") in "\n".join(caught.value.__notes__)
    with pytest.raises(TypeError, match=r"^inner must return an array of floats, .* it returned int32"):
        compositional(**given | {"inner": lambda x, task, batch: jnp.int32(1)})
    with pytest.raises(TypeError, match=r"^data must come from"):
        compositional(**given | {"data": ROWS})
    with pytest.raises(ValueError, match=r"^tasks must have at least 1 axis"):
        compositional(**given | {"tasks": np.float64(3)})
    with pytest.raises(ValueError, match=r"^tasks must hold at least one task"):
        compositional(**given | {"tasks": np.zeros((0, 2))})


def test_the_number_of_tasks_may_be_one_of_numpys():
    problem = compositional(
        outer=lambda u, task: u, inner=lambda x, task, batch: jnp.mean(batch @ x), x0=jnp.ones(D), data=bx.shared(ROWS),
        tasks=np.int64(4),
    )  # fmt: skip
    assert problem.num_tasks == 4
