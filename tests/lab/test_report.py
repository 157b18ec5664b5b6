"""Stored runs become a page and pictures: the numbers are right, names are harmless, broken files are named."""

import base64
import hashlib
import io
import json
import math
import os
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.stored_runs import MARKUP, rows_of, store

from bilevax.cli import _commands
from bilevax.lab.claims import CLAIMS, GAPS, best_values, compare, judge, rates, reach, reaches
from bilevax.lab.record import Record
from bilevax.lab.report import write_report
from bilevax.lab.report.curves import MOST_POINTS, ceiling, mean_curve, rate_curve, styles
from bilevax.lab.report.page import make_page
from bilevax.lab.report.pictures import draw_pictures
from bilevax.lab.report.readable import amount, enumeration, percent, plain, seconds
from bilevax.lab.results import AlgorithmRuns, labels, load

imread = pytest.importorskip("matplotlib.image").imread
pytest.importorskip("plotly")


def store_race(folder, times, experiment="figure1", problem="a1a"):
    """One run for each algorithm: F falls from 1 to 0 at the given number of samples (never, if infinite)."""
    for algorithm, samples in times.items():
        there = math.isfinite(samples)
        rows = rows_of([0, samples, 1000] if there else [0, 10, 1000], [1.0, 0.0, 0.0] if there else [1.0, 0.9, 0.9])
        store(folder, rows, problem, algorithm, experiment=experiment)


def only_problem(folder):
    (experiment,) = load(folder)
    (problem,) = experiment.problems
    return problem


def runs_of(*runs):
    return AlgorithmRuns("svrb", "SVRB", tuple(Record("figure1", "a1a", "svrb", "SVRB", rows=rows) for rows in runs))


# Reading and sorting


def test_problems_come_in_the_order_of_the_paper(tmp_path):
    for problem in ("w8a", "a1a", "w1a", "a8a"):
        store(tmp_path, rows_of([0, 1], [1.0, 0.5]), problem)
    for problem in ("w1a-500", "a1a-500", "w1a-200", "a1a-200"):
        store(tmp_path, rows_of([0, 1], [1.0, 0.5]), problem, "re_rsvrb", experiment="figure2")
    first, second = load(tmp_path)
    assert [problem.name for problem in first.problems] == ["a1a", "a8a", "w1a", "w8a"]
    assert [problem.name for problem in second.problems] == ["a1a-200", "w1a-200", "a1a-500", "w1a-500"]


def test_other_problems_come_in_natural_order(tmp_path):
    for m in (100, 2, 10):
        store(tmp_path, [{"epsilon": 0.1, "samples": 5}], f"m = {m}", experiment="table1")
    assert [problem.name for problem in load(tmp_path)[0].problems] == ["m = 2", "m = 10", "m = 100"]


def test_a_reference_makes_the_best_value_known_but_does_not_compete(tmp_path):
    store(tmp_path, rows_of([0, 1], [1.0, 0.5]))
    store(tmp_path, rows_of([0, 1], [1.0, 0.25]), algorithm="reference")
    problem = only_problem(tmp_path)
    assert [one.label for one in problem.algorithms] == ["SVRB"]
    assert (problem.start, problem.best) == (1.0, 0.25)


def test_a_record_comes_back_as_it_was_written(tmp_path):
    asked = {"options": {"upper": 0.1}, "seconds": 2.0, "excerpt": False}
    rows = ({"samples": 1, "objective": 0.5},)
    record = Record("figure1", "a1a", "svrb", "SVRB", seed=3, **asked, status="done", facts={"tasks": 1}, rows=rows)
    record.save(tmp_path / "run.json")
    assert Record.load(tmp_path / "run.json") == record
    assert json.loads((tmp_path / "run.json").read_text()) == record.to_json()
    assert set(record.request()) == {"experiment", "problem", "algorithm", "label", "seed", *asked}


def test_the_page_counts_references_apart_and_says_when_runs_are_quick(tmp_path):
    store(tmp_path, rows_of([0, 1], [1.0, 0.5]), excerpt=False)
    store(tmp_path, rows_of([0, 1], [1.0, 0.4]), algorithm="reference")
    assert "1 run and 1 of the reference" in page_of(tmp_path)
    assert "quick runs" not in without_plotly(page_of(tmp_path))
    store(tmp_path, rows_of([0, 1], [1.0, 0.5]), excerpt=True)
    assert "These are quick runs (--quick)" in page_of(tmp_path)


