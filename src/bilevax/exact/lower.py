"""Lower problems solved to high accuracy: Newton's method down to rounding, after L-BFGS (optax) for many variables.

Where y is held by a set (min-max), Nesterov's method with projections, which is slower. How far a solution is from the
true one is told by `bilevax.exact.evaluation`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from bilevax import lapack, projection
from bilevax.problem import Problem, X, Y
from bilevax.samples import Indices

PROJECTED_STEPS = 20_000
MOST_IDLE_STEPS = 40  # steps of L-BFGS without a smaller gradient after which it is left to Newton
NEWTON_STEPS, HALVINGS = 100, 30
FEW = 128  # variables for which Newton's method needs nobody to go before it
DENSE_UP_TO = 640  # variables for which H is formed and factorised rather than multiplied with
PROBES = 16  # products for a guess at the diagonal of H
INEXACT = 1e-2  # what conjugate gradients may leave of the gradient within a Newton step
RESIDUAL_SHARE = 1e-3  # what a solve with H may leave, at most, to be called one


class Solution(NamedTuple):
    """h = H⁻¹v, and whether v − Hh is small: conjugate gradients may not get there."""

    h: Y
    found: Bool[Array, ""]


Inverse = Callable[[Y], Solution]


class Solver(NamedTuple):
    """How exact values are had at one x.

    `solve(i, start)` is y_i*(x) and the last step towards it, about what it still lacks; `inverse(y, i)` is the map
    v ↦ [∇²yy g_i(x, y)]⁻¹v.
    """

    solve: Callable[[Any, Y], tuple[Y, Y]]
    inverse: Callable[[Y, Any], Inverse]


class Metric(NamedTuple):
    """Newton's step for a gradient at a point, and the length of a gradient near it."""

    step: Inverse
    length: Callable[[Y], Float[Array, ""]]


class Progress(NamedTuple):
    """Where L-BFGS is: the point, its own state, the smallest gradient so far and the steps since."""

    y: Y
    optimizer: Any
    gradient_norm: Float[Array, ""]
    smallest: Float[Array, ""]
    idle_steps: Int[Array, ""]
    gradients: Int[Array, ""]
    steps: Int[Array, ""]


def minimise(
    objective: Callable[[Y], Float[Array, ""]], start: Y, tolerance: Callable[[Y], Array], max_steps: int = 500
) -> tuple[Y, Int[Array, ""]]:
    """L-BFGS until ‖∇‖ ≤ tolerance(y), or it no longer falls; the point and the gradients it took.

    optax keeps part of its state in JAX's default floating type, so the iteration is in that type too.
    """
    optimizer, loss = optax.lbfgs(), objective
    objective = lambda y: loss(y).astype(y.dtype)
    value_and_grad = optax.value_and_grad_from_state(objective)

    def one_step(at: Progress) -> Progress:
        value, gradient = value_and_grad(at.y, state=at.optimizer)
        updates, state = optimizer.update(gradient, at.optimizer, at.y, value=value, grad=gradient, value_fn=objective)
        trials = optax.tree.get(state, "info").num_linesearch_steps.astype(jnp.int32)
        norm = jnp.linalg.norm(optax.tree.get(state, "grad"))
        fell = norm < 0.9 * at.smallest
        return Progress(
            y=optax.apply_updates(at.y, updates),
            optimizer=state,
            gradient_norm=norm,
            smallest=jnp.where(fell, norm, at.smallest),
            idle_steps=jnp.where(fell, 0, at.idle_steps + 1),
            gradients=at.gradients + trials,
            steps=at.steps + 1,
        )

    def goes_on(at: Progress) -> Array:
        return (at.steps < max_steps) & (at.idle_steps < MOST_IDLE_STEPS) & (at.gradient_norm > tolerance(at.y))

    with jax.numpy_dtype_promotion("standard"):
        begin = start.astype(float)
        norm, zero = jnp.linalg.norm(jax.grad(objective)(begin)), jnp.int32(0)
        first = Progress(begin, optimizer.init(begin), norm, norm, zero, jnp.int32(1), zero)
        end = jax.lax.while_loop(goes_on, one_step, first)
    return end.y.astype(start.dtype), end.gradients


