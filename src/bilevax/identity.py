"""What makes two things the same: digests of arrays, of the programs that functions trace to, and of settings.

A function is known by the program that JAX traces from it, with the constants in it: the same function object traces to
another program once a global or an attribute that it reads has changed.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from bilevax import arguments

ADDRESS, OWN_RULE = re.compile(r" at 0x[0-9a-f]+"), re.compile(r"custom_(jvp|vjp)")
LARGE, PAGE = 2**26, 512  # bytes that are all looked at, else eight-byte words of a page
STEPS = np.r_[1:8193, np.geomspace(8200, 2**24, 2000)].astype(np.int32)  # at which two schedules have to agree


def _short(*parts: Any) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _bytes_of(leaf: Any) -> tuple[Any, Any]:
    """What an array is, and its numbers; inside `jit`, where it has none yet, its type alone."""
    if not arguments.is_concrete(leaf):
        return str(leaf.aval).encode(), b""
    if jnp.issubdtype(getattr(leaf, "dtype", np.float64), jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.ascontiguousarray(leaf)
    return f"{array.dtype}{np.shape(leaf)}".encode(), _content(array.reshape(-1).view(np.uint8))


def _content(numbers: np.ndarray) -> Any:
    """All bytes; of a large array a part of its pages, and the sum of all words, which any single change shows in."""
    if numbers.size <= LARGE:
        return numbers.data
    words = numbers[: numbers.size // 8 * 8].view(np.uint64)
    pages = words[: words.size // PAGE * PAGE].reshape(-1, PAGE)
    with np.errstate(over="ignore"):
        total = int(words.sum(dtype=np.uint64)), int(np.bitwise_xor.reduce(words))
    return np.ascontiguousarray(pages[::61]).tobytes() + repr(total).encode() + numbers[-16:].tobytes()


def digest_of(tree: PyTree) -> str:
    """A short text that two trees of arrays share only where all their numbers, types and shapes agree."""
    leaves, structure = jax.tree.flatten(tree)
    return _short(str(structure).encode(), *(part for leaf in leaves for part in _bytes_of(leaf)))


def digest_of_program(function: Callable[..., Any], *given: Any, derivative: Callable[..., Any] | None = None) -> str:
    """The same for the program that a function traces to with arguments like these, and for its constants.

    Where a part of it has a rule of its own for derivatives, which the program does not show, `derivative` counts too.
    """
    traced = jax.make_jaxpr(function)(*given)
    text = ADDRESS.sub("", str(traced.jaxpr))
    more = digest_of_program(derivative, *given) if derivative is not None and OWN_RULE.search(text) else ""
    return _short(text.encode(), digest_of(list(_constants_in(traced))).encode(), more.encode())


def _constants_in(part: Any) -> Iterator[Any]:
    """Arrays that a program holds, those of the programs inside it included: a compiled function keeps its own."""
    if isinstance(part, jax.extend.core.ClosedJaxpr):
        yield from part.consts
        part = part.jaxpr
    if isinstance(part, jax.extend.core.Jaxpr):
        for equation in part.eqns:
            yield from (place.val for place in equation.invars if isinstance(place, jax.extend.core.Literal))
            yield from _constants_in(list(equation.params.values()))
    elif isinstance(part, (list, tuple)):
        for each in part:
            yield from _constants_in(each)


def digests_of_losses(problem: Any) -> tuple[str, str]:
    """What both losses trace to, on batches of two and of three samples: constants may hide in the size of one."""

    def trace(name: str, data: Any) -> str:
        loss = getattr(problem, name)
        calls = lambda x, y, task, *batches: [loss(x, y, task, batch) for batch in batches]
        gradient = lambda x, y, task, *batches: jax.grad(loss, argnums=(0, 1))(x, y, task, batches[0])
        first = jnp.int32(0)
        batches = jax.eval_shape(lambda: [data.take(first, jnp.zeros(size, jnp.int32)) for size in (2, 3)])
        of_x, of_y = problem.unravel_x, problem.unravel_y
        at = jax.eval_shape(lambda: (of_x(problem.x0), of_y(problem.y0_of(0)), problem.task(first)))
        try:
            return digest_of_program(calls, *at, *batches, derivative=gradient)
        except Exception as error:
            note_loss(error, name, "2, then 3")
            raise

    return trace("upper", problem.upper_data), trace("lower", problem.lower_data)


def note_loss(error: Exception, name: str, sizes: str) -> None:
    """Say by which loss an error was raised, and on how many samples."""
    error.add_note(f"raised by {name}(x, y, task, batch), called with x0, y0 and a batch of {sizes} samples")


def check_losses(problem: Any) -> None:
    """Refuse to go on with losses that are no longer those of when the problem was made."""
    if not all(map(arguments.is_concrete, jax.tree.leaves(problem))):
        return
    for name, made, now in zip(("upper", "lower"), problem.programs, digests_of_losses(problem), strict=True):
        if made != now:
            raise ValueError(
                f"{name} is not what it was when the problem was made: a global, an attribute or an array that it "
                "reads has changed. Make a new bilevax.Problem, or hand over what changes as tasks or data."
            )


def describe(value: Any, like: PyTree) -> str:
    """A setting in a few words that another one has only where it means the same; `like` is an x."""
    if isinstance(value, optax.GradientTransformation):
        return f"optimizer {_digest_of_optimizer(value, like)}"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return f"{type(value).__name__}({', '.join(describe(part, like) for part in value)})"
    if callable(value):
        return f"schedule {_digest_of_schedule(value)}"
    if arguments.is_number(value):
        return repr(float(value))
    if isinstance(value, (np.ndarray, jax.Array)):
        return f"array {digest_of(value)}"
    return ADDRESS.sub("", repr(value))


def _digest_of_optimizer(optimizer: optax.GradientTransformation, like: PyTree) -> str:
    both = lambda x: (carried := optimizer.init(x), optimizer.update(x, carried, x))
    try:
        with jax.numpy_dtype_promotion("standard"):
            return digest_of_program(both, like)
    except Exception:  # it will be refused where it is used
        return "that raises"


def _digest_of_schedule(schedule: Callable[..., Any]) -> str:
    try:
        with jax.numpy_dtype_promotion("standard"):
            return digest_of(jax.vmap(lambda t: jnp.asarray(schedule(t), float))(jnp.asarray(STEPS)))
    except Exception:  # not a schedule after all: its name is what is known of it
        return getattr(schedule, "__qualname__", type(schedule).__name__)


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """The names under which two descriptions do not say the same."""
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]