def test_values_that_are_not_finite_are_left_out(tmp_path):
    store(tmp_path, rows_of([0, 1, 2], [1.0, 0.5, math.nan]), status="diverged")
    problem = only_problem(tmp_path)
    assert problem.best == 0.5
    assert mean_curve(problem.algorithms[0], "samples").x.tolist() == [0, 1]


# Curves


def test_the_mean_and_its_band_end_where_the_shortest_seed_ends():
    short, other = rows_of([0, 10, 20], [4.0, 2.0, 1.0]), rows_of([0, 10, 20], [4.0, 7.0, 3.0])
    curve = mean_curve(runs_of(short, other, rows_of([0, 10, 20, 30], [4.0, 3.0, 2.0, 1.5])), "samples")
    assert curve.x.tolist() == [0, 10, 20]
    assert curve.mean.tolist() == [4.0, 4.0, 2.0]
    assert curve.low.tolist() == [4.0, 2.0, 1.0]
    assert curve.high.tolist() == [4.0, 7.0, 3.0]


def test_seeds_evaluated_at_different_times_are_interpolated():
    method = runs_of(rows_of([0, 1, 2], [4.0, 2.0, 0.0], [0.0, 1.0, 2.0]), rows_of([0, 1], [4.0, 0.0], [0.0, 4.0]))
    curve = mean_curve(method, "seconds")
    assert curve.x.tolist() == [0.0, 1.0, 2.0]
    assert curve.mean.tolist() == [4.0, 2.5, 1.0]


def test_a_seed_that_diverged_at_once_leaves_one_point():
    method = runs_of(rows_of([0], [4.0], [0.1]), rows_of([0, 1], [4.0, 2.0], [0.2, 1.0]))
    assert mean_curve(method, "seconds").x.tolist() == [0.1]


def test_a_long_curve_is_thinned_but_keeps_its_ends():
    many = list(range(5 * MOST_POINTS))
    x = mean_curve(runs_of(rows_of(many, [1.0 / (1 + k) for k in many])), "samples").x
    assert len(x) <= MOST_POINTS
    assert (x[0], x[-1]) == (many[0], many[-1])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8), min_size=1, max_size=4), st.data())
def test_the_mean_lies_in_the_band_and_the_grid_in_every_seed(values, data):
    runs = []
    for objective in values:
        gaps = data.draw(st.lists(st.integers(1, 9), min_size=len(objective), max_size=len(objective)))
        runs.append(rows_of(np.cumsum(gaps).tolist(), objective))
    curve = mean_curve(runs_of(*runs), "samples")
    assert (curve.low <= curve.mean + 1e-9).all()
    assert (curve.mean <= curve.high + 1e-9).all()
    assert curve.x[-1] == min(rows[-1]["samples"] for rows in runs)


def test_the_axis_is_cut_above_the_start_when_a_run_explodes(tmp_path):
    store(tmp_path, rows_of([0, 1, 2], [1.0, 0.5, 0.0]))
    store(tmp_path, rows_of([0, 1, 2], [1.0, 2.0, 1e30]), algorithm="stable", status="diverged")
    problem = only_problem(tmp_path)
    curves = [mean_curve(method, "samples") for method in problem.algorithms]
    assert 1.0 <= ceiling(problem, curves) < 2.0


def test_an_accuracy_that_not_every_seed_reached_is_not_in_the_mean():
    arrivals = [{"epsilon": 0.1, "samples": 10}, {"epsilon": 0.01, "samples": 100}]
    curve = rate_curve(runs_of(arrivals, [{"epsilon": 0.1, "samples": 30}, {"epsilon": 0.01}]))
    assert curve.x.tolist() == [10.0]
    assert curve.mean.tolist() == [20.0]


# Gaps


