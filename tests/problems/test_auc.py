"""Multi-task AUC: the min-max form is the pairwise squared loss, and its minimum ranks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from reference.problems.auc import BODY, FEATURES, HEADS, LABELS, M, N, problem_of
from sklearn.metrics import roc_auc_score

import bilevax as bx


def over_pairs(body, heads):
    """mean_i E[(1 − s₊ + s₋)²] − 1 over all pairs of a positive and a negative sample, the variances kept."""
    scores = jnp.tanh(FEATURES @ body) @ heads.T
    values = []
    for i in range(M):
        above, below = scores[LABELS[:, i] > 0, i], scores[LABELS[:, i] < 0, i]
        values.append(jnp.mean((1 - above[:, None] + below[None, :]) ** 2) - 1)
    return jnp.mean(jnp.stack(values))


def best_means():
    """a_i and b_i that are best for the first body and heads: the means of the scores."""
    scores = np.tanh(FEATURES @ BODY) @ HEADS.T
    of = lambda sign: [scores[LABELS[:, i] == sign, i].mean() for i in range(M)]
    return np.stack([of(1), of(-1)], axis=1)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_it_is_the_squared_loss_over_pairs(form):
    problem = problem_of(form)
    x = {"body": jnp.asarray(BODY), "heads": jnp.asarray(HEADS), "means": jnp.asarray(best_means())}
    value, (body, heads) = jax.jit(jax.value_and_grad(over_pairs, argnums=(0, 1)))(BODY, HEADS)
    np.testing.assert_allclose(bx.exact_objective(problem, x), value, rtol=1e-10)
    gradient = bx.exact_gradient(problem, x)
    np.testing.assert_allclose(gradient["body"], body, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(gradient["heads"], heads, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(gradient["means"], 0, atol=1e-10)
    assert problem.structure.hessian.value == "unneeded"


def test_the_ridge_is_that_of_the_body_and_of_the_own_head():
    """r/2 (‖body‖² + ‖head_i‖²), for each task; the means have none."""
    x = {"body": jnp.asarray(BODY), "heads": jnp.asarray(HEADS), "means": jnp.full((M, 2), 7.0)}
    with_ridge, without = (problem_of(ridge=r) for r in (0.3, 0.0))
    for i in range(M):
        given = x, jnp.asarray(0.4), with_ridge.task(i), with_ridge.upper_data.take(i, jnp.arange(N))
        wanted = 0.15 * (np.sum(BODY**2) + np.sum(HEADS[i] ** 2))
        np.testing.assert_allclose(with_ridge.upper(*given) - without.upper(*given), wanted, rtol=1e-12)


def test_a_few_tasks_a_step_raise_the_mean_area():
    problem = problem_of(ridge=1e-3)
    algorithm = bx.bsvrb_v2(upper_step=0.1, lower_step=0.1, mixing=0.3, tasks_per_step=1, batch_size=8)
    result = bx.solve(problem, algorithm, steps=3000, metrics=None)

    def mean_area(x):
        scores = np.tanh(FEATURES @ np.asarray(x["body"])) @ np.asarray(x["heads"]).T
        return np.mean([roc_auc_score(LABELS[:, i], scores[:, i]) for i in range(M)])

    assert mean_area(result.x) > max(0.8, mean_area({"body": BODY, "heads": HEADS}) + 0.1)


BAD = {
    "one class": ({"labels": np.where(np.arange(M) == 1, 1.0, LABELS)}, "column 1 does not"),
    "a third label": ({"labels": np.where(LABELS > 0, 2.0, LABELS)}, "got 2"),
    "heads": ({"heads0": HEADS[:2]}, "heads0 must be .tasks, k."),
    "infinite": ({"features": np.where(FEATURES > 1, np.inf, FEATURES)}, "features must be finite"),
    "ridge": ({"ridge": np.inf}, "ridge must be a finite number"),
    "body": ({"body0": np.full((2, 2), np.nan)}, "body0 must be finite"),
    "represent": ({"represent": 3}, "represent must be a function of .body, rows."),
    "masked": ({"heads0": np.ma.array(HEADS, mask=HEADS > 0)}, "heads0 must be .* without masked ones"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_named(case):
    changed, message = BAD[case]
    with pytest.raises((ValueError, TypeError), match=message):
        problem_of(**changed)
