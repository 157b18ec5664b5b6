"""Every projection lands in its set, is idempotent, and is the nearest point of the set."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from reference.logistic import Model

import bilevax as bx
from bilevax import projection

numbers = st.floats(-5, 5, allow_nan=False, width=32)
radii = st.floats(0.1, 6)
quick = settings(max_examples=60, deadline=None)


def vectors(n=4):
    return arrays(np.float64, n, elements=numbers)


def matrices(shape):
    return arrays(np.float64, shape, elements=numbers)


def floored(matrix, floor):
    symmetric = jnp.asarray(matrix + matrix.T) / 2
    eigen = projection.eigen_floor(symmetric, floor)
    return symmetric, (eigen.vectors * eigen.values[None, :]) @ eigen.vectors.T


def assert_nearest(point, projected, member):
    """⟨point − P, member − P⟩ ≤ 0 for every member of a convex set: P is the nearest point."""
    assert jnp.sum((point - projected) * (member - projected)) <= 1e-7


@quick
@given(vectors(), vectors(), radii)
def test_ball_is_the_nearest_point_of_the_ball(v, w, radius):
    projected = projection.ball(jnp.asarray(v), radius)
    member = jnp.asarray(w) / max(1.0, np.linalg.norm(w) / radius)
    assert jnp.linalg.norm(projected) <= radius * (1 + 1e-12)
    np.testing.assert_allclose(projection.ball(projected, radius), projected, atol=1e-12)
    assert_nearest(v, projected, member)


def test_ball_leaves_inner_points_and_zero_alone():
    for v in (jnp.zeros(3), jnp.array([0.1, 0.2, -0.3])):
        np.testing.assert_array_equal(projection.ball(v, 1.0), v)
    np.testing.assert_array_equal(projection.ball(v, None), v)


@quick
@given(matrices((3, 2)), matrices((3, 2)), radii)
def test_singular_ceiling_is_the_nearest_bounded_matrix(V, W, ceiling):
    projected = projection.singular_ceiling(jnp.asarray(V), ceiling)
    largest = np.linalg.norm(W, 2)
    member = jnp.asarray(W) / max(1.0, largest / ceiling)
    assert np.linalg.norm(projected, 2) <= ceiling * (1 + 1e-9)
    np.testing.assert_allclose(projection.singular_ceiling(projected, ceiling), projected, atol=1e-8)
    assert_nearest(V, projected, member)


@quick
@given(matrices((2, 4)), radii)
def test_singular_ceiling_lowers_singular_values_one_by_one(V, ceiling):
    before = np.linalg.svd(V, compute_uv=False)
    after = np.linalg.svd(projection.singular_ceiling(jnp.asarray(V), ceiling), compute_uv=False)
    np.testing.assert_allclose(after, np.minimum(before, ceiling), atol=1e-7)


@quick
@given(matrices((3, 3)), matrices((3, 3)), radii)
def test_eigen_floor_is_the_nearest_matrix_with_enough_curvature(H, G, floor):
    symmetric, projected = floored(H, floor)
    member = jnp.asarray(G @ G.T) + floor * jnp.eye(3)
    assert np.linalg.eigvalsh(projected).min() >= floor * (1 - 1e-9)
    np.testing.assert_allclose(floored(np.asarray(projected), floor)[1], projected, atol=1e-8)
    assert_nearest(symmetric, projected, member)


@quick
@given(matrices((3, 3)), st.lists(st.floats(0.05, 1), min_size=1, max_size=6), radii)
def test_flooring_after_every_decay_is_flooring_once_at_the_end(H, decays, floor):
    """What allows S^l_λ[(1−β)H] to be delayed."""
    _, every_time = floored(H, floor)
    once = every_time
    for decay in decays:
        every_time = floored(decay * np.asarray(every_time), floor)[1]
    np.testing.assert_allclose(every_time, floored(np.prod(decays) * np.asarray(once), floor)[1], atol=1e-9)


def test_the_cheap_bound_is_the_smaller_of_two_and_never_wrong():
    assert projection.surely_below(jnp.eye(4), 1.0)  # by its sums: its Frobenius norm is 2
    assert projection.surely_below(jnp.array([[1.0, 0.5], [0.5, 0.0]]), 1.3)  # by its Frobenius norm: its sums are 1.5
    assert not projection.surely_below(0.3 * jnp.eye(4), 0.29)
    for shape in [(1, 4), (4, 1)]:
        assert not projection.surely_below(jnp.ones(shape), 1.9)  # ‖V‖ = 2


def test_a_matrix_on_the_floor_is_curved_enough_and_one_below_is_not():
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    matrix = lambda lowest: jnp.asarray((rotation * np.array([lowest, 0.5, 2.0, 3.0])) @ rotation.T)
    assert projection.curved_enough(0.5 * jnp.eye(4), 0.5, 1e-3)
    assert projection.curved_enough(matrix(0.5), 0.5, 1e-3)
    assert not projection.curved_enough(matrix(0.5 - 1e-12), 0.5, 1e-3)


def test_rounding_of_large_entries_does_not_hide_a_small_curvature():
    """float32, eigenvalues up to 1000 and one of −0.02: it is lifted to λ = 0.01, up to the rounding of `eigh`."""
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(123, 123)))[0]
    values = np.random.default_rng(1).uniform(1, 1000, 123)
    values[0] = -0.02
    matrix = jnp.asarray((rotation * values) @ rotation.T, jnp.float32)
    floored = projection.matrix_floor((matrix + matrix.T) / 2, 1e-2, 1e-4)
    assert np.linalg.eigvalsh(np.asarray(floored, float))[0] > 9e-3


def test_every_task_has_its_own_bounds_where_there_are_m():
    """Each of the four, a box too; one number is that of every task."""
    bounds = bx.Bounds(f_x=jnp.array([1.0, 2.0]), f_y=3.0, g_xy=jnp.array([5.0, 6.0]), y=jnp.array([7.0, 8.0]))
    box = bx.Bounds(y=bx.Box(low=jnp.array([-1.0, -2.0]), high=4.0))
    of_numbers, of_box = (Model(2).problem().replace(bounds=given).bounds_of for given in (bounds, box))
    for i in range(2):
        own = of_numbers(i)
        assert [float(bound) for bound in (own.f_x, own.f_y, own.g_xy, own.y)] == [1 + i, 3, 5 + i, 7 + i]
        assert (float(of_box(i).y.low), float(of_box(i).y.high), of_box(i).f_x) == (-1 - i, 4, None)


def test_every_task_starts_inside_its_own_ball_and_with_its_own_bounds():
    """RSVRB's first y_i, u_i and v_i are as long as the bounds of that very task, which all hold."""
    radii = 1e-3 * jnp.array([1.0, 2.0, 3.0])
    free = Model(3).problem()
    problem = free.replace(bounds=bx.Bounds(f_x=radii, f_y=2 * radii, y=3 * radii))
    tasks = jax.jit(bx.rsvrb(initialization="cheap", initial_batch_size=6).init)(
        problem, jax.random.key(0)
    ).tables.tasks
    for kept, times in [(tasks.u, 1), (tasks.v, 2), (tasks.y, 3)]:
        np.testing.assert_allclose(jnp.linalg.norm(kept, axis=1), times * radii, rtol=1e-12)