def test_a_gap_is_reached_at_the_first_evaluation_at_or_below_it(tmp_path):
    store(tmp_path, rows_of([0, 100, 200, 300], [10.0, 6.0, 5.0, 1.0], [0.0, 1.0, 2.0, 3.0]))
    store(tmp_path, rows_of([0, 1], [10.0, 0.0]), algorithm="reference")
    problem = only_problem(tmp_path)
    assert [r.value for r in reaches(problem, "samples")["SVRB"]] == [200, 300, 300, math.inf, math.inf]
    assert [r.value for r in reaches(problem, "seconds")["SVRB"]] == [2, 3, 3, math.inf, math.inf]


@pytest.mark.parametrize(
    ("times", "median"),
    [((100, 200, 900), 200), ((100, 200, None), 200), ((100, 300, None, None), 300), ((100, None, None), math.inf)],
)
def test_the_median_counts_and_half_of_the_seeds_must_get_there(tmp_path, times, median):
    for seed, time in enumerate(times):
        store(tmp_path, rows_of([0, time or 50, 1000], [1.0, 0.0 if time else 0.9, 0.0 if time else 0.9]), seed=seed)
    problem = only_problem(tmp_path)
    found = reach(problem, problem.algorithms[0], "samples", 0.1)
    assert found.value == median
    assert (found.arrivals, found.seeds) == (sum(time is not None for time in times), len(times))


def test_the_smallest_of_each_column_wins(tmp_path):
    store(tmp_path, rows_of([0, 10, 90], [1.0, 0.4, 0.0]))
    store(tmp_path, rows_of([0, 20, 30], [1.0, 0.4, 0.0]), algorithm="stable")
    assert best_values(reaches(only_problem(tmp_path), "samples")) == [10, 30, 30, 30, 30]


def test_nobody_wins_where_nobody_improves(tmp_path):
    store(tmp_path, rows_of([0, 10], [1.0, 1.5]))
    assert best_values(reaches(only_problem(tmp_path), "samples")) == [math.inf] * len(GAPS)


# Claims


def test_a_champion_that_is_first_holds_by_a_factor(tmp_path):
    store_race(tmp_path, {"svrb": 100, "stable": 300, "ttsa": 500})
    compared = compare(CLAIMS["figure1"], only_problem(tmp_path), "samples")
    assert (compared.holds, compared.factor, compared.rival, compared.gap) == (True, 3.0, "STABLE", 0.1)
    assert judge(load(tmp_path)[0]).verdict == "holds here"


def test_a_champion_that_is_behind_does_not_hold(tmp_path):
    store_race(tmp_path, {"svrb": 200, "stable": 100})
    judgement = judge(load(tmp_path)[0])
    assert [(c.holds, c.factor) for c in judgement.comparisons] == [(False, 2.0), (False, 2.0)]
    assert judgement.verdict == "does not hold here"


def test_a_champion_that_alone_gets_there_has_no_rival(tmp_path):
    store_race(tmp_path, {"svrb": 100, "stable": math.inf, "ttsa": math.inf})
    text = without_plotly(page_of(tmp_path))
    assert "yes: SVRB gets there, no baseline does" in text
    assert "<td>–</td>" in text


def test_a_champion_that_is_level_is_not_first(tmp_path):
    store_race(tmp_path, {"svrb": 100, "stable": 100})
    assert judge(load(tmp_path)[0]).wins == 0


def test_a_claim_on_all_problems_holds_only_in_part_when_one_fails(tmp_path):
    store_race(tmp_path, {"svrb": 100, "stable": 200}, problem="a1a")
    store_race(tmp_path, {"svrb": 200, "stable": 100}, problem="w1a")
    judgement = judge(load(tmp_path)[0])
    assert judgement.verdict == "holds here only in part"
    assert judgement.missing == ["a8a", "w8a"]


@pytest.mark.parametrize(("won", "verdict"), [(3, "holds here"), (2, "does not hold here")])
def test_a_claim_on_most_problems_holds_when_more_than_half_do(tmp_path, won, verdict):
    for k, problem in enumerate(("a1a-200", "w1a-200", "a1a-500", "w1a-500")):
        store_race(tmp_path, {"re_rsvrb": 100 if k < won else 300, "stable": 200}, "figure2", problem)
    assert judge(load(tmp_path)[0]).verdict == verdict


