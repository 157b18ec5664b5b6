"""Exact F and ∇F, with every lower problem solved to high accuracy, and how far from the truth they are.

The last Newton step δ = −[∇²yy g]⁻¹∇y g says what y lacks to y*: the error of f is ∇y f·δ, and that of
∇x f − ∇²xy g·h, with h = [∇²yy g]⁻¹∇y f, is its derivative along (δ, δh), both to first order. Where they are larger
than `TOLERANCE`, the values are computed once more, without short cuts and in float64; where that does not help, a
warning tells their error.
"""

import warnings
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from bilevax import arguments, chunks, identity
from bilevax.aside import WholeLoss, bring_back, set_aside
from bilevax.data import shared
from bilevax.exact import linear_lower, lower
from bilevax.problem import Problem, X, Y
from bilevax.samples import NoData
from bilevax.shards import COMMON, ROWS, spread

TOLERANCE = {"float32": 1e-3, "float64": 1e-6}  # errors of F and ∇F, relative to their terms, that count as none
ROUNDING = 1e3  # times ε: what y may lack, relative to its size, to be as exact as it can be


class InexactWarning(UserWarning):
    """Values that are called exact are not: a lower problem could not be solved to high accuracy."""


class Exact(NamedTuple):
    """F(x), ∇F(x) and all y_i*(x), from every sample; and how far from the truth they are.

    - `residual`: the largest ‖∇y g_i‖ left; ‖y_i − y_i*‖ is at most `residual`/λ. For a y that a set holds, that of the
      projected gradient.
    - `objective_error`, `gradient_error`: of F and, in length, of ∇F, as one more Newton step shows them.
    - `accurate`: whether both are small enough to be called exact.
    """

    objective: Float[Array, ""]
    gradient: PyTree
    y: PyTree
    residual: Float[Array, ""]
    objective_error: Float[Array, ""]
    gradient_error: Float[Array, ""]
    accurate: Bool[Array, ""]


class _Term(NamedTuple):
    """What a task adds to F or to ∇F: a value, its error, and the size of what it is made of."""

    value: Array
    error: Array
    size: Float[Array, ""]


def _objective_of(problem: Problem, x: X, y: Y, delta: Y, i: Any) -> _Term:
    """f_i at y, which lacks δ to y_i*."""
    value, (_, f_y) = problem.upper_loss(x, y, i), problem.upper_gradients(x, y, i)
    return _Term(value, f_y @ delta, jnp.abs(value) + jnp.linalg.norm(f_y) * jnp.linalg.norm(y))


def _gradient_of(problem: Problem, x: X, y: Y, delta: Y, i: Any, invert: lower.Inverse) -> _Term:
    """∇x f − ∇²xy g [∇²yy g]⁻¹ ∇y f at y, which lacks δ to y_i* (Proposition 1)."""
    products = lambda y, h: problem.lower_derivatives(x, y, i)[1](h)

    def correct(h: Y, missing: Array) -> tuple[Y, tuple[Y, Array]]:
        """What h lacks at y, and where `missing` is one instead of zero also because y lacks δ."""
        unsolved = lambda y: problem.upper_gradients(x, y, i)[1] - products(y, h)[1]
        left, change = jax.jvp(unsolved, (y,), (jnp.where(jnp.isfinite(delta), delta, 0),))
        more, found = invert(left + missing * change)
        return h + more, (more, found)

    # A loop of two rounds, so that a solve with ∇²yy g is compiled once: the first gives h, the second what it lacks.
    _, ((h, more), found) = jax.lax.scan(correct, jnp.zeros_like(y), jnp.arange(2, dtype=y.dtype))
    hypergradient = lambda y, h: problem.upper_gradients(x, y, i)[0] - products(y, h)[0]
    z, error = jax.jvp(hypergradient, (y, h), (delta, more))
    f_x = problem.upper_gradients(x, y, i)[0]
    size = jnp.linalg.norm(f_x) + jnp.linalg.norm(z - f_x)
    return _Term(z, jnp.where(found.all(), error, jnp.inf), size)


@partial(jax.jit, static_argnames=("gradient", "short_cut"))
def _evaluate(
    problem: Problem, x: X, start: Float[Array, "n dy"] | None, some: Int[Array, " k"] | None, *, gradient: bool,
    short_cut: bool,
) -> Exact:  # fmt: skip
    """Exact values from all samples, without ∇F in less time; with `short_cut` linear models share a factorisation.

    With `some` the means are those over the tasks of these numbers, start and y are theirs, and their spread counts as
    an error; on shards these are numbers within each of them.
    """
    found = Exact(COMMON, COMMON, ROWS, *[COMMON] * 4)
    values = partial(_values_of_shard, gradient=gradient, short_cut=short_cut)
    return spread(values, (COMMON, ROWS, COMMON), found)(problem, x, start, some)