def test_points_are_inside_where_the_projection_leaves_them():
    """A ball and a box, with their edges."""
    box, point = bx.Box(-1.0, 2.0), lambda *numbers: jnp.array(numbers)
    inner = [point(0.0, 0.0), point(-1.0, 2.0)]
    outer = [point(-1.1, 0.0), point(0.0, 2.1), point(3.0, 3.0)]
    for vector in inner + outer:
        assert bool(projection.inside(vector, box)) == bool(jnp.all(projection.onto(vector, box) == vector))
    assert [bool(projection.inside(vector, box)) for vector in inner + outer] == [True, True, False, False, False]
    np.testing.assert_array_equal(projection.onto(point(-5.0, 7.0), box), [-1, 2])
    assert projection.inside(point(3.0, 4.0), 5.0)
    assert not projection.inside(point(3.0, 4.0), 4.999)
    np.testing.assert_allclose(projection.onto(point(3.0, 4.0), 1.0), [0.6, 0.8])
    np.testing.assert_array_equal(projection.onto(point(3.0, 4.0), None), [3, 4])


def test_singular_values_that_are_zero_up_to_rounding_do_no_harm():
    """Matrices of rank one, whose Gram matrices have eigenvalues a little below zero; one by one and side by side."""
    rng = np.random.default_rng(0)
    V = jnp.asarray(rng.normal(size=(40, 5, 1)) * rng.normal(size=(40, 1, 4)))
    lowered = jax.vmap(lambda matrix: projection.singular_ceiling(matrix, 0.5))(V)
    wanted = V * (0.5 / jnp.maximum(jnp.linalg.norm(V, axis=(1, 2)), 0.5))[:, None, None]
    np.testing.assert_allclose(lowered, wanted, atol=1e-12)
