"""A trace goes to disk and pandas, and comes back the same."""

import numpy as np
import pytest

from bilevax import Trace


def small():
    trace = Trace(settings={"algorithm": "rsvrb", "seed": 3})
    trace.add({"step": 0, "seconds": 0.0, "objective": 0.1 + 0.2})
    trace.add({"step": 5, "seconds": 0.5, "objective": np.float64(1e-17), "extra": float("nan")})
    return trace


def test_what_was_saved_is_loaded_to_the_last_bit(tmp_path):
    small().save(tmp_path / "trace.json")
    loaded = Trace.load(tmp_path / "trace.json")
    assert loaded.settings == small().settings
    np.testing.assert_array_equal(loaded["objective"], small()["objective"])
    assert list(tmp_path.iterdir()) == [tmp_path / "trace.json"]


def test_columns_are_found_by_name_and_missing_values_are_nan():
    trace = small()
    assert trace.columns == ["step", "seconds", "objective", "extra"]
    np.testing.assert_array_equal(trace["step"], [0, 5])
    assert np.isnan(trace["extra"]).all()
    with pytest.raises(KeyError, match="no column 'loss'; it has step, seconds"):
        trace["loss"]


def test_a_data_frame_has_the_same_rows():
    frame = small().to_pandas()
    assert list(frame.columns) == small().columns
    np.testing.assert_array_equal(frame["objective"], small()["objective"])


def test_another_file_is_refused(tmp_path):
    (tmp_path / "other.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match="not a trace that bilevax saved"):
        Trace.load(tmp_path / "other.json")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "no JSON"),
        ('{"settings": 1, "rows": []}', "settings must be a dictionary; got 1"),
        ('{"settings": {}, "rows": {}}', "rows must be a list"),
        ('{"settings": {}, "rows": [3]}', "rows must be a list"),
        ('{"settings": {}, "rows": [{"a": 1}, {"a": "x"}]}', "'a' of row 2 is 'x'"),
        ('{"settings": {}, "rows": [{"a": -1%s}]}' % ("0" * 400), "'a' of row 1 is too large"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_by_name(tmp_path, content, reason):
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(ValueError, match=rf"other\.json is not a trace that bilevax saved: .*{reason}"):
        Trace.load(tmp_path / "other.json")


def test_what_cannot_be_written_or_read_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Trace.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="is a folder"):
        Trace.load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nowhere/trace\.json cannot be written"):
        small().save(tmp_path / "nowhere" / "trace.json")
    for act in (Trace.load, small().save):
        with pytest.raises(TypeError, match="path must be the path of a file"):
            act(3)
