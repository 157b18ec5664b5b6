"""Columns are taken for what a person would take them for."""

import numpy as np
import pandas as pd
import pytest

from bilevax.cleaning.columns import as_days, make_encoder, recognise

N = 200


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, N), "D")
    return pd.DataFrame({
        "customer_id": rng.permutation(N) + 10_000,
        "token": [f"x{k:04x}" for k in rng.permutation(N)],
        "remark": [f"text {k}" for k in rng.integers(0, 150, N)],
        "country": rng.choice(["de", "fr", "it"], N),
        "constant": 1.0,
        "since": days.strftime("%Y-%m-%d"),
        "seen": pd.Series(days),
        "american": days.strftime("%m/%d/%Y"),
        "income": rng.normal(size=N),
        "age": rng.integers(18, 90, N),
        "amount": np.where(rng.random(N) < 0.03, "unknown", rng.integers(0, 90, N).astype(str)),
        "member": rng.random(N) < 0.5,
        "gaps": np.where(rng.random(N) < 0.3, 1.0, np.nan),
    })  # fmt: skip


KINDS = {
    "customer_id": "left out", "token": "left out", "remark": "left out", "country": "category", "constant": "left out",
    "since": "date", "seen": "date", "american": "date", "income": "number", "age": "number", "amount": "number",
    "member": "category", "gaps": "category",
}  # fmt: skip


def test_identifiers_free_text_and_constants_are_left_out_and_dates_and_numbers_in_text_are_seen(frame):
    found = {column.name: column for column in recognise(frame)}
    assert {name: column.kind for name, column in found.items()} == KINDS
    assert found["customer_id"].note == "an identifier: every row has a number of its own"
    assert found["token"].note == "an identifier: every row has a text of its own"
    assert found["remark"].note == "free text"
    assert found["amount"].note == "text that is mostly numbers: the rest counts as missing"
    assert found["income"].note == found["country"].note == ""


def test_whole_numbers_that_happen_to_differ_are_no_identifiers_unless_they_are_called_so():
    few = pd.DataFrame({"price": np.arange(60) * 10**9 + 7, "user_id": np.arange(60) * 10**9 + 7})
    kinds = {column.name: column.kind for column in recognise(few)}
    assert kinds == {"price": "number", "user_id": "left out"}


def test_dates_are_days_in_whatever_form_they_come(frame):
    days = as_days(frame["seen"])
    np.testing.assert_allclose(as_days(frame["since"]), days)
    np.testing.assert_allclose(as_days(frame["american"]), days)
    assert as_days(pd.Series(["1970-01-03", None, "no date"]))[0] == 2
    assert np.isnan(as_days(pd.Series(["1970-01-03", None, "no date"]))[1:]).all()


def test_the_encoder_takes_rows_with_values_it_has_not_seen(frame):
    columns = recognise(frame)
    used = frame[[column.name for column in columns if column.kind != "left out"]]
    encode = make_encoder(columns, used)
    new = used.iloc[:3].assign(country=["xx", None, "de"], amount="none", since="never")
    assert np.isfinite(encode.transform(new)).all()
    assert encode.transform(new).shape[1] == encode.transform(used).shape[1]
