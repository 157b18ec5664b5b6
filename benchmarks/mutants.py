"""Small changes of the source, one at a time, and whether the tests see them.

    python -m benchmarks.mutants [--files draw.py,bounds.py] [--most N] [--seed 0] [--lines 10-40] [--list]

Works in a temporary copy of the sources and tests, never in the checkout. For each change the tests that are meant for
its file run, the quickest first, until one fails. Survivors are listed: each gets a test, or a line in docs/mutants.md
that says why it does not matter. Ends with `mutants= killed= survived=`.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = Path("src") / "bilevax"
SLOWEST = 3  # times the run of the unchanged source after which a mutant that still runs counts as killed
LEAST_SECONDS = 30

OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.And: ast.Or, ast.Or: ast.And,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
FUNCTIONS = [
    ("minimum", "maximum"), ("any", "all"), ("min", "max"), ("sum", "mean"), ("zeros", "ones"), ("floor", "ceil"),
    ("zeros_like", "ones_like"), ("argmin", "argmax"),
]  # fmt: skip
FIELDS = [  # changed for each other only in files that know both
    ("upper_data", "lower_data"), ("upper_step", "lower_step"), ("f_x", "f_y"), ("g_xy", "g_yy"), ("low", "high"),
    ("y", "y_before"), ("x", "x_before"), ("h", "h_before"), ("dim_x", "dim_y"), ("cross", "hessian"),
]  # fmt: skip
NAMES = {one: other for pair in FUNCTIONS + FIELDS for one, other in (pair, pair[::-1])}
PLAIN = {  # calls whose arguments cannot be changed for each other, or need not
    "isinstance", "asarray", "array", "full", "zeros", "ones", "eye", "range", "arange", "zip", "reshape", "bits",
    "map", "broadcast_to", "stack", "concatenate", "minimum", "maximum", "len", "getattr", "astype", "normal",
}  # fmt: skip
CLEAR = (ast.Is, ast.IsNot, ast.In, ast.NotIn, ast.Eq, ast.NotEq)  # to change these is to negate the comparison
UNSEEN = (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Assert)  # messages, and what cannot be changed

# The tests that should see a change in a file, quickest first.
BOXES, OTHER_BOXES = "tests/algorithms/test_boxes.py::test_", "tests/algorithms/test_other_boxes.py::test_"
RSVRB = [BOXES + "rsvrb_equals_algorithm_2[4-3-skewed-projected-decreasing]"]
SINGLE_LOOP = OTHER_BOXES + "the_single_loop_family_equals_its_boxes"
LINEAR = "tests/curvature/test_linear_model.py::test_"
BROUGHT = "tests/tasks/test_delay.py::test_a_task_brought_up_to_date_is_where_single_steps_take_it"
COUNTED = "tests/algorithms/test_contract.py::test_the_work_of_a_run_is_counted_by_hand"
BSVRB = BOXES + "bsvrb_equals_its_box"
BLOCK_SOBA = BOXES + "block_soba_equals_its_box[4-1-projected-3]"
RESUMED = "tests/run/test_choice.py::test_a_guarded_run_resumes_with_the_bits_of_an_uninterrupted_one"
WHOLE = "tests/algorithms/test_start.py::test_a_step_on_all_samples_counts_those_of_each_loss"
TESTS = {
    "draw.py": ["tests/algorithms/test_random.py", "tests/test_draw.py"],
    "estimator.py": ["tests/test_estimator.py"],
    "words.py": ["tests/test_words.py"],
    "datasets/quick.py": ["tests/datasets/test_quick.py"],
    "projection.py": ["tests/test_projection.py"],
    "algorithms/start.py": [
        "tests/algorithms/test_start.py",
        "tests/algorithms/test_random.py",
        OTHER_BOXES + "the_theorems_start_solves_every_lower_problem",
    ],
    "algorithms/frame.py": [
        "tests/algorithms/test_start.py",
        "tests/algorithms/test_identities.py::test_a_plain_optax_step_is_the_plain_step",
        SINGLE_LOOP + "[soba-3-ball]",
    ],
    "algorithms/parts/hypergradient.py": ["tests/test_derivatives.py"],
    "algorithms/rsvrb.py": [
        *RSVRB,
        "tests/algorithms/test_identities.py::test_relabelled_tasks_give_the_relabelled_result",
    ],
    "algorithms/svrb.py": ["tests/test_schedules.py", BOXES + "svrb_equals_algorithm_1[projected-decreasing]"],
    "algorithms/re_rsvrb.py": ["tests/algorithms/test_random.py", BOXES + "re_rsvrb_equals_algorithm_3[random]"],
    "algorithms/parts/three_directions.py": [WHOLE + "[soba]", SINGLE_LOOP + "[ma_soba-3-ball]"],
    "algorithms/srba.py": [SINGLE_LOOP + "[srba-3-ball]", COUNTED + "[srba-logistic-3]"],
    "algorithms/sustain.py": [WHOLE + "[mrbo]", OTHER_BOXES + "sustain_and_mrbo_equal_their_boxes[mrbo-3]"],
    "algorithms/bsa.py": [WHOLE + "[stocbio]", OTHER_BOXES + "stocbio_equals_its_box[3]"],
    "algorithms/parts/all_tasks.py": [
        "tests/test_problem.py::test_wrong_settings_are_refused",
        SINGLE_LOOP + "[soba-3-ball]",
        OTHER_BOXES + "the_theorems_start_solves_every_lower_problem",
    ],
    "algorithms/saba.py": [
        OTHER_BOXES + "saba_equals_its_box_also_with_blocks_of_two_sizes[3-7-blocks1]",
        OTHER_BOXES + "each_loss_has_blocks_of_its_own_samples",
        OTHER_BOXES + "blocks_are_drawn_as_often_as_they_have_samples",
    ],
    "algorithms/block_soba.py": [BLOCK_SOBA, COUNTED + "[block_soba-logistic-3]"],
    "algorithms/parts/one_linear_model.py": [
        LINEAR + "rows_come_up_to_date_under_all_settings",
        LINEAR + "bounds_bind_row_by_row_as_in_the_form_for_many",
        LINEAR + "a_step_of_one_model_that_is_not_finite_leaves_everything_as_it_was",
        LINEAR + "a_run_goes_on_when_the_upper_gradient_has_vanished",
        LINEAR + "float32_follows_float64",
    ],
    "curvature/matrices.py": [*RSVRB, BOXES + "svrb_equals_algorithm_1_where_the_floor_binds"],
    "curvature/solution.py": [
        BOXES + "rsvrb_with_tracked_curvature_equals_its_transcription[4-3-uniform-free-constant]",
        BOXES + "tracked_equals_its_transcription_where_the_ball_binds",
        LINEAR + "tracked_at_the_drawn_samples_is_tracked_in_whole_rows",
    ],
    "curvature/given.py": ["tests/problems/test_compositional.py"],
    "curvature/linear.py": [
        LINEAR + "the_factors_are_the_second_derivatives",
        LINEAR + "the_ceiling_binds_row_by_row",
        LINEAR + "a_solve_near_a_guess_is_as_exact_as_it_says",
        LINEAR + "solves_of_several_tasks_leave_no_more_than_a_factorisation",
        LINEAR + "where_conjugate_gradients_do_not_get_there_a_factorisation_does",
        LINEAR + "a_solve_for_a_vanishing_v_stays_finite",
        LINEAR + "the_first_factors_are_projected",
        LINEAR + "a_problem_that_is_almost_a_linear_model_is_refused",
        LINEAR + "a_linear_model_whose_weights_are_not_those_of_its_samples_is_refused",
        LINEAR + "many_linear_models_equal_the_dense_matrices_with_a_schedule_for_each_estimate",
        OTHER_BOXES + "stable_with_a_linear_model_equals_stable_with_dense_matrices",
    ],
    "tasks.py": [
        "tests/tasks/test_delay.py::test_a_step_that_was_large_once_is_not_forgotten_where_a_set_holds_y",
        BROUGHT + "[free-decreasing]",
        BROUGHT + "[ball-constant]",
        "tests/tasks/test_delay.py::test_a_forgotten_era_is_replayed",
        "tests/tasks/test_delay.py::test_float32_lengths_are_right_for_tiny_mixing",
        "tests/tasks/test_memory.py::test_rows_are_written_where_they_belong_and_nowhere_else",
        "tests/tasks/test_memory.py::test_long_rows_are_written_at_their_entries_and_scaled_elsewhere",
    ],
    "chunks.py": [
        "tests/tasks/test_memory.py::test_all_tasks_are_visited_once_whatever_the_chunks",
        "tests/tasks/test_memory.py::test_who_listens_hears_how_much_of_very_many_tasks_is_done",
        "tests/tasks/test_memory.py::test_the_bytes_that_are_computed_are_the_bytes_that_are_kept",
        "tests/tasks/test_memory.py::test_a_state_that_does_not_fit_is_refused_before_it_is_allocated",
    ],
    "algorithms/parts/block_inverse.py": [
        BLOCK_SOBA,
        COUNTED + "[block_soba-logistic-3]",
        BSVRB + "[1-25-5-projected-decreasing]",
        BSVRB + "[2-25-5-projected-decreasing]",
    ],
    "algorithms/bsvrb.py": [
        BSVRB + "[1-25-5-projected-decreasing]",
        BSVRB + "[2-25-5-projected-decreasing]",
        BOXES + "bsvrb_v1_equals_its_box_where_the_floor_binds",
        COUNTED + "[bsvrb_v1-logistic-3]",
        COUNTED + "[bsvrb_v2-logistic-3]",
        "tests/problems/test_compositional.py::test_bsvrb_takes_h_from_the_fresh_sample_where_the_hessian_is_known",
    ],
    "algorithms/stable.py": [
        OTHER_BOXES + "stable_equals_its_box[3-projected]",
        COUNTED + "[stable-logistic-3]",
        "tests/test_schedules.py",
    ],
    "algorithms/parts/neumann.py": [
        OTHER_BOXES + "both_neumann_series_have_the_mean_that_they_should[2]",
        OTHER_BOXES + "stocbio_equals_its_box[3]",
        OTHER_BOXES + "ttsa_and_bsa_equal_their_boxes[ttsa-3]",
        COUNTED + "[ttsa-logistic-3]",
        COUNTED + "[stocbio-logistic-3]",
    ],
    "exact/lower.py": [
        "tests/problems/test_minmax.py::test_y_in_a_set_is_found_where_its_curvatures_differ",
        "tests/problems/test_minmax.py::test_what_y_still_lacks_is_told_also_where_a_set_holds_it",
        "tests/exact/test_metrics.py",
        "tests/exact/test_many_variables.py",
        "tests/run/test_run.py::test_the_theorems_start_counts_every_sample_of_every_gradient_of_its_solves",
    ],
    "exact/linear_lower.py": ["tests/exact/test_linear_lower.py"],
    "exact/evaluation.py": ["tests/exact/test_metrics.py"],
    "run/watch.py": [
        "tests/run/test_run.py::test_the_curvature_that_a_run_sees_lies_between_the_outermost_eigenvalues",
        "tests/run/test_run.py::test_the_curvature_that_a_run_sees_is_that_of_every_task_at_its_own_point",
        "tests/run/test_run.py::test_a_run_warns_of_half_the_curvature_and_of_a_series_that_cannot_converge",
        "tests/run/test_run.py::test_a_run_says_when_its_lower_problems_are_less_curved_than_was_said",
    ],
    "run/solve.py": ["tests/run/test_run.py"],
    "run/plan.py": ["tests/run/test_run.py"],
    "schedule.py": ["tests/test_schedules.py", "tests/test_problem.py", "tests/run/test_run.py"],
    "identity.py": ["tests/test_identity.py"],
    "aside.py": ["tests/test_aside.py"],
    "scales.py": ["tests/test_scales.py"],
    "trials.py": ["tests/test_trials.py"],
    "run/choice.py": ["tests/run/test_choice.py"],
    "run/guard.py": ["tests/run/test_choice.py"],
    "run/saved.py": ["tests/run/test_saved.py", RESUMED],
    "exact/follow.py": ["tests/algorithms/test_implicit.py"],
    "algorithms/parts/lbfgs.py": ["tests/algorithms/test_implicit.py"],
    "algorithms/parts/stages.py": ["tests/algorithms/test_implicit.py", "tests/run/test_choice.py"],
    "algorithms/implicit.py": ["tests/algorithms/test_implicit.py", "tests/run/test_choice.py"],
    "bounds.py": ["tests/test_problem.py", "tests/test_projection.py"],
    "arguments.py": ["tests/test_problem.py", "tests/run/test_run.py::test_wrong_arguments_are_refused"],
    "diagnosis.py": ["tests/test_diagnosis.py"],
    "problem.py": ["tests/test_problem.py", "tests/test_identity.py", "tests/test_derivatives.py"],
    "structure.py": [
        "tests/problems/test_compositional.py::test_a_hessian_that_is_known_is_seen",
        "tests/problems/test_compositional.py::test_a_hessian_that_is_not_known_is_estimated",
    ],
    "linear_model.py": [LINEAR + "a_linear_model_whose_weights_are_not_those_of_its_samples_is_refused", LINEAR],
    "data.py": ["tests/test_data.py", "tests/test_problem.py::test_wrong_data_are_refused"],
    "problems/labelled.py": ["tests/problems/test_reweighting.py"],
    "problems/words.py": [
        "tests/problems/test_meta_learning.py",
        "tests/problems/test_compositional.py",
        "tests/problems/test_minmax.py",
    ],
    "problems/auc_margin.py": ["tests/problems/test_auc.py"],
    "problems/composition.py": ["tests/problems/test_compositional.py"],
    "problems/adaptation.py": ["tests/problems/test_meta_learning.py"],
    "problems/saddle.py": ["tests/problems/test_minmax.py"],
    "problems/sample_weights.py": ["tests/problems/test_reweighting.py"],
    "problems/penalties.py": ["tests/problems/test_ridge.py"],
    "problems/precision.py": ["tests/problems/test_average_precision.py"],
    "problems/quadratics.py": [
        "tests/problems/test_quadratic.py",
        "tests/exact/test_metrics.py::test_the_closed_form_agrees_with_itself",
    ],
}


class Mutant(NamedTuple):
    """One change: where, what it was, what it is, and the whole source with it."""

    line: int
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        shown = lambda text: " ".join(text.split())[:90]
        return f"{self.line}: {shown(self.before)}  →  {shown(self.after)}"


def _changed(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _constants(value: object) -> Iterator[object]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, float):
        yield value * 1.1 if value else 0.1


def _swapped(items: list) -> Iterator[list]:
    """The list with two neighbours changed for each other, for each such pair."""
    for k in range(len(items) - 1):
        yield [*items[:k], items[k + 1], items[k], *items[k + 2 :]]


def _is_fixed(argument: ast.expr) -> bool:
    """Whether an argument in another place would only end in an error."""
    fixed = isinstance(argument, ast.Lambda) or (isinstance(argument, ast.Constant) and isinstance(argument.value, str))
    return fixed or (isinstance(argument, ast.Name) and argument.id in ("problem", "settings", "state", "self", "key"))


def _fixed(swapped: list, given: list) -> bool:
    return any(_is_fixed(new) for new, old in zip(swapped, given, strict=True) if new is not old)


def _of_call(node: ast.Call) -> Iterator[ast.AST]:
    """Arguments changed for each other, and the first argument as it came."""
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if name in ("minimum", "maximum"):
        yield from node.args
    if name in PLAIN:
        return
    if node.args and not any(isinstance(argument, ast.Starred) for argument in node.args):
        yield from (_changed(node, args=args) for args in _swapped(node.args) if not _fixed(args, node.args))
        if len(node.args) + len(node.keywords) > 1 and not _is_fixed(node.args[0]):
            yield node.args[0]
    for values in _swapped([keyword.value for keyword in node.keywords]):
        pairs = zip(node.keywords, values, strict=True)
        yield _changed(node, keywords=[_changed(keyword, value=value) for keyword, value in pairs])


def changes_of(node: ast.AST) -> Iterator[ast.AST]:
    """What a piece of the source is changed to, one thing at a time."""
    match node:
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in OPERATORS:
            yield _changed(node, op=OPERATORS[type(op)]())
        case ast.Compare(ops=[op]) if type(op) in OPERATORS:
            yield _changed(node, ops=[OPERATORS[type(op)]()])
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.IfExp(body=body, orelse=other):
            yield from (body, other)
        case ast.Constant(value=value):
            yield from (ast.Constant(new) for new in _constants(value))
        case ast.Attribute(attr=name) if name in NAMES:
            yield _changed(node, attr=NAMES[name])
        case ast.Call():
            yield from _of_call(node)
        case ast.If(test=ast.Compare(ops=[op])) if isinstance(op, CLEAR):
            return
        case ast.If(test=test):
            yield _changed(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.AugAssign() | ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Tuple(elts=elements, ctx=ast.Load()) if 1 < len(elements) < 5:
            yield from (_changed(node, elts=items) for items in _swapped(elements))


def _is_type(node: ast.AST) -> bool:
    """Whether something is the name of a type with a shape, or a choice of types."""
    texts = [n for n in ast.walk(node) if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name)]
    return any(isinstance(part, ast.Constant) and isinstance(part.value, str) for n in texts for part in ast.walk(n))


def _seen(node: ast.AST) -> Iterator[ast.AST]:
    """All parts of a tree but types, decorators, docstrings and messages."""
    if isinstance(node, UNSEEN) or (isinstance(node, ast.Assign) and _is_type(node.value)):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list", "bases"):
            children = value if isinstance(value, list) else [value]
            yield from (part for child in children if isinstance(child, ast.AST) for part in _seen(child))


def _unknown(name: str, source: str) -> bool:
    """Whether a name is that of a field which a source does not mention."""
    return name in {field for pair in FIELDS for field in pair} and f".{name}" not in source


def mutants_of(source: str) -> list[Mutant]:
    """All mutants of a source, in the order of its lines."""
    raw = [line.encode() for line in source.splitlines(keepends=True)]
    starts = [sum(map(len, raw[:k])) for k in range(len(raw) + 1)]
    text, found = b"".join(raw), []
    for node in _seen(ast.parse(source)):
        for new in changes_of(node):
            if isinstance(node, ast.Attribute) and _unknown(new.attr, source):
                continue
            begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
            if isinstance(node, ast.If):  # only its test is rewritten
                begin = starts[node.test.lineno - 1] + node.test.col_offset
                end, new = starts[node.test.end_lineno - 1] + node.test.end_col_offset, new.test
            after = ast.unparse(ast.fix_missing_locations(new))
            written = f"({after})" if isinstance(new, ast.expr) and not isinstance(new, ast.Starred) else after
            mutated = (text[:begin] + written.encode() + text[end:]).decode()
            before = text[begin:end].decode()
            if _compiles(mutated) and ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(source)):
                found.append(Mutant(node.lineno, before, after, mutated))
    return sorted(found, key=lambda mutant: mutant.line)


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


class Copy:
    """A temporary copy of sources and tests, in which one file at a time is changed and tests are run."""

    def __init__(self, root: Path = ROOT):
        self.place, self.kept = Path(tempfile.mkdtemp(prefix="mutants-")), False
        for part in ("src", "tests", "benchmarks", "pyproject.toml"):
            if (root / part).is_dir():
                shutil.copytree(root / part, self.place / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(root / part, self.place / part)

    def __enter__(self) -> "Copy":
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.place, ignore_errors=True)

    def change(self, name: str, source: str) -> None:
        """Give a file of the package another content; from then on nothing that is compiled is kept."""
        path = self.place / PACKAGE / name
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()
        path.write_text(source)
        self.kept = True

    def passes(self, tests: list[str], seconds: float) -> bool:
        """Whether all tests pass in time, in a process of their own."""
        child = os.fork()  # libraries are imported already, which saves seconds; bilevax is not
        if child == 0:
            self._run(tests)
        ended, status = 0, 0
        until = time.monotonic() + seconds
        while not ended and time.monotonic() < until:
            time.sleep(0.02)
            ended, status = os.waitpid(child, os.WNOHANG)
        if not ended:
            os.killpg(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        return status == 0

    def _run(self, tests: list[str]) -> None:
        """Run pytest and end this process."""
        code = 3
        try:
            os.setsid()
            os.chdir(self.place)
            out = os.open(self.place / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1)
            os.dup2(out, 2)
            sys.dont_write_bytecode = self.kept  # what was compiled of a mutant must not be found by the next
            os.environ["PYTHONPATH"] = str(self.place / "src")
            sys.path[:0] = [str(self.place / "src")]
            import pytest

            code = int(pytest.main(["-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def output(self) -> str:
        """What the last run of the tests printed."""
        return (self.place / "output.txt").read_text()


def _preload() -> None:
    """Import what tests need and what has nothing to do with the source."""
    import jax  # noqa: F401
    import optax  # noqa: F401
    import pytest  # noqa: F401
    import scipy.optimize  # noqa: F401
    import sklearn.metrics  # noqa: F401


def survivors_of(name: str, tests: list[str], mutants: list[Mutant]) -> list[Mutant]:
    """The mutants of a file that no test sees; each is told as it is found."""
    survived = []
    with Copy() as place:
        begun = time.monotonic()
        if not place.passes(tests, 3600):
            raise RuntimeError(f"the tests for {name} fail without any change:\n{place.output()[-3000:]}")
        spent = time.monotonic() - begun
        print(f"{name}: {len(mutants)} mutants, {spent:.0f} s for the unchanged source", flush=True)
        for k, mutant in enumerate(mutants, start=1):
            place.change(name, mutant.source)
            if place.passes(tests, max(LEAST_SECONDS, SLOWEST * spent)):
                survived.append(mutant)
                print(f"  survived {name}:{mutant}", flush=True)
            if k % 10 == 0:
                print(f"  {k} of {len(mutants)}, {len(survived)} survived", flush=True)
    return survived


def _within(mutants: list[Mutant], lines: str | None) -> list[Mutant]:
    if lines is None:
        return mutants
    first, last = map(int, lines.split("-"))
    return [mutant for mutant in mutants if first <= mutant.line <= last]


def main(arguments: list[str] | None = None) -> dict[str, int]:
    """Read the options, run the mutants and print what survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", help="files of the package, by comma; by default all that have tests here")
    parser.add_argument("--most", type=int, help="so many mutants of each file, chosen at random")
    parser.add_argument("--seed", type=int, default=0, help="of that choice")
    parser.add_argument("--lines", metavar="A-B", help="only mutants of these lines")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    chosen = parser.parse_args(arguments)
    names = list(TESTS) if chosen.files is None else chosen.files.split(",")
    if unknown := [name for name in names if name not in TESTS]:
        parser.error(f"--files must be among {', '.join(TESTS)}; got {', '.join(unknown)}")
    if not chosen.list:
        _preload()
    count, survived = 0, 0
    for name in names:
        mutants = _within(mutants_of((ROOT / PACKAGE / name).read_text()), chosen.lines)
        if chosen.most is not None and chosen.most < len(mutants):
            picked = random.Random(chosen.seed).sample(range(len(mutants)), chosen.most)
            mutants = [mutants[k] for k in sorted(picked)]
        count += len(mutants)
        if chosen.list:
            print(*(f"{name}:{mutant}" for mutant in mutants), sep="\n")
        else:
            survived += len(survivors_of(name, TESTS[name], mutants))
    if not chosen.list:
        print(f"mutants={count} killed={count - survived} survived={survived}")
    return {"mutants": count, "survived": survived}


if __name__ == "__main__":
    main()