def _dense_inverse(product: Callable[[Y], Y], like: Y) -> Inverse:
    """v ↦ H⁻¹v by one Cholesky factorisation of the scaled H, and a step of refinement."""
    # A few columns at a time: each may look at all samples.
    hessian = jax.lax.map(product, jnp.eye(like.shape[0], dtype=like.dtype), batch_size=16)
    factor = lapack.factor_scaled(hessian)

    def invert(v: Y) -> Solution:
        h = lapack.solve_scaled(factor, v)
        h = h + lapack.solve_scaled(factor, v - hessian @ h)
        return Solution(h, jnp.linalg.norm(v - hessian @ h) <= RESIDUAL_SHARE * jnp.linalg.norm(v))

    return invert


def diagonal(product: Callable[[Y], Y], like: Y, least: Any) -> Y:
    """The diagonal of H, about: from products with random signs z, whose mean z·Hz is that diagonal.

    It lies between ‖H_k‖²/‖H‖ and ‖H_k‖, the length of its row, which keeps the noise of a few products at bay.
    """
    signs = jax.random.rademacher(jax.random.key(0), (PROBES, like.shape[0]), like.dtype)
    products = jax.lax.map(product, signs)
    rows = jnp.sqrt(jnp.mean(products**2, axis=0))
    largest = jnp.maximum(jnp.max(rows), least)
    return jnp.maximum(jnp.clip(jnp.mean(signs * products, axis=0), rows**2 / largest, rows), least)


class Round(NamedTuple):
    """h, what is left of v − Hh and its length, and whether the last round made it much smaller."""

    h: Y
    left: Y
    length: Float[Array, ""]
    falling: Bool[Array, ""]


def _iterative_inverse(product: Callable[[Y], Y], diagonal: Y, share: float) -> Inverse:
    """v ↦ H⁻¹v by preconditioned conjugate gradients, begun again from what is left: to a share of v, or no further."""
    eps = float(jnp.finfo(diagonal.dtype).eps)

    def invert(v: Y) -> Solution:
        unit = jnp.maximum(jnp.max(jnp.abs(v)), float(jnp.finfo(v.dtype).tiny) ** 0.5)
        v = v / unit
        whole = jnp.linalg.norm(v)

        def one_round(at: Round) -> Round:
            more, _ = jax.scipy.sparse.linalg.cg(product, at.left, tol=max(share, eps**0.5), M=lambda v: v / diagonal)
            left = v - product(at.h + more)
            length = jnp.linalg.norm(left)
            where = lambda new, old: jnp.where(length < at.length, new, old)
            falling = length < 0.5 * at.length
            return Round(where(at.h + more, at.h), where(left, at.left), where(length, at.length), falling)

        first = Round(jnp.zeros_like(v), v, whole, jnp.asarray(True))
        end = jax.lax.while_loop(lambda at: at.falling & (at.length > share * whole), one_round, first)
        return Solution(unit * end.h, end.length <= max(RESIDUAL_SHARE, 2 * share) * whole)

    return invert


def _look(problem: Problem, x: X, y: Y, i: Any, indices: Indices) -> Callable[[Y], Y]:
    """h ↦ ∇²yy g_i·h."""
    second = problem.lower_derivatives(x, y, i, indices)[1]
    return lambda h: second(h)[1]


def inverse_at(problem: Problem, x: X, y: Y, i: Any, indices: Indices = None) -> Inverse:
    """v ↦ [∇²yy g_i(x, y)]⁻¹v: by Cholesky for up to some hundred variables, else by conjugate gradients."""
    product = _look(problem, x, y, i, indices)
    if y.shape[0] <= DENSE_UP_TO:
        return _dense_inverse(product, y)
    share = float(jnp.finfo(y.dtype).eps)
    return _iterative_inverse(product, diagonal(product, y, problem.strong_convexity), share)


