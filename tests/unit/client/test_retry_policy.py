"""Retries of a call: backoff, jitter, Retry-After, and an end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_client import (
    Busy,
    Client,
    Forbidden,
    InvalidRequest,
    RetryPolicy,
    ServerError,
    Unauthorized,
    Unreachable,
    exec_action,
    seeded_jitter,
)
from tangram_client._core import ApiResponse, problem_of
from tangram_client.errors import Refused, TangramClientError
from tangram_client.retry import is_temporary
from tangram_client.testing import FakeServer

ACTION = exec_action("swe", "true")


def no_jitter() -> float:
    return 1.0


def refused(status: int, **headers: str) -> TangramClientError:
    return problem_of(ApiResponse(status, headers, b"{}"))


def test_retry_after_is_honoured(server: FakeServer, client: Client) -> None:
    server.be_busy(2, retry_after="7", status=429)

    client.submit(ACTION)

    assert len(server.clock.slept) == 2
    assert all(7.0 <= pause < 7.5 for pause in server.clock.slept)


def test_retry_after_as_a_date_counts_from_the_servers_own_clock() -> None:
    error = refused(
        503,
        **{
            "retry-after": "Sat, 21 Nov 2026 01:00:30 GMT",
            "date": "Sat, 21 Nov 2026 01:00:00 GMT",
        },
    )

    assert isinstance(error, Busy)
    assert error.retry_after_seconds == 30.0


def test_retry_after_that_cannot_be_read_is_left_out() -> None:
    error = refused(503, **{"retry-after": "soon"})

    assert isinstance(error, Busy)
    assert error.retry_after_seconds is None


def test_retry_after_beyond_the_patience_ends_the_call_at_once(
    server: FakeServer, client: Client
) -> None:
    server.be_busy(retry_after="3600")

    with pytest.raises(Busy) as caught:
        client.submit(ACTION)

    assert caught.value.retry_after_seconds == 3600.0
    assert server.clock.slept == []


def test_pauses_grow_up_to_their_limit() -> None:
    policy = RetryPolicy(attempts=10, jitter=no_jitter)

    pauses = [
        policy.delay_seconds(Unreachable(), attempt=attempt, passed_seconds=0.0)
        for attempt in range(1, 9)
    ]

    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_same_seed_gives_the_same_pauses() -> None:
    pauses = []
    for _ in range(2):
        policy = RetryPolicy(jitter=seeded_jitter(42))
        pauses.append(
            [policy.delay_seconds(Unreachable(), attempt=n, passed_seconds=0) for n in (1, 2, 3)]
        )

    assert pauses[0] == pauses[1]


@given(
    attempt=st.integers(1, 50),
    passed=st.floats(0, 200),
    asked=st.none() | st.floats(0, 100),
    jitter=st.floats(0, 1, exclude_max=True),
)
def test_a_pause_stays_within_attempts_time_and_what_was_asked(
    attempt: int, passed: float, asked: float | None, jitter: float
) -> None:
    policy = RetryPolicy(attempts=20, total_seconds=60.0, jitter=lambda: jitter)
    headers = {} if asked is None else {"retry-after": repr(asked)}

    pause = policy.delay_seconds(refused(503, **headers), attempt=attempt, passed_seconds=passed)

    if pause is None:
        assert attempt >= 20 or passed + (asked or 0.0) + 5.0 > 60.0
    else:
        assert attempt < 20
        assert pause >= (asked or 0.0)
        assert passed + pause <= 60.0


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_full_and_lost_in_between_are_temporary(status: int) -> None:
    assert is_temporary(refused(status))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 500])
def test_refusals_are_final(status: int) -> None:
    assert not is_temporary(refused(status))


def test_a_conflict_with_retry_after_is_temporary() -> None:
    assert is_temporary(refused(409, **{"retry-after": "1"}))


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, InvalidRequest), (401, Unauthorized), (403, Forbidden), (413, InvalidRequest),
     (422, InvalidRequest), (429, Busy), (500, ServerError), (503, Busy)],
)  # fmt: skip
def test_status_decides_the_type_of_the_error(status: int, kind: type[Refused]) -> None:
    assert type(refused(status)) is kind


def test_final_refusal_is_not_tried_again(server: FakeServer, client: Client) -> None:
    with pytest.raises(InvalidRequest):
        client.submit({"kind": "noop"})

    assert len(server.sent) == 1


@pytest.mark.parametrize(
    "bounds", [{"attempts": 0}, {"first_delay_seconds": 0.0}, {"max_delay_seconds": 0.01}]
)
def test_policy_refuses_bounds_without_meaning(bounds: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="give"):
        RetryPolicy(**bounds)  # type: ignore[arg-type]
