"""Derivatives by autodiff against derivatives by hand and finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.logistic import Model

from bilevax.algorithms.parts import hypergradient
from bilevax.samples import UnevenBlock


@pytest.mark.parametrize("indices", [[0, 3, 3], None], ids=["batch", "all"])
def test_every_derivative_equals_the_one_by_hand(indices):
    model = Model(4)
    problem, rng = model.problem(), np.random.default_rng(2)
    x, y, i = rng.normal(size=3), rng.normal(size=2), 2
    drawn = None if indices is None else jnp.array(indices)
    numpy_drawn = range(6) if indices is None else indices
    f_x, f_y = problem.upper_gradients(jnp.asarray(x), jnp.asarray(y), i, drawn)
    g_y, second = problem.lower_derivatives(jnp.asarray(x), jnp.asarray(y), i, drawn)
    cross, hessian = jax.vmap(second)(jnp.eye(2))
    np.testing.assert_allclose(f_x, model.fx(i, x, y, numpy_drawn), rtol=1e-12)
    np.testing.assert_allclose(f_y, model.fy(i, x, y, numpy_drawn), rtol=1e-12)
    np.testing.assert_allclose(g_y, model.gy(i, x, y, numpy_drawn), rtol=1e-12)
    np.testing.assert_allclose(cross.T, model.gxy(i, x, y, numpy_drawn), rtol=1e-12)
    np.testing.assert_allclose(hessian, model.gyy(i, x, y, numpy_drawn), rtol=1e-12)


def test_every_derivative_equals_finite_differences():
    problem = Model(4).problem()
    x, y = jnp.array([0.3, -0.2, 0.5]), jnp.array([0.4, -0.7])
    f = lambda x, y: problem.upper_loss(x, y, 1)
    g = lambda x, y: problem.lower_loss(x, y, 1)
    gradient = lambda x, y: problem.lower_gradient(x, y, 1)

    def difference(function, argument, point):
        columns = []
        for e in jnp.eye(point[argument].size):
            moved = [list(point), list(point)]
            moved[0][argument] += 1e-6 * e
            moved[1][argument] -= 1e-6 * e
            columns.append((function(*moved[0]) - function(*moved[1])) / 2e-6)
        return jnp.stack(columns)

    f_x, f_y = problem.upper_gradients(x, y, 1)
    g_y, second = problem.lower_derivatives(x, y, 1)
    cross, hessian = jax.vmap(second)(jnp.eye(2))
    close = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-8)
    close(f_x, difference(f, 0, (x, y)))
    close(f_y, difference(f, 1, (x, y)))
    close(g_y, difference(g, 1, (x, y)))
    close(cross.T, difference(gradient, 0, (x, y)))
    close(hessian, difference(gradient, 1, (x, y)))


def by_hand(model, x, y, h, tasks, xi, zeta):
    """D_x, D_y and D_h on a batch of each of the given tasks, in NumPy."""
    drawn = list(zip(tasks, y, h, xi, zeta, strict=True))
    D_x = [model.fx(i, x, y, s) - model.gxy(i, x, y, z) @ h for i, y, h, s, z in drawn]
    D_y = [model.gy(i, x, y, z) for i, y, h, s, z in drawn]
    D_h = [model.gyy(i, x, y, z) @ h - model.fy(i, x, y, s) for i, y, h, s, z in drawn]
    return np.mean(D_x, axis=0), np.stack(D_y), np.stack(D_h)


def test_the_three_directions_of_several_tasks_equal_those_by_hand():
    """At two points, for tasks in any order, with another batch for each loss; and both hypergradients from them."""
    model, rng = Model(4), np.random.default_rng(1)
    problem, tasks, xi, zeta = model.problem(), [2, 0], [[0, 3], [1, 1]], [[5, 2], [4, 0]]
    at, before = ([rng.normal(size=s) for s in (3, (2, 2), (2, 2))] for _ in range(2))
    points = lambda given: hypergradient.Points(*map(jnp.asarray, given))
    samples = jnp.array(tasks), jnp.array(xi), jnp.array(zeta)

    @jax.jit
    def found(now, old):
        directions = hypergradient.directions(problem, now, samples)
        alone = hypergradient.hypergradient(problem, now._replace(h=None), samples)
        innovation = hypergradient.hypergradient_innovation(problem, now, old, samples, 0.3)
        return directions, hypergradient.hypergradient(problem, now, samples), alone, innovation

    directions, whole, alone, innovation = found(points(at), points(before))
    D, D_before = (by_hand(model, *given, tasks, xi, zeta) for given in (at, before))
    for got, want in zip(directions, D, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-11)
    np.testing.assert_allclose(whole, D[0], rtol=1e-11)
    np.testing.assert_allclose(innovation, D[0] - 0.7 * D_before[0], rtol=1e-11)
    no_h = by_hand(model, at[0], at[1], 0 * at[2], tasks, xi, zeta)[0]
    np.testing.assert_allclose(alone, no_h, rtol=1e-11)


def test_the_last_sample_of_a_block_counts_with_its_share():
    model = Model(2)
    problem, x, y = model.problem(), model.x0, model.y0[1]
    block = UnevenBlock(jnp.array([1, 2]), jnp.array([4]), jnp.asarray(0.3))
    gradient = lambda samples: problem.lower_gradient(jnp.asarray(x), jnp.asarray(y), jnp.int32(1), samples)
    wanted = 0.7 * model.gy(1, x, y, [1, 2]) + 0.3 * model.gy(1, x, y, [4])
    np.testing.assert_allclose(jax.jit(gradient)(block), wanted, rtol=1e-12)
