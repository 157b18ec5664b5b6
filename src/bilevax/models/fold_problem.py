"""Penalties of a linear model as the upper variables, and validation folds as the lower problems.

    min over x of mean_k f_k(y_k*(x)) + s/2n Σ log(1 + d²),   y_k*(x) = argmin_y g_k(y) + ½ Σ_j p_j(x) y_j² / n_k

g_k is the loss of the rows outside fold k, f_k that of the fold. x = (c, d): log p_j is that of the best common
penalty, a change c of all and a change d_j; Σ is over c and all d_j. The logarithm holds small changes back and lets
a few penalties go far, as a sparse rule asks for.
Sizes are filled up with zeros to a few standard ones: tables of about the same size share one compiled program.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float
from sklearn.utils.validation import validate_data

from bilevax import arguments
from bilevax.algorithms.contract import Algorithm
from bilevax.algorithms.implicit import implicit
from bilevax.data import shared
from bilevax.models.base import explain_rows
from bilevax.problem import Problem
from bilevax.run.result import Result
from bilevax.run.solve import solve
from bilevax.scale.split import shard

METHOD: Algorithm = implicit(descents=1)  # one object, so that the next fit need not be compiled again
FLOOR = 1e-5  # of the rows: the least penalty, so that float32 can factorise every Hessian
REACH = 8.0  # a penalty is within a factor of e^±8 of the best common one


def search(problem: Problem, steps: int, devices: int = 1) -> Result:
    """A run on the problem, its lower problems in equal parts on so many devices, or fewer where they leave a rest."""
    count = max(k for k in range(1, devices + 1) if problem.num_tasks % k == 0)
    if count > 1:
        problem = shard(problem, Mesh(np.array(jax.local_devices()[:count]), ("devices",)))
    return solve(problem, METHOD, steps=steps, metrics=None, progress=False)


def check_devices(devices: Any) -> None:
    """Refuse more devices than there are."""
    arguments.count("devices", devices)
    if devices > len(jax.local_devices()):
        raise ValueError(
            f"devices must be at most the {len(jax.local_devices())} that JAX has here; got {devices}. For parts of a "
            "processor set JAX_NUM_CPU_DEVICES before anything runs on JAX."
        )


def round_up(size: int, least: int) -> int:
    """The smallest least·2^k that is no less than size."""
    return least * 2 ** max(0, int(np.ceil(np.log2(max(size, 1) / least))))


def fill(array: np.ndarray, *sizes: int) -> np.ndarray:
    """The array with zeros behind it, up to these sizes."""
    return np.pad(array, [(0, size - length) for size, length in zip(sizes, array.shape, strict=True)])


def read_dense(model: Any, X: Any, y: Any = "no_validation", **options: Any) -> Any:
    """Rows, and targets where they are given, as scikit-learn takes them; none of them sparse."""
    with explain_rows("X", "y", X, y):
        return validate_data(model, X, y, dtype=np.float64, **options)


def deal(kind: np.ndarray, count: int, random: np.random.RandomState) -> np.ndarray:
    """The number of the fold of each row, drawn at random; rows of a kind are dealt to all folds alike."""
    order = random.permutation(len(kind))
    fold = np.zeros(len(kind), int)
    fold[order[np.argsort(kind[order], kind="stable")]] = np.arange(len(kind)) % min(count, len(kind))
    return fold


def mean_and_scale(X: Float[np.ndarray, "n p"], standardize: bool) -> tuple[np.ndarray, np.ndarray]:
    """The mean of each column, and its spread where that is asked for and there is any."""
    mean, spread = X.mean(0), X.std(0)
    constant = spread <= 1e-12 * np.maximum(1, np.abs(mean))
    return mean, np.where(constant, 1.0, spread) if standardize else np.ones(X.shape[1])


def penalties_at(x: dict[str, Array], centre: Any, floor: Any, place: Array) -> Float[Array, " p"]:
    """p_j = floor + (centre − floor) exp(R tanh((c + d_j)/R)), where j has the change of its group."""
    change = (x["common"] + x["changes"])[place]
    return floor + (centre - floor) * jnp.exp(REACH * jnp.tanh(change / REACH))


def _penalties(x: dict[str, Array], task: dict[str, Any]) -> Float[Array, " p"]:
    return penalties_at(x, task["centre"], task["floor"], task["place"])


def _shrink(x: dict[str, Array], task: dict[str, Any]) -> Float[Array, ""]:
    """s/2n (log(1 + c²) + Σ_j log(1 + d_j²))."""
    moved = jnp.concatenate([x["common"], x["changes"]])
    return 0.5 * task["shrinkage"] * jnp.sum(jnp.log1p(moved**2))


def quadratic_upper(x: Any, y: Float[Array, " p"], task: Any, batch: Any) -> Float[Array, ""]:
    """Half the mean squared error of the fold, in units of the noise."""
    error = 0.5 * (y @ (task["held_gram"] @ y)) - task["held_slope"] @ y + task["held_constant"]
    return error / task["noise"] + _shrink(x, task)


def quadratic_lower(x: Any, y: Float[Array, " p"], task: Any, batch: Any) -> Float[Array, ""]:
    """Half the mean squared error of the other rows, up to a constant, and the penalty."""
    penalty = _penalties(x, task) / task["rows"]
    return 0.5 * (y @ (task["gram"] @ y)) - task["slope"] @ y + 0.5 * jnp.sum(penalty * y**2)


def entropy(scores: Float[Array, "n c"], labels: Float[Array, "n c"]) -> Float[Array, " n"]:
    """−log of the probability of the label; a single column is the log-odds of the second of two classes."""
    if scores.shape[1] == 1:
        return jax.nn.softplus(scores[:, 0]) - labels[:, 0] * scores[:, 0]
    return jax.nn.logsumexp(scores, axis=1) - jnp.sum(labels * scores, axis=1)


def _entropies(y: dict[str, Array], batch: Any) -> Float[Array, " n"]:
    return entropy(batch["features"] @ y["weights"] + y["shift"][None, :], batch["labels"])


def logistic_upper(x: Any, y: dict[str, Array], task: Any, batch: Any) -> Float[Array, ""]:
    """The mean logistic loss of the fold."""
    inside = batch["fold"] == task["fold"]
    return task["held_share"] * jnp.mean(jnp.where(inside, _entropies(y, batch), 0)) + _shrink(x, task)


def logistic_lower(x: Any, y: dict[str, Array], task: Any, batch: Any) -> Float[Array, ""]:
    """The mean logistic loss of the other rows and the penalty; the shift has the floor alone."""
    outside = (batch["fold"] != task["fold"]) & (batch["fold"] >= 0)
    penalty = jnp.sum(_penalties(x, task)[:, None] * y["weights"] ** 2) + task["floor"] * jnp.sum(y["shift"] ** 2)
    return task["share"] * jnp.mean(jnp.where(outside, _entropies(y, batch), 0)) + 0.5 * penalty / task["rows"]


def _start(width: int) -> dict[str, Array]:
    dtype = jnp.result_type(float)
    return {"common": jnp.zeros(1, dtype), "changes": jnp.zeros(width, dtype)}


def _settings(place: np.ndarray, centre: float, width: int, rows: list[int], total: int) -> dict[str, Any]:
    """What every fold is told: the penalty to begin with, and which change is whose."""
    count, floor = len(rows), FLOOR * total
    filled = fill(place, width)
    return {
        "centre": np.full(count, max(centre, 2 * floor)), "floor": np.full(count, floor), "shrinkage": np.ones(count),
        "place": np.tile(filled, (count, 1)).astype(np.int32), "rows": np.asarray(rows, float),
    }  # fmt: skip


def as_floats(tree: Any) -> Any:
    """Arrays of JAX's floating type; whole numbers stay."""
    dtype = jnp.result_type(float)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype if leaf.dtype.kind == "f" else leaf.dtype), tree)


