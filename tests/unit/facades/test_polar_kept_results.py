"""Results of Polar's sessions are kept for the polls that follow, within bounds."""

from __future__ import annotations

from facades.polar.sessions import KeptResults, ResultKey


def key(number: int, stopped: int | None = None) -> ResultKey:
    return f"rol_{number}", "task/nonce", stopped


def test_a_poll_does_not_read_again_what_the_poll_before_has_read() -> None:
    kept = KeptResults(10, now=lambda: 0.0)
    kept.put(key(1), b"12345")

    assert kept.get(key(1)) == b"12345"
    assert kept.get(key(1, stopped=2)) is None
    assert kept.get(("rol_1", "task/other", None)) is None


def test_results_beyond_the_bound_are_not_kept_and_those_that_are_polled_stay() -> None:
    """A scan of more than there is room for would else evict each result just before it is asked for."""
    kept = KeptResults(10, now=lambda: 0.0)
    for number in range(4):
        kept.put(key(number), b"12345")

    assert [kept.get(key(number)) is not None for number in range(4)] == [True, True, False, False]


def test_what_no_poll_asks_for_makes_room() -> None:
    at = 0.0
    kept = KeptResults(10, 60.0, now=lambda: at)
    kept.put(key(1), b"12345")
    kept.put(key(2), b"12345")
    at = 50.0
    assert kept.get(key(2)) is not None
    at = 100.0
    kept.put(key(3), b"12345")
    kept.put(key(4), b"12345")

    assert [kept.get(key(number)) is not None for number in range(1, 5)] == [
        False,
        True,
        True,
        False,
    ]
