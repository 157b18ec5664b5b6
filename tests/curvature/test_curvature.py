"""The three curvatures behind one seam: what they keep, what they pay, and what they agree on."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import boxes
from reference.logistic import Model
from reference.runs import assert_same_path, draws_of, first_theta, schedules, shared_run

import bilevax as bx
from bilevax import draw, projection, tasks
from bilevax.curvature import choose, dense, linear_model, tracked
from bilevax.curvature.contract import Drift
from bilevax.curvature.solution import Tracked, first_solution

STEPS = 100
RATES = {"upper_step": 0.1, "lower_step": 0.1, "mixing": 0.1}  # where they do not matter, but must not be looked for


class RidgeApart(Model):
    """The model of the boxes with θ_i = λ for all tasks: the ridge is known, what is estimated is H − λI."""

    def __init__(self, m, **bounds):
        super().__init__(m, **bounds)
        self.theta = np.full(m, self.lam)

    def problem(self, dtype=float):
        """The same problem for the library, with its ridge declared."""
        problem = super().problem(dtype)
        return problem.replace(structure=replace(problem.structure, ridge=True))


def apart(problem_box):
    """Algorithm 2 with λI kept apart: H of the box is H − λI, floored at zero, and λI is added to solve."""

    class Box(type(problem_box)):
        def gyy(self, i, x, y, zeta):
            return super().gyy(i, x, y, zeta) - self.real_lam * np.eye(len(y))

    box = Box.__new__(Box)
    box.__dict__.update(problem_box.__dict__)
    box.real_lam, box.lam = problem_box.lam, 0.0
    return box


@pytest.mark.parametrize("bounds", [{}, {"C_gxy": 0.15}], ids=["free", "projected"])
@pytest.mark.parametrize(("m", "size", "skewed"), [(4, 1, False), (4, 3, True), (25, 5, False)])
def test_dense_with_a_known_ridge_is_algorithm_2_with_the_ridge_apart(m, size, skewed, bounds, monkeypatch):
    model = RidgeApart(m, **bounds)
    problem, box = model.problem(), apart(model)
    solve = np.linalg.solve
    monkeypatch.setattr(boxes.np.linalg, "solve", lambda H, v: solve(H + box.real_lam * np.eye(H.shape[-1]), v))
    p = tuple(np.linspace(1, 4, m) / np.linspace(1, 4, m).sum()) if skewed else None
    numbers, rates = schedules("constant", m, size)
    draws = draws_of(problem, draw.Sampling(size, 3, p), STEPS)
    path = list(boxes.algorithm_2(box, first_theta(box), draws, rates[:STEPS]))
    monkeypatch.undo()
    first = {"initialization": "cheap", "initial_batch_size": 6}
    few = {"batch_size": 3, "tasks_per_step": size, "task_probabilities": p}
    assert_same_path(shared_run(bx.rsvrb, problem, numbers, first, STEPS, curvature=dense, **few), path)


def count_primitive(function, *given, name):
    """How often a primitive appears outside and inside of `cond` in what is traced."""

    def walk(jaxpr, inside):
        for equation in jaxpr.eqns:
            if equation.primitive.name == name:
                counts[inside] += 1
            for value in equation.params.values():
                for sub in value if isinstance(value, (tuple, list)) else [value]:
                    sub = getattr(sub, "jaxpr", sub)
                    if hasattr(sub, "eqns"):
                        walk(sub, inside or equation.primitive.name == "cond")

    counts = {False: 0, True: 0}
    walk(jax.make_jaxpr(function)(*given).jaxpr, False)
    return counts


@pytest.mark.parametrize(("m", "ridge", "outside"), [(1, False, 0), (4, True, 0), (4, False, 1)])
def test_a_step_pays_for_an_eigendecomposition_only_where_it_has_to(m, ridge, outside):
    """With one task or a known ridge only in a branch; else once for all drawn tasks. S^u_C always in a branch."""
    problem = RidgeApart(m, C_gxy=1.0).problem()
    problem = problem.replace(structure=replace(problem.structure, ridge=ridge))
    algorithm = bx.rsvrb(curvature=dense, tasks_per_step=1 if m == 1 else 3, **RATES)
    state = jax.eval_shape(algorithm.init, problem, jax.random.key(0))
    counts = count_primitive(algorithm.step, problem, state, jax.random.key(0), name="eigh")
    assert counts[False] == outside
    assert counts[True] >= 1


def test_the_branch_decides_for_each_matrix_alone():
    """Under vmap, matrices that need no floor come back with the same bits."""
    rng = np.random.default_rng(0)
    square = rng.normal(size=(6, 4, 4))
    matrices = jnp.asarray(square @ square.transpose(0, 2, 1) + 0.5 * np.eye(4))
    matrices = matrices.at[2].add(-2 * jnp.eye(4))
    floored = jax.jit(jax.vmap(lambda H: projection.matrix_floor(H, 0.5, 1e-3)))(matrices)
    assert [bool((floored[k] == matrices[k]).all()) for k in range(6)] == [True, True, False, True, True, True]
    lowest = np.linalg.eigvalsh(np.asarray(floored))[:, 0]
    assert (lowest >= 0.5 - 1e-12).all()


@pytest.mark.parametrize("curvature", [dense, linear_model, tracked], ids=lambda c: c.name)
def test_every_curvature_comes_near_the_optimum(curvature):
    """On a re-weighting problem with 12 tasks, to within a tenth of the gradient at the start, from the same start."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(60, 4))
    b = np.sign(A @ rng.normal(size=4) + rng.normal(size=60))
    problem = bx.problems.reweighting(
        train_features=A[:40], train_labels=b[:40], trusted_features=A[40:], trusted_labels=b[40:],
        temperatures=rng.uniform(0.5, 2, 12), ridge=0.3,
    )  # fmt: skip
    algorithm = bx.re_rsvrb(
        upper_step=20.0,
        lower_step=0.3,
        mixing=0.1,
        tasks_per_step=4,
        batch_size=16,
        first_stage=500,
        curvature=curvature,
    )
    trace = bx.solve(problem, algorithm, steps=6000, record_every=6000).trace
    assert trace["grad_norm"][-1] < 0.1 * trace["grad_norm"][0]


