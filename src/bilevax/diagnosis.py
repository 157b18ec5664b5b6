"""check(problem): are the losses what the methods assume? Finite differences, convexity, scales."""

import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bilevax import arguments, device, draw, identity
from bilevax.algorithms.contract import DESCRIPTIONS
from bilevax.algorithms.frame import rate_at
from bilevax.exact import evaluation, lower
from bilevax.problem import Problem
from bilevax.samples import Data, NoData
from bilevax.scales import measure_scales
from bilevax.schedule import RateRule

STEP = 1e-5  # of a central difference in float64: its error is some 1e-10 of the scale
BATCH = 8  # samples on which a loss is compared with the mean of its samples
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
    largest norms seen of ∇x f, ∇y f, ∇y g and ∇²xy g on a single sample: what bounds have to be above. `rates` are
    those that some algorithms would find and use, in their first step.
    """

    findings: list[Finding] = field(default_factory=list)
    scales: dict[str, float] = field(default_factory=dict)
    convexity: float = float("nan")
    smoothness: float = float("nan")
    find_rates: Callable[[], dict[str, dict[str, float]]] = dict

    @cached_property
    def rates(self) -> dict[str, dict[str, float]]:
        """The rates that some algorithms would find; looked for when they are first asked for."""
        return self.find_rates()

    @property
    def ok(self) -> bool:
        """Whether nothing was found wrong."""
        return all(finding.ok for finding in self.findings)

    def __getitem__(self, name: str) -> Finding:
        by_name = {finding.name: finding for finding in self.findings}
        if name not in by_name:
            raise KeyError(f"there is no finding {name!r}; there are {', '.join(by_name)}")
        return by_name[name]

    def __str__(self) -> str:
        lines = [f"[{'ok' if f.ok else 'WRONG':>5}] {f.name:<28} {f.text}" for f in self.findings]
        scales = ", ".join(f"{name} {value:.3g}" for name, value in self.scales.items())
        lines.append(f"        largest norms seen           {scales}")
        lines.append(f"        eigenvalues of ∇²yy g seen   {self.convexity:.3g} to L_g = {self.smoothness:.3g}")
        for algorithm, rates in self.rates.items():
            listed = ", ".join(f"{name} = {value:.3g}" for name, value in rates.items())
            lines.append(f"        {algorithm + ' would use':<28} {listed}")
        wrong = sum(not f.ok for f in self.findings)
        lines.append("all is well" if self.ok else f"{wrong} of {len(self.findings)} findings are wrong")
        return "\n".join(lines)

    __repr__ = __str__


def _in_float64(tree: Any) -> Any:
    def cast(leaf: Any) -> Any:
        floating = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        return jnp.asarray(leaf, jnp.float64) if floating else leaf

    return jax.tree.map(cast, tree)


def _relative(one: Array, other: Array) -> Array:
    """The distance of two things relative to their size, and to a thousandth where they are smaller."""
    one, other = jnp.atleast_1d(one), jnp.atleast_1d(other)
    size = jnp.maximum(jnp.linalg.norm(one), jnp.linalg.norm(other))
    return jnp.linalg.norm(one - other) / jnp.maximum(size, 1e-3)


def _slope(function: Callable[[Array], Array], at: Array, along: Array) -> Array:
    """The central difference of `function` along a direction."""
    return (function(at + STEP * along) - function(at - STEP * along)) / (2 * STEP)


class _Point(NamedTuple):
    """A place to look at: x, y, a task, and directions in x and y. Several are stacked."""

    x: Array
    y: Array
    i: Array
    dx: Array
    dy: Array


def _points(problem: Problem, count: int, seed: int) -> _Point:
    """x0 and y0, then random places around them, each for another task."""
    rng = np.random.default_rng(seed)
    tasks = np.resize(rng.permutation(problem.num_tasks), count)
    spread = np.where(np.arange(count) == 0, 0.0, 0.5)[:, None]

    def units(n: int) -> Array:
        vectors = rng.normal(size=(count, n))
        return jnp.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))

    x = problem.x0[None, :] + spread * rng.normal(size=(count, problem.dim_x))
    y = jnp.stack([problem.y0_of(i) for i in tasks]) + spread * rng.normal(size=(count, problem.dim_y))
    return _Point(x, y, jnp.asarray(tasks, jnp.int32), units(problem.dim_x), units(problem.dim_y))


def _check_room(problem: Problem, count: int) -> None:
    """Refuse more points than fit in memory: all are looked at together."""
    hessian = problem.dim_y**2 if problem.dim_y <= lower.DENSE_UP_TO else problem.dim_y
    numbers = {"x, y and directions": 2 * (problem.dim_x + problem.dim_y), "∇²yy g": hessian}
    device.require("points", {name: 8 * int(count) * each for name, each in numbers.items()}, "Look at fewer points.")


def _losses(problem: Problem, p: _Point) -> Array:
    return jnp.stack([loss(p.x, p.y, p.i) for loss in (problem.upper_loss, problem.lower_loss)])


def _derivative_errors(problem: Problem, p: _Point) -> dict[str, Array]:
    """Autodiff against finite differences for every derivative that the methods use, along directions."""
    f = lambda x, y: problem.upper_loss(x, y, p.i)
    g = lambda x, y: problem.lower_loss(x, y, p.i)
    gradient = lambda x, y: problem.lower_gradient(x, y, p.i)
    f_x, f_y = problem.upper_gradients(p.x, p.y, p.i)
    g_y, second = problem.lower_derivatives(p.x, p.y, p.i)
    cross, hessian = second(p.dy)
    return {
        "∇x f": _relative(f_x @ p.dx, _slope(lambda x: f(x, p.y), p.x, p.dx)),
        "∇y f": _relative(f_y @ p.dy, _slope(lambda y: f(p.x, y), p.y, p.dy)),
        "∇y g": _relative(g_y @ p.dy, _slope(lambda y: g(p.x, y), p.y, p.dy)),
        "∇²xy g": _relative(cross @ p.dx, _slope(lambda x: gradient(x, p.y) @ p.dy, p.x, p.dx)),
        "∇²yy g": _relative(hessian, _slope(lambda y: gradient(p.x, y), p.y, p.dy)),
    }


def _power_iteration(product: Callable[[Array], Array], start: Array, steps: int = 300) -> Array:
    """The eigenvalue of largest size, from products alone."""
    following = lambda _, v: (w := product(v)) / jnp.maximum(jnp.linalg.norm(w), jnp.finfo(w.dtype).tiny)
    v = jax.lax.fori_loop(0, steps, following, start)
    return v @ product(v)


def _eigenvalues(problem: Problem, p: _Point) -> Array:
    """Eigenvalues of ∇²yy g: all of them for small d', else the outermost two by power iteration."""
    _, second = problem.lower_derivatives(p.x, p.y, p.i)
    if problem.dim_y <= lower.DENSE_UP_TO:
        return jnp.linalg.eigvalsh(jax.vmap(lambda h: second(h)[1])(jnp.eye(problem.dim_y)))
    largest = _power_iteration(lambda h: second(h)[1], p.dy)
    other_end = _power_iteration(lambda h: second(h)[1] - largest * h, p.dy)
    return jnp.stack([largest, largest + other_end])


