"""What a client prefers of the answer, in one header or several members of it."""

from __future__ import annotations

from math import inf

import pytest

from scheduler.runtime.gateway.request_parsing import largest_result, wait_seconds


@pytest.mark.parametrize(
    ("prefer", "largest", "wait"),
    [
        ("", inf, 0),
        ("largest-result=1048576", 1048576, 0),
        ("wait=5, largest-result=1000", 1000, 5),
        ("largest-result=0;wait=7", 0, 7),
        ("respond-async", inf, 0),
        ("my-largest-result=5", inf, 0),
        ("largest-result=-5", inf, 0),
        ("largest-result=" + "9" * 99, inf, 0),
    ],
)
def test_a_preference_is_found_or_ignored(prefer: str, largest: float, wait: float) -> None:
    assert (largest_result(prefer), wait_seconds({}, prefer)) == (largest, wait)
