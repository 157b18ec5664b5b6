"""The paper's experiments are what its text says, every method is tuned alike, and no run is made twice or lost."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

import bilevax as bx
from bilevax import cli, experiments, metrics
from bilevax.experiments import cases, rates, store, tuning, work
from bilevax.experiments.methods import METHODS, Scale
from bilevax.experiments.reference import descend

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
    case = experiments.Case(str(table))
    experiment = experiments.Experiment(
        "compare", (case,), tuple(SMALL), seconds=0.02, seeds=2, records=3, reference=0.1
    )
    return experiment, {"compare": {case.name: {name: {"options": options} for name, options in SMALL.items()}}}


@pytest.fixture
def little_effort(monkeypatch):
    """Three settings and short rounds."""
    monkeypatch.setattr(tuning, "FIELD", 3)
    monkeypatch.setattr(tuning, "ROUNDS", ((3, 0.5), (2, 1.0)))
    monkeypatch.setattr(tuning, "steps_within", lambda problem, method, seconds: 12)


def steps_of(name, **options):
    settings = METHODS[name].make(Scale(n=100, tasks=1), **options).settings
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
    assert set(METHODS) == {facts.name for facts in bx.algorithms()}


def test_the_figures_have_the_problems_and_methods_of_the_paper():
    baselines = {"stable", "ttsa", "stocbio", "bsa"}
    assert [case.name for case in experiments.FIGURE1.cases] == ["a1a", "a8a", "w1a", "w8a"]
    assert {case.name for case in experiments.FIGURE2.cases} == {"a1a-200", "w1a-200", "a1a-500", "w1a-500"}
    assert set(experiments.FIGURE1.methods) == {"svrb", *baselines}
    assert set(experiments.FIGURE2.methods) == {"re_rsvrb", *baselines}
    assert all(figure.seeds >= 3 for figure in experiments.FIGURES.values())
    assert Scale(n=1, tasks=200).tasks_per_step == 10


def test_temperatures_lie_in_the_papers_interval_and_are_fixed():
    sigma = cases.temperatures(500)
    assert sigma.min() >= 1
    assert sigma.max() <= 11
    assert sigma.std() > 2
    np.testing.assert_array_equal(sigma, cases.temperatures(500))
    np.testing.assert_array_equal(cases.temperatures(1), [1.0])


@pytest.mark.parametrize("data", ["a1a", "w1a"])
def test_many_tasks_are_validated_on_100_points_of_the_test_part(paper_data, data):
    train, validation = cases.parts(experiments.Case(data, 200))
    rows = lambda dataset: {row.tobytes() for row in np.column_stack([dataset.features.toarray(), dataset.labels])}
    assert train.digest() == paper_data(data).digest()
    assert len(validation.labels) == 100
    assert rows(validation) <= rows(paper_data(f"{data}.t"))


def test_one_task_is_validated_on_the_whole_test_part(paper_data):
    assert cases.parts(experiments.Case("a1a"))[1].digest() == paper_data("a1a.t").digest()


def test_a_file_without_validation_data_lends_every_fifth_row(table):
    train, validation = cases.parts(experiments.Case(str(table)))
    assert (len(train.labels), len(validation.labels)) == (64, 16)
    whole = bx.datasets.read_csv(table)
    np.testing.assert_array_equal(validation.features.toarray(), whole.features.toarray()[4::5])


def test_libsvm_files_may_end_at_different_features(tmp_path):
    for name, text in {"train": "+1 1:1 2:0.5\n-1 2:1\n", "held_out": "-1 1:1\n+1 4:2\n"}.items():
        (tmp_path / name).write_text(text)
    case = experiments.Case(str(tmp_path / "train"), validation=str(tmp_path / "held_out"))
    train, validation = cases.parts(case)
    np.testing.assert_array_equal(train.features.toarray(), [[1, 0.5, 0, 0], [0, 1, 0, 0]])
    np.testing.assert_array_equal(validation.features.toarray(), [[1, 0, 0, 0], [0, 0, 0, 2]])
    assert case.problem().dim_x == 2
    with pytest.raises(ValueError, match="label names a column of a CSV file"):
        cases.parts(replace(case, label="class"))


def test_an_excerpt_has_nearly_the_objective_of_all_tasks(table):
    case = experiments.Case(str(table), 300)
    whole, few = case.problem(), case.excerpt()
    assert few.num_tasks < 30
    x = jnp.linspace(-1.0, 1.0, whole.dim_x)
    gain, stand_in = (bx.exact_objective(problem, 3 * x) - bx.exact_objective(problem, x) for problem in (whole, few))
    np.testing.assert_allclose(stand_in, gain, rtol=0.05)


def test_the_shipped_settings_are_those_of_all_figures():
    known = experiments.shipped()
    for figure in experiments.FIGURES.values():
        given = work.Work(figure, known, None, None)
        for case in figure.cases:
            for name in figure.methods:
                options = dict(given.options(case, name))
                for key, (low, high) in METHODS[name].ranges.items():
                    assert 0.99 * low <= options.pop(key) <= 1.01 * high
                for key, choices in METHODS[name].choices.items():
                    assert options.pop(key) in choices
                assert options == {}


def test_every_method_gets_a_field_of_the_same_size_over_all_its_ranges():
    for method in METHODS.values():
        field = tuning.field_of(method, tuning.FIELD)
        assert len(field) == tuning.FIELD
        for name, (low, high) in method.ranges.items():
            shares = [np.log(options[name] / low) / np.log(high / low) for options in field]
            assert min(shares) < 0.15
            assert max(shares) > 0.85
        for name, choices in method.choices.items():
            assert {options[name] for options in field} == set(choices)


def test_a_score_is_the_mean_objective_of_runs_made_alone(table):
    problem, method = experiments.Case(str(table)).problem(), METHODS["svrb"]
    settings = [SMALL["svrb"], {**SMALL["svrb"], "upper": 1.0}]
    scores = tuning.Contest(problem, problem, method).scores(settings, 8, lambda line: None)

    def alone(options, seed):
        algorithm = method.algorithm(problem, options)
        init_key, step_key = jax.random.split(jax.random.key(seed))
        state, found, step = algorithm.init(problem, init_key), [], jax.jit(algorithm.step)
        for t in range(8):
            state, _ = step(problem, state, jax.random.fold_in(step_key, t))
            if t + 1 in (2, 4, 8):
                found.append(float(metrics.objective(problem, algorithm.variables(problem, state).x)))
        return np.mean(found)

    wanted = [np.mean([alone(options, seed) for seed in tuning.SEEDS]) for options in settings]
    np.testing.assert_allclose(scores, wanted, rtol=1e-9)


def test_settings_that_diverge_are_never_chosen(table, monkeypatch, little_effort):
    problem = experiments.Case(str(table)).problem()
    field = [{"upper": 1e200, "lower": 1e200}, SMALL["soba"], {"upper": 1e200, "lower": 1e100}]
    monkeypatch.setattr(tuning, "field_of", lambda method, size: field)
    assert tuning.tune(problem, problem, METHODS["soba"], 1.0).options == SMALL["soba"]
    monkeypatch.setattr(tuning, "field_of", lambda method, size: field[:1])
    with pytest.raises(RuntimeError, match="every setting of SOBA diverged"):
        tuning.tune(problem, problem, METHODS["soba"], 1.0)


def test_fewer_settings_go_side_by_side_where_memory_is_short(table, monkeypatch):
    problem = experiments.Case(str(table)).problem()
    settings = [{**SMALL["soba"], "upper": upper} for upper in (0.1, 0.5, 1.0)]

    def scored(memory):
        monkeypatch.setattr(tuning, "STATE_BYTES", memory)
        told = []
        return tuning.Contest(problem, problem, METHODS["soba"]).scores(settings, 8, told.append), len(told)

    together, programs = scored(2**30)
    alone, runs = scored(1)
    assert (programs, runs) == (1, 3)
    np.testing.assert_allclose(alone, together, rtol=1e-9)
    state = jax.eval_shape(METHODS["soba"].algorithm(problem, settings[0]).init, problem, jax.random.key(0))
    two = 2 * len(tuning.SEEDS) * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    in_two, groups = scored(two)
    assert groups == 2
    np.testing.assert_allclose(in_two, together, rtol=1e-9)


def test_a_quick_run_is_shorter_and_judged_on_an_excerpt_of_the_tasks(small, table, tmp_path):
    quick = experiments.FIGURES["figure2"].quick()
    assert quick.seconds < experiments.FIGURES["figure2"].seconds / 4
    experiment, known = small
    case = experiments.Case(str(table), tasks=40)
    experiment = replace(experiment, cases=(case,), methods=("soba",), seeds=1, reference=1e-9)
    known = {"compare": {case.name: known["compare"][experiments.Case(str(table)).name]}}
    for excerpt in (False, True):
        experiments.conduct(replace(experiment, excerpt=excerpt), known, tmp_path / str(excerpt))
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
    experiments.conduct(experiment, known, tmp_path / "out", lines.append)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").iterdir()}
    assert len(files) == 2 * 2 + 1  # and the reference
    assert len(lines) == 5
    monkeypatch.setattr(work, "solve", None)
    monkeypatch.setattr(work, "descend", None)
    experiments.conduct(experiment, known, tmp_path / "out")
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").iterdir()}


def test_an_interrupted_command_goes_on_where_it_was(small, tmp_path, monkeypatch):
    experiment, known = small
    made, solve_for = [], work.solve_for

    def third_is_interrupted(*given, **more):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(given)
        return solve_for(*given, **more)

    monkeypatch.setattr(work, "solve_for", third_is_interrupted)
    with pytest.raises(KeyboardInterrupt):
        experiments.conduct(experiment, known, tmp_path)
    assert len(list((tmp_path / "runs").glob("*.json"))) == 2
    monkeypatch.setattr(work, "solve_for", solve_for)
    lines = []
    experiments.conduct(experiment, known, tmp_path, lines.append)
    assert len(lines) == 3


def test_a_run_says_what_it_was_where_and_with_which_versions(small, tmp_path):
    experiment, known = small
    experiments.conduct(replace(experiment, seeds=1, methods=("soba",), reference=2.0), known, tmp_path)
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
    assert min(descend(problem, 20.0)["objective"]) < min(descend(problem, 1e-9)["objective"]) - 0.05


def test_a_run_with_other_settings_takes_the_place_of_the_old_one(tmp_path):
    asked = {"experiment": "compare", "problem": "p", "algorithm": "a", "seed": 0, "seconds": 1.0}
    store.store(tmp_path, asked, bx.Trace())
    store.store(tmp_path, {**asked, "seed": 1}, bx.Trace())
    assert store.stored(tmp_path, asked) is not None
    store.store(tmp_path, {**asked, "seconds": 2.0}, bx.Trace())
    assert store.stored(tmp_path, asked) is None
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_missing_settings_are_named_before_anything_runs(small, tmp_path):
    experiment, _ = small
    with pytest.raises(ValueError, match=r"no tuned settings of svrb for table.csv in compare; find them with --tune"):
        experiments.conduct(experiment, {}, tmp_path)
    assert list(tmp_path.glob("runs/*")) == []


def test_more_tasks_run_on_the_settings_of_the_fewest():
    figure = experiments.FIGURE2
    assert {figure.tuned_on(case).name for case in figure.cases} == {"a1a-200", "w1a-200"}


def command(*arguments):
    return CliRunner().invoke(cli._commands(), [str(argument) for argument in arguments])


def test_compare_tunes_runs_and_reports_on_a_users_file(table, tmp_path, little_effort):
    out = tmp_path / "out"
    given = ("compare", "--data", table, "--label", "class", "--tasks", 3, "--algorithms", "rsvrb,soba")
    given = (*given, "--seconds", 0.02, "--seeds", 2, "--out", out)
    first = command(*given)
    assert first.exit_code == 0, first.output
    assert {"report.html", "compare.png", "compare.svg", "tuned.json"} <= {path.name for path in out.iterdir()}
    assert "RSVRB" in (out / "report.html").read_text()
    tuned = json.loads((out / "tuned.json").read_text())["compare"]["table.csv-3"]
    assert set(tuned["rsvrb"]["options"]) == {"upper", "lower", "mixing", "initial_batch_size"}
    again = command(*given)
    assert "tuning" not in again.output
    assert "seed" not in again.output


def test_reproduce_runs_a_figure_with_the_shipped_settings(small, tmp_path, monkeypatch):
    experiment, known = small
    figure = replace(experiment, name="figure1", seeds=1)
    monkeypatch.setitem(experiments.FIGURES, "figure1", figure)
    monkeypatch.setattr(experiments, "shipped", lambda: {"figure1": known["compare"]})
    outcome = command("reproduce", "figure1", "--seconds", 0.03, "--out", tmp_path)
    assert outcome.exit_code == 0, outcome.output
    runs = [bx.Trace.load(path).settings for path in (tmp_path / "runs").iterdir()]
    assert {run["seconds"] for run in runs if run["algorithm"] != "reference"} == {0.03}
    assert (tmp_path / "figure1.png").exists()


def test_reproduce_table1_stores_the_exponents(tmp_path, monkeypatch):
    found = [rates.Fewest(10 * epsilon**-2, {"upper": 1}) for epsilon in rates.EPSILONS[:-1]]
    monkeypatch.setattr("bilevax.experiments.table1.measure", lambda *given: [*found, rates.Fewest(np.inf, {})])
    outcome = command("reproduce", "table1", "--quick", "--out", tmp_path)
    assert outcome.exit_code == 0, outcome.output
    runs = [bx.Trace.load(path) for path in (tmp_path / "runs").iterdir()]
    assert len(runs) == 2 * 5
    np.testing.assert_allclose([run.settings["exponent"] for run in runs], 2.0)
    assert all("samples" not in run.rows[-1] for run in runs)


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


def test_a_stopped_command_says_how_to_go_on(tmp_path, monkeypatch):
    def stop(*given):
        raise experiments.Interrupted

    monkeypatch.setattr(experiments, "conduct", stop)
    monkeypatch.setattr(experiments, "shipped", dict)
    outcome = command("reproduce", "figure1", "--out", tmp_path)
    assert outcome.exit_code == cli.STOPPED
    assert "the same command goes on from there" in outcome.output


def test_the_start_does_not_count_as_steps(table, monkeypatch):
    """A start that takes all the time must not leave a method with rounds of no steps."""
    problem = experiments.Case(str(table)).problem()
    budgets = []

    def counted(problem, algorithm, **given):
        budgets.append(given)
        result = bx.solve(problem, algorithm, steps=given.get("steps", 40), metrics=None, progress=False)
        return replace(result, seconds=7.0)

    monkeypatch.setattr(tuning, "solve", counted)
    assert tuning.steps_within(problem, METHODS["soba"], 1.0) == 40 / tuning.PACE
    assert budgets[1]["seconds"] == 7.0 + tuning.PACE
