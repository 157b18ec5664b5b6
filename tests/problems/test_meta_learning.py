"""Meta-learning: the problem is the paper's, its gradient is right, it learns to adapt."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.problems.meta_learning import RIDGE, ROWS, TRUTHS, N, P, linear, linear_loss, samples

import bilevax as bx
from bilevax.problems import meta_learning


def closed_form(x):
    """F(x) with every y_i* by its normal equations."""
    values = []
    for A, B, truth in zip(ROWS[0], ROWS[1], TRUTHS, strict=True):
        y = jnp.linalg.solve(A.T @ A / N + RIDGE * jnp.eye(P), A.T @ (A @ (truth - x)) / N)
        values.append(0.5 * jnp.mean((B @ (x + y - truth)) ** 2))
    return jnp.mean(jnp.stack(values))


def test_the_objective_and_its_gradient_are_those_of_the_normal_equations():
    problem, x = linear(), jnp.asarray([0.2, 0.4, -1.0])
    np.testing.assert_allclose(bx.exact_objective(problem, {"w": x}), closed_form(x), rtol=1e-12)
    np.testing.assert_allclose(bx.exact_gradient(problem, {"w": x})["w"], jax.grad(closed_form)(x), rtol=1e-10)
    assert bx.check(problem).ok


@pytest.mark.parametrize(
    "algorithm",
    [
        bx.rsvrb(upper_step=0.2, lower_step=0.2, mixing=0.2, tasks_per_step=2, batch_size=3),
        bx.bsvrb_v2(upper_step=0.05, lower_step=0.05, mixing=0.2, tasks_per_step=2, batch_size=3),
        bx.block_soba(upper_step=0.1, lower_step=0.2, mixing=0.5, tasks_per_step=2, batch_size=None, inner_steps=3),
    ],
    ids=lambda algorithm: algorithm.name,
)
def test_a_few_tasks_a_step_reach_the_minimum(algorithm):
    problem = linear()
    zero = jnp.zeros(P)
    best = zero - jnp.linalg.solve(jax.hessian(closed_form)(zero), jax.grad(closed_form)(zero))  # F is quadratic
    result = bx.solve(problem, algorithm, steps=3000, metrics=None)
    assert closed_form(result.x["w"]) - closed_form(best) < 0.02 * (closed_form(zero) - closed_form(best))


def test_a_task_may_change_a_part_alone():
    """F(x) with the shift c_i changed by its task: y_i* = r_i/(1 + λ), r_i the mean residual of its support samples."""

    def loss(parameters, task, batch):
        return linear_loss({"w": parameters["w"]}, task, {**batch, "targets": batch["targets"] - parameters["c"]})

    start = {"w": jnp.asarray([0.2, 0.4, -1.0]), "c": jnp.asarray(0.3)}
    problem = meta_learning(loss=loss, x0=start, support=samples(0), query=samples(1), ridge=RIDGE, adapts=("c",))

    def by_hand(x):
        residual = [jnp.einsum("mnp,mp->mn", ROWS[k], TRUTHS - x["w"][None]) - x["c"] for k in (0, 1)]
        y = residual[0].mean(1) / (1 + RIDGE)
        return 0.5 * jnp.mean((residual[1] - y[:, None]) ** 2)

    assert (problem.dim_x, problem.dim_y) == (4, 1)
    np.testing.assert_allclose(bx.exact_objective(problem, start), by_hand(start), rtol=1e-12)
    gradient, hand = bx.exact_gradient(problem, start), jax.grad(by_hand)(start)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), gradient, hand)


def test_a_network_may_have_less_curvature_than_its_ridge():
    """A ridge is a known part of ∇²yy g only where it is all that is claimed."""
    own, less = linear(), linear(strong_convexity=0.3)
    assert (float(own.strong_convexity), own.structure.ridge) == (RIDGE, True)
    assert (float(less.strong_convexity), less.structure.ridge) == (0.3, False)
    np.testing.assert_array_equal(*(bx.exact_objective(problem, {"w": jnp.ones(P)}) for problem in (own, less)))


@pytest.mark.parametrize("adapts", ["head", (), ("tail",), 5, [["head"]]])
def test_parts_that_are_none_are_named(adapts):
    with pytest.raises(ValueError, match=r"adapts must name what a task changes: some of the parts of x0, \['head'\]"):
        meta_learning(loss=linear_loss, x0={"head": jnp.zeros(2)}, support=None, query=None, ridge=1.0, adapts=adapts)
    with pytest.raises(ValueError, match="x0 is not a mapping"):
        meta_learning(loss=linear_loss, x0=jnp.zeros(2), support=None, query=None, ridge=1.0, adapts=("head",))


def test_bad_arguments_are_named():
    with pytest.raises(TypeError, match="loss must be a function of"):
        meta_learning(loss=3, x0=jnp.zeros(2), support=None, query=None, ridge=1.0)
    with pytest.raises(ValueError, match="ridge must be"):
        meta_learning(loss=linear_loss, x0=jnp.zeros(2), support=None, query=None, ridge=0.0)


def test_errors_are_in_the_words_of_meta_learning():
    given = {"loss": linear_loss, "x0": jnp.zeros(2), "support": None, "query": None, "ridge": 1.0}
    for name in ("support", "query"):
        with pytest.raises(TypeError, match=f"^{name} must come from"):
            meta_learning(**given | {name: jnp.ones((3, 2))})
    for whole in (range(3), 10**12):
        with jax.enable_x64(False), pytest.raises(TypeError, match=r"^x0.* must be of a floating type"):
            meta_learning(**given | {"x0": whole})
    with pytest.raises(TypeError, match=r"^x0 must hold numbers"):
        meta_learning(**given | {"x0": object()})
    with pytest.raises(TypeError) as caught:
        meta_learning(**given | {"loss": lambda parameters: 0.0})
    assert "upper stands for loss on the query here." in caught.value.__notes__
    with pytest.raises(ValueError, match="agree on the number of tasks") as caught:
        meta_learning(**given | {"support": samples(0), "query": bx.per_task({"rows": ROWS[1][:4]})})
    assert {"upper_data stands for query here.", "lower_data stands for support here."} <= set(caught.value.__notes__)
    with pytest.raises(ValueError, match=r"which is 0\.0 there") as caught:
        meta_learning(**given | {"x0": jnp.zeros(2, jnp.float32), "ridge": 1e-300})
    assert "strong_convexity stands for ridge here." in caught.value.__notes__
