"""The problem: min over x of (1/m) Σ_i f_i(x, y_i*(x)), y_i*(x) = argmin_y g_i(x, y)."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from bilevax import arguments, identity, structure
from bilevax.aside import WholeLoss, bring_back, set_aside
from bilevax.bounds import Bounds, as_bounds
from bilevax.samples import KINDS, MAKERS, Data, Fetched, NoData, Sampler, Samples, Shared, UnevenBlock
from bilevax.shards import ALONE, Alone, Shards
from bilevax.structure import Loss, Structure

X = Float[Array, " d"]
Y = Float[Array, " dy"]
SecondOrder = Callable[[Y], tuple[X, Y]]


def _floating(name: str, tree: PyTree) -> PyTree:
    """The tree, once each leaf is known to be finite and of a real floating type."""
    if not jax.tree.leaves(tree):
        raise ValueError(f"{name} must hold at least one array; got {tree!r}.")
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        dtype = np.asarray(leaf).dtype if arguments.is_concrete(leaf) else leaf.dtype
        if dtype not in (np.float32, np.float64):
            where = name + jax.tree_util.keystr(path)
            raise TypeError(
                f"{where} must be of a floating type, float32 or float64, it is a variable to optimise; got {dtype}. "
                f"Write for example jnp.asarray({name}, float)."
            )
    arguments.finite_leaves(name, tree)
    return tree


def _data(name: str, data: Any) -> Data:
    if data is None:
        return NoData()
    if not isinstance(data, KINDS):
        raise TypeError(f"{name} must come from {MAKERS}, or be None; got {type(data).__name__}.")
    return data


def _refuse_twins(upper: Data, lower: Data) -> None:
    """Refuse samples that are made, and are the same for both losses."""
    made = [(data.made_by.program, data.seed) for data in (upper, lower) if isinstance(data, Sampler)]
    if len(made) == 2 and made[0] == made[1]:
        raise ValueError(
            f"upper_data and lower_data make the same samples, with seed {made[0][1]}: give one of them another seed=, "
            "or F would be judged by what y was fitted to."
        )


def _count_tasks(tasks: Any, data: dict[str, Data]) -> int:
    """The number of tasks that all arguments agree on."""
    counts = {name: held.num_tasks for name, held in data.items() if held.num_tasks is not None}
    if isinstance(tasks, (int, np.integer)):
        arguments.count("tasks", tasks)
        counts["tasks"] = int(tasks)
    elif isinstance(tasks, (float, str, bool)):
        raise TypeError(f"tasks must be a whole number, or a pytree of arrays with a leading axis m; got {tasks!r}.")
    elif tasks is not None:
        counts["tasks"] = arguments.leading_axis("tasks", tasks)
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} has {number}" for name, number in counts.items())
        raise ValueError(f"the arguments must agree on the number of tasks; {listed}.")
    if 0 in counts.values():
        raise ValueError("tasks must hold at least one task; its leading axis has length 0.")
    return next(iter(counts.values()), 1)


def _first_batch(data: Data) -> PyTree:
    return data.take(jnp.int32(0), jnp.zeros(2, jnp.int32))


class Problem:
    """A bilevel problem with m ≥ 1 lower problems, from samples.

        min_x F(x) = (1/m) Σ_i f_i(x, y_i*(x)),    y_i*(x) = argmin_y g_i(x, y)

    - `upper`: f(x, y_i, task_i, batch) -> scalar, the mean loss over the batch.
    - `lower`: g(x, y_i, task_i, batch) -> scalar, the mean over the batch, strongly convex in y_i.
    - `x0`: a pytree of floats; `y0`: the same for one task, or with a leading axis m (`y0_per_task` says
      which, where the losses would take both). Both may be modules of Equinox or states of Flax: what is no floating
      array in them is kept aside, and is there again in the losses and in `Result.x` and `y`.
    - `tasks`: a pytree with leading axis m whose i-th slice is handed to the losses as task_i, or the
      number m: task_i is then the index i. Without it the data say how many tasks there are, else one.
      A loss with a method `check(problem)` is shown the finished problem, and may refuse it.
    - `upper_data`, `lower_data`: from `bilevax.shared`, `per_task`, `ragged`, `sampler`; `None` hands on `None`.
    - `strong_convexity`: λ, with ∇²yy g_i ⪰ λI (Assumption 1).
    - `ridge`: True where g_i is λ/2 ‖y‖² with this very λ plus something convex in y. That part of ∇²yy g_i is
      then known: matrices that are estimated leave it apart, so that it neither fades nor needs a floor.
    - `bounds`: the sets of the paper's projections.

    `structure` is what the problem knows about itself: what of ∇²yy g_i has to be estimated, whether f depends on x.

    A Problem is a pytree: its arrays are traced, its functions are static. Compiled programs are shared by problems
    whose losses trace to the same programs (`programs`), not only by those with the same functions: a function may read
    what has changed. Inside the library x and y are flat vectors; `unravel_x` and `unravel_y` give the user's pytrees
    back. Losses and derivatives at a point take flat x and y, a task i and samples of that task (`None`: all of them).
    """

    upper: Loss
    lower: Loss
    x0: Float[Array, " d"]
    y0: Float[Array, "m dy"] | Float[Array, " dy"]
    tasks: PyTree
    num_tasks: int
    programs: tuple[str, str]
    _identity: dict[str, str]
    upper_data: Data
    lower_data: Data
    strong_convexity: float
    structure: Structure
    bounds: Bounds
    unravel_x: Callable[[Array], PyTree]
    unravel_y: Callable[[Array], PyTree]
    shards: Alone | Shards

    _LEAVES = ("x0", "y0", "tasks", "upper_data", "lower_data", "strong_convexity", "bounds")
    _STATIC = ("upper", "lower", "programs", "num_tasks", "structure", "unravel_x", "unravel_y", "shards")

    @arguments.known_keywords
    def __init__(
        self,
        *,
        upper: Loss,
        lower: Loss,
        x0: PyTree,
        y0: PyTree,
        y0_per_task: bool | None = None,
        tasks: PyTree | int | None = None,
        upper_data: Data | None = None,
        lower_data: Data | None = None,
        strong_convexity: float,
        ridge: bool = False,
        bounds: Bounds | None = None,
    ):
        for name, loss in [("upper", upper), ("lower", lower)]:
            if not callable(loss):
                raise TypeError(f"{name} must be a function of (x, y, task, batch); got {loss!r}.")
        arguments.positive("strong_convexity", strong_convexity)
        if not isinstance(ridge, (bool, np.bool_)):
            raise TypeError(f"ridge must be True or False, its size is strong_convexity; got {ridge!r}.")
        arguments.flag("y0_per_task", y0_per_task, none=True)
        (x0, x_aside), (y0, y_aside) = set_aside(x0), set_aside(y0)
        is_whole = x_aside is None and y_aside is None
        self.upper, self.lower = (loss if is_whole else WholeLoss(loss, x_aside, y_aside) for loss in (upper, lower))
        self.strong_convexity, self.shards = strong_convexity, ALONE
        self.upper_data = _data("upper_data", upper_data)
        self.lower_data = _data("lower_data", lower_data)
        _refuse_twins(self.upper_data, self.lower_data)
        self.num_tasks = _count_tasks(tasks, {"upper_data": self.upper_data, "lower_data": self.lower_data})
        self.tasks = None if tasks is None or isinstance(tasks, (int, np.integer)) else _arrays_of(tasks)
        self.bounds = as_bounds(Bounds() if bounds is None else bounds, self.num_tasks)
        x0, y0 = _floating("x0", x0), _floating("y0", y0)
        dtype = jnp.result_type(*jax.tree.leaves((x0, y0)))
        cast = lambda tree: jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), tree)
        self.strong_convexity, self.bounds = cast(self.strong_convexity), cast(self.bounds)
        if arguments.is_concrete(self.strong_convexity) and not 0 < self.strong_convexity < jnp.inf:
            raise ValueError(
                f"strong_convexity must be a finite number > 0 in {dtype}, the type of x0 and y0; got "
                f"{strong_convexity!r}, which is {self.strong_convexity} there."
            )
        self.x0, self.unravel_x = ravel_pytree(cast(x0))
        self.y0, self.unravel_y = self._read_y0(cast(y0), y0_per_task)
        for name in ("upper", "lower"):
            self._check_loss(name)
        self.programs = identity.digests_of_losses(self)
        self.structure = self._look_at_structure(bool(ridge))
        for loss in (upper, lower):
            if hasattr(loss, "check"):
                loss.check(self)

    def _read_y0(self, y0: PyTree, stacked: bool | None) -> tuple[Array, Callable[[Array], PyTree]]:
        """Flatten y0, once it is known whether it belongs to one task or holds all m."""
        fits = all(leaf.ndim and leaf.shape[0] == self.num_tasks for leaf in jax.tree.leaves(y0))
        if stacked is None:
            stacked = fits and self._is_stacked(y0)
        if not stacked:
            return ravel_pytree(y0)
        if not fits:
            length = arguments.leading_axis("y0", y0)
            raise ValueError(
                f"with y0_per_task=True y0 must have a leading axis of the {self.num_tasks} tasks; got {length}."
            )
        first = jax.tree.map(lambda leaf: leaf[0], y0)
        return jax.vmap(lambda y: ravel_pytree(y)[0])(y0), ravel_pytree(first)[1]

    def _is_stacked(self, y0: PyTree) -> bool:
        """Whether the losses take a slice of y0, not y0 itself; an error where they take both."""
        first = jax.tree.map(lambda leaf: leaf[0], y0)
        as_one, as_slice = (self._accepts(y) for y in (y0, first))
        if as_one and as_slice:
            raise ValueError(
                f"y0 has a leading axis of {self.num_tasks}, which is also the number of tasks, and the losses "
                "accept both y0 and y0[0]: say which is meant, y0_per_task=False (the same start for every "
                "task) or y0_per_task=True (one start for each)."
            )
        return as_slice

    def _accepts(self, y: PyTree) -> bool:
        try:
            shapes = [self._loss_shape(name, y).shape for name in ("upper", "lower")]
        except Exception:  # whatever a user's loss raises on a wrong shape, it means no
            return False
        return shapes == [(), ()]

    def _loss_shape(self, name: str, y: PyTree) -> Any:
        data = self.upper_data if name == "upper" else self.lower_data
        x = self.unravel_x(self.x0)
        return jax.eval_shape(
            lambda *given: getattr(self, name)(*given), x, y, self.task(jnp.int32(0)), _first_batch(data)
        )

    def _check_loss(self, name: str) -> None:
        try:
            out = self._loss_shape(name, self.unravel_y(self.y0_of(0)))
        except Exception as error:
            identity.note_loss(error, name, "2")
            raise
        if not hasattr(out, "shape") or out.shape != () or not jnp.issubdtype(out.dtype, jnp.floating):
            shown = f"shape {out.shape} of {out.dtype}" if hasattr(out, "shape") else type(out).__name__
            raise ValueError(f"{name} must return one real number, the mean loss over the batch; it returned {shown}.")

    def _look_at_structure(self, ridge: bool) -> Structure:
        x, y, task = self.unravel_x(self.x0), self.y0_of(0), self.task(jnp.int32(0))
        of_upper = self.unravel_y(y), task, _first_batch(self.upper_data)
        of_lower = x, (y, self.unravel_y), task, _first_batch(self.lower_data)
        return Structure(
            hessian=structure.hessian_of(self.upper, self.lower, of_lower, self.strong_convexity),
            upper_uses_x=structure.depends(lambda *given: self.upper(*given), x, *of_upper),
            ridge=ridge,
            linear_model=structure.is_linear_model(self.lower, self.lower_data, ridge),
        )

    def identify(self) -> dict[str, str]:
        """What makes this problem the one it is, part by part: digests of its losses and of its numbers."""
        if "_identity" not in self.__dict__:
            described = dict(zip(("upper", "lower"), self.programs, strict=True))
            described |= {name: identity.digest_of(getattr(self, name)) for name in Problem._LEAVES}
            described |= {name: str(value) for name, value in vars(self.structure).items()}
            described["number of tasks"] = str(self.num_tasks)
            self._identity = described
        return self._identity

    @property
    def dtype(self) -> Any:
        """The floating type that all estimates are kept in."""
        return self.x0.dtype

    @property
    def dim_x(self) -> int:
        """d, the number of upper variables."""
        return self.x0.shape[0]

    @property
    def dim_y(self) -> int:
        """d', the number of variables of one lower problem."""
        return self.y0.shape[-1]

    @property
    def work(self) -> int:
        """Numbers that a look at all samples of one lower problem takes, about."""
        return self.lower_data.max_length * self.dim_y

    def task(self, i: Any) -> PyTree:
        """What the losses are told of task i."""
        return i if self.tasks is None else jax.tree.map(itemgetter(i), self.tasks)

    def bounds_of(self, i: Any) -> Bounds:
        """The sets that the estimates and y of task i are projected on."""
        return jax.tree.map(lambda bound: bound[i] if jnp.ndim(bound) else bound, self.bounds)

    def y0_of(self, i: Any) -> Float[Array, " dy"]:
        """The first y of task i."""
        return self.y0 if self.y0.ndim == 1 else self.y0[i]

    def _mean_loss(self, loss: Loss, data: Data, x: X, y: Y, i: Any, samples: Samples) -> Float[Array, ""]:
        on_batch = partial(loss, self.unravel_x(x), self.unravel_y(y), self.task(i))
        if isinstance(samples, Fetched):
            return on_batch(samples.batch)
        if isinstance(samples, UnevenBlock):
            most, last = (on_batch(data.take(i, part)) for part in (samples.indices, samples.last))
            return (1 - samples.share) * most + samples.share * last
        return data.mean(on_batch, i) if samples is None else on_batch(data.take(i, samples))

    def upper_loss(self, x: X, y: Y, i: Any, samples: Samples = None) -> Float[Array, ""]:
        """f_i(x, y; ξ)."""
        return self._mean_loss(self.upper, self.upper_data, x, y, i, samples)

    def lower_loss(self, x: X, y: Y, i: Any, samples: Samples = None) -> Float[Array, ""]:
        """g_i(x, y; ζ)."""
        return self._mean_loss(self.lower, self.lower_data, x, y, i, samples)

    def upper_gradients(self, x: X, y: Y, i: Any, samples: Samples = None) -> tuple[X, Y]:
        """∇x f_i(x, y; ξ) and ∇y f_i(x, y; ξ)."""
        f = partial(self._mean_loss, self.upper, self.upper_data)
        return jax.grad(f, argnums=(0, 1))(x, y, i, samples)

    def lower_gradient(self, x: X, y: Y, i: Any, samples: Samples = None) -> Y:
        """∇y g_i(x, y; ζ)."""
        return jax.grad(self.lower_loss, argnums=1)(x, y, i, samples)

    def lower_derivatives(self, x: X, y: Y, i: Any, samples: Samples = None) -> tuple[Y, SecondOrder]:
        """∇y g_i(x, y; ζ), and the map h ↦ (∇²xy g_i·h, ∇²yy g_i·h) on the same samples.

        Both products are one reverse pass over ∇y g_i: nothing of size d·d' or d'² is formed here.
        """
        gradient = jax.grad(partial(self._mean_loss, self.lower, self.lower_data), argnums=1)
        return jax.vjp(lambda x, y: gradient(x, y, i, samples), x, y)

    def give_back_x(self, x: X) -> PyTree:
        """The user's pytree of x, with all that is no variable in it."""
        return bring_back(self.unravel_x(x), self.upper.x if isinstance(self.upper, WholeLoss) else None)

    def give_back_y(self, y: Float[Array, "m dy"]) -> PyTree:
        """The user's pytree of all y_i, with a leading axis m; without it where m = 1."""
        variables = jax.vmap(self.unravel_y)(y) if self.num_tasks > 1 else self.unravel_y(y[0])
        return bring_back(variables, self.upper.y if isinstance(self.upper, WholeLoss) else None)

    def replace(self, **fields: Any) -> "Problem":
        """A copy with some of its fields changed, unchecked: for arrays of the same meaning."""
        if unknown := fields.keys() - {*Problem._LEAVES, *Problem._STATIC}:
            raise TypeError(f"replace() must name fields of a Problem; it has no {', '.join(sorted(unknown))}.")
        copy = object.__new__(Problem)
        copy.__dict__.update({**self.__dict__, **fields})
        copy.__dict__.pop("_identity", None)
        return copy

    def parts(self, whole: Any, split: Any) -> "Problem":
        """A problem that has `split` in the place of all that has a row for each task, and `whole` elsewhere."""
        kind = lambda has_rows: lambda leaf: split if has_rows(leaf) else whole
        data = lambda held: jax.tree.map(kind(lambda leaf: not isinstance(held, Shared)), held)
        return self.replace(
            x0=whole, strong_convexity=whole, y0=split if self.y0.ndim == 2 else whole,
            tasks=jax.tree.map(lambda leaf: split, self.tasks), bounds=jax.tree.map(kind(jnp.ndim), self.bounds),
            upper_data=data(self.upper_data), lower_data=data(self.lower_data),
        )  # fmt: skip

    def of_shard(self) -> "Problem":
        """Inside a shard, where all rows are those of its own tasks: the problem of these alone."""
        count = self.num_tasks // self.shards.count
        own = lambda data: data if data.num_tasks is None else replace(data, num_tasks=count)
        return self.replace(num_tasks=count, upper_data=own(self.upper_data), lower_data=own(self.lower_data))

    def __repr__(self) -> str:
        return f"Problem(m={self.num_tasks}, d={self.dim_x}, d'={self.dim_y}, λ={float(self.strong_convexity):g})"


def _arrays_of(tasks: PyTree) -> PyTree:
    arguments.finite_leaves("tasks", tasks)
    return jax.tree.map(jnp.asarray, tasks)


def _flatten(problem: Problem) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return _leaves_of(problem), _static_of(problem)


def _unflatten(static: tuple[Any, ...], leaves: tuple[Any, ...]) -> Problem:
    problem = object.__new__(Problem)
    problem.__dict__.update(zip(Problem._LEAVES + Problem._STATIC, (*leaves, *static), strict=True))
    return problem


_leaves_of, _static_of = attrgetter(*Problem._LEAVES), attrgetter(*Problem._STATIC)
jax.tree_util.register_pytree_node(Problem, _flatten, _unflatten)
