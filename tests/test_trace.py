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
