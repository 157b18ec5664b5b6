"""bilevax clean: suspicious rows are found; what is wrong with a table is said, and then nothing is written."""

import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import joblib
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from reference.dirty_tables import rows
from sklearn.metrics import roc_auc_score

from bilevax.cleaning import clean_table, work
from bilevax.cleaning.columns import make_encoder, recognise
from bilevax.cleaning.tables import read_table, read_tables
from bilevax.cli import _commands
from bilevax.models.opinions import linear_models, trees


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clean")
    frame, wrong = rows(400, 0, 0.3)
    frame.to_csv(folder / "given.csv", index=False)
    rows(80, 1)[0].to_csv(folder / "sure.csv", index=False)
    lines = []
    paths = clean_table(folder / "given.csv", "kind", folder / "sure.csv", folder / "out", tell=lines.append)
    return folder, wrong, paths, lines


def test_rows_with_wrong_labels_are_the_suspicious_ones(cleaned):
    folder, wrong, paths, lines = cleaned
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["cleaned.csv", "model.joblib", "report.html"]
    assert sorted(paths) == sorted((folder / "out").iterdir())
    table, given = pd.read_csv(folder / "out" / "cleaned.csv"), pd.read_csv(folder / "given.csv")
    pd.testing.assert_frame_equal(table[given.columns], given)
    assert sorted(table["suspicion_rank"]) == list(range(1, 401))
    assert table["weight"].between(0, 1).all()
    by_rank = table.sort_values("suspicion_rank")["weight"].to_numpy()
    assert (np.diff(by_rank) >= 0).all()
    assert roc_auc_score(wrong, -table["suspicion_rank"]) > 0.9
    assert lines[0] == "400 rows to clean, 80 trusted, 3 classes"
    assert lines[-2].startswith("80 trusted rows weigh three opinions: ")
    expected = table["weight"].rsub(1).sum()
    assert abs(expected - wrong.sum()) < 0.25 * wrong.sum()  # weights are probabilities
    assert lines[-1] == f"about {expected:,.0f} of 400 labels are wrong, as far as can be told"
    moved = wrong & (table["suggestion_probability"] > 0.9) & (table["suggested_label"] != table["kind"])
    right = table["kind"].map({"ant": "cat", "bee": "ant", "cat": "bee"})  # wrong labels are those of the next class
    assert (table["suggested_label"] == right)[moved].mean() > 0.9
    assert moved.sum() > 0.5 * wrong.sum()


def test_the_model_takes_new_rows_with_gaps_and_levels_it_has_not_seen(cleaned):
    model = joblib.load(cleaned[0] / "out" / "model.joblib")
    new, _ = rows(300, 2)
    new.loc[0, "colour"] = "violet"
    assert np.mean(model.predict(new) == new["kind"]) > 0.8  # three in ten labels were wrong


