"""Derivatives by autodiff against derivatives by hand and finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from logistic import Model

from bilevax import oracle
from bilevax.curvature.dense import matrices


@pytest.mark.parametrize("indices", [[0, 3, 3], None], ids=["batch", "all"])
def test_every_derivative_equals_the_one_by_hand(indices):
    model = Model(4)
    problem, rng = model.problem(), np.random.default_rng(2)
    x, y, i = rng.normal(size=3), rng.normal(size=2), 2
    drawn = None if indices is None else jnp.array(indices)
    numpy_drawn = range(6) if indices is None else indices
    f_x, f_y = oracle.upper_gradients(problem, jnp.asarray(x), jnp.asarray(y), i, drawn)
    g_y, second = oracle.lower_derivatives(problem, jnp.asarray(x), jnp.asarray(y), i, drawn)
    full = matrices(second, 2, jnp.float64)
    np.testing.assert_allclose(f_x, model.fx(i, x, y, numpy_drawn), rtol=1e-12)
    np.testing.assert_allclose(f_y, model.fy(i, x, y, numpy_drawn), rtol=1e-12)
    np.testing.assert_allclose(g_y, model.gy(i, x, y, numpy_drawn), rtol=1e-12)
    np.testing.assert_allclose(full.cross, model.gxy(i, x, y, numpy_drawn), rtol=1e-12)
    np.testing.assert_allclose(full.hessian, model.gyy(i, x, y, numpy_drawn), rtol=1e-12)


def test_every_derivative_equals_finite_differences():
    problem = Model(4).problem()
    x, y = jnp.array([0.3, -0.2, 0.5]), jnp.array([0.4, -0.7])
    f = lambda x, y: oracle.upper_loss(problem, x, y, 1)
    g = lambda x, y: oracle.lower_loss(problem, x, y, 1)
    gradient = lambda x, y: oracle.lower_gradient(problem, x, y, 1)

    def difference(function, argument, point):
        columns = []
        for e in jnp.eye(point[argument].size):
            moved = [list(point), list(point)]
            moved[0][argument] += 1e-6 * e
            moved[1][argument] -= 1e-6 * e
            columns.append((function(*moved[0]) - function(*moved[1])) / 2e-6)
        return jnp.stack(columns)

    f_x, f_y = oracle.upper_gradients(problem, x, y, 1)
    g_y, second = oracle.lower_derivatives(problem, x, y, 1)
    cross, hessian = jax.vmap(second)(jnp.eye(2))
    close = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-8)
    close(f_x, difference(f, 0, (x, y)))
    close(f_y, difference(f, 1, (x, y)))
    close(g_y, difference(g, 1, (x, y)))
    close(cross.T, difference(gradient, 0, (x, y)))
    close(hessian, difference(gradient, 1, (x, y)))
