"""Misuse of the Python interface: a valid call with one or two arguments replaced, judged by rule."""

import ast
import contextlib
import functools
import io
import os
import re
import traceback
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import bilevax
from benchmarks.attack.cases import CLEAR, SILENT, UNCLEAR, Verdict
from benchmarks.attack.rules import EITHER, WRONG
from benchmarks.attack.uses import Use, all_uses
from benchmarks.attack.values import POOL, Value

SOURCE = Path(bilevax.__file__).parent
KINDS = (ValueError, TypeError, MemoryError, OSError)
THOROUGH = 0.1  # the share of right calls whose results are used


class Compiles(BaseException):
    """A program of the library, not one of JAX's own small ones, is about to be compiled."""


def _own_programs():
    """Names of functions that the library defines and JAX does not."""
    names = set()
    for path in SOURCE.rglob("*.py"):
        names |= {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}
    known = [set(dir(room)) for room in (jax, jax.numpy, jax.nn, jax.lax, jax.random, jax.numpy.linalg)]
    return names.difference(*known) - {"product"}  # Problem looks at one Hessian


@functools.cache
def guarded():
    """The guard of this process: JAX keeps a listener for ever."""
    return Guard()


class Guard:
    """Ends a call where it would compile a program of the library: no case costs more than its checks and a trace."""

    def __init__(self):
        self.own, self.on, self.allowed = _own_programs(), False, ()
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event, duration, **more):
        name = more.get("fun_name", "").removeprefix("jit(").removesuffix(")")
        if self.on and event.endswith("jaxpr_to_mlir_module_duration") and name in self.own - set(self.allowed):
            raise Compiles(name)

    @contextlib.contextmanager
    def __call__(self, allowed=()):
        """No compilation inside, but of what is allowed."""
        self.on, self.allowed = True, allowed
        try:
            yield
        finally:
            self.on = False


class Case(NamedTuple):
    """One call: which arguments are replaced by what; a key that the function lacks may be among them."""

    use: Use
    replaced: dict[str, Value]
    dropped: str | None = None

    @property
    def words(self):
        """The case for a reader."""
        shown = ", ".join(f"{name} = {value.words}" for name, value in self.replaced.items())
        return f"{self.use.name}({shown})" + (f" without {self.dropped}" if self.dropped else "")


def draw_case(uses, rng):
    """A case from random numbers: each function and each argument comes up as often as any other."""
    arguments = [(use, name) for use in uses for name in use.rules]
    use, name = arguments[rng.integers(len(arguments))]
    kind = rng.random()
    if kind < 0.03:
        return Case(use, {_misspelt(name, rng): POOL[rng.integers(len(POOL))]})
    required = [other for other in use.given if other in use.required]
    if kind < 0.04 and required:
        return Case(use, {}, required[rng.integers(len(required))])
    names = [name]
    if kind > 0.8 and len(use.rules) > 1:
        others = [other for other in use.rules if other != name]
        names.append(others[rng.integers(len(others))])
    return Case(use, {each: _draw_value(use.rules[each], rng) for each in names})


def _misspelt(name, rng):
    place = rng.integers(len(name) + 1)
    return name[:place] + "_q" + name[place:]


def _draw_value(rule, rng):
    pool = rule.own if rule.own and rng.random() < 0.4 else POOL
    return pool[rng.integers(len(pool))]


def judge(case, guard, thorough=False):
    """Carry the call out and judge what came of it; what is done with a right result is seen where `thorough`."""
    wrong, open_ones = _expected(case)
    if case.use.costly and not wrong and not thorough:
        return Verdict(CLEAR, case.words, "not tried")
    given = {name: value for name, value in case.use.given.items() if name != case.dropped}
    given |= {name: value.make() for name, value in case.replaced.items()}
    allowed = ("init",) if "metrics" in case.replaced else ()  # the first values are those of the start
    try:
        with guard(allowed), warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            result = case.use.function(**given)
            if wrong or thorough:
                case.use.after(result)
    except Compiles:
        pass
    except Exception as error:  # the whole point
        return _judge_error(case, [*wrong, *open_ones], error)
    except (SystemExit, GeneratorExit) as error:
        return Verdict(UNCLEAR, case.words, f"ended with {error!r}")
    if wrong:
        return Verdict(SILENT, case.words, f"accepted, though {' and '.join(wrong)} is wrong")
    return Verdict(CLEAR, case.words, "accepted")


def _expected(case):
    """The arguments that are wrong, and those that may be refused as well."""
    if case.dropped:
        return [case.dropped], []
    unknown = [name for name in case.replaced if name not in case.use.rules]
    verdicts = {name: case.use.rules[name](value) for name, value in case.replaced.items() if name not in unknown}
    wrong = [name for name, verdict in verdicts.items() if verdict == WRONG]
    several = len(case.replaced) > 1  # what is right alone need not fit with another
    return unknown + wrong, [name for name, verdict in verdicts.items() if verdict == EITHER or (several and not wrong)]


def _judge_error(case, named, error):
    shown = f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
    if not named:
        return Verdict(UNCLEAR, case.words, f"a right value was refused: {shown}")
    words = [word for name in named for word in (name, *case.use.words.get(name, ()))]
    notes = "\n".join(getattr(error, "__notes__", ()))
    functions = any(callable(value.make()) or value.right_for for value in case.replaced.values())
    if _mentions(words, notes):
        return Verdict(CLEAR, case.words, shown)
    if not isinstance(error, KINDS) or type(error).__module__.startswith("jax"):
        return Verdict(UNCLEAR, case.words, f"{shown} [an error of the wrong kind{', from a function' * functions}]")
    if not _mentions(words, str(error)):
        return Verdict(UNCLEAR, case.words, f"{shown} [does not name {' or '.join(named)}]")
    if not _is_ours(error):
        return Verdict(UNCLEAR, case.words, f"{shown} [raised deep inside, at {_place(error)}]")
    return Verdict(CLEAR, case.words, shown)


def _mentions(words, text):
    return any(re.search(rf"(?<![A-Za-z0-9_]){re.escape(word)}(?![A-Za-z0-9])", text) for word in words)


def _last_file(error):
    return traceback.extract_tb(error.__traceback__)[-1]


def _is_ours(error):
    """Raised by the library or at the call itself; an OSError may come from the system, it names its file."""
    file = Path(_last_file(error).filename)
    return isinstance(error, OSError) or SOURCE in file.parents or file.parent == Path(__file__).parent


def _place(error):
    frame = _last_file(error)
    return f"{Path(frame.filename).name}:{frame.lineno}"


class Attack:
    """All cases of this kind, by number."""

    kind = "api"

    def __init__(self, folder):
        os.chdir(folder)  # a wrong path must not leave files elsewhere
        self.uses, self.guard = all_uses(folder), guarded()

    def carry_out(self, number, seed) -> Any:
        """The verdict of a case."""
        rng = np.random.default_rng([seed, number])
        return judge(draw_case(self.uses, rng), self.guard, thorough=rng.random() < THOROUGH)