def test_the_papers_own_methods_are_no_baselines(tmp_path):
    store_race(tmp_path, {"re_rsvrb": 200, "rsvrb": 100, "stable": 300}, "figure2", "a1a-200")
    assert judge(load(tmp_path)[0]).wins == 2


def test_the_tightest_gap_that_anybody_reached_decides(tmp_path):
    store(tmp_path, rows_of([0, 10, 40], [1.0, 0.5, 0.18]))
    store(tmp_path, rows_of([0, 30, 40], [1.0, 0.5, 0.45]), algorithm="stable")
    store(tmp_path, rows_of([0, 1], [1.0, 0.0]), algorithm="reference")
    compared = compare(CLAIMS["figure1"], only_problem(tmp_path), "samples")
    assert (compared.gap, compared.champion, compared.baseline) == (0.2, 40, math.inf)


@pytest.mark.parametrize("times", [{"svrb": 100}, {"stable": 100}, {"svrb": math.inf, "stable": math.inf}])
def test_a_claim_without_both_sides_or_any_success_cannot_be_judged(tmp_path, times):
    store_race(tmp_path, times)
    if len(times) > 1:
        store(tmp_path, rows_of([0, 1], [1.0, 0.0]), algorithm="reference")
    judgement = judge(load(tmp_path)[0])
    assert (judgement.verdict, judgement.missing[0]) == ("cannot be judged here", "a1a")


def test_exponents_are_held_against_the_bound(tmp_path):
    rows = [{"epsilon": 0.1, "samples": 10}, {"epsilon": 0.01}]
    for algorithm, fits in {"svrb": (1.5, 2.5), "stable": (3.0, 4.0), "ttsa": (math.nan, math.nan)}.items():
        for seed, exponent in enumerate(fits):
            more = {"experiment": "table1", "theory": 3, "exponent": exponent}
            store(tmp_path, rows, "m = 1", algorithm, seed, **more)
    found = {rate.label: rate for rate in rates(load(tmp_path)[0])}
    assert (found["SVRB"].fit, found["SVRB"].holds) == (2.0, True)
    assert (found["STABLE"].fit, found["STABLE"].holds) == (3.5, False)
    assert found["ttsa"].holds is None


# The page


class Elements(HTMLParser):
    """All elements of a page with their attributes, and the text of its scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.found, self.inside, self.open = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag in ("script", "style"):
            self.inside.append("")
            self.open = tag

    def handle_endtag(self, tag):
        self.open = None

    def handle_data(self, data):
        if self.open:
            self.inside[-1] += data

    def named(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


def page_of(folder):
    experiments = load(folder)
    return make_page(experiments, styles(labels(experiments)))


def without_plotly(text):
    from plotly.offline import get_plotlyjs

    return text.replace(get_plotlyjs(), "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small report: one problem with three methods, one of them diverged, and one row of Table 1."""
    folder = tmp_path_factory.mktemp("report")
    more = {
        "remark": "Trusted samples are training samples too.",
        "effort": "27 settings for each method",
        "facts": {"training samples": 1605, "weights": "sigmoid"},
        "options": {"upper_step": "100 / (1 + t)", "batch_size": 32},
        "versions": {"jax": "0.10.2"},
        "machine": {"system": "Linux", "cores": 2},
        "precision": "float32",
    }
    for seed in range(3):
        store(folder, rows_of([0, 100, 200], [1.0, 0.3 + 0.01 * seed, 0.1]), seed=seed, **more)
        store(folder, rows_of([0, 100, 300], [1.0, 0.6 + 0.01 * seed, 0.2]), algorithm="stable", seed=seed, **more)
    store(folder, rows_of([0, 100], [1.0, 7.0]), algorithm="ttsa", status="diverged", message="not finite at step 2")
    rates_of = [{"epsilon": 0.1, "samples": 10}, {"epsilon": 0.01, "samples": 90}]
    store(folder, rates_of, "m = 1", "svrb", experiment="table1", theory=3, exponent=0.95, label="SVRB")
    write_report(folder)
    return folder


