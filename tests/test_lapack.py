"""No two batched factorisations can run at the same time: on two cores they would wait for each other for ever."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevax as bx
from bilevax import lapack
from bilevax.curvature import dense, linear_model, tracked
from bilevax.exact import evaluation

FACTORISATIONS = ("cholesky", "eigh", "svd", "lu", "qr")


def batched_factorisations(function, *given):
    """The factorisations of more than one matrix in what is traced."""

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name in FACTORISATIONS and equation.invars[0].aval.ndim > 2:
                found.append(equation.primitive.name)
            for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda v: hasattr(v, "jaxpr")):
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    walk(inner)

    found = []
    walk(jax.make_jaxpr(function)(*given).jaxpr)
    return found


def problem_with(m, ridge):
    """m small re-weighting problems, their ridge declared or not, with a bound on V."""
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(12, 3)), np.sign(rng.normal(size=12))
    problem = bx.problems.reweighting(
        train_features=A, train_labels=b, trusted_features=A, trusted_labels=b, temperatures=np.ones(m),
        bounds=bx.Bounds(g_xy=1.0),
    )  # fmt: skip
    return problem.replace(structure=replace(problem.structure, ridge=ridge, linear_model=ridge))


METHODS = {
    "dense": lambda **s: bx.rsvrb(curvature=dense, **s),
    "linear_model": lambda **s: bx.rsvrb(curvature=linear_model, **s),
    "tracked": lambda **s: bx.rsvrb(curvature=tracked, **s),
    "bsvrb_v1": lambda **s: bx.bsvrb_v1(**s),
    "bsvrb_v2": lambda **s: bx.bsvrb_v2(**s),
}


@pytest.mark.parametrize("name", list(METHODS))
@pytest.mark.parametrize("ridge", [True, False])
def test_a_method_makes_at_most_one_batched_factorisation(name, ridge):
    """The one is `eigh` of the drawn tasks, where H is kept as eigenvalues and eigenvectors."""
    if name == "linear_model" and not ridge:
        ridge = True
    problem, algorithm = problem_with(70, ridge), METHODS[name](tasks_per_step=3)
    allowed = ["eigh"] if name == "dense" and not ridge else []
    key = jax.random.key(0)
    assert batched_factorisations(algorithm.init, problem, key) == allowed
    state = jax.eval_shape(algorithm.init, problem, key)
    assert batched_factorisations(algorithm.step, problem, state, key) == allowed


def test_exact_evaluation_makes_none():
    problem = problem_with(70, True)
    assert batched_factorisations(evaluation.exact, problem, problem.x0) == []


def test_factorisations_are_the_same_under_vmap():
    rng = np.random.default_rng(0)
    square = rng.normal(size=(5, 4, 4))
    matrices = jnp.asarray(square @ square.transpose(0, 2, 1) + np.eye(4))
    right = jnp.asarray(rng.normal(size=(5, 4)))
    np.testing.assert_allclose(
        jax.vmap(lapack.solve_positive)(matrices, right),
        np.linalg.solve(matrices, right[..., None])[..., 0],
        rtol=1e-10,
    )
    shifts = jnp.array([0.0, 100.0, 0.0, 100.0, 0.0])[:, None, None] * jnp.eye(4)[None]
    np.testing.assert_array_equal(jax.vmap(lapack.is_positive)(matrices - shifts), [True, False, True, False, True])
    values, vectors = jax.vmap(lapack.eigen)(matrices)
    np.testing.assert_allclose((vectors * values[:, None, :]) @ vectors.transpose(0, 2, 1), matrices, atol=1e-12)
