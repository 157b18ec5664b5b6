"""The standing attack, in short: what is wrong is refused clearly, whole files are written, markup stays text."""

import numpy as np
import pytest

import bilevax as bx
from benchmarks.attack import api, files, kills, pages
from benchmarks.attack.__main__ import main
from benchmarks.attack.cases import CLEAR, CRASHED, PARTIAL, SILENT, UNCLEAR
from benchmarks.attack.rules import EITHER, RIGHT, WRONG, count, positive, share
from benchmarks.attack.uses import Use
from benchmarks.attack.values import POOL, plain
from bilevax import arguments

pytest.importorskip("click")
pytest.importorskip("pandas")
pytest.importorskip("plotly")
NONE = {"unclear": 0, "silent": 0, "partial": 0, "crashed": 0}


@pytest.mark.parametrize(("kind", "cases"), [("api", 200), ("files", 60), ("html", 3), ("kills", 2)])
def test_a_short_attack_finds_nothing(kind, cases, capsys):
    figures = main(["--kinds", kind, "--cases", str(cases)])
    assert figures == {"cases": cases, **NONE}, capsys.readouterr().out


# The judge itself


def verdict(function, **replaced):
    rules = {"size": positive}
    return api.judge(api.Case(Use("mine", function, {"size": 1.0}, rules), replaced), api.guarded()).kind


def refuses(error):
    def function(size):
        raise error

    return function


TOO_SMALL = plain("-1", -1)


def test_an_error_is_clear_where_it_names_the_argument():
    for word, kind in [("size", CLEAR), ("size[0]", CLEAR), ("it", UNCLEAR), ("upsize", UNCLEAR)]:
        assert verdict(lambda size, word=word: arguments.positive(word, size), size=TOO_SMALL) == kind
    assert verdict(refuses(KeyError("size")), size=TOO_SMALL) == UNCLEAR
    noted = RuntimeError("mine")
    noted.add_note("raised by size(t)")
    assert verdict(refuses(noted), size=TOO_SMALL) == CLEAR


def test_an_error_from_deep_inside_is_unclear_even_if_it_has_the_word():
    def deep(size):
        return np.reshape(np.ones(3), size="size")

    assert verdict(deep, size=TOO_SMALL) == UNCLEAR


def test_what_is_wrong_and_accepted_is_silent_and_a_right_value_that_is_refused_is_unclear():
    assert verdict(lambda size: size, size=TOO_SMALL) == SILENT
    assert verdict(lambda size: size, size=plain("2", 2)) == CLEAR
    assert verdict(refuses(ValueError("size must be odd")), size=plain("2", 2)) == UNCLEAR


def test_a_call_ends_where_a_program_of_the_library_would_be_compiled():
    problem = bx.problems.quadratic(dim_x=2, dim_y=2, num_samples=3).problem
    with pytest.raises(api.Compiles, match="_evaluate"), api.guarded()():
        bx.exact_objective(problem, problem.x0)


@pytest.mark.parametrize(
    ("rule", "thing", "expected"),
    [
        (positive, np.float32(0.5), RIGHT), (positive, np.array(2), RIGHT), (positive, "0.5", WRONG),
        (positive, np.array([0.5]), WRONG), (positive, True, WRONG), (positive, 10**400, WRONG),
        (positive, 1 + 0j, WRONG), (share, 1, RIGHT), (share, 1.5, WRONG), (share, float("nan"), WRONG),
        (count(), np.int64(3), RIGHT), (count(), 2.5, WRONG), (count(most=5), 6, WRONG), (count(), np.True_, WRONG),
    ],
)  # fmt: skip
def test_rules_tell_numbers_from_what_only_looks_like_them(rule, thing, expected):
    assert rule(plain("thing", thing)) == expected


@pytest.mark.filterwarnings("ignore:Python iterable type:DeprecationWarning")
def test_every_rule_has_a_verdict_for_every_value(tmp_path):
    for use in api.all_uses(tmp_path):
        for name, rule in use.rules.items():
            odd = [value.words for value in (*POOL, *rule.own) if rule(value) not in (RIGHT, WRONG, EITHER)]
            assert not odd, (use.name, name)


def test_a_case_is_repeated_by_its_number(tmp_path):
    uses = api.all_uses(tmp_path)
    words = [[api.draw_case(uses, np.random.default_rng([0, k])).words for k in range(30)] for _ in range(2)]
    assert words[0] == words[1]
    assert len(set(words[0])) > 25


def test_a_page_with_an_element_more_is_seen():
    assert pages.shape_of("<p class='a'>text &lt;b&gt;</p>") == pages.shape_of("<p class='b'>other</p>")
    assert pages.shape_of("<p>text <b></p>") != pages.shape_of("<p>text</p>")
    assert pages.shape_of("<a href='javascript:x'>") != pages.shape_of("<a href='#x'>")
    assert pages.shape_of("<p onclick='x'>") != pages.shape_of("<p>")


def test_a_reader_that_reads_other_values_is_silent_and_one_that_falls_over_is_crashed(tmp_path, monkeypatch):
    path = tmp_path / "mine.csv"
    path.write_text("a,kind\n1,0\n2,1\n")
    right = bx.datasets.read_csv(path)
    assert files._read("csv", path, "case").kind == CLEAR
    for outcome, kind in [(2.0, SILENT), (ZeroDivisionError(), CRASHED), (ValueError("nameless"), UNCLEAR)]:

        def reader(path, outcome=outcome):
            if isinstance(outcome, Exception):
                raise outcome
            return bx.datasets.Dataset("mine", right.features * outcome, right.labels)

        monkeypatch.setitem(files.READERS, "csv", (reader, files._agrees_csv))
        assert files._read("csv", path, "case").kind == kind


def test_files_of_two_runs_beside_each_other_are_partial(tmp_path):
    attack, out = kills.Attack(tmp_path), tmp_path / "out"
    out.mkdir()
    for name in kills.FILES["clean"]:
        (out / name).write_text("old")
    before = attack._content("clean", tmp_path)
    assert attack._judge("clean", tmp_path, before, "case") is None
    (out / "report.html").write_text("new")
    assert attack._judge("clean", tmp_path, before, "case").kind == PARTIAL
    (out / "cleaned.csv").unlink()
    assert attack._judge("clean", tmp_path, {}, "case").kind == PARTIAL