def _products(X: np.ndarray, y: np.ndarray, held: np.ndarray, width: int) -> dict[str, Any]:
    """The products of the columns of a fold, and of those of the other rows, from the means of the other rows."""
    middle, level = X[~held].mean(0), y[~held].mean()
    inner, outer = (fill(X[of] - middle, of.sum(), width) for of in (~held, held))
    target, truth = y[~held] - level, y[held] - level
    return {
        "gram": inner.T @ inner / len(inner), "slope": inner.T @ target / len(inner),
        "held_gram": outer.T @ outer / len(outer), "held_slope": outer.T @ truth / len(outer),
        "held_constant": np.mean(truth**2) / 2,
    }  # fmt: skip


def _noise(tasks: dict[str, Any], centre: float) -> float:
    """The mean squared error of the folds with one penalty for all features."""
    alpha = np.eye(tasks["gram"].shape[1]) * centre / tasks["rows"][:, None, None]
    first = np.linalg.solve(tasks["gram"] + alpha, tasks["slope"][..., None])[..., 0]
    errors = np.einsum("kp,kpq,kq->k", first, tasks["held_gram"], first)
    errors += 2 * tasks["held_constant"] - 2 * np.einsum("kp,kp->k", first, tasks["held_slope"])
    return max(errors.mean(), 1e-8 * tasks["held_constant"].mean(), 1e-30)


