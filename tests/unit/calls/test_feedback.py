"""Limits of an API, read from its responses."""

from __future__ import annotations

import pytest

from domain.apis import Feedback, Verdict
from managers.common.api_calls.exchange import LONGEST_PAUSE_SECONDS, feedback_of

NOW = 1_800_000_000.0
OK, LIMITED, FAILING = Verdict.OK, Verdict.LIMITED, Verdict.FAILING


@pytest.mark.parametrize(
    ("status", "headers", "verdict", "pause"),
    [
        (200, {}, OK, None),
        (404, {}, OK, None),
        (500, {}, FAILING, None),
        (503, {}, FAILING, None),
        (503, {"retry-after": "3"}, LIMITED, 3.0),
        (429, {}, LIMITED, None),
        (429, {"retry-after": "0"}, LIMITED, 0.0),
        (429, {"retry-after": "2.5"}, LIMITED, 2.5),
        (429, {"retry-after": "Fri, 15 Jan 2027 08:00:10 GMT"}, LIMITED, 10.0),
        (429, {"retry-after": "Fri, 15 Jan 2027 07:00:00 GMT"}, LIMITED, 0.0),
        (429, {"retry-after": "soon"}, LIMITED, None),
        (429, {"retry-after": "999999"}, LIMITED, LONGEST_PAUSE_SECONDS),
        (200, {"ratelimit": '"default";r=0;t=12'}, OK, 12.0),
        (200, {"ratelimit": '"default";r=5;t=12'}, OK, None),
        (200, {"ratelimit": '"a";r=5;t=1, "b";r=0;t=9'}, OK, 9.0),
        (200, {"ratelimit": "limit=10, remaining=0, reset=7"}, OK, 7.0),
        (200, {"ratelimit-remaining": "0", "ratelimit-reset": "4"}, OK, 4.0),
        (429, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1800000030"}, LIMITED, 30.0),
        (200, {"x-ratelimit-remaining": "0"}, OK, None),
        (200, {"x-ratelimit-remaining": "none", "x-ratelimit-reset": "x"}, OK, None),
    ],
)
def test_answers_are_read(
    status: int, headers: dict[str, str], verdict: Verdict, pause: float | None
) -> None:
    assert feedback_of("api:a", status, headers, NOW) == Feedback("api:a", verdict, True, pause)
