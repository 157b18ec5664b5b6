"""check(problem): are the losses what the methods assume? Finite differences, convexity, scales."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bilevax import arguments, metrics, oracle
from bilevax.data import NoData
from bilevax.problem import Problem

STEP = 1e-5  # of a central difference in float64: its error is some 1e-10 of the scale
TOLERANCE = 1e-5  # the largest relative error that counts as agreement


class Finding(NamedTuple):
    """One thing that was looked at: what, whether it is well, and the figures behind it."""

    name: str
    ok: bool
    value: float
    text: str


@dataclass
class Report:
    """The verdict of `bilevax.check`: `ok`, the findings, and the scales seen; prints as text.

    `smoothness` is the largest and `convexity` the smallest eigenvalue of ∇²yy g seen. `scales` are the
    largest norms seen of ∇x f, ∇y f, ∇y g and ∇²xy g on a single sample: what bounds have to be above.
    """

    findings: list[Finding] = field(default_factory=list)
    scales: dict[str, float] = field(default_factory=dict)
    convexity: float = float("nan")
    smoothness: float = float("nan")

    @property
    def ok(self) -> bool:
        """Whether nothing was found wrong."""
        return all(finding.ok for finding in self.findings)

    def __getitem__(self, name: str) -> Finding:
        return next(finding for finding in self.findings if finding.name == name)

    def __str__(self) -> str:
        lines = [f"[{'ok' if f.ok else 'WRONG':>5}] {f.name:<28} {f.text}" for f in self.findings]
        scales = ", ".join(f"{name} {value:.3g}" for name, value in self.scales.items())
        lines.append(f"        largest norms seen           {scales}")
        lines.append(f"        suggested lower_step         at most 1/(3 L_g) = {1 / (3 * self.smoothness):.3g}")
        wrong = sum(not f.ok for f in self.findings)
        lines.append("all is well" if self.ok else f"{wrong} of {len(self.findings)} findings are wrong")
        return "\n".join(lines)

    __repr__ = __str__


def _in_float64(tree: Any) -> Any:
    def cast(leaf: Any) -> Any:
        floating = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        return jnp.asarray(leaf, jnp.float64) if floating else leaf

    return jax.tree.map(cast, tree)


def _relative(one: Array, other: Array) -> float:
    """The distance of two things relative to their size, and to one where they are small."""
    size = max(float(jnp.linalg.norm(one)), float(jnp.linalg.norm(other)), 1e-3)
    return float(jnp.linalg.norm(jnp.atleast_1d(one - other))) / size


def _slope(function: Callable[[Array], Array], at: Array, along: Array) -> Array:
    """The central difference of `function` along a direction."""
    return (function(at + STEP * along) - function(at - STEP * along)) / (2 * STEP)


class _Point(NamedTuple):
    """A place to look at: x, y, a task, and directions in x and y."""

    x: Array
    y: Array
    i: Array
    dx: Array
    dy: Array


def _points(problem: Problem, count: int, seed: int) -> list[_Point]:
    """x0 and y0, then random places around them, each for another task."""
    rng = np.random.default_rng(seed)
    tasks = rng.permutation(problem.num_tasks)
    unit = lambda n: (v := rng.normal(size=n)) / np.linalg.norm(v)
    points = []
    for k in range(count):
        i = tasks[k % len(tasks)]
        spread = 0.0 if k == 0 else 0.5
        x = problem.x0 + spread * rng.normal(size=problem.dim_x)
        y = problem.y0_of(i) + spread * rng.normal(size=problem.dim_y)
        points.append(_Point(x, y, jnp.int32(i), jnp.asarray(unit(problem.dim_x)), jnp.asarray(unit(problem.dim_y))))
    return points


def _derivative_errors(problem: Problem, p: _Point) -> dict[str, Array]:
    """(by autodiff, by finite differences) for every derivative that the methods use, along directions."""
    f = lambda x, y: oracle.upper_loss(problem, x, y, p.i)
    g = lambda x, y: oracle.lower_loss(problem, x, y, p.i)
    gradient = lambda x, y: oracle.lower_gradient(problem, x, y, p.i)
    f_x, f_y = oracle.upper_gradients(problem, p.x, p.y, p.i)
    g_y, second = oracle.lower_derivatives(problem, p.x, p.y, p.i)
    cross, hessian = second(p.dy)
    pairs = {
        "∇x f": (f_x @ p.dx, _slope(lambda x: f(x, p.y), p.x, p.dx)),
        "∇y f": (f_y @ p.dy, _slope(lambda y: f(p.x, y), p.y, p.dy)),
        "∇y g": (g_y @ p.dy, _slope(lambda y: g(p.x, y), p.y, p.dy)),
        "∇²xy g": (cross @ p.dx, _slope(lambda x: gradient(x, p.y) @ p.dy, p.x, p.dx)),
        "∇²yy g": (hessian, _slope(lambda y: gradient(p.x, y), p.y, p.dy)),
    }
    return {name: jnp.asarray(_relative(*pair)) for name, pair in pairs.items()}


def _derivatives(problem: Problem, points: list[_Point]) -> Iterator[Finding]:
    errors = [_derivative_errors(problem, p) for p in points]
    for name in errors[0]:
        worst = max(float(error[name]) for error in errors)
        ok = bool(worst <= TOLERANCE)
        yield Finding(name, ok, worst, f"differs from finite differences by {worst:.1e} (at most {TOLERANCE:.0e})")


def _batch_means(problem: Problem) -> Iterator[Finding]:
    """A loss on a batch must be the mean of the losses on its samples, or no draw is unbiased."""
    for name, loss, data in [
        ("upper", oracle.upper_loss, problem.upper_data),
        ("lower", oracle.lower_loss, problem.lower_data),
    ]:
        if isinstance(data, NoData):
            continue
        size = min(8, int(data.length(jnp.int32(0))))
        on = lambda indices, loss=loss: loss(problem, problem.x0, problem.y0_of(0), jnp.int32(0), indices)
        together = on(jnp.arange(size))
        apart = jnp.mean(jnp.stack([on(jnp.array([k])) for k in range(size)]))
        error = _relative(together, apart)
        text = f"on {size} samples differs from the mean of its samples by {error:.1e}"
        yield Finding(f"{name} is a mean", error <= TOLERANCE, error, text)


def _curvature(problem: Problem, points: list[_Point], report: Report) -> Iterator[Finding]:
    """The eigenvalues of ∇²yy g against λ; all of them for small d', else Rayleigh quotients."""
    eigenvalues = []
    for p in points:
        _, second = oracle.lower_derivatives(problem, p.x, p.y, p.i)
        if problem.dim_y <= 512:
            hessian = jax.vmap(lambda h, second=second: second(h)[1])(jnp.eye(problem.dim_y))
            eigenvalues.append(jnp.linalg.eigvalsh(hessian))
        else:
            eigenvalues.append(jnp.atleast_1d(p.dy @ second(p.dy)[1]))
    seen = jnp.concatenate(eigenvalues)
    report.convexity, report.smoothness = float(seen.min()), float(seen.max())
    lam = float(problem.strong_convexity)
    ok = report.convexity >= lam * (1 - 1e-6)
    text = f"smallest eigenvalue of ∇²yy g seen is {report.convexity:.4g}, strong_convexity is {lam:.4g}"
    yield Finding("strong convexity", ok, report.convexity, text)


