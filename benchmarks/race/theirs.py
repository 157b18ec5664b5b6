"""What people use today, on a `bilevax.Problem`: solvers of an installed benchmark_bilevel, and full-batch loops.

Solvers get both losses as they want them: functions of (inner, outer, start, batch_size), of a contiguous block of
rows. Several lower problems are one with all of their variables; the inner loss is the sum over them. Where samples
have weights of their own in x ("row" in the data) a block reads those of its rows, in one piece as well.
"""

import contextlib
import importlib
import sys
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax

METHODS = ("soba", "saba", "srba", "ttsa", "stocbio", "sustain", "mrbo", "amigo", "fsla")
CHUNK = 128  # steps of theirs between two looks at the clock
MOST_TABLE = 2**30  # bytes of a table of past directions
INNER_STEPS = 200  # at most, of L-BFGS on the lower problems


def block_losses(problem):
    """Both losses as functions of (inner, outer, start, batch_size), and their numbers of rows."""
    m, shape = problem.num_tasks, (problem.num_tasks, problem.dim_y)

    def of(loss, data, total):
        def on_block(inner, outer, start=0, batch_size=1):
            cut = lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, batch_size)
            batch, x = jax.tree.map(cut, data.arrays), outer
            if isinstance(batch, dict) and "row" in batch:
                batch, x = {**batch, "row": jnp.arange(batch_size)}, cut(outer)
            one = lambda i, y: loss(x, problem.unravel_y(y), problem.task(i), batch)
            values = jax.vmap(one)(jnp.arange(m), inner.reshape(shape))
            return values.sum() if total else values.mean()

        return on_block, data.max_length

    return of(problem.lower, problem.lower_data, True), of(problem.upper, problem.upper_data, False)


@contextlib.contextmanager
def installed(path):
    """Within it, modules of their checkout can be imported; a stand-in takes the place of benchopt's own classes."""

    class BaseSolver:
        """What their solvers need of benchopt: parameters as attributes, and a few steps to compile."""

        def run_once(self, count):
            left = iter(range(count))
            self.run(lambda: next(left, None) is not None)

    stand_in = types.ModuleType("benchopt")
    stand_in.BaseSolver, stand_in.safe_import_context = BaseSolver, contextlib.nullcontext
    criterion = types.ModuleType("benchopt.stopping_criterion")
    criterion.SufficientProgressCriterion = lambda **given: None
    kept = dict(sys.modules)
    sys.modules |= {"benchopt": stand_in, "benchopt.stopping_criterion": criterion}
    sys.path.insert(0, str(path))
    try:
        yield
    finally:
        sys.path.remove(str(path))
        for name in [name for name in sys.modules if name.startswith(("benchopt", "solvers", "benchmark_utils"))]:
            del sys.modules[name]
        sys.modules |= {name: kept[name] for name in kept if name.startswith("benchopt")}


class Solver:
    """One of their solvers on a problem; compiled once, whatever its steps are."""

    def __init__(self, problem, name, batch_size):
        made = importlib.import_module(f"solvers.{name}").Solver()
        for parameter, values in made.parameters.items():
            setattr(made, parameter, values[0])
        made.batch_size, made.eval_freq, made.random_state = batch_size, CHUNK, 1
        (inner, n), (outer, k) = block_losses(problem)
        if name == "saba" and 4 * n / batch_size * (2 * problem.num_tasks * problem.dim_y + problem.dim_x) > MOST_TABLE:
            raise MemoryError("its table of past directions does not fit")
        made.set_objective(inner, outer, n, k, first_y(problem).reshape(-1), problem.x0)
        self.made = made

    def run(self, steps, seconds, look):
        """Run with steps (inner, outer) for so many seconds; `look(seconds, steps, x, y)` does not count."""
        self.made.step_size, self.made.outer_ratio = steps[0], steps[0] / steps[1]
        state = types.SimpleNamespace(spent=0.0, chunks=-1, begun=time.perf_counter())

        def goes_on():
            jax.block_until_ready((self.made.inner_var, self.made.outer_var))
            if state.chunks >= 0:
                state.spent += time.perf_counter() - state.begun
            state.chunks += 1
            finite = bool(jnp.isfinite(self.made.outer_var).all())
            if finite:
                look(state.spent, state.chunks * CHUNK, self.made.outer_var, self.made.inner_var)
            state.begun = time.perf_counter()
            return finite and state.spent < seconds

        self.made.run(goes_on)
        return state.spent, state.chunks * CHUNK


