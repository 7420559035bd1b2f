"""Instants of rows have the text that Django's adapter for SQLite writes."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import example, given
from hypothesis import strategies as st

from tangram_web.records.statements import instant_text


@given(st.floats(min_value=0.0, max_value=4e9, allow_nan=False))
@example(1_700_000_000.0)
@example(1_700_000_000.9999999)
@example(1_700_000_000.0000005)
@example(0.25)
def test_text_of_an_instant_is_that_of_its_datetime(seconds: float):
    assert instant_text(seconds) == str(datetime.fromtimestamp(seconds, UTC))[:-6]