def test_the_page_tells_what_it_must(folder):
    text = without_plotly((folder / "report.html").read_text())
    for words in (
        "Trusted samples are training samples too.", "27 settings for each method", "1,605", "sigmoid",
        "100 / (1 + t)", "batch size", "jax 0.10.2", "cores 2", "float32", "1 diverged", "not finite at step 2",
        "mean over 1 to 3 seeds", "Neither evaluation nor compilation is timed", "It holds here",
        "SVRB is first in 2 of 2 comparisons", "a8a, w1a and w8a", "0.95", "no larger than the bound",
    ):  # fmt: skip
        assert words in text, words


def test_the_winner_of_each_column_is_marked(folder):
    text = without_plotly((folder / "report.html").read_text())
    table = text[text.index("a1a: samples</caption>") :]
    rows = re.findall(r"<tr>.*?</tr>", table[: table.index("</table>")])
    assert [row.count('class="best"') for row in rows] == [0, 5, 0, 0]
    assert "SVRB" in rows[1]


def test_the_page_needs_nothing_but_itself(folder):
    text = (folder / "report.html").read_text()
    elements = Elements(text)
    assert not [attributes for _, attributes in elements.found if "src" in attributes or "srcset" in attributes]
    assert elements.named("link") == []
    assert not [a for a in elements.named("a") if re.match(r"\w+:|//", a["href"])]
    assert "default-src 'none'" in elements.named("meta")[-1]["content"]
    assert not re.search(r"@import|url\(|https?://|fetch\(|XMLHttpRequest", without_plotly(text))


def test_only_the_pages_own_scripts_may_run(folder):
    elements = Elements((folder / "report.html").read_text())
    _, _, plotly, script = elements.inside
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (plotly, script)]
    policy = elements.named("meta")[-1]["content"]
    assert f"script-src 'sha256-{hashes[0]}' 'sha256-{hashes[1]}';" in policy


def test_names_with_markup_are_harmless(tmp_path):
    more = {"label": MARKUP, "message": MARKUP, "status": "diverged", "remark": MARKUP, "effort": MARKUP}
    more |= {name: {MARKUP: MARKUP} for name in ("facts", "options", "versions", "machine")}
    store(tmp_path, rows_of([0, 1], [1.0, 0.5]), **more).rename(tmp_path / "runs" / "one.json")
    content = json.loads((tmp_path / "runs" / "one.json").read_text())
    content["settings"]["problem"] = MARKUP
    (tmp_path / "runs" / "one.json").write_text(json.dumps(content))
    elements = Elements(page_of(tmp_path))
    assert len(elements.named("script")) == 3
    data = json.loads(elements.inside[1])
    assert data["experiments"][0]["methods"][0]["label"] == MARKUP


def test_the_pages_curves_are_the_means_above_the_best_value(folder):
    data = json.loads(Elements((folder / "report.html").read_text()).inside[1])
    problem = data["experiments"][0]["problems"][0]
    assert problem["best"] == 0.1
    assert problem["curves"][0]["samples"] == {
        "x": [0, 100, 200], "mean": [0.9, 0.21, 0], "low": [0.9, 0.2, 0], "high": [0.9, 0.22, 0]
    }  # fmt: skip


def test_every_method_has_its_own_look():
    looks = styles([f"method {k}" for k in range(28)])
    assert len(set(looks.values())) == 28


# The pictures


def test_pictures_show_every_method_in_the_colour_of_the_page(folder):
    data = json.loads(Elements((folder / "report.html").read_text()).inside[1])
    picture = (folder / "figure1.svg").read_text().lower()
    colors = [method["color"].lower() for method in data["experiments"][0]["methods"]]
    assert len(colors) == 3
    assert all(picture.count(f"stroke: {color}") >= 3 for color in colors)  # in both panels and in the legend


@pytest.mark.parametrize("name", ["figure1", "table1"])
def test_pictures_are_not_blank(folder, name):
    pixels = imread(folder / f"{name}.png").reshape(-1, 4)
    assert len(np.unique(pixels, axis=0)) > 50
    assert ElementTree.parse(folder / f"{name}.svg").getroot().tag.endswith("svg")


def test_the_legend_of_many_long_names_stays_inside_the_picture(tmp_path):
    for k in range(9):
        store(tmp_path, rows_of([0, 1], [1.0, 0.5]), algorithm=f"method_{k}", label=f"A method with a long name {k}")
    experiments = load(tmp_path)
    picture = draw_pictures(experiments[0], styles(labels(experiments)))["png"]
    pixels = imread(io.BytesIO(picture))
    lowest = pixels[int(0.8 * len(pixels)) :, :, :3]
    assert (lowest < 1).any()
    assert (lowest[:, :10] == 1).all()
    assert (lowest[:, -10:] == 1).all()