def test_tracked_solves_the_quadratic_where_nothing_is_random():
    """With all tasks and samples in every step ∇F, and with it the error of h_i, goes to zero."""
    truth = bx.problems.quadratic(num_tasks=3, dim_x=4, dim_y=5, num_samples=8)
    algorithm = bx.rsvrb(
        upper_step=0.01, lower_step=0.1, mixing=0.2, tasks_per_step=3, batch_size=None, curvature=tracked
    )
    result = bx.solve(truth.problem, algorithm, steps=4000, record_every=4000)
    assert result.trace["grad_norm"][-1] < 1e-6
    np.testing.assert_allclose(result.x, truth.solution, atol=1e-5)


def test_tracked_keeps_nothing_of_size_d_times_d():
    truth = bx.problems.quadratic(num_tasks=3, dim_x=40, dim_y=50, num_samples=8)
    state = jax.eval_shape(bx.rsvrb(curvature=tracked, **RATES).init, truth.problem, jax.random.key(0))
    assert max(int(np.prod(leaf.shape[1:])) for leaf in jax.tree.leaves(state.tables.tasks)) == 50
    blocks = jax.eval_shape(bx.bsvrb_v2(**RATES).init, truth.problem, jax.random.key(0)).tables
    assert max(int(np.prod(leaf.shape[1:])) for leaf in jax.tree.leaves(blocks)) == 50


def test_nothing_is_kept_of_an_upper_gradient_that_is_always_zero():
    """f of a re-weighting problem does not look at x; that of the quadratic does."""
    A, b = np.eye(4), np.array([1.0, -1, 1, -1])
    weighted = bx.problems.reweighting(train_features=A, train_labels=b, trusted_features=A, trusted_labels=b)
    assert not weighted.structure.upper_uses_x
    assert jax.eval_shape(bx.rsvrb(curvature=dense, **RATES).init, weighted, jax.random.key(0)).tables.tasks.u is None
    assert bx.problems.quadratic().problem.structure.upper_uses_x


