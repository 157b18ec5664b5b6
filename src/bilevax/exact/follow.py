"""Lower problems followed as x moves: from where y_i and h_i were, a Newton step each, and F and ∇F from them.

    y_i ← y_i − H_i⁻¹∇y g_i,   h_i ← H_i⁻¹∇y f_i,   H_i = ∇²yy g_i(x, y_i)
    F = mean_i f_i − h_iᵀ∇y g_i,   ∇F = mean_i ∇x f_i − ∇²xy g_i·h_i

by conjugate gradients that the inverse of an earlier H_i preconditions; further Newton steps follow only where y_i has
moved far. −h_iᵀ∇y g_i is what f_i changes by on the way that y_i still lacks to y_i*. Not to rounding, as
`bilevax.exact.evaluation` is, but many times faster.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bilevax import lapack
from bilevax.exact import lower
from bilevax.linear_model import factors_at, low_rank, rows_at
from bilevax.problem import Problem, X, Y
from bilevax.samples import Indices

NEWTON_STEPS, HALVINGS, PRODUCTS = 30, 20, 300  # at most, at one x
NEWTON_SHARE, INVERSE_SHARE = 1e-2, 1e-3  # what conjugate gradients may leave of ∇y g, and of ∇y f at most
LACK = 0.05  # of f that y may lack, in the mean over the tasks, for F to be believed
NEAR = 1e-2  # a Newton step that is shorter, relative to y, is the last one; both in units of H_i's diagonal


class LowerPoint(NamedTuple):
    """y_i and h_i where they have come to, and the inverse of an earlier H_i: a matrix, a diagonal, or nothing."""

    y: Float[Array, "*m dy"]
    h: Float[Array, "*m dy"]
    near: Float[Array, "..."]


class Term(NamedTuple):
    """What a task adds to F and to ∇F, how long the two parts of the latter are, and the products with H_i it took.

    `doubt` is |h_iᵀ∇y g_i| − |f_i|/20: above zero in the mean over the tasks, what y_i still lacks is so much that F is
    not to be believed.
    """

    objective: Float[Array, ""]
    gradient: X
    size: Float[Array, ""]
    products: Float[Array, ""]
    doubt: Float[Array, ""]


def conjugate_gradients(product: Callable[[Y], Y], near: Array, v: Y, start: Y, share: Any) -> tuple[Y, Int[Array, ""]]:
    """H⁻¹v and the products it took, preconditioned with `near` ≈ H⁻¹, until that share of v is left in its norm."""
    precondition = lambda r: near @ r if near.ndim == 2 else near * r
    enough = share**2 * (v @ precondition(v))

    def one(carry: Any) -> Any:
        h, r, p, rho, k = carry
        image = product(p)
        alpha = rho / (p @ image)
        h, r = h + alpha * p, r - alpha * image
        z = precondition(r)
        after = r @ z
        return h, r, z + after / rho * p, after, k + 1

    r = v - product(start)
    z = precondition(r)
    first = (start, r, z, r @ z, jnp.int32(1))
    h, _, _, _, k = jax.lax.while_loop(lambda carry: (carry[3] > enough) & (carry[4] < PRODUCTS), one, first)
    return h, k


def invert(problem: Problem, x: X, y: Y, i: Any, as_matrix: bool, indices: Indices = None) -> Float[Array, "..."]:
    """[∇²yy g_i(x, y)]⁻¹, or the inverse of its diagonal; nothing where it is known."""
    if not problem.structure.estimates_hessian:
        return jnp.zeros(0, y.dtype)
    lam, eye = problem.strong_convexity, jnp.eye(problem.dim_y, dtype=y.dtype)
    if as_matrix and problem.structure.linear_model:
        hessian = low_rank(rows_at(problem, indices), factors_at(problem, i, indices, x, y).c) + lam * eye
        return lapack.invert_scaled(lapack.factor_scaled(hessian))
    second = problem.lower_derivatives(x, y, i, indices)[1]
    product = lambda h: second(h)[1]
    if as_matrix:
        return lapack.invert_scaled(lapack.factor_scaled(jax.lax.map(product, eye, batch_size=16)))
    return 1 / lower.diagonal(product, y, lam)


def approach(problem: Problem, x: X, y: Y, near: Array, i: Any, indices: Indices = None) -> tuple[Y, Array]:
    """y_i after one Newton step, or after several until one is short; and the products that it took.

    A step is halved where g_i rises at its end: where its slope there is more than half of what it was, upwards.
    How long a step is, is measured in each variable by the spread that `near` gives it: where columns of data are of
    very different sizes, the smallest variables may matter most.
    """
    spread = jnp.maximum(jnp.diagonal(near) if near.ndim == 2 else near, jnp.finfo(y.dtype).tiny)
    square = lambda v: v @ (v / spread)

    def one_step(carry: Any) -> Any:
        y, _, products, steps = carry
        g_y, second = problem.lower_derivatives(x, y, i, indices)
        step, k = conjugate_gradients(lambda h: second(h)[1], near, -g_y, jnp.zeros_like(y), NEWTON_SHARE)
        slope = g_y @ step
        along = lambda t: problem.lower_gradient(x, y + t * step, i, indices) @ step
        rises = lambda tried: ~(tried[1] <= -0.5 * slope) & (tried[2] < HALVINGS)
        halve = lambda tried: (0.5 * tried[0], along(0.5 * tried[0]), tried[2] + 1)
        before = jnp.full((), 2, y.dtype), jnp.full((), jnp.inf, y.dtype), jnp.int32(-1)  # the first half is all of it
        t, _, halvings = jax.lax.while_loop(rises, halve, before)
        is_far = (square(step) > NEAR**2 * square(y + t * step)) | (halvings > 0)
        return y + t * step, is_far & (halvings < HALVINGS), products + k, steps + 1

    first = (y, jnp.asarray(True), jnp.int32(0), jnp.int32(0))
    y, _, products, _ = jax.lax.while_loop(lambda carry: carry[1] & (carry[3] < NEWTON_STEPS), one_step, first)
    return y, products


def follow(
    problem: Problem,
    x: X,
    task: LowerPoint,
    i: Any,
    xi: Indices = None,
    zeta: Indices = None,
    share: Any = INVERSE_SHARE,
) -> tuple[Term, Y, Y]:
    """What task i adds to F and ∇F at x, and its y and h there; on all samples, or on ξ of f and ζ of g.

    `share` of ∇y f may be left where h is solved for.
    """
    structure, products = problem.structure, jnp.int32(1)
    if structure.estimates_hessian:
        y, products = approach(problem, x, task.y, task.near, i, zeta)
    else:
        y, _ = lower.solve_lower(problem, x, task.y, i, zeta)
    f_x, f_y = problem.upper_gradients(x, y, i, xi)
    g_y, second = problem.lower_derivatives(x, y, i, zeta)
    if structure.estimates_hessian:
        h, more = conjugate_gradients(lambda h: second(h)[1], task.near, f_y, task.h, share)
        products += more
    else:
        h = structure.apply_inverse(problem.strong_convexity, f_y)
    f, lack, correction = problem.upper_loss(x, y, i, xi), h @ g_y, second(h)[0]
    size = jnp.linalg.norm(f_x) + jnp.linalg.norm(correction)
    doubt = jnp.abs(lack) - LACK * jnp.abs(f)
    return Term(f - lack, f_x - correction, size, products.astype(x.dtype), doubt), y, h