def implicit_gradient(problem):
    """F and ∇F on all samples by optimistix: BFGS on every lower problem, differentiated implicitly."""
    import optimistix

    solver = optimistix.BFGS(rtol=1e-6, atol=1e-6)

    @jax.jit
    def value_and_gradient(x, y):
        def objective(x):
            def one(i, y):
                found = optimistix.minimise(
                    lambda y, x: problem.lower_loss(x, y, i), solver, y, args=x, max_steps=INNER_STEPS, throw=False
                )
                return problem.upper_loss(x, found.value, i), found.value

            values, solutions = jax.vmap(one)(jnp.arange(problem.num_tasks), y)
            return values.mean(), solutions

        return jax.value_and_grad(objective, has_aux=True)(x)

    return value_and_gradient


def by_adam(problem, evaluate, step, seconds, look):
    """The loop that people write: y warm-started, ∇F by implicit differentiation, Adam on x."""
    optimizer = optax.adam(step)

    @jax.jit
    def move(x, state, gradient):
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(gradient, state, x)
            return optax.apply_updates(x, updates), state

    x, y, state = problem.x0, first_y(problem), optimizer.init(problem.x0)
    jax.block_until_ready(move(x, state, evaluate(x, y)[1]))  # compiled
    spent, count = 0.0, 0
    while spent < seconds and bool(jnp.isfinite(x).all()):
        look(spent, count, x, y)
        begun = time.perf_counter()
        (_, y), gradient = evaluate(x, y)
        x, state = jax.block_until_ready(move(x, state, gradient))
        spent, count = spent + time.perf_counter() - begun, count + 1


def by_lbfgs(problem, evaluate, step, seconds, look):
    """The same with scipy's L-BFGS on x, which needs no step; F in units of its steepest slope."""
    import scipy.optimize

    y, spent, count = first_y(problem), 0.0, 0
    unit = float(jnp.max(jnp.abs(evaluate(problem.x0, y)[1]))) or 1.0

    def value_and_gradient(x):
        nonlocal y, spent, count
        if spent > seconds:
            raise StopIteration
        begun, x = time.perf_counter(), jnp.asarray(x, problem.dtype)
        (value, after), gradient = jax.block_until_ready(evaluate(x, y))
        spent, count, y = spent + time.perf_counter() - begun, count + 1, after
        look(spent, count, x, y)
        return float(value) / unit, np.asarray(gradient, float) / unit

    endless = {"ftol": 0.0, "gtol": 0.0, "maxiter": 10**6, "maxfun": 10**6}
    with contextlib.suppress(StopIteration):
        scipy.optimize.minimize(
            value_and_gradient, np.asarray(problem.x0, float), jac=True, method="L-BFGS-B", options=endless
        )


def first_y(problem):
    """y_0 of all lower problems."""
    return jnp.broadcast_to(problem.y0, (problem.num_tasks, problem.dim_y))


LOOPS = {"implicit differentiation, Adam": by_adam, "implicit differentiation, L-BFGS": by_lbfgs}


class Looks:
    """x and y at growing times, to be judged after the clock has stopped."""

    def __init__(self):
        self.rows, self.next = [], 0.0

    def __call__(self, seconds, steps, x, y):
        if seconds >= self.next:
            self.rows.append((seconds, np.asarray(x), np.asarray(y)))
            self.next = max(1.04 * seconds, seconds + 1e-3)

    def curve(self, problem, objective):
        """F over seconds."""
        shape = (problem.num_tasks, problem.dim_y)
        judge = lambda x, y: float(objective(problem, jnp.asarray(x), jnp.asarray(y).reshape(shape)))
        kept = [(seconds, judge(x, y)) for seconds, x, y in self.rows]
        return {name: [row[k] for row in kept] for k, name in enumerate(("seconds", "objective"))}


def step_microseconds(solver, steps, seconds=0.3):
    """The median of their chunks."""
    stamps = []
    solver.run(steps, seconds, lambda seconds, count, x, y: stamps.append(seconds))
    return float(np.median(np.diff(stamps))) / CHUNK * 1e6