def _scales(problem: Problem, p: _Point) -> dict[str, Array]:
    """Norms on a single sample; for ∇²xy g along a random direction."""
    one = lambda data: None if isinstance(data, NoData) else p.i[None] % data.length(p.i)
    f_x, f_y = problem.upper_gradients(p.x, p.y, p.i, one(problem.upper_data))
    g_y, second = problem.lower_derivatives(p.x, p.y, p.i, one(problem.lower_data))
    named = {"∇x f": f_x, "∇y f": f_y, "∇y g": g_y, "∇²xy g": second(p.dy)[0]}
    return {name: jnp.linalg.norm(value) for name, value in named.items()}


def _mean_error(problem: Problem, loss: Callable[..., Array], data: Data, p: _Point) -> Array:
    """A loss on a batch against the mean of the losses on its samples."""
    on = lambda indices: loss(problem, p.x, p.y, p.i, indices)
    indices = jnp.arange(BATCH, dtype=jnp.int32) % data.length(p.i)
    return _relative(on(indices), jnp.mean(jax.vmap(on)(indices[:, None])))


def _hypergradient_error(problem: Problem, p: _Point) -> Array:
    """∇F by Proposition 1 against finite differences of F."""
    F = lambda x: evaluation.exact(problem, x).objective
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", evaluation.InexactWarning)  # what is wrong is told by the finding
        return _relative(evaluation.exact(problem, p.x).gradient @ p.dx, _slope(F, p.x, p.dx))


