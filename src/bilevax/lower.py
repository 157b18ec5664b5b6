"""Lower problems solved to high accuracy: L-BFGS (optax), then Newton's method down to rounding.

Where y is held by a set (min-max), Nesterov's method with projections, which is slower.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from bilevax import lapack, oracle, projection
from bilevax.draw import Indices
from bilevax.oracle import X, Y
from bilevax.problem import Problem

HELD_STEPS = 20_000
STALLED = 40  # steps of L-BFGS without a smaller gradient after which it is left to Newton
NEWTON_STEPS = 30
DENSE_UP_TO = 512  # variables for which H is formed and factorised rather than multiplied with


class Solver(NamedTuple):
    """How exact values are had at one x: `solve(i)` is y_i*(x), `invert(y, i, v)` is [∇²yy g_i(x, y)]⁻¹ v."""

    solve: Callable[[Any], Y]
    invert: Callable[[Y, Any, Y], Y]


class Progress(NamedTuple):
    """Where L-BFGS is: the point, its own state, the smallest gradient so far and the steps since."""

    y: Y
    optimizer: Any
    gradient_norm: Float[Array, ""]
    smallest: Float[Array, ""]
    stalled: Int[Array, ""]
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
        searched = optax.tree.get(state, "info").num_linesearch_steps.astype(jnp.int32)
        norm = jnp.linalg.norm(optax.tree.get(state, "grad"))
        fell = norm < 0.9 * at.smallest
        return Progress(
            y=optax.apply_updates(at.y, updates),
            optimizer=state,
            gradient_norm=norm,
            smallest=jnp.where(fell, norm, at.smallest),
            stalled=jnp.where(fell, 0, at.stalled + 1),
            gradients=at.gradients + searched,
            steps=at.steps + 1,
        )

    def unfinished(at: Progress) -> Array:
        return (at.steps < max_steps) & (at.stalled < STALLED) & (at.gradient_norm > tolerance(at.y))

    with jax.numpy_dtype_promotion("standard"):
        begin = start.astype(float)
        norm, zero = jnp.linalg.norm(jax.grad(objective)(begin)), jnp.int32(0)
        first = Progress(begin, optimizer.init(begin), norm, norm, zero, jnp.int32(1), zero)
        end = jax.lax.while_loop(unfinished, one_step, first)
    return end.y.astype(start.dtype), end.gradients


def solve_hessian(product: Callable[[Y], Y], right: Y) -> Y:
    """H⁻¹ right: by Cholesky for up to a few hundred variables, else by conjugate gradients."""
    if right.shape[0] <= DENSE_UP_TO:
        # A few columns at a time: each may look at all samples.
        hessian = jax.lax.map(product, jnp.eye(right.shape[0], dtype=right.dtype), batch_size=16)
        return lapack.solve(hessian, right)
    tolerance = 100 * jnp.finfo(right.dtype).eps
    return jax.scipy.sparse.linalg.cg(product, right, tol=float(tolerance), maxiter=10 * right.shape[0])[0]


class Refined(NamedTuple):
    """Where Newton's method is; `falling` while its last step made the gradient smaller."""

    y: Y
    gradient_norm: Float[Array, ""]
    falling: Bool[Array, ""]
    steps: Int[Array, ""]


def refine(problem: Problem, x: X, start: Y, i: Any, indices: Indices) -> tuple[Y, Int[Array, ""]]:
    """Newton steps on ∇y g = 0 for as long as they make ‖∇y g‖ smaller: from where L-BFGS ends to rounding."""
    gradient_norm = lambda y: jnp.linalg.norm(oracle.lower_gradient(problem, x, y, i, indices))

    def one_step(at: Refined) -> Refined:
        gradient, second = oracle.lower_derivatives(problem, x, at.y, i, indices)
        trial = at.y - solve_hessian(lambda h: second(h)[1], gradient)
        norm = gradient_norm(trial)
        fell = norm < at.gradient_norm
        return Refined(jnp.where(fell, trial, at.y), jnp.where(fell, norm, at.gradient_norm), fell, at.steps + 1)

    first = Refined(start, gradient_norm(start), jnp.asarray(True), jnp.int32(0))
    end = jax.lax.while_loop(lambda at: at.falling & (at.steps < NEWTON_STEPS), one_step, first)
    return end.y, 2 * end.steps + 1


class Held(NamedTuple):
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
    region, lam = problem.bounds.of(i).y, problem.strong_convexity
    gradient = lambda y: oracle.lower_gradient(problem, x, y, i, indices)
    eps = float(jnp.finfo(start.dtype).eps)

    def one_step(at: Held) -> Held:
        root = jnp.sqrt(lam / at.smoothness)
        ahead = at.y + (1 - root) / (1 + root) * (at.y - at.before)
        slope = gradient(ahead)
        y = projection.onto(ahead - slope / at.smoothness, region)
        change = y - ahead
        far = jnp.linalg.norm(change) > 8 * eps * (1 + jnp.linalg.norm(y))  # closer by, differences are rounding
        steep = far & (jnp.linalg.norm(gradient(y) - slope) > 1.001 * at.smoothness * jnp.linalg.norm(change))
        smoothness = jnp.where(steep, 2, 1) * at.smoothness
        return Held(jnp.where(steep, at.y, y), at.y, smoothness, far, at.steps + 1)

    begin = projection.onto(start, region)
    first = Held(begin, begin, jnp.asarray(lam, start.dtype), jnp.asarray(True), jnp.int32(0))
    end = jax.lax.while_loop(lambda at: at.moving & (at.steps < HELD_STEPS), one_step, first)
    return end.y, 2 * end.steps


def solve(problem: Problem, x: X, start: Y, i: Any, indices: Indices = None) -> tuple[Y, Int[Array, ""]]:
    """y_i*(x) on the given samples, and the number of gradients it took.

    ‖y − y*‖ ≤ ‖∇y g‖/λ: L-BFGS comes within √ε of y*, relative to its size, and Newton's method does the rest. Where
    ∇²yy g = λI one step is all.
    """
    if problem.hessian == "unneeded" and problem.bounds.y is not None:
        return solve_inside(problem, x, start, i, indices)
    if problem.hessian == "known":
        return start - oracle.lower_gradient(problem, x, start, i, indices) / problem.strong_convexity, jnp.int32(1)
    precision = problem.strong_convexity * float(jnp.finfo(start.dtype).eps) ** 0.5
    close_enough = lambda y: precision * (1 + jnp.linalg.norm(y))
    y, gradients = minimise(lambda y: oracle.lower_loss(problem, x, y, i, indices), start, close_enough)
    y, more = refine(problem, x, y, i, indices)
    return y, gradients + more


def solver(problem: Problem, x: X, starts: Float[Array, "m dy"]) -> Solver:
    """Exact values for any loss, from all samples."""
    product = lambda y, i: oracle.lower_derivatives(problem, x, y, i)[1]
    inverses = {
        "estimated": lambda y, i, v: solve_hessian(lambda h: product(y, i)(h)[1], v),
        "known": lambda y, i, v: v / problem.strong_convexity,
        "unneeded": lambda y, i, v: jnp.zeros_like(v),
    }
    return Solver(solve=lambda i: solve(problem, x, starts[i], i)[0], invert=inverses[problem.hessian])
