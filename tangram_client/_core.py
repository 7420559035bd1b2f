"""The client without its network: calls, answers, and what to do next.

Theory of operation. A `ApiCall` is one request of the contract, complete with its Idempotency-Key and
with the function that reads its answer; `_calls.py` has one function for each endpoint. An
`Exchange` carries one call to its end: the shell sends ``exchange.call``, tells the exchange what
came back (`answered`, `failed`) and then pauses and sends the same call again, or is
done. Errors end it. `client.Client` and `aio.AsyncClient` are two such shells over httpx.

    call = _calls.submit_action(encode(payload))
    exchange = Exchange(call, RetryPolicy(), at=clock.now())
    step = exchange.answered(Response(202, headers, content), at=clock.now())
    assert isinstance(step, Done) and step.value.state == "queued"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Generic, TypeVar

import msgspec

from tangram_client.errors import BadAnswer, TangramClientError, Unreachable, refusal
from tangram_client.models import Problem
from tangram_client.retry import RetryPolicy

T = TypeVar("T")

#: Above the wait that was asked for: how long an answer may take.
ANSWER_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """An HTTP response; the names in ``headers`` are lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    def json(self) -> Any:
        """Return the body. Raises BadAnswer when it is not JSON."""
        try:
            return msgspec.json.decode(self.content)
        except (ValueError, msgspec.DecodeError):
            kind = self.headers.get("content-type", "something without a type")
            raise BadAnswer(
                f"HTTP {self.status} with {kind} instead of JSON: is this the URL of a Tangram?"
            ) from None


#: Bytes, or a function that returns the pieces of a stream, once for each attempt.
Content = bytes | Callable[[], Any]


@dataclass(frozen=True)
class ApiCall(Generic[T]):
    """One request, and how to read its answer."""

    method: str
    path: str
    read: Callable[[ApiResponse], T]
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: Content | None = None
    #: How long the server was asked to hold the answer back.
    wait_seconds: float = 0.0

    @property
    def timeout_seconds(self) -> float:
        return self.wait_seconds + ANSWER_SECONDS


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """The exchange is over, with this value."""

    value: T


@dataclass(frozen=True, slots=True)
class RetryPause:
    """Send the same call again after ``seconds``."""

    seconds: float


class Attempts:
    """Counts failures in a row against a policy."""

    def __init__(self, policy: RetryPolicy, *, at: float) -> None:
        self._policy = policy
        self.succeeded(at=at)

    def succeeded(self, *, at: float) -> None:
        """Restart the count."""
        self._began = at
        self._failed = 0

    def failed(self, error: TangramClientError, *, at: float) -> RetryPause:
        """Return the pause before the next attempt. Raises ``error`` when there is none."""
        self._failed += 1
        passed = at - self._began
        delay = self._policy.delay_seconds(error, attempt=self._failed, passed_seconds=passed)
        if delay is None:
            raise error
        return RetryPause(delay)


class Exchange(Generic[T]):
    """One logical call, over as many attempts as its policy allows."""

    def __init__(self, call: ApiCall[T], policy: RetryPolicy, *, at: float) -> None:
        self.call = call
        self._attempts = Attempts(policy, at=at)

    def answered(self, response: ApiResponse, *, at: float) -> Done[T] | RetryPause:
        """Take an answer. Raises the typed error when it is a final no."""
        if 200 <= response.status < 300:
            return Done(_read(self.call, response))
        return self._attempts.failed(problem_of(response), at=at)

    def failed(self, reason: str, *, at: float) -> RetryPause:
        """Take the news that no answer came. Raises Unreachable when that was the last attempt."""
        return self._attempts.failed(Unreachable(f"no answer from the server: {reason}"), at=at)


class Patience:
    """The patience of a caller, cut into waits that the server accepts."""

    #: Short enough for proxies that end silent connections after a minute.
    SLICE_SECONDS = 30.0

    def __init__(self, seconds: float | None, *, at: float) -> None:
        self._until = None if seconds is None else at + seconds

    def next_wait(self, *, at: float) -> float:
        """Return how long the next request should be held; 0 when the patience is over."""
        if self._until is None:
            return self.SLICE_SECONDS
        return min(self.SLICE_SECONDS, max(0.0, self._until - at))

    @staticmethod
    def pause_after(wait_seconds: float, *, took_seconds: float) -> float:
        """Return how long to rest before asking again.

        A server that is about to stop answers waits at once; asking again at once would spin.
        """
        return 0.0 if took_seconds >= wait_seconds / 2 else min(0.2, wait_seconds / 2)


def _read(call: ApiCall[T], response: ApiResponse) -> T:
    try:
        return call.read(response)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadAnswer(
            f"{call.method} {call.path} was answered in another shape ({error!r}): "
            "client and server are of incompatible versions"
        ) from error


def problem_of(response: ApiResponse) -> TangramClientError:
    """Return the typed error for an answer that is not a success."""
    if response.status < 400:
        return BadAnswer(f"HTTP {response.status}, not an answer of the API: check the URL")
    try:
        body = response.json()
    except BadAnswer:
        body = {}
    problem = Problem.of(body if isinstance(body, dict) else {}, response.status)
    return refusal(problem, retry_after_seconds=_retry_after(response.headers))


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Read ``Retry-After``: seconds, or a date, compared with the server's own ``Date``."""
    text = headers.get("retry-after")
    if text is None:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        until, now = _http_date(text), _http_date(headers.get("date", ""))
    return max(0.0, (until - now).total_seconds()) if until and now else None


def _http_date(text: str) -> datetime | None:
    try:
        return parsedate_to_datetime(text)
    except ValueError:
        return None


def default_headers(token: str | None, agent: str | None = None) -> dict[str, str]:
    """Return what every request carries; ``agent`` is what the program calls itself."""
    headers = {"Accept": "application/json"} | ({"User-Agent": agent} if agent else {})
    return headers | {"Authorization": f"Bearer {token}"} if token else headers