def _at_all(look: Callable[..., Any], problem: Problem, points: _Point) -> Any:
    return jax.jit(jax.vmap(look, in_axes=(None, 0)))(problem, points)


def _findings(problem: Problem, points: _Point, report: Report) -> Iterator[Finding]:
    losses = _at_all(_losses, problem, points)
    bad = int(jnp.sum(~jnp.isfinite(losses)))
    yield Finding("finite losses", bad == 0, float(bad), f"{bad} of {losses.size} values are NaN or infinite")
    for name, errors in _at_all(_derivative_errors, problem, points).items():
        worst = float(jnp.max(errors))
        text = f"differs from finite differences by {worst:.1e} (at most {TOLERANCE:.0e})"
        yield Finding(name, worst <= TOLERANCE, worst, text)
    for name, loss, data in [
        ("upper", Problem.upper_loss, problem.upper_data),
        ("lower", Problem.lower_loss, problem.lower_data),
    ]:
        if not isinstance(data, NoData):
            mean_error = lambda problem, p, loss=loss, data=data: _mean_error(problem, loss, data, p)
            error = float(jnp.max(_at_all(mean_error, problem, points)))
            text = f"on {BATCH} samples differs from the mean of its samples by {error:.1e}"
            yield Finding(f"{name} is a mean", error <= TOLERANCE, error, text)
    eigenvalues, lam = _at_all(_eigenvalues, problem, points), float(problem.strong_convexity)
    report.convexity, report.smoothness = float(eigenvalues.min()), float(eigenvalues.max())
    text = f"smallest eigenvalue of ∇²yy g seen is {report.convexity:.4g}, strong_convexity is {lam:.4g}"
    yield Finding("strong convexity", report.convexity >= lam * (1 - 1e-6), report.convexity, text)
    error = float(_hypergradient_error(problem, jax.tree.map(lambda leaf: leaf[0], points)))
    text = f"by Proposition 1 differs from finite differences of F by {error:.1e}"
    yield Finding("∇F", error <= 10 * TOLERANCE, error, text)


def _rates(problem: Problem, seed: int) -> dict[str, dict[str, float]]:
    """The rates that some algorithms would find, in their first step, in the precision of the problem."""
    find = jax.jit(measure_scales, static_argnums=(2, 3))
    few = min(draw.FEW_TASKS, problem.num_tasks) / problem.num_tasks
    found = {}
    for name, share in {"soba": 1.0, "rsvrb": few, "block_soba": few}.items():
        defaults = inspect.signature(DESCRIPTIONS[name].factory).parameters
        scales = find(problem, jax.random.key(seed), defaults["batch_size"].default, 1.0)[0]._replace(share=share)
        rates = {rate: own.default for rate, own in defaults.items() if isinstance(own.default, RateRule)}
        found[name] = {rate: float(rate_at(float, scales, 1, rule)) for rate, rule in rates.items()}
    return found


@arguments.known_keywords
def check(problem: Problem, *, points: int = 5, seed: int = 0) -> Report:
    """Tell whether the losses are what the methods assume (Assumptions 1 to 4).

    At x0, y0 and random points around them, for several tasks, in float64: every derivative used against
    finite differences, the smallest eigenvalue of ∇²yy g against λ, each loss on a batch against the mean
    over its samples, and the exact hypergradient against finite differences of F (which solves every
    lower problem). It also tells the rates that some algorithms would find and use. Prints as text; `report.ok` is for
    programs.
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a bilevax.Problem; got {type(problem).__name__}.")
    arguments.count("points", points)
    arguments.count("seed", seed, least=0)
    _check_room(problem, points)
    identity.check_losses(problem)
    report = Report(find_rates=partial(_rates, problem, seed))
    with jax.enable_x64(True):
        problem = _in_float64(problem)
        places = _points(problem, points, seed)
        report.findings += _findings(problem, places, report)
        report.scales = {name: float(norms.max()) for name, norms in _at_all(_scales, problem, places).items()}
    return report
