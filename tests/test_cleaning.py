"""bilevax clean: suspicious rows are found; what is wrong with a table is said, and then nothing is written."""

import joblib
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from sklearn.metrics import roc_auc_score

from bilevax.cleaning import clean_table
from bilevax.cli import _commands


def rows(n, seed, wrong_share=0.0):
    """Three classes that numbers and a category tell apart; some labels are moved on to the next class."""
    rng = np.random.default_rng(seed)
    true = rng.integers(0, 3, n)
    frame = pd.DataFrame({
        "size": true + 0.4 * rng.normal(size=n),
        "colour": np.where(rng.random(n) < 0.8, np.array(["red", "green", "blue"])[true], "grey"),
        "noise": rng.normal(size=n),
    })  # fmt: skip
    frame.loc[rng.random(n) < 0.1, "size"] = np.nan
    frame.loc[rng.random(n) < 0.05, "colour"] = None
    wrong = rng.random(n) < wrong_share
    frame["kind"] = np.array(["ant", "bee", "cat"])[np.where(wrong, (true + 1) % 3, true)]
    return frame, wrong


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clean")
    frame, wrong = rows(400, 0, 0.3)
    frame.to_csv(folder / "given.csv", index=False)
    rows(80, 1)[0].to_csv(folder / "sure.csv", index=False)
    told = []
    paths = clean_table(folder / "given.csv", "kind", folder / "sure.csv", folder / "out", steps=300, told=told.append)
    return folder, wrong, paths, told


def test_rows_with_wrong_labels_are_the_suspicious_ones(cleaned):
    folder, wrong, paths, told = cleaned
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["cleaned.csv", "model.joblib", "report.html"]
    assert sorted(paths) == sorted((folder / "out").iterdir())
    table, given = pd.read_csv(folder / "out" / "cleaned.csv"), pd.read_csv(folder / "given.csv")
    pd.testing.assert_frame_equal(table[given.columns], given)
    assert sorted(table["suspicion_rank"]) == list(range(1, 401))
    assert table["weight"].between(0, 1).all()
    by_rank = table.sort_values("suspicion_rank")["weight"].to_numpy()
    assert (np.diff(by_rank) >= 0).all()
    assert roc_auc_score(wrong, -table["suspicion_rank"]) > 0.9
    assert told == ["400 rows to clean, 80 trusted, 3 classes"]


def test_the_model_takes_new_rows_with_gaps_and_levels_it_has_not_seen(cleaned):
    model = joblib.load(cleaned[0] / "out" / "model.joblib")
    new, _ = rows(300, 2)
    new.loc[0, "colour"] = "violet"
    assert np.mean(model.predict(new) == new["kind"]) > 0.9


def test_the_page_shows_the_most_suspicious_rows_and_asks_nobody_for_anything(cleaned):
    page = (cleaned[0] / "out" / "report.html").read_text()
    table = pd.read_csv(cleaned[0] / "out" / "cleaned.csv")
    first = int(table["suspicion_rank"].argmin()) + 1
    assert f'<th scope="row">1</th><td>{first}</td>' in page
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_values_cannot_break_the_page(tmp_path):
    frame, _ = rows(60, 3, 0.2)
    frame["note"] = "<script>alert(1)</script>"
    frame.to_csv(tmp_path / "given.csv", index=False)
    frame.to_csv(tmp_path / "sure.csv", index=False)
    clean_table(tmp_path / "given.csv", "kind", tmp_path / "sure.csv", tmp_path / "out", steps=5)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_parquet_comes_back_as_parquet(tmp_path):
    frame, _ = rows(60, 4, 0.2)
    frame.to_parquet(tmp_path / "given.parquet")
    frame.to_parquet(tmp_path / "sure.parquet")
    clean_table(tmp_path / "given.parquet", "kind", tmp_path / "sure.parquet", tmp_path / "out", steps=5)
    table = pd.read_parquet(tmp_path / "out" / "cleaned.parquet")
    pd.testing.assert_frame_equal(table[frame.columns], frame)


def changed(name, frame):
    """A pair of tables that cannot be cleaned, by name."""
    half = frame.iloc[: len(frame) // 2]
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
        "untrusted class": (frame, half[half["kind"] != "ant"], "sure.csv has no rows of 'ant'"),
        "one class": (frame.assign(kind="ant"), frame, "must hold between 2 and 100 classes; it holds 1"),
        "empty": (frame.iloc[:0], frame, "given.csv holds no rows"),
        "weight": (frame.assign(weight=1.0), frame, "has a column 'weight' already"),
        "label alone": (frame[["kind"]], frame, "has no columns beside the label"),
    }[name]


CASES = (
    "no label", "no trusted label", "missing labels", "missing column", "other kind", "unseen label", "untrusted class",
    "one class", "empty", "weight", "label alone",
)  # fmt: skip


def run(folder, *more):
    given = ["clean", str(folder / "given.csv"), "--label", "kind", "--trusted", str(folder / "sure.csv")]
    return CliRunner().invoke(_commands(), [*given, "--out", str(folder / "out"), "--steps", "5", *more])


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


def test_the_command_writes_what_it_says(tmp_path):
    rows(60, 6, 0.2)[0].to_csv(tmp_path / "given.csv", index=False)
    rows(40, 7)[0].to_csv(tmp_path / "sure.csv", index=False)
    outcome = run(tmp_path)
    assert outcome.exit_code == 0, outcome.output
    assert outcome.output.count("written: ") == 3


def test_a_failure_while_writing_leaves_what_was_there(cleaned, tmp_path, monkeypatch):
    from bilevax.cleaning import work

    frame, _ = rows(60, 8, 0.2)
    frame.to_csv(tmp_path / "given.csv", index=False)
    frame.to_csv(tmp_path / "sure.csv", index=False)

    def broken(*given):
        raise OSError("no space left")

    monkeypatch.setattr(work, "page", broken)
    with pytest.raises(OSError, match="no space"):
        clean_table(tmp_path / "given.csv", "kind", tmp_path / "sure.csv", tmp_path / "out", steps=5)
    assert list((tmp_path / "out").iterdir()) == []