def _scales(problem: Problem, points: list[_Point]) -> dict[str, float]:
    """The largest norms on single samples; for ∇²xy g along random directions."""
    largest: dict[str, float] = {}
    for p in points:
        one = lambda data, p=p: None if isinstance(data, NoData) else jnp.array([int(p.i) % int(data.length(p.i))])
        f_x, f_y = oracle.upper_gradients(problem, p.x, p.y, p.i, one(problem.upper_data))
        g_y, second = oracle.lower_derivatives(problem, p.x, p.y, p.i, one(problem.lower_data))
        for name, value in [("∇x f", f_x), ("∇y f", f_y), ("∇y g", g_y), ("∇²xy g", second(p.dy)[0])]:
            largest[name] = max(largest.get(name, 0.0), float(jnp.linalg.norm(value)))
    return largest


def _hypergradient(problem: Problem, points: list[_Point]) -> Finding:
    """∇F by Proposition 1 against finite differences of F, on the tasks that were looked at."""
    p = points[0]
    F = lambda x: metrics.exact(problem, x).objective
    error = _relative(metrics.exact(problem, p.x).gradient @ p.dx, _slope(F, p.x, p.dx))
    ok = bool(error <= 10 * TOLERANCE)
    return Finding("∇F", ok, error, f"by Proposition 1 differs from finite differences of F by {error:.1e}")


def _finite(problem: Problem, points: list[_Point]) -> Finding:
    values = [loss(problem, p.x, p.y, p.i) for p in points for loss in (oracle.upper_loss, oracle.lower_loss)]
    bad = sum(not bool(jnp.isfinite(value)) for value in values)
    return Finding("finite losses", bad == 0, float(bad), f"{bad} of {len(values)} values are NaN or infinite")


@arguments.known_keywords
def check(problem: Problem, *, points: int = 5, seed: int = 0) -> Report:
    """Tell whether the losses are what the methods assume (Assumptions 1 to 4).

    At x0, y0 and random points around them, for several tasks, in float64: every derivative used against
    finite differences, the smallest eigenvalue of ∇²yy g against λ, each loss on a batch against the mean
    over its samples, and the exact hypergradient against finite differences of F (which solves every
    lower problem). Prints as text; `report.ok` is for programs.
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a bilevax.Problem; got {type(problem).__name__}.")
    arguments.count("points", points)
    with jax.enable_x64(True):
        problem = _in_float64(problem)
        places = _points(problem, points, seed)
        report = Report()
        report.findings.append(_finite(problem, places))
        report.findings += _derivatives(problem, places)
        report.findings += _batch_means(problem)
        report.findings += _curvature(problem, places, report)
        report.findings.append(_hypergradient(problem, places))
        report.scales = _scales(problem, places)
    return report
