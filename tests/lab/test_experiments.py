"""The paper's experiments are what its text says, every method is tuned alike, and no run is made twice or lost."""

import csv
import itertools
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

import bilevax as bx
from benchmarks import harness
from bilevax import cli, lab
from bilevax.algorithms.contract import DESCRIPTIONS
from bilevax.algorithms.registry.tuning import Scale
from bilevax.exact import evaluation
from bilevax.lab import cases, rates, runs, store, tuning
from bilevax.lab.record import Record
from bilevax.lab.reference import run_lbfgs

SMALL = {"svrb": {"upper": 0.3, "lower": 0.2, "mixing": 0.1, "offset": 100.0}, "soba": {"upper": 0.3, "lower": 0.2}}


@pytest.fixture
def table(tmp_path):
    """A CSV file of 80 rows that a line can nearly separate."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(80, 3))
    b = np.where(A[:, 0] - A[:, 1] + 0.5 * rng.normal(size=80) > 0, "1", "0")
    lines = ["u,v,w,class", *(",".join([*map("{:.3f}".format, row), label]) for row, label in zip(A, b, strict=True))]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def small(table):
    """A comparison of two methods on that file, two seeds, and settings for it."""
    case = lab.Case(str(table))
    experiment = lab.Experiment("compare", (case,), tuple(SMALL), seconds=0.02, seeds=2, records=3, reference=0.1)
    return experiment, {"compare": {case.name: {name: {"options": options} for name, options in SMALL.items()}}}


@pytest.fixture
def little_effort(monkeypatch):
    """Three settings and short rounds."""
    monkeypatch.setattr(tuning, "FIELD", 3)
    monkeypatch.setattr(tuning, "ROUNDS", ((3, 0.5), (2, 1.0)))
    monkeypatch.setattr(tuning, "steps_within", lambda problem, contender, budget: 12)


def steps_of(name, **options):
    contender = lab.find_contender(name)
    settings = contender.factory(**contender.tuning.arguments(Scale(n=100, tasks=1), **options)).settings
    t = jnp.arange(1, 1000, 100)
    return {key: jax.vmap(settings[key])(t) for key in ("upper_step", "lower_step", "relaxation", "mixing")
            if callable(settings.get(key))}  # fmt: skip


def test_svrb_has_the_step_rule_of_the_papers_text():
    found = steps_of("svrb", upper=0.3, lower=0.2, mixing=0.1, offset=50.0)
    eta = (np.arange(1, 1000, 100) + 50.0) ** (-1 / 3)
    np.testing.assert_allclose(found["upper_step"] / found["upper_step"][0], eta / eta[0])
    np.testing.assert_allclose(found["relaxation"] / found["relaxation"][0], eta / eta[0])
    np.testing.assert_allclose(found["mixing"] / found["mixing"][0], (eta / eta[0]) ** 2)
    np.testing.assert_allclose(found["upper_step"][0], 0.3 * 100, rtol=0.01)


@pytest.mark.parametrize(("name", "power"), [("stable", 1), ("ttsa", 2), ("stocbio", 2), ("bsa", 2)])
def test_the_baselines_have_the_step_rules_of_the_papers_text(name, power):
    more = {"mixing": 0.1} if name == "stable" else {"series": 0.5}
    found = steps_of(name, upper=0.3, lower=0.2, offset=50.0, **more)
    eta = (np.arange(1, 1000, 100) + 50.0) ** (-1 / 2)
    np.testing.assert_allclose(found["upper_step"] / found["upper_step"][0], eta / eta[0])
    np.testing.assert_allclose(found["lower_step"] / found["lower_step"][0], (eta / eta[0]) ** power)


def test_every_algorithm_can_be_compared():
    assert len({lab.find_contender(facts.name).label for facts in bx.list_algorithms()}) == len(DESCRIPTIONS)


def test_the_figures_have_the_problems_and_methods_of_the_paper():
    baselines = {"stable", "ttsa", "stocbio", "bsa"}
    assert [case.name for case in lab.FIGURE1.cases] == ["a1a", "a8a", "w1a", "w8a"]
    assert {case.name for case in lab.FIGURE2.cases} == {"a1a-200", "w1a-200", "a1a-500", "w1a-500"}
    assert set(lab.FIGURE1.algorithms) == {"svrb", *baselines}
    assert set(lab.FIGURE2.algorithms) == {"re_rsvrb", *baselines}
    assert all(figure.seeds >= 3 for figure in lab.FIGURES.values())
    assert Scale(n=1, tasks=200).tasks_per_step == 10


def test_temperatures_lie_in_the_papers_interval_and_are_fixed():
    sigma = cases.temperatures(500)
    assert sigma.min() >= 1
    assert sigma.max() <= 11
    assert sigma.std() > 2
    np.testing.assert_array_equal(sigma, cases.temperatures(500))
    np.testing.assert_array_equal(cases.temperatures(1), [1.0])


def test_a_case_is_known_by_the_name_that_the_paper_gives_it():
    assert lab.Case.parse("a1a") == lab.Case.parse("a1a-1") == lab.Case("a1a")
    assert lab.Case.parse("w1a-200") == lab.Case("w1a", 200)
    for name in ("a2a", "a1a-", "a1a-x", "a1a-1-2", "-3", ""):
        with pytest.raises(ValueError, match=r"must be named D or D-m, with D one of a1a, a8a, w1a, w8a; got "):
            lab.Case.parse(name)


@pytest.mark.parametrize("is_here", [True, False])
def test_the_benchmarks_have_the_problems_of_the_laboratory(monkeypatch, is_here):
    if not is_here:
        monkeypatch.setattr(harness.datasets, "is_here", lambda name: False)
    elif not harness.data_are_here("a1a"):
        pytest.skip("no real data here")
    problem = harness.paper_problem("a1a-20")
    assert problem.dim_x == harness.SHAPES["a1a"][0]
    np.testing.assert_array_equal(problem.tasks["temperature"], cases.temperatures(20))
    assert len(problem.upper_data.arrays["labels"]) == 100
    if is_here:
        kept = lab.Case("a1a", 20).problem()
        np.testing.assert_array_equal(problem.upper_data.arrays["labels"], kept.upper_data.arrays["labels"])


@pytest.mark.parametrize("data", ["a1a", "w1a"])
def test_many_tasks_are_validated_on_100_points_of_the_test_part(paper_data, data):
    train, validation = cases.parts(lab.Case(data, 200))
    rows = lambda dataset: {row.tobytes() for row in np.column_stack([dataset.features.toarray(), dataset.labels])}
    assert train.digest() == paper_data(data).digest()
    assert len(validation.labels) == 100
    assert rows(validation) <= rows(paper_data(f"{data}.t"))


def test_one_task_is_validated_on_the_whole_test_part(paper_data):
    assert cases.parts(lab.Case("a1a"))[1].digest() == paper_data("a1a.t").digest()


def test_a_file_without_validation_data_lends_every_fifth_row(table):
    train, validation = cases.parts(lab.Case(str(table)))
    assert (len(train.labels), len(validation.labels)) == (64, 16)
    whole = bx.datasets.read_csv(table)
    np.testing.assert_array_equal(validation.features.toarray(), whole.features.toarray()[4::5])


def test_libsvm_files_may_end_at_different_features(tmp_path):
    for name, text in {"train": "+1 1:1 2:0.5\n-1 2:1\n", "held_out": "-1 1:1\n+1 4:2\n"}.items():
        (tmp_path / name).write_text(10 * text)
    case = lab.Case(str(tmp_path / "train"), validation=str(tmp_path / "held_out"))
    train, validation = cases.parts(case)
    np.testing.assert_array_equal(train.features.toarray()[:2], [[1, 0.5, 0, 0], [0, 1, 0, 0]])
    np.testing.assert_array_equal(validation.features.toarray()[:2], [[1, 0, 0, 0], [0, 0, 0, 2]])
    assert case.problem().dim_x == 20
    with pytest.raises(ValueError, match="label names a column of a CSV file"):
        cases.parts(replace(case, label="class"))


def rewritten(table, change):
    """The rows of the file, each as a dictionary that `change` may alter, in a file beside it."""
    with open(table) as lines:
        rows = [change(row) for row in csv.DictReader(lines)]
    path = table.with_name("validation.csv")
    with open(path, "w") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize("label", [None, "class"])
def test_columns_of_validation_data_are_matched_by_name(table, label):
    path = rewritten(table, lambda row: {name: row[name] for name in ("class", "w", "u", "v")})
    train, validation = cases.parts(lab.Case(str(table), validation=str(path), label=label))
    np.testing.assert_array_equal(validation.features.toarray(), train.features.toarray())
    np.testing.assert_array_equal(validation.labels, train.labels)


WRONG_VALIDATION = {
    "missing": (lambda row: {"u": row["u"], "v": row["v"], "class": row["class"]}, r"missing: 'w'"),
    "left over": (lambda row: {"id": 1, **row}, r"left over: 'id'"),
    "renamed": (lambda row: {"u": 1, "v": 2, "x": 3, "class": row["class"]}, r"missing: 'w'; left over: 'x'"),
    "label": (lambda row: {"u": 1, "v": 2, "w": 3, "kind": row["class"]}, r"label must be .* column; got 'class'"),
    "classes": (
        lambda row: {**row, "class": int(row["class"]) + 1},
        "are 1 and 2; they must be those of .*table.csv, 0 and 1",
    ),
}


@pytest.mark.parametrize("case", WRONG_VALIDATION)
def test_validation_data_that_do_not_fit_are_refused_by_name(table, tmp_path, case):
    change, message = WRONG_VALIDATION[case]
    path = rewritten(table, change)
    given = ("compare", "--algorithms", "soba", "--data", table, "--validation", path, "--out", tmp_path / "out")
    outcome = command(*given)
    assert outcome.exit_code == 1
    assert re.search(rf"validation\.csv.*{message}", str(outcome.exception)), outcome.exception
    assert not (tmp_path / "out").exists()


def test_validation_data_of_another_kind_are_refused(table, tmp_path):
    (tmp_path / "rows").write_text(10 * "+1 1:1\n-1 2:1\n")
    with pytest.raises(ValueError, match=r"must be a file like data; .*rows is LIBSVM, .*table.csv is CSV"):
        cases.parts(lab.Case(str(table), validation=str(tmp_path / "rows")))


def test_too_few_rows_are_refused_with_how_many_are_needed(tmp_path):
    (tmp_path / "rows").write_text("+1 1:1\n-1 2:1\n+1 1:2\n-1 2:2\n+1 1:1\n")
    with pytest.raises(ValueError, match=r"rows gives 4 training and 1 validation rows; at least 20 and 5 are needed"):
        cases.parts(lab.Case(str(tmp_path / "rows")))


@pytest.mark.parametrize("part", ["training", "validation"])
def test_one_class_after_the_split_is_refused(tmp_path, part):
    held_out = [k % 5 == 4 for k in range(50)]
    signs = ["-1" if held == (part == "validation") or k % 2 else "+1" for k, held in enumerate(held_out)]
    (tmp_path / "rows").write_text("".join(f"{sign} 1:1\n" for sign in signs))
    with pytest.raises(ValueError, match=rf"rows of the {part} data are of one class; put the rows into random order"):
        cases.parts(lab.Case(str(tmp_path / "rows")))


def test_an_excerpt_has_nearly_the_objective_of_all_tasks(table):
    case = lab.Case(str(table), 300)
    whole, few = case.problem(), case.excerpt()
    assert few.num_tasks < 30
    x = jnp.linspace(-1.0, 1.0, whole.dim_x)
    gain, stand_in = (bx.exact_objective(problem, 3 * x) - bx.exact_objective(problem, x) for problem in (whole, few))
    np.testing.assert_allclose(stand_in, gain, rtol=0.05)


def test_the_shipped_settings_are_those_of_all_figures():
    known = lab.read_package_tuning()
    for figure in lab.FIGURES.values():
        given = runs.Work(figure, known, None, None)
        for case in figure.cases:
            for name in figure.algorithms:
                options = dict(given.options(case, name))
                for key, (low, high) in lab.find_contender(name).tuning.ranges.items():
                    assert 0.99 * low <= options.pop(key) <= 1.01 * high
                for key, choices in lab.find_contender(name).tuning.choices.items():
                    assert options.pop(key) in choices
                assert options == {}


def test_every_method_gets_a_field_of_the_same_size_over_all_its_ranges():
    for contender in map(lab.find_contender, DESCRIPTIONS):
        field = tuning.field_of(contender, tuning.FIELD)
        assert len(field) == tuning.FIELD
        for name, (low, high) in contender.tuning.ranges.items():
            shares = [np.log(options[name] / low) / np.log(high / low) for options in field]
            assert min(shares) < 0.15
            assert max(shares) > 0.85
        for name, choices in contender.tuning.choices.items():
            assert {options[name] for options in field} == set(choices)


def test_a_score_is_the_mean_objective_of_runs_made_alone(table):
    problem, contender = lab.Case(str(table)).problem(), lab.find_contender("svrb")
    settings = [SMALL["svrb"], {**SMALL["svrb"], "upper": 1.0}]
    scores = tuning.Contest(problem, problem, contender).scores(settings, 8, lambda line: None)

    def alone(options):
        algorithm = contender.algorithm(problem, options)
        init, step, variables = map(jax.jit, (algorithm.init, algorithm.step, algorithm.variables))
        found = []
        for seed in tuning.SEEDS:
            init_key, step_key = jax.random.split(jax.random.key(seed))
            state = init(problem, init_key)
            for t in range(8):
                state, _ = step(problem, state, jax.random.fold_in(step_key, t))
                if t + 1 in (2, 4, 8):
                    found.append(float(evaluation.objective(problem, variables(problem, state).x)))
        return np.mean(found)

    wanted = [alone(options) for options in settings]
    np.testing.assert_allclose(scores, wanted, rtol=1e-9)


def test_settings_that_diverge_are_never_chosen(table, monkeypatch, little_effort):
    problem = lab.Case(str(table)).problem()
    field = [{"upper": 1e200, "lower": 1e200}, SMALL["soba"], {"upper": 1e200, "lower": 1e100}]
    monkeypatch.setattr(tuning, "field_of", lambda contender, size: field)
    assert tuning.tune(problem, problem, lab.find_contender("soba"), 1.0).options == SMALL["soba"]
    monkeypatch.setattr(tuning, "field_of", lambda contender, size: field[:1])
    with pytest.raises(RuntimeError, match="every setting of SOBA diverged"):
        tuning.tune(problem, problem, lab.find_contender("soba"), 1.0)


def test_fewer_settings_go_side_by_side_where_memory_is_short(table, monkeypatch):
    problem = lab.Case(str(table)).problem()
    settings = [{**SMALL["soba"], "upper": upper} for upper in (0.1, 0.5, 1.0)]

    def scored(memory):
        monkeypatch.setattr(tuning, "STATE_BYTES", memory)
        lines, contest = [], tuning.Contest(problem, problem, lab.find_contender("soba"))
        return contest.scores(settings, 8, lines.append), len(lines)

    together, programs = scored(2**30)
    alone, others = scored(1)
    assert (programs, others) == (1, 3)
    np.testing.assert_allclose(alone, together, rtol=1e-9)
    state = jax.eval_shape(lab.find_contender("soba").algorithm(problem, settings[0]).init, problem, jax.random.key(0))
    two = 2 * len(tuning.SEEDS) * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    in_two, groups = scored(two)
    assert groups == 2
    np.testing.assert_allclose(in_two, together, rtol=1e-9)


def test_a_quick_run_is_shorter_and_judged_on_an_excerpt_of_the_tasks(small, table, tmp_path):
    quick = lab.FIGURES["figure2"].quick()
    assert quick.seconds < lab.FIGURES["figure2"].seconds / 4
    experiment, known = small
    case = lab.Case(str(table), tasks=40)
    experiment = replace(experiment, cases=(case,), algorithms=("soba",), seeds=1, reference=1e-9)
    known = {"compare": {case.name: known["compare"][lab.Case(str(table)).name]}}
    for excerpt in (False, True):
        lab.conduct(replace(experiment, excerpt=excerpt), known, tmp_path / str(excerpt))
    whole, few = ({t.settings["algorithm"]: t for t in map(bx.Trace.load, (tmp_path / name / "runs").iterdir())}
                  for name in ("False", "True"))  # fmt: skip
    for traces, problem in [(whole, case.problem()), (few, case.excerpt())]:
        for trace in traces.values():  # the run and the reference
            np.testing.assert_allclose(trace["objective"][0], bx.exact_objective(problem, problem.x0), rtol=1e-9)
            assert trace.settings["facts"]["tasks in F"] == problem.num_tasks
    assert case.excerpt().num_tasks < 40
    assert few["soba"]["samples"][0] == whole["soba"]["samples"][0]  # the run itself has all tasks


def test_no_run_is_made_twice(small, tmp_path, monkeypatch):
    experiment, known = small
    lines = []
    lab.conduct(experiment, known, tmp_path / "out", lines.append)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").iterdir()}
    assert len(files) == 2 * 2 + 1  # and the reference
    assert len(lines) == 5
    monkeypatch.setattr(runs, "solve", None)
    monkeypatch.setattr(runs, "run_lbfgs", None)
    lab.conduct(experiment, known, tmp_path / "out")
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").iterdir()}


def test_an_interrupted_command_goes_on_where_it_was(small, tmp_path, monkeypatch):
    experiment, known = small
    made, solve_for = [], runs.solve_for

    def third_is_interrupted(*given, **more):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(given)
        return solve_for(*given, **more)

    monkeypatch.setattr(runs, "solve_for", third_is_interrupted)
    with pytest.raises(KeyboardInterrupt):
        lab.conduct(experiment, known, tmp_path)
    assert len(list((tmp_path / "runs").glob("*.json"))) == 2
    monkeypatch.setattr(runs, "solve_for", solve_for)
    lines = []
    lab.conduct(experiment, known, tmp_path, lines.append)
    assert len(lines) == 3


def test_a_run_says_what_it_was_where_and_with_which_versions(small, tmp_path):
    experiment, known = small
    lab.conduct(replace(experiment, seeds=1, algorithms=("soba",), reference=2.0), known, tmp_path)
    held = [bx.Trace.load(path) for path in (tmp_path / "runs").iterdir()]
    run = next(trace for trace in held if trace.settings["algorithm"] == "soba")
    assert run.settings["options"]["upper"] == SMALL["soba"]["upper"]
    assert run.settings["versions"]["jax"] == jax.__version__
    assert run.settings["machine"]["cores"] >= 1
    assert run.settings["facts"]["training samples"] == 64
    assert run.settings["status"] == "done"
    problem = experiment.cases[0].problem()
    np.testing.assert_allclose(run["objective"][0], bx.exact_objective(problem, problem.x0), rtol=1e-9)
    reference = next(trace for trace in held if trace.settings["algorithm"] == "reference")
    assert min(reference["objective"]) < min(run["objective"])


@pytest.mark.parametrize("n", [10, 1000])
def test_the_reference_goes_on_until_slopes_of_any_size_vanish(n):
    """F with n weights has slopes of order 1/n; what it gains must not depend on how finely they are split."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(10, 3))
    b = np.sign(A[:, 0])
    copies = np.tile(np.arange(10), n // 10)
    problem = bx.problems.reweighting(
        train_features=A[copies], train_labels=b[copies], trusted_features=A, trusted_labels=b, ridge=0.1
    )
    assert min(run_lbfgs(problem, 20.0)["objective"]) < min(run_lbfgs(problem, 1e-9)["objective"]) - 0.05


RUN = Record("compare", "p", "a", "A", seed=0, seconds=1.0)


def test_a_run_with_other_settings_takes_the_place_of_the_old_one(tmp_path):
    store.store_run(tmp_path, RUN)
    store.store_run(tmp_path, replace(RUN, seed=1))
    assert store.find_run(tmp_path, RUN) is not None
    store.store_run(tmp_path, replace(RUN, seconds=2.0))
    assert store.find_run(tmp_path, RUN) is None
    assert len(list((tmp_path / "runs").iterdir())) == 2


ROOMS_ALONE = f"""
import pathlib, sys, types
for name in ("bilevax", "bilevax.lab"):  # the store without JAX, which takes a second to import
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [str(pathlib.Path({str(Path(bx.__file__).parents[1])!r}).joinpath(*name.split(".")))]
from bilevax.lab import store
from bilevax.lab.record import Record
import os
os.fsync = lambda file: None
folder, who = pathlib.Path(sys.argv[1]), sys.argv[2]
for k in range(80):
    run = Record("compare", "p", "a", "A", seed=k % 3, content=who + str(k % 2), rows=({{"step": k}},))
    store.store_run(folder, run)
    store.find_run(folder, run)
    store.add_tuning(folder, ("compare", "p", f"{{who}} {{k}}"), {{"asked": k}})
"""


def test_two_processes_store_in_one_folder_and_nothing_is_lost(tmp_path):
    command = [sys.executable, "-c", ROOMS_ALONE, tmp_path]
    writers = [subprocess.Popen([*command, name], stderr=subprocess.PIPE, text=True) for name in ("one", "two")]
    assert [writer.communicate(timeout=100)[1] for writer in writers] == ["", ""]
    for who, k in itertools.product(("one", "two"), range(80)):
        assert store.read_tuning(tmp_path, ("compare", "p", f"{who} {k}")) == {"asked": k}
    paths = list((tmp_path / "runs").iterdir())
    assert sorted(Record.load(path).seed for path in paths) == [0, 1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "tuned"]


def test_two_runs_stored_at_the_same_time_do_not_take_each_other_away(tmp_path, monkeypatch):
    save, others = Record.save, []
    other = threading.Thread(target=lambda: store.store_run(tmp_path, replace(RUN, seconds=2.0)))

    def then_another_one(record, path):
        save(record, path)
        if not others:
            others.append(other)
            other.start()
            other.join(0.1)

    monkeypatch.setattr(Record, "save", then_another_one)
    store.store_run(tmp_path, RUN)
    other.join()
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_a_run_that_another_process_makes_is_waited_for_not_made_again(tmp_path, monkeypatch):
    key = store.run_key(RUN)
    found, lines = iter([None, None, None, "there"]), []
    monkeypatch.setattr(store, "WAIT", 0.001)
    given = (tmp_path, key, lambda: next(found), lambda: pytest.fail("made twice"), lines.append)

    def meanwhile():
        assert store.make_once(*given, wait=False) is None
        assert store.make_once(*given) == "there"

    store.make_once(tmp_path, key, lambda: None, meanwhile, lines.append)
    assert lines == ["waiting for another command, which is at compare-p-a-0"]
    assert store.make_once(tmp_path, key, lambda: None, lambda: "made", lines.append) == "made"
    assert list((tmp_path / "runs").iterdir()) == []


def test_two_commands_on_one_folder_share_the_runs(small, tmp_path, monkeypatch):
    experiment, known = small
    made, result = [], SimpleNamespace(status="done", message="", trace=bx.Trace())
    result.trace.add({"step": 0, "samples": 0, "seconds": 0.0, "objective": 1.0})

    def solve_for(problem, algorithm, budget, every, seed, judge, checkpoint):
        made.append((algorithm, seed))
        time.sleep(0.02)
        return result

    monkeypatch.setattr(runs, "solve_for", solve_for)
    monkeypatch.setattr(runs, "interval", lambda *given: 1)
    monkeypatch.setattr(runs, "run_lbfgs", lambda *given: made.append("reference") or result.trace)
    monkeypatch.setattr(store, "WAIT", 0.001)
    monkeypatch.setattr(lab.Contender, "algorithm", lambda contender, *given: contender.label)
    experiment.cases[0].problem()  # known to both
    with ThreadPoolExecutor() as pool:
        both = [pool.submit(lab.conduct, experiment, known, tmp_path) for _ in range(2)]
        [ended.result() for ended in both]
    assert len(made) == len(set(made)) == 2 * 2 + 1
    assert len(list((tmp_path / "runs").iterdir())) == 2 * 2 + 1


def test_two_commands_on_one_folder_tune_different_methods(small, tmp_path, monkeypatch):
    """The second one does not wait for what the first one is at while there is something else to do."""
    experiment, _ = small
    made, both = [], threading.Barrier(2, timeout=60)

    def tune(problem, excerpt, contender, budget, tell):
        both.wait()  # until the other one tunes as well
        made.append(contender.name)
        return tuning.TuningResult({"upper": 1.0}, 0.5, 12)

    monkeypatch.setattr(tuning, "tune", tune)
    monkeypatch.setattr(store, "WAIT", 0.001)
    experiment.cases[0].problem()  # known to both
    with ThreadPoolExecutor() as pool:
        found = [pool.submit(lab.tune_all, experiment, tmp_path, lambda line: None) for _ in range(2)]
        first, second = (ended.result() for ended in found)
    assert sorted(made) == sorted(experiment.algorithms)
    assert first == second


def test_a_command_that_would_replace_the_runs_of_another_one_is_refused(small, tmp_path, monkeypatch):
    experiment, known = small
    other = runs.Work(replace(experiment, seconds=7.0), known, tmp_path, None)
    monkeypatch.setattr(runs, "solve_for", None)
    monkeypatch.setattr(tuning, "tune", None)
    with runs.prepare(other):
        for start in (lab.tune_all, lambda *given: lab.conduct(given[0], known, *given[1:])):
            with pytest.raises(ValueError, match=r"another command is at svrb on table\.csv with other settings"):
                start(experiment, tmp_path, lambda line: None)
    assert list((tmp_path / "runs").iterdir()) == []


def ended():
    """The number of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_killed_commands_left_is_swept_and_what_others_hold_is_not(tmp_path):
    with store.keep_folder(tmp_path, [("runs", RUN)]):
        for name in (".compare-p-b-runs.0123456789.12345678.lease", ".compare-p-b-0-0123456789.000003.lease"):
            (tmp_path / "runs" / name).write_text(json.dumps({"host": socket.gethostname(), "process": ended()}))
        with store.keep_folder(tmp_path, [("runs", replace(RUN, algorithm="c"))]):
            names = {path.name.split(".")[1] for path in (tmp_path / "runs").iterdir()}
            assert names == {"compare-p-a-runs", "compare-p-c-runs"}
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_run_with_a_long_name_is_stored(tmp_path):
    run = replace(RUN, problem="é" * 120)
    store.store_run(tmp_path, run)
    store.store_run(tmp_path, replace(RUN, problem="é" * 121))
    assert store.find_run(tmp_path, run) is not None


@pytest.mark.parametrize(
    "content",
    ["{", "[1]", '{"options": 3}', "[" * 10**5],
    ids=["no JSON", "list", "options", "deep"],
)
def test_a_damaged_file_of_settings_is_named(tmp_path, content):
    place = ("compare", "p", "a")
    store.add_tuning(tmp_path, place, {})
    (path,) = (tmp_path / "tuned").iterdir()
    path.write_text(content)
    with pytest.raises(ValueError, match=f"{path.name} is not a file of tuned settings"):
        store.read_tuning(tmp_path, place)


def test_a_damaged_run_is_named(tmp_path):
    path = store.store_run(tmp_path, RUN)
    path.write_text("{")
    with pytest.raises(ValueError, match=path.name):
        store.find_run(tmp_path, RUN)


def test_missing_settings_are_named_before_anything_runs(small, tmp_path):
    experiment, _ = small
    with pytest.raises(ValueError, match=r"no tuned settings of svrb for table.csv in compare; find them with --tune"):
        lab.conduct(experiment, {}, tmp_path)
    assert list(tmp_path.glob("runs/*")) == []


def test_more_tasks_run_on_the_settings_of_the_fewest():
    figure = lab.FIGURE2
    assert {figure.tuning_case(case).name for case in figure.cases} == {"a1a-200", "w1a-200"}


def command(*arguments):
    return CliRunner().invoke(cli._commands(), [str(argument) for argument in arguments])


def test_compare_tunes_runs_and_reports_on_a_users_file(table, tmp_path, little_effort):
    out = tmp_path / "out"
    given = ("compare", "--data", table, "--label", "class", "--tasks", 3, "--algorithms", "rsvrb,soba")
    given = (*given, "--seconds", 0.02, "--seeds", 2, "--out", out)
    first = command(*given)
    assert first.exit_code == 0, first.output
    assert {"report.html", "compare.png", "compare.svg", "tuned"} <= {path.name for path in out.iterdir()}
    assert "RSVRB" in (out / "report.html").read_text()
    tuned = store.read_tuning(out, ("compare", "table.csv-3", "rsvrb"))
    assert set(tuned["options"]) == {"upper", "lower", "mixing", "initial_batch_size"}
    again = command(*given)
    assert "tuning" not in again.output
    assert "seed" not in again.output


@pytest.mark.parametrize(("measure", "amount"), [("steps", 40), ("samples", 4000)])
def test_budgets_of_steps_and_samples_do_not_ask_the_clock(small, tmp_path, measure, amount):
    """Twice the same, but for seconds."""
    experiment, known = small
    experiment = replace(experiment, algorithms=("soba",), seeds=1, seconds=None, reference=0.01, **{measure: amount})
    records = []
    for out in (tmp_path / "one", tmp_path / "two"):
        lab.conduct(experiment, known, out)
        records.append(Record.load(next((out / "runs").glob("*-soba-*.json"))))
    assert (records[0].seconds, getattr(records[0], measure)) == (None, amount)
    assert amount <= records[0].rows[-1]["step" if measure == "steps" else measure] < 1.1 * amount
    first, second = ([{**row, "seconds": 0} for row in record.rows] for record in records)
    assert first == second
    assert len(first) > 3


def test_the_steps_of_a_budget_are_counted_from_samples(table):
    problem, contender = lab.Case(str(table)).problem(), lab.find_contender("soba")
    steps = tuning.steps_within(problem, contender, {"samples": 10_000})
    middle = tuning._setting(contender, {"upper": 0.5, "lower": 0.5})
    result = bx.solve(problem, contender.algorithm(problem, middle), steps=steps, metrics=None)
    assert 9_900 <= result.cost.samples <= 10_000
    assert tuning.steps_within(problem, contender, {"steps": 77}) == 77


def test_a_comparison_has_one_budget(table):
    case = lab.Case(str(table))
    with pytest.raises(ValueError, match=r"one of seconds, steps and samples; got seconds=5\.0, steps=3"):
        lab.Experiment("compare", (case,), ("soba",), steps=3)
    with pytest.raises(ValueError, match="got none"):
        lab.Experiment("compare", (case,), ("soba",), seconds=None)
    with pytest.raises(ValueError, match="samples"):
        lab.Experiment("compare", (case,), ("soba",), seconds=None, samples=0)


def test_a_long_run_that_was_interrupted_goes_on(small, tmp_path, monkeypatch):
    """SIGTERM writes a checkpoint beside the runs; it is gone when the run is stored."""
    experiment, known = small
    experiment = replace(experiment, seconds=None, steps=60, seeds=1, algorithms=("soba",))
    solve, begun = runs.solve, []

    def stop_in_the_middle(problem, algorithm, **given):
        if given.get("checkpoint") is not None and not begun:
            given |= {"steps": 30}
            begun.append(solve(problem, algorithm, **given))
            return replace(begun[0], status="interrupted")
        return solve(problem, algorithm, **given)

    monkeypatch.setattr(runs, "solve", stop_in_the_middle)
    with pytest.raises(lab.Interruption):
        lab.conduct(experiment, known, tmp_path)
    assert len(list((tmp_path / "runs").glob(".*.run"))) == 1
    taken = []
    monkeypatch.setattr(runs, "solve", lambda *given, **more: taken.append(solve(*given, **more)) or taken[-1])
    lab.conduct(experiment, known, tmp_path)
    (record,) = (record for path in (tmp_path / "runs").glob("*soba*.json") if (record := Record.load(path)))
    whole = solve(
        experiment.cases[0].problem(),
        runs.find_contender("soba").algorithm(
            experiment.cases[0].problem(), known["compare"][experiment.cases[0].name]["soba"]["options"]
        ),
        steps=60,
        seed=0,
        metrics=runs.objective_metric(experiment.cases[0].problem()),
    )
    assert record.rows[-1]["objective"] == whole.trace["objective"][-1]
    assert list((tmp_path / "runs").glob(".*")) == []


def test_reproduce_runs_a_figure_with_the_shipped_settings(small, tmp_path, monkeypatch):
    experiment, known = small
    figure = replace(experiment, name="figure1", seeds=1)
    monkeypatch.setitem(lab.FIGURES, "figure1", figure)
    monkeypatch.setattr(lab, "read_package_tuning", lambda: {"figure1": known["compare"]})
    outcome = command("reproduce", "figure1", "--seconds", 0.03, "--out", tmp_path)
    assert outcome.exit_code == 0, outcome.output
    records = [Record.load(path) for path in (tmp_path / "runs").iterdir()]
    assert {run.seconds for run in records if not run.is_reference} == {0.03}
    assert (tmp_path / "figure1.png").exists()


def test_reproduce_table1_stores_the_exponents(tmp_path, monkeypatch):
    found = [rates.Fewest(10 * epsilon**-2, {"upper": 1}) for epsilon in rates.EPSILONS[:-1]]
    monkeypatch.setattr("bilevax.lab.table1.measure", lambda *given: [*found, rates.Fewest(np.inf, {})])
    outcome = command("reproduce", "table1", "--quick", "--out", tmp_path)
    assert outcome.exit_code == 0, outcome.output
    records = [Record.load(path) for path in (tmp_path / "runs").iterdir()]
    assert len(records) == 2 * 5
    np.testing.assert_allclose([run.exponent for run in records], 2.0)
    assert all("samples" not in run.rows[-1] for run in records)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("compare", "--algorithms", "sobb"), "algorithms must be one of"),
        (("compare", "--algorithms", "svrb", "--tasks", 5), "svrb is for one lower problem, table.csv-5 has 5"),
        (("compare", "--algorithms", "soba", "--label", "colour"), "label must be the name of a column; got 'colour'"),
    ],
)
def test_what_is_wrong_with_a_comparison_is_said_in_a_line(table, tmp_path, given, message):
    outcome = command(*given, "--data", table, "--out", tmp_path / "out")
    assert outcome.exit_code == 1
    assert message in str(outcome.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("reproduce", "table1", "--tune"), "--seconds and --tune are for figures"),
        (("reproduce", "figure1", "--seconds", 0), "0.0 is not in the range x>0"),
    ],
)
def test_options_that_mean_nothing_are_refused(tmp_path, given, message):
    outcome = command(*given, "--out", tmp_path / "out")
    assert outcome.exit_code == 2
    assert message in outcome.output


def test_data_that_are_neither_known_nor_a_file_are_refused(tmp_path):
    outcome = command("compare", "--algorithms", "soba", "--data", "a2a", "--out", tmp_path / "out")
    assert outcome.exit_code == 1
    assert "data must be one of a1a, a8a, w1a, w8a, or a LIBSVM or CSV file; got 'a2a'" in str(outcome.exception)


@pytest.mark.parametrize("what", ["compare", "figure1", "table1"])
def test_an_output_that_cannot_be_written_is_refused_before_anything_long(table, small, tmp_path, monkeypatch, what):
    experiment, known = small
    monkeypatch.setitem(lab.FIGURES, "figure1", replace(experiment, name="figure1"))
    monkeypatch.setattr(lab, "read_package_tuning", lambda: {"figure1": known["compare"]})
    for place, name in [(tuning, "tune"), (runs, "solve"), (runs, "run_lbfgs")]:
        monkeypatch.setattr(place, name, None)
    monkeypatch.setattr("bilevax.lab.table1.measure", None)
    given = ("compare", "--data", table, "--algorithms", "soba") if what == "compare" else ("reproduce", what)
    for out in (Path("/proc/nowhere"), table / "out"):
        outcome = command(*given, "--out", out)
        assert outcome.exit_code == 1
        assert f"Error: {out} must be a folder that can be written to" in str(outcome.exception)


def test_special_files_as_data_do_not_block(table, tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    for data, validation in [(tmp_path / "pipe.csv", table), (table, tmp_path / "pipe.csv"), (table, tmp_path)]:
        given = ("--data", data, "--validation", validation, "--algorithms", "soba", "--out", tmp_path / "out")
        outcome = command("compare", *given)
        assert outcome.exit_code == 1
        assert str(validation if data == table else data) in str(outcome.exception)


def test_a_stopped_command_says_how_to_go_on(tmp_path, monkeypatch):
    def stop(*given):
        raise lab.Interruption

    monkeypatch.setattr(lab, "conduct", stop)
    monkeypatch.setattr(lab, "read_package_tuning", dict)
    outcome = command("reproduce", "figure1", "--out", tmp_path)
    assert outcome.exit_code == cli.INTERRUPT_CODE
    assert "the same command goes on from there" in outcome.output


def test_the_start_does_not_count_as_steps(table, monkeypatch):
    """A start that takes all the time must not leave a method with rounds of no steps."""
    problem = lab.Case(str(table)).problem()
    budgets = []

    def counted(problem, algorithm, **given):
        budgets.append(given)
        result = bx.solve(problem, algorithm, steps=given.get("steps", 40), metrics=None, progress=False)
        return replace(result, seconds=7.0)

    monkeypatch.setattr(tuning, "solve", counted)
    assert tuning.steps_within(problem, lab.find_contender("soba"), {"seconds": 1.0}) == 40 / tuning.PACE
    assert budgets[1]["seconds"] == 7.0 + tuning.PACE