def metric_at(problem: Problem, x: X, y: Y, i: Any, indices: Indices = None) -> Metric:
    """Newton's step at y, inexact where conjugate gradients make it."""
    product = _look(problem, x, y, i, indices)
    if y.shape[0] <= DENSE_UP_TO:
        invert = _dense_inverse(product, y)
        return Metric(invert, lambda gradient: jnp.sqrt(jnp.maximum(gradient @ invert(gradient).h, 0)))
    scale = diagonal(product, y, problem.strong_convexity)
    return Metric(_iterative_inverse(product, scale, INEXACT), lambda v: jnp.sqrt(v @ (v / scale)))


class NewtonPoint(NamedTuple):
    """Where Newton's method is, g and ∇y g there, whether it is still getting on, its last step, and what it took."""

    y: Y
    value: Float[Array, ""]
    gradient: Y
    moving: Bool[Array, ""]
    step: Y  # the last −H⁻¹∇y g; infinite where it was not found
    steps: Int[Array, ""]
    gradients: Int[Array, ""]


def newton(
    start: Y,
    at: Callable[[Y], tuple[Float[Array, ""], Y]],
    metric_at: Callable[[Y], Metric],
) -> NewtonPoint:
    """Newton steps, halved until g falls or ∇y g does, for as long as they get on: down to rounding.

    `at(y)` is g and its gradient. Far away g decides (Armijo), and close by, where its differences are rounding, the
    length of the gradient. `metric_at(y)` has the step for a gradient at y and that length, both free of the scales of
    the variables.
    """
    eps = float(jnp.finfo(start.dtype).eps)

    def one_step(before: NewtonPoint) -> NewtonPoint:
        metric = metric_at(before.y)
        step, found = metric.step(before.gradient)
        length, slope = metric.length(before.gradient), before.gradient @ step

        def trial(halvings: Array) -> tuple[Y, Array, Y, Array]:
            y = before.y - 0.5 ** halvings.astype(step.dtype) * step
            return y, *at(y), halvings

        def better(tried: tuple[Y, Array, Y, Array]) -> Array:
            _, value, gradient, halvings = tried
            share = 0.5 ** halvings.astype(step.dtype)
            flat = value <= before.value + 100 * eps * jnp.abs(before.value)
            return (value < before.value - 1e-4 * share * slope) | (flat & (metric.length(gradient) < length))

        near = jnp.linalg.norm(step) <= eps**0.5 * (eps + jnp.linalg.norm(before.y))  # what is left is rounding
        again = lambda tried: ~better(tried) & (tried[3] < HALVINGS) & ~near
        tried = jax.lax.while_loop(again, lambda tried: trial(tried[3] + 1), trial(jnp.int32(0)))
        y, value, gradient, halvings = tried
        fell = better(tried)
        where = lambda new, old: jnp.where(fell, new, old)
        return NewtonPoint(
            y=where(y, before.y),
            value=where(value, before.value),
            gradient=where(gradient, before.gradient),
            moving=fell & (~near | (metric.length(gradient) < 0.5 * length)),
            step=jnp.where(found, -step, jnp.inf),
            steps=before.steps + 1,
            gradients=before.gradients + 1 + halvings,
        )

    far = jnp.full_like(start, jnp.inf)
    first = NewtonPoint(start, *at(start), jnp.asarray(True), far, jnp.int32(0), jnp.int32(1))
    return jax.lax.while_loop(lambda now: now.moving & (now.steps < NEWTON_STEPS), one_step, first)


def refine(problem: Problem, x: X, start: Y, i: Any, indices: Indices = None) -> NewtonPoint:
    """Newton's method on g_i(x, ·) with its own Hessian."""
    at = jax.value_and_grad(lambda y: problem.lower_loss(x, y, i, indices).astype(y.dtype))
    return newton(start, at, lambda y: metric_at(problem, x, y, i, indices))


class ProjectedPoint(NamedTuple):
    """Where the projected method is: the point, the one before, the largest slope of ∇y g seen, whether it moves."""

    y: Y
    before: Y
    smoothness: Float[Array, ""]
    moving: Bool[Array, ""]
    steps: Int[Array, ""]