def test_a_dollar_sign_in_a_name_is_no_mathematics(tmp_path):
    store(tmp_path, rows_of([0, 1], [1.0, 0.5]), problem=r"$\frac$", label=r"$\nonsense$")
    experiments = load(tmp_path)
    assert draw_pictures(experiments[0], styles(labels(experiments)))["png"]


# Writing and refusing

KNOWN = '{"settings": {"experiment": "x", "problem": "p", "algorithm": "a"}, %s}'
WITH = (
    '{"settings": {"experiment": "x", "problem": "p", "algorithm": "a", %s}, '
    '"rows": [{"samples": 0, "seconds": 0, "objective": 1}]}'
)


def test_writing_again_writes_the_same(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    written = write_report(folder)
    assert sorted(path.name for path in written) == sorted(before)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    assert sorted(before) == ["figure1.png", "figure1.svg", "report.html", "table1.png", "table1.svg"]


def test_a_folder_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        write_report(tmp_path / "nowhere")


def test_a_folder_without_runs_is_refused(tmp_path):
    (tmp_path / "runs").mkdir()
    with pytest.raises(ValueError, match="at least one run"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "no JSON"),
        ("[]", "'settings' and 'rows'"),
        ('{"settings": [], "rows": []}', "settings must be a dictionary"),
        ('{"settings": {"experiment": "figure1", "problem": "a1a"}, "rows": []}', "must name the algorithm"),
        ('{"settings": {"experiment": "../x", "problem": "p", "algorithm": "a"}, "rows": []}', "must be a word"),
        ('{"settings": {"experiment": "x", "problem": "p", "algorithm": "a"}, "rows": []}', "finite samples"),
        ('{"settings": {"experiment": "x", "problem": "p", "algorithm": "a"}, "rows": [1]}', "list of dictionaries"),
        ('{"settings": {"experiment": "x", "problem": "p", "algorithm": "a"}, "rows": [{"a": "b"}]}', "numbers"),
        (
            '{"settings": {"experiment": "x", "problem": "p", "algorithm": "a", "facts": 1}, "rows": []}',
            "facts must be a dictionary",
        ),
        (KNOWN % ('"rows": [{"samples": 1%s}]' % ("0" * 400)), "'samples' of row 1 is too large"),
        (KNOWN % ('"rows": [{"samples": 1%s}]' % ("0" * 5000)), "no JSON"),
        (KNOWN % '"rows": [{"samples": null}]', "must hold numbers; 'samples' of row 1 is None"),
        ("[" * 100_000, "nested too deeply"),
        (WITH % ('"theory": 1%s' % ("0" * 400)), "settings must hold numbers that a float can hold"),
        (WITH % '"label": 3', "its label must be text; got 3"),
        (WITH % '"seed": 0.5', "its seed must be a whole number; got 0.5"),
        (WITH % '"seed": true', "its seed must be a whole number; got True"),
        (WITH % '"theory": "3"', "its theory must be a number; got '3'"),
        (WITH % '"excerpt": 1', "its excerpt must be true or false; got 1"),
        (WITH % '"label": "\\ud800"', "text that can be shown"),
        (WITH % '"options": {"rule": "a\\u0000b"}', "text that can be shown"),
        (WITH % ('"label": "%s"' % ("1" * 5000)), "label must have at most 300 letters"),
        (WITH.replace('"x"', f'"{"x" * 300}"') % '"seed": 0', "experiment must be a word of at most 100"),
        (WITH.replace('"x"', '"table1"').replace("samples", "epsilon") % '"seed": 0', "epsilon must be above zero"),
    ],
)
def test_a_broken_file_is_named_and_nothing_is_written(tmp_path, content, reason):
    store(tmp_path, rows_of([0, 1], [1.0, 0.5]))
    (tmp_path / "runs" / "broken.json").write_text(content)
    with pytest.raises(ValueError, match=reason) as raised:
        write_report(tmp_path)
    assert "broken.json" in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_file_that_is_no_text_is_named(tmp_path):
    store(tmp_path, rows_of([0, 1], [1.0, 0.5])).with_name("binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"binary\.json"):
        write_report(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to nothing"])
def test_what_is_no_file_is_named_and_does_not_block(tmp_path, kind):
    path = store(tmp_path, rows_of([0, 1], [1.0, 0.5])).with_name("odd.json")
    make = {"pipe": os.mkfifo, "folder": Path.mkdir, "link to nothing": lambda path: path.symlink_to("nothing")}
    make[kind](path)
    with pytest.raises((ValueError, OSError), match=r"odd\.json"):
        write_report(tmp_path)


def test_a_run_that_another_process_takes_away_meanwhile_is_left_out(tmp_path, monkeypatch):
    store(tmp_path, rows_of([0, 1], [1.0, 0.5]))
    gone = store(tmp_path, rows_of([0, 1], [1.0, 0.5]), seed=1)
    glob = Path.glob

    def then_gone(folder, pattern):
        found = list(glob(folder, pattern))
        gone.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Path, "glob", then_gone)
    assert len(only_problem(tmp_path).competitors) == 1


def test_numbers_near_the_largest_float_do_not_stop_the_report(tmp_path):
    for seed in range(2):
        store(tmp_path, rows_of([0, 1, 2], [1.0, 1e308, -1e308]), seed=seed, status="diverged")
    assert (tmp_path / "report.html") in write_report(tmp_path)


def test_the_command_says_in_a_line_what_is_wrong(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "odd.json").write_text(KNOWN % ('"rows": [{"samples": 1%s}]' % ("0" * 400)))
    outcome = CliRunner().invoke(_commands(), ["report", str(tmp_path)])
    assert outcome.exit_code == 1
    assert re.match(r"Error: .*odd\.json", str(outcome.exception))


def test_a_reference_alone_is_refused(tmp_path):
    store(tmp_path, rows_of([0, 1], [1.0, 0.5]), algorithm="reference")
    with pytest.raises(ValueError, match="at least one run of a method"):
        write_report(tmp_path)


def test_a_problem_that_has_only_its_reference_yet_is_left_out(tmp_path):
    store(tmp_path, rows_of([0, 1], [1.0, 0.5]), "a1a")
    store(tmp_path, rows_of([0, 1], [1.0, 0.5]), "w8a", "reference")
    assert only_problem(tmp_path).name == "a1a"


def test_two_algorithms_may_not_share_a_label(tmp_path):
    store(tmp_path, rows_of([0, 1], [1.0, 0.5]), label="mine")
    store(tmp_path, rows_of([0, 1], [1.0, 0.5]), algorithm="stable", label="mine")
    with pytest.raises(ValueError, match="mine"):
        write_report(tmp_path)


@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_failed_write_leaves_all_old_files(tmp_path, monkeypatch, written):
    store(tmp_path, rows_of([0, 1], [1.0, 0.5]))
    for name in ("report.html", "figure1.png", "figure1.svg"):
        (tmp_path / name).write_text("old")
    count, write = iter(range(9)), Path.write_bytes

    def stop(path, content):
        if next(count) < written:
            return write(path, content)
        write(path, content[:2])
        raise OSError("the disk is full")

    monkeypatch.setattr(Path, "write_bytes", stop)
    with pytest.raises(OSError, match="full"):
        write_report(tmp_path)
    assert {path.read_text() for path in tmp_path.iterdir() if path.is_file()} == {"old"}
    assert len(list(tmp_path.iterdir())) == 4


# Numbers


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (amount(0), "0"), (amount(950), "950"), (amount(12345), "12.3 k"), (amount(1_200_000), "1.2 M"),
        (amount(999_900), "1 M"), (seconds(0.3512), "0.351 s"), (seconds(1240), "1,240 s"), (percent(0.1), "10 %"),
        (plain(math.inf), "–"), (amount(math.inf), "–"), (enumeration(["a"]), "a"),
        (enumeration(["a", "b", "c"]), "a, b and c"),
    ],
)  # fmt: skip
def test_numbers_are_readable(shown, text):
    assert shown.replace("\u202f", " ") == text