def test_the_default_is_the_linear_model_where_there_is_one():
    A, b = np.eye(4), np.array([1.0, -1, 1, -1])
    weighted = bx.problems.reweighting(train_features=A, train_labels=b, trusted_features=A, trusted_labels=b)
    assert choose(None, weighted) is linear_model
    assert choose(None, bx.problems.quadratic().problem) is dense
    assert choose(tracked, weighted) is tracked
    assert repr(bx.rsvrb(curvature=tracked)).count("bilevax.curvature.tracked") == 1


def test_float32_works_with_every_curvature_and_block_method():
    with jax.enable_x64(False):
        rng = np.random.default_rng(0)
        A, b = rng.normal(size=(30, 3)), np.sign(rng.normal(size=30))
        problem = bx.problems.reweighting(
            train_features=A[:20], train_labels=b[:20], trusted_features=A[20:], trusted_labels=b[20:],
            temperatures=[1.0, 2.0, 3.0],
        )  # fmt: skip
        few = {"tasks_per_step": 2, **RATES}
        cheap = {"initialization": "cheap", **few}  # the other start is one for all of them
        methods = [bx.rsvrb(curvature=c, **few if c is dense else cheap) for c in (dense, linear_model, tracked)]
        for method in [*methods, bx.bsvrb_v1(**cheap), bx.bsvrb_v2(**cheap)]:
            result = bx.solve(problem, method, steps=30)
            assert result.x.dtype == np.float32
            assert result.status == "done"
            assert np.isfinite(result.trace["objective"]).all()


def test_the_first_h_is_the_best_multiple_of_v_that_λ_allows():
    problem = Model(1).problem()  # λ = 0.5
    v = jnp.array([0.6, -0.8])
    second = lambda curvature: lambda h: (jnp.zeros(3), curvature * h)
    for curvature, multiple in [(4.0, 0.25), (0.01, 2.0), (-1.0, 2.0)]:
        h, _, hessian = first_solution(problem, second(curvature), v, None)
        np.testing.assert_allclose(h, multiple * v, rtol=1e-12)
        np.testing.assert_allclose(hessian, curvature * h, rtol=1e-12)
    np.testing.assert_allclose(jnp.linalg.norm(first_solution(problem, second(4.0), v, 0.1)[0]), 0.1, rtol=1e-12)
    for part in first_solution(problem, second(4.0), 0 * v, 0.1):
        np.testing.assert_array_equal(part, 0)


def test_h_of_a_task_whose_era_is_forgotten_stays_where_it_was():
    kept = Tracked(jnp.ones(2), jnp.zeros(2), jnp.full(2, 3.0), jnp.ones(3))
    decay, no = tasks.Decay(*[0.0] * 5), jnp.asarray(False)
    absence = tasks.Absence(decay, jnp.float64(1e9), jnp.float64(0.1), 1, 10**6, no, no, jnp.float64(1.0), None)
    drift = Drift(absence, jnp.zeros(2), bx.Bounds())
    np.testing.assert_array_equal(tracked.age(Model(1).problem(), kept, decay, drift).h, kept.h)


@pytest.mark.parametrize("factory", [bx.bsvrb_v1, bx.bsvrb_v2])
@pytest.mark.parametrize(
    "mixing", [1.0, bx.Mixing(0.1, 0.1, 0.1, 0.1, 1.0, 0.1), lambda t: 1.0, lambda t: jnp.where(t > 7, 1.0, 0.1)]
)
def test_bsvrb_refuses_a_mixing_of_one(factory, mixing):
    with pytest.raises(ValueError, match=r"mixing(\.g_yy|\(1\))? must (be a number in \(0, 1\)|stay in \[0, 1\))"):
        factory(mixing=mixing)
