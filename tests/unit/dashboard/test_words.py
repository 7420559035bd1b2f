"""Durations read in the unit that fits."""

from __future__ import annotations

import pytest

from tangram_web.dashboard.templatetags.console import duration


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "–"), (0.00001, "<0.1 ms"), (0.0123, "12 ms"), (1.24, "1.2 s"), (59.94, "60 s"),
     (59.96, "1m 00s"), (125.4, "2m 05s"), (3599.7, "1h 00m"), (7260.0, "2h 01m")],
)  # fmt: skip
def test_a_duration_is_rounded_and_never_reads_zero_minutes(
    seconds: float | None, words: str
) -> None:
    assert duration(seconds) == words