def solve_inside(problem: Problem, x: X, start: Y, i: Any, indices: Indices) -> tuple[Y, Int[Array, ""]]:
    """argmin of g_i(x, ·) over the set Y_i, and the number of gradients it took.

    y ← Π[p − ∇y g(p)/L] with p = y + (1−√q)/(1+√q)·(y − y_before), q = λ/L, and L doubled where ∇y g changes faster.
    """
    region, lam = problem.bounds_of(i).y, problem.strong_convexity
    gradient = lambda y: problem.lower_gradient(x, y, i, indices)
    eps = float(jnp.finfo(start.dtype).eps)

    def one_step(at: ProjectedPoint) -> ProjectedPoint:
        root = jnp.sqrt(lam / at.smoothness)
        ahead = at.y + (1 - root) / (1 + root) * (at.y - at.before)
        slope = gradient(ahead)
        y = projection.onto(ahead - slope / at.smoothness, region)
        change = y - ahead
        far = jnp.linalg.norm(change) > 8 * eps * (1 + jnp.linalg.norm(y))  # closer by, differences are rounding
        steep = far & (jnp.linalg.norm(gradient(y) - slope) > 1.001 * at.smoothness * jnp.linalg.norm(change))
        smoothness = jnp.where(steep, 2, 1) * at.smoothness
        return ProjectedPoint(jnp.where(steep, at.y, y), at.y, smoothness, far, at.steps + 1)

    begin = projection.onto(start, region)
    first = ProjectedPoint(begin, begin, jnp.asarray(lam, start.dtype), jnp.asarray(True), jnp.int32(0))
    end = jax.lax.while_loop(lambda at: at.moving & (at.steps < PROJECTED_STEPS), one_step, first)
    return end.y, 2 * end.steps


def _remainder(problem: Problem, y: Y, i: Any, gradient: Y) -> Y:
    """About what y still lacks to y*, from ∇y g alone: ‖y − y*‖ ≤ ‖∇y g‖/λ, or as a set holds it."""
    return projection.onto(y - gradient / problem.strong_convexity, problem.bounds_of(i).y) - y


def _approach(problem: Problem, x: X, start: Y, i: Any, indices: Indices) -> NewtonPoint:
    """Newton's method; with many variables L-BFGS goes before it, and comes within √ε of y*, relative to its size."""
    if start.shape[0] <= FEW:
        return refine(problem, x, start, i, indices)
    precision = problem.strong_convexity * float(jnp.finfo(start.dtype).eps) ** 0.5
    close_enough = lambda y: precision * (1 + jnp.linalg.norm(y))
    y, gradients = minimise(lambda y: problem.lower_loss(x, y, i, indices), start, close_enough)
    reached = refine(problem, x, y, i, indices)
    return reached._replace(gradients=gradients + reached.gradients)


def solve_lower(problem: Problem, x: X, start: Y, i: Any, indices: Indices = None) -> tuple[Y, Int[Array, ""]]:
    """y_i*(x) on the given samples, and the number of gradients it took; where ∇²yy g = λI one step is all."""
    structure = problem.structure
    if not structure.needs_hessian and problem.bounds.y is not None:
        return solve_inside(problem, x, start, i, indices)
    if structure.needs_hessian and not structure.estimates_hessian:
        slope = problem.lower_gradient(x, start, i, indices)
        return start - structure.apply_inverse(problem.strong_convexity, slope), jnp.int32(1)
    reached = _approach(problem, x, start, i, indices)
    return reached.y, reached.gradients


def solver(problem: Problem, x: X) -> Solver:
    """Exact values for any loss, from all samples."""
    exactly = lambda h: Solution(h, jnp.asarray(True))
    if problem.structure.estimates_hessian:
        return Solver(
            solve=lambda i, start: ((reached := _approach(problem, x, start, i, None)).y, reached.step),
            inverse=lambda y, i: inverse_at(problem, x, y, i),
        )

    def solve_all(i: Any, start: Y) -> tuple[Y, Y]:
        y, _ = solve_lower(problem, x, start, i)
        return y, _remainder(problem, y, i, problem.lower_gradient(x, y, i))

    return Solver(
        solve=solve_all,
        inverse=lambda y, i: lambda v: exactly(problem.structure.apply_inverse(problem.strong_convexity, v)),
    )
