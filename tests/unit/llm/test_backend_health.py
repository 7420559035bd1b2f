"""A failing backend is avoided for a growing time; one answer ends that."""

from __future__ import annotations

from rollout.llm.pool_binding import MOST_SECONDS, BackendHealth


def test_a_backend_is_avoided_twice_as_long_after_each_failure():
    health = BackendHealth()
    health.failed("b1", "refused", 0.0)
    assert (health.avoided(0.9), health.avoided(1.0)) == ({"b1": "refused"}, {})

    health.failed("b1", "timed out", 1.0)
    assert health.avoided(2.9) == {"b1": "timed out"}
    assert health.avoided(3.0) == {}


def test_the_time_has_a_bound_and_an_answer_ends_it():
    health = BackendHealth()
    for _ in range(2000):
        health.failed("b1", "refused", 0.0)
    assert health.avoided(MOST_SECONDS) == {}
    assert health.avoided(MOST_SECONDS - 1) != {}

    health.answered("b1")
    assert health.avoided(0.0) == {}