def _values_of_shard(
    problem: Problem, x: X, start: Float[Array, "n dy"] | None, some: Int[Array, " k"] | None, *, gradient: bool,
    short_cut: bool,
) -> Exact:  # fmt: skip
    shards, tasks = problem.shards, jnp.arange(problem.num_tasks) if some is None else some
    starts = jax.vmap(problem.y0_of)(tasks) if start is None else start
    solver = linear_lower.solver(problem, x, starts) if short_cut else lower.solver(problem, x)

    def one(k: Array) -> tuple[list[_Term], tuple[Y, Array, Array, Array]]:
        i = tasks[k]
        y, delta = solver.solve(i, starts[k])
        terms = [_objective_of(problem, x, y, delta, i)]
        if gradient:
            terms.append(_gradient_of(problem, x, y, delta, i, solver.inverse(y, i)))
        held = not problem.structure.needs_hessian
        left = problem.strong_convexity * delta if held else problem.lower_gradient(x, y, i)
        rounding = jnp.linalg.norm(delta) <= ROUNDING * float(jnp.finfo(y.dtype).eps) * jnp.linalg.norm(y)
        return terms, (y, jnp.linalg.norm(left), rounding, terms[0].value)

    work, count = max(problem.work, min(problem.dim_y, lower.DENSE_UP_TO) ** 2), problem.num_tasks
    means, (y, residuals, rounding, values) = chunks.mean_and_all(one, len(tasks), work)
    means, is_rounding = shards.mean(means), shards.total((~rounding).sum()) == 0
    errors = [jnp.linalg.norm(jnp.atleast_1d(mean.error)) for mean in means]
    tolerance = TOLERANCE[problem.dtype.name]
    small = [error <= tolerance * mean.size for error, mean in zip(errors, means, strict=True)]
    # Where every y_i lacks no more than rounding, an error of ∇F that is large next to ∇F says that ∇F has vanished.
    small[1:] = [near | (is_rounding & jnp.isfinite(error)) for near, error in zip(small[1:], errors[1:], strict=True)]
    both = lambda pair: pair if gradient else [*pair, None]
    (F, slope), (F_error, slope_error) = both([mean.value for mean in means]), both(errors)
    if some is not None:
        looked_at = shards.count * len(some)
        variance = shards.mean(jnp.mean((values - F) ** 2)) / (looked_at - 1)
        F_error = jnp.hypot(F_error, jnp.sqrt(variance * (1 - len(some) / count)))
    residual = shards.largest(jnp.max(residuals))
    return Exact(F, slope, y, residual, F_error, slope_error, jnp.all(jnp.stack(small)))