def test_the_page_shows_the_most_suspicious_rows_and_asks_nobody_for_anything(cleaned):
    page = (cleaned[0] / "out" / "report.html").read_text()
    table = pd.read_csv(cleaned[0] / "out" / "cleaned.csv")
    first = int(table["suspicion_rank"].argmin()) + 1
    assert f'<th scope="row">1</th><td>{first}</td>' in page
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_values_cannot_break_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(work, "_fit", Fitted)
    frame, _ = rows(60, 3, 0.2)
    frame["note"] = "<script>alert(1)</script>"
    frame.to_csv(tmp_path / "given.csv", index=False)
    frame.to_csv(tmp_path / "sure.csv", index=False)
    clean_table(tmp_path / "given.csv", "kind", tmp_path / "sure.csv", tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_parquet_comes_back_as_parquet(tmp_path, monkeypatch):
    monkeypatch.setattr(work, "_fit", Fitted)
    frame, _ = rows(60, 4, 0.2)
    frame.to_parquet(tmp_path / "given.parquet")
    frame.to_parquet(tmp_path / "sure.parquet")
    clean_table(tmp_path / "given.parquet", "kind", tmp_path / "sure.parquet", tmp_path / "out")
    table = pd.read_parquet(tmp_path / "out" / "cleaned.parquet")
    pd.testing.assert_frame_equal(table[frame.columns], frame)


def changed(name, frame):
    """A pair of tables that cannot be cleaned, by name."""
    return {
        "no label": (frame.drop(columns="kind"), frame, "given.csv has no column 'kind'; its columns are 'size'"),
        "no trusted label": (frame, frame.drop(columns="kind"), "sure.csv has no column 'kind'"),
        "missing labels": (
            frame.assign(kind=frame["kind"].where(frame.index > 2)),
            frame,
            "3 of 60 rows have no label",
        ),
        "missing column": (frame, frame.drop(columns="size"), "sure.csv lacks columns of .*: 'size'"),
        "other kind": (frame, frame.assign(size="large"), "column 'size' holds numbers in .* but text in"),
        "unseen label": (frame, frame.assign(kind="dog"), "holds labels that .* does not: 'dog'"),
        "one class": (frame.assign(kind="ant"), frame, "must hold between 2 and 100 classes; it holds 1"),
        "empty": (frame.iloc[:0], frame, "given.csv holds no rows"),
        "weight": (frame.assign(weight=1.0), frame, "has a column 'weight' already"),
        "infinity": (
            frame.assign(size=np.inf),
            frame,
            "given.csv: column 'size' must hold .* at most 1e.100; row 1 has inf",
        ),
        "huge": (frame, frame.assign(noise=-1e200), "sure.csv: column 'noise' must hold .* row 1 has -1e.200"),
        "label alone": (frame[["kind"]], frame, "has no columns beside the label"),
    }[name]


CASES = (
    "no label", "no trusted label", "missing labels", "missing column", "other kind", "unseen label",
    "one class", "empty", "weight", "infinity", "huge", "label alone",
)  # fmt: skip


def run(folder, *more):
    given = ["clean", str(folder / "given.csv"), "--label", "kind", "--trusted", str(folder / "sure.csv")]
    return CliRunner().invoke(_commands(), [*given, "--out", str(folder / "out"), *more])


@pytest.mark.parametrize("case", CASES)
def test_tables_that_do_not_fit_are_refused_and_nothing_is_written(case, tmp_path):
    given, sure, message = changed(case, rows(60, 5)[0])
    given.to_csv(tmp_path / "given.csv", index=False)
    sure.to_csv(tmp_path / "sure.csv", index=False)
    outcome = run(tmp_path)
    assert outcome.exit_code == 1
    with pytest.raises(SystemExit, match=f"Error: .*{message}"):
        raise outcome.exc_info[1]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00bad", b'a,kind\n1,"x\n'], ids=["empty", "bytes", "open quote"])
def test_files_that_cannot_be_read_are_refused(content, tmp_path):
    (tmp_path / "given.csv").write_bytes(content)
    rows(20, 0)[0].to_csv(tmp_path / "sure.csv", index=False)
    outcome = run(tmp_path)
    assert outcome.exit_code == 1
    assert not (tmp_path / "out").exists()
    with pytest.raises(SystemExit, match=r"Error: .*given\.csv"):
        raise outcome.exc_info[1]


def test_a_damaged_parquet_file_is_refused_whatever_the_parser_raises(tmp_path, monkeypatch):
    def broken(path):
        raise KeyError("index_columns")

    (tmp_path / "given.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr(pd, "read_parquet", broken)
    with pytest.raises(ValueError, match=r"given\.parquet cannot be read as parquet: 'index_columns'"):
        read_table(tmp_path / "given.parquet")


def test_the_command_writes_what_it_says(tmp_path):
    rows(60, 6, 0.2)[0].to_csv(tmp_path / "given.csv", index=False)
    rows(40, 7)[0].to_csv(tmp_path / "sure.csv", index=False)
    outcome = run(tmp_path)
    assert outcome.exit_code == 0, outcome.output
    assert outcome.output.count("written: ") == 3


class Fitted:
    """A pipeline that has learned nothing, and takes no time."""

    def __init__(self, tables, seed, tell):
        n = len(tables.labels)
        held = {
            "weights_": np.ones(n),
            "suspicion_rank_": np.arange(1, n + 1),
            "evidence_": "nothing was learned",
            "wrong_labels_": 0.0,
        }
        held |= {"suggested_labels_": np.full(n, "ant"), "suggestion_probabilities_": np.ones(n)}
        self.named_steps = {"model": SimpleNamespace(**held)}


OUTPUTS = ("cleaned.csv", "model.joblib", "report.html")


@pytest.fixture
def before(tmp_path, monkeypatch):
    """A folder with two tables, and what an earlier command wrote; the next one learns nothing."""
    monkeypatch.setattr(work, "_fit", Fitted)
    frame, _ = rows(60, 8, 0.2)
    frame.to_csv(tmp_path / "given.csv", index=False)
    frame.to_csv(tmp_path / "sure.csv", index=False)
    (tmp_path / "out").mkdir()
    for name in OUTPUTS:
        (tmp_path / "out" / name).write_text("old")
    return tmp_path


@pytest.mark.parametrize("act", ["table", "model", "page"])
def test_a_failure_while_writing_leaves_what_was_there(before, monkeypatch, act):
    def broken(*given, **more):
        raise OSError("no space left")

    place, name = {"table": (pd.DataFrame, "to_csv"), "model": (joblib, "dump"), "page": (work, "make_page")}[act]
    monkeypatch.setattr(place, name, broken)
    with pytest.raises(OSError, match="no space"):
        clean_table(before / "given.csv", "kind", before / "sure.csv", before / "out")
    assert {path.name: path.read_text() for path in (before / "out").iterdir()} == dict.fromkeys(OUTPUTS, "old")


def test_what_was_fitted_is_not_lost_where_the_disk_is_full(before, monkeypatch):
    fits, dump = [], joblib.dump

    def full(model, path):
        if before / "temp" not in Path(path).parents:
            raise OSError(errno.ENOSPC, "No space left on device")
        dump(None, path)

    monkeypatch.setattr(work, "_fit", lambda *given: fits.append(given) or Fitted(*given))
    monkeypatch.setattr(joblib, "dump", full)
    (before / "temp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(before / "temp"))
    outcome = run(before)
    assert outcome.exit_code == 1
    told = r"Error: the files of .*out cannot be .*: No space left on device; what was found lies in (.*) instead\."
    place = Path(re.fullmatch(told, str(outcome.exception))[1])
    assert place.parent == before / "temp"
    assert sorted(path.name for path in place.iterdir()) == sorted(OUTPUTS)
    assert pd.read_csv(place / "cleaned.csv")["suspicion_rank"].max() == 60
    assert {path.name: path.read_text() for path in (before / "out").iterdir()} == dict.fromkeys(OUTPUTS, "old")
    assert len(fits) == 1


def test_a_command_killed_while_it_writes_leaves_what_was_there_and_the_next_one_sweeps(before):
    code = """
import os, signal, sys
from pathlib import Path
from bilevax.cleaning import work
work._write = lambda tables, model, label, folder, parquet: (
    (folder / "cleaned.csv").write_text("new"), os.kill(os.getpid(), signal.SIGKILL))
work._fit = lambda *given: None
folder = Path(sys.argv[1])
work.clean_table(folder / "given.csv", "kind", folder / "sure.csv", folder / "out")
"""
    ended = subprocess.run([sys.executable, "-c", code, before])
    assert ended.returncode == -signal.SIGKILL
    there = {path.name: path.read_text() for path in (before / "out").iterdir() if path.is_file()}
    assert there == dict.fromkeys(OUTPUTS, "old")
    clean_table(before / "given.csv", "kind", before / "sure.csv", before / "out")
    assert sorted(path.name for path in (before / "out").iterdir()) == sorted(OUTPUTS)
    assert pd.read_csv(before / "out" / "cleaned.csv")["weight"].between(0, 1).all()


def test_the_table_of_another_format_goes_away(before):
    pd.read_csv(before / "given.csv").to_parquet(before / "given.parquet")
    clean_table(before / "given.parquet", "kind", before / "sure.csv", before / "out")
    found = sorted(path.name for path in (before / "out").iterdir())
    assert found == ["cleaned.parquet", "model.joblib", "report.html"]


@pytest.mark.parametrize("out", ["/proc/nowhere", "given.csv/out", "taken"])
def test_an_output_that_cannot_be_written_is_refused_before_the_fit(before, monkeypatch, out):
    (before / "taken" / "report.html").mkdir(parents=True)
    monkeypatch.setattr(work, "_fit", None)
    outcome = run(before, "--out", str(before / out))
    assert outcome.exit_code == 1
    reason = "report.html is a folder" if out == "taken" else "must be a folder that can be written to"
    assert str(outcome.exception).startswith(f"Error: {before / out}")
    assert reason in str(outcome.exception)


@pytest.mark.parametrize("name", ["given.csv", "sure.csv"])
def test_a_pipe_in_the_place_of_a_table_does_not_block(before, name):
    (before / name).unlink()
    os.mkfifo(before / name)
    outcome = run(before)
    assert outcome.exit_code == 1
    assert f"{name} is a pipe; it must be a file" in str(outcome.exception)


def test_a_table_is_cleaned_without_trusted_rows_and_told_what_that_means(tmp_path):
    frame, wrong = rows(200, 9, 0.2)
    frame.insert(0, "customer_id", np.arange(200) + 1)
    frame.to_csv(tmp_path / "given.csv", index=False)
    given = ["clean", str(tmp_path / "given.csv"), "--label", "kind", "--out", str(tmp_path / "out")]
    outcome = CliRunner().invoke(_commands(), given)
    assert outcome.exit_code == 0, outcome.output
    assert "column 'customer_id' is left out: an identifier" in outcome.output
    assert "no trusted rows: rows are ranked by how improbable their label is out of fold." in outcome.output
    table = pd.read_csv(tmp_path / "out" / "cleaned.csv")
    assert roc_auc_score(wrong, -table["suspicion_rank"]) > 0.8
    others = (table["suggested_label"] != table["kind"]).sum()
    said = f"nother class is more probable than the given one in {others:,} of 200 rows; how many of these labels"
    assert said in outcome.output
    page = (tmp_path / "out" / "report.html").read_text()
    assert said in page
    assert "labels are wrong, as far as can be told" not in outcome.output + page


def test_of_rows_that_stand_in_both_tables_the_label_is_known(tmp_path):
    frame, wrong = rows(160, 12, 0.2)
    frame.to_csv(tmp_path / "given.csv", index=False)
    right = frame.assign(
        kind=np.where(wrong, frame["kind"].map({"ant": "cat", "bee": "ant", "cat": "bee"}), frame["kind"])
    )
    right.iloc[:50].sample(frac=1, random_state=0).to_csv(tmp_path / "sure.csv", index=False)
    lines = []
    clean_table(tmp_path / "given.csv", "kind", tmp_path / "sure.csv", tmp_path / "out", tell=lines.append)
    assert "50 of the trusted rows stand in the table too: their labels are known, and not judged" in lines
    found = pd.read_csv(tmp_path / "out" / "cleaned.csv").iloc[:50]
    np.testing.assert_array_equal(found["weight"], 1.0 - wrong[:50])
    assert list(found["suggested_label"]) == list(right["kind"].iloc[:50])


def test_a_trusted_table_may_have_gaps_and_words_where_the_other_has_numbers(tmp_path):
    frame, _ = rows(60, 13)
    frame.to_csv(tmp_path / "given.csv", index=False)
    sizes = frame["size"].astype(object).where(frame.index > 0, "unknown")
    frame.assign(size=sizes, colour=np.nan).to_csv(tmp_path / "sure.csv", index=False)
    tables = read_tables(tmp_path / "given.csv", tmp_path / "sure.csv", "kind")
    encoded = make_encoder(tables.columns, tables.features).transform(tables.trusted)
    assert np.isfinite(encoded).all()


def test_categories_are_codes_that_trees_take_as_such_and_linear_models_as_columns():
    rows = np.arange(800)
    frame = pd.DataFrame({"number": rows % 7 / 7.0, "level": np.array(list("abcdefgh"))[rows % 8]})
    columns = recognise(frame)
    codes = make_encoder(columns, frame).transform(frame)
    assert codes.shape == (800, 2)
    np.testing.assert_array_equal(codes[:, 1], rows % 8)
    labels = rows % 2  # by the level, and in no order of it
    for model in (*linear_models(False, [1])[-1:], trees(labels, 0, [1])):
        assert model.fit(codes, labels).score(codes, labels) == 1.0
    assert linear_models(False)[-1].fit(codes, labels).score(codes, labels) < 0.8  # codes as numbers tell nothing


def test_a_class_without_trusted_rows_is_told(tmp_path):
    frame, _ = rows(90, 10, 0.2)
    frame.to_csv(tmp_path / "given.csv", index=False)
    sure, _ = rows(60, 11)
    sure[sure["kind"] != "ant"].to_csv(tmp_path / "sure.csv", index=False)
    lines = []
    clean_table(tmp_path / "given.csv", "kind", tmp_path / "sure.csv", tmp_path / "out", tell=lines.append)
    assert "no trusted rows of 'ant': such labels are judged less surely" in lines


def test_a_table_of_nothing_but_identifiers_is_refused(tmp_path):
    frame = pd.DataFrame({"id": np.arange(80), "same": 1, "kind": np.arange(80) % 2})
    frame.to_csv(tmp_path / "given.csv", index=False)
    with pytest.raises(ValueError, match=r"no column that tells anything of the label: 'id' \(an identifier.*'same'"):
        clean_table(tmp_path / "given.csv", "kind", None, tmp_path / "out")