def quadratic_problem(
    X: Float[np.ndarray, "n p"], y: Float[np.ndarray, " n"], fold: np.ndarray, place: np.ndarray, centre: float
) -> Problem:
    """Penalties of a least-squares fit; a fold is known by the products of its columns alone, so n costs nothing.

    The shift is not penalised: columns are taken from the means of the rows outside the fold.
    """
    width, numbers = round_up(X.shape[1], 16), np.unique(fold)
    parts = [_products(X, y, fold == k, width) for k in numbers]
    tasks = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
    tasks |= _settings(place, centre, width, [int((fold != k).sum()) for k in numbers], len(y))
    tasks["noise"] = np.full(len(numbers), _noise(tasks, centre))
    return Problem(
        upper=quadratic_upper, lower=quadratic_lower, x0=_start(width), y0=as_floats(np.zeros(width)),
        y0_per_task=False, tasks=as_floats(tasks), strong_convexity=FLOOR,
    )  # fmt: skip


def logistic_problem(
    X: Float[np.ndarray, "n p"], labels: Float[np.ndarray, "n c"], fold: np.ndarray, place: np.ndarray, centre: float
) -> Problem:
    """Penalties of a logistic regression; all folds look at the same rows, those of fold −1 at none."""
    width, length, outputs = round_up(X.shape[1], 16), round_up(len(X), 256), labels.shape[1]
    folds = np.unique(fold[fold >= 0])
    held = [int((fold == k).sum()) for k in folds]
    rows = [int((fold >= 0).sum()) - count for count in held]
    tasks = _settings(place, centre, width, rows, len(X))
    tasks |= {"fold": folds.astype(np.int32), "share": length / tasks["rows"], "held_share": length / np.array(held)}
    number = np.concatenate([fold, np.full(length - len(X), -1)]).astype(np.int32)
    data = {"features": fill(X, length, width), "labels": fill(labels, length, outputs), "fold": number}
    rows_held = shared(as_floats(data))
    return Problem(
        upper=logistic_upper, lower=logistic_lower, x0=_start(width), y0_per_task=False,
        y0=as_floats({"weights": np.zeros((width, outputs)), "shift": np.zeros(outputs)}), tasks=as_floats(tasks),
        upper_data=rows_held, lower_data=rows_held, strong_convexity=FLOOR,
    )  # fmt: skip