def _again_in_float64(problem: Problem, x: X, start: Any, some: Any, gradient: bool) -> Exact:
    """The same from the same numbers in float64, rounded once it is known."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):  # losses may hold float32 numbers of their own
        wider = lambda leaf: leaf.astype(float) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
        found = _evaluate(*jax.tree.map(wider, (problem, x, start)), some, gradient=gradient, short_cut=False)
        return jax.tree.map(lambda leaf: leaf.astype(x.dtype) if leaf.dtype == float else leaf, found)


def _evaluate_exactly(problem: Problem, x: X, start: Any, some: Any, gradient: bool) -> Exact:
    """Exact values; where they are not, once more with more effort, else with a warning. Inside `jit` as they are."""
    short_cut = some is None and linear_lower.serves(problem)
    found = _evaluate(problem, x, start, some, gradient=gradient, short_cut=short_cut)
    if not all(map(arguments.is_concrete, jax.tree.leaves((problem, x, start, found)))):
        return found
    if short_cut and not found.accurate:
        found = _evaluate(problem, x, found.y, some, gradient=gradient, short_cut=False)
    if problem.dtype == jnp.float32 and not found.accurate:
        found = _again_in_float64(problem, x, start, some, gradient)
    if not found.accurate:
        warnings.warn(
            f"exact values of {problem!r} are not exact at this x: ‖∇y g‖ is {float(found.residual):.0e} where the "
            f"solver of the lower problems ended, F = {float(found.objective):.6g} has an error of about "
            f"{float(found.objective_error):.0e}. bilevax.check(problem) tells whether the lower problems are strongly "
            "convex; scale the features, raise strong_convexity, or compute in float64.",
            InexactWarning, stacklevel=4,
        )  # fmt: skip
    return found


def exact(
    problem: Problem, x: X, start: Float[Array, "n dy"] | None = None, some: Int[Array, " k"] | None = None
) -> Exact:
    """F(x), ∇F(x) and y*(x), x and y flat; `start` is where the lower solver begins, a good guess saves time.

    With `some` numbers of tasks F and ∇F are means over these, start and y are theirs, and `objective_error` holds the
    standard error of F.
    """
    return _evaluate_exactly(problem, x, start, some, gradient=True)


def objective(problem: Problem, x: X, start: Float[Array, "m dy"] | None = None) -> Float[Array, ""]:
    """F(x) alone, in less time."""
    return _evaluate_exactly(problem, x, start, None, gradient=False).objective


def _flat(problem: Problem, x: PyTree) -> X:
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a bilevax.Problem; got {type(problem).__name__}.")
    shapes = lambda tree: jax.tree.map(jnp.shape, tree)
    x, _ = set_aside(x)
    wanted, given = shapes(problem.unravel_x(problem.x0)), shapes(x)
    if wanted != given:
        raise ValueError(f"x must be a pytree like the x0 that the problem was made with, {wanted}; got {given}.")
    identity.check_losses(problem)
    return jax.flatten_util.ravel_pytree(x)[0].astype(problem.dtype)


def exact_values(problem: Problem, x: PyTree) -> Exact:
    """F(x), ∇F(x) and all y_i*(x), with every lower problem solved, and how far from the truth they are.

        F(x) = (1/m) Σ_i f_i(x, y_i*(x)),    ∇F(x) = (1/m) Σ_i ∇x f_i − ∇²xy g_i [∇²yy g_i]⁻¹ ∇y f_i

    `gradient` is a pytree like the variables of x, `y` like that of a `Result`. A float32 problem that asks for it is
    solved in float64.
    Values that are not accurate to about 1e-6 (1e-3 in float32) all the same come with an `InexactWarning`.

    >>> values = bx.exact_values(problem, result.x)
    >>> values.objective, values.objective_error, values.residual
    """
    found = exact(problem, _flat(problem, x))
    return found._replace(gradient=problem.unravel_x(found.gradient), y=problem.give_back_y(found.y))


def exact_objective(problem: Problem, x: PyTree) -> Float[Array, ""]:
    """F(x) = (1/m) Σ_i f_i(x, y_i*(x)), every lower problem solved, every sample used; see `exact_values`."""
    return objective(problem, _flat(problem, x))


def exact_gradient(problem: Problem, x: PyTree) -> PyTree:
    """∇F(x) = (1/m) Σ_i ∇x f_i − ∇²xy g_i [∇²yy g_i]⁻¹ ∇y f_i, as a pytree like x; see `exact_values`."""
    return exact_values(problem, x).gradient


@arguments.known_keywords
def lower_solution(problem: Problem, x: PyTree, *, task: PyTree | int | None = None, data: PyTree = None) -> PyTree:
    """y*(x) = argmin_y g(x, y) for one task, also for a new one: how a model that was trained on many adapts to it.

    - `x`: for example `result.x`.
    - `task`: the number of a task of the problem; or what the losses are to be told of a new one, a pytree like one
      slice of `Problem(tasks=...)`. Where tasks are mere numbers it can be left out for a new one.
    - `data`: samples of a new task, a pytree like `lower_data` with leaves (n, ...). By default the task's own.

    >>> y = bx.lower_solution(problem, result.x, data={"A": A_new, "b": b_new})
    """
    point, one = _flat(problem, x), problem
    is_number = isinstance(task, (int, np.integer)) and not isinstance(task, bool)
    if data is None and not is_number:
        raise TypeError(f"lower_solution needs data= of a new task, or task= the number of one; got task={task!r}.")
    if is_number and (data is None or problem.tasks is not None):
        arguments.number("task", task, f"a task, 0 to {problem.num_tasks - 1}", lambda v: 0 <= v < problem.num_tasks)
    i = jnp.int32(task if is_number else 0)
    if task is not None and not is_number:
        given, own = (jax.tree.map(jnp.shape, tree) for tree in (task, problem.task(0)))
        if problem.tasks is None or given != own:
            right = "a number" if problem.tasks is None else f"like a slice of the problem's tasks, {own}"
            raise ValueError(f"task must be {right}; got {given}.")
        arguments.finite_leaves("task", task)
        one = one.replace(tasks=jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], task))
    elif data is not None and problem.tasks is not None and task is None:
        raise TypeError("lower_solution needs task= too: the losses of this problem are told something of each task.")
    if data is not None:
        one = one.replace(lower_data=_samples_like(problem, data))
    solution = _solve_one(one, point, problem.y0_of(i), i)
    return bring_back(problem.unravel_y(solution), problem.upper.y if isinstance(problem.upper, WholeLoss) else None)


def _samples_like(problem: Problem, data: PyTree) -> Any:
    """Samples of one task, if they are like those of the problem."""
    if isinstance(problem.lower_data, NoData):
        raise TypeError("data must be left out: the lower losses of this problem take none.")
    kinds = lambda tree: jax.tree.map(lambda leaf: jnp.shape(leaf)[1:], tree)
    batch = jax.eval_shape(lambda: problem.lower_data.take(jnp.int32(0), jnp.zeros(2, jnp.int32)))
    given, right = kinds(data), kinds(batch)
    if given != right:
        raise ValueError(f"data must be like lower_data, one row for each sample, of shapes {right}; got {given}.")
    arguments.finite_leaves("data", data)
    if arguments.leading_axis("data", data) == 0:
        raise ValueError("data must hold at least one sample; its arrays have length 0.")
    return shared(jax.tree.map(lambda leaf, like: jnp.asarray(leaf, like.dtype), data, batch))


@jax.jit
def _solve_one(problem: Problem, x: X, start: Y, i: Any) -> Y:
    """y_i*(x), to rounding."""
    return lower.solve_lower(problem, x, start, i)[0]
