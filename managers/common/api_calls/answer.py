"""What an API answered: kept up to a limit, and read for what it says about its limits. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Final

from domain.apis import CallResult, Feedback, Verdict, verdict_of
from managers.common.api_calls.secrets import masked

#: No answer silences an API for longer.
LONGEST_PAUSE_SECONDS: Final = 3600.0
_MOST_HEADERS: Final = 64
_DROPPED: Final = frozenset({"set-cookie", "set-cookie2", "connection", "keep-alive"})
#: A reset above this is an instant since the epoch, not a number of seconds.
_EPOCH: Final = 1e9


def kept_headers(raw: Iterable[tuple[bytes, bytes]], secret: str) -> dict[str, str]:
    """Return the headers of an answer, small letters, those that repeat joined by commas."""
    kept: dict[str, str] = {}
    for name, value in raw:
        key = name.decode("latin-1").lower()
        if key in _DROPPED or (len(kept) >= _MOST_HEADERS and key not in kept):
            continue
        text = masked(value.decode("latin-1"), secret)
        kept[key] = f"{kept[key]}, {text}" if key in kept else text
    return kept


def result_of(
    status: int, headers: dict[str, str], body: bytes, *, truncated: bool, secret: str
) -> CallResult:
    """Return what is kept of an answer. A character cut in half by the limit is left out."""
    if secret:
        body = body.replace(secret.encode(), b"[secret]")
    try:
        return CallResult(status, headers, body.decode(), truncated=truncated)
    except UnicodeDecodeError as error:
        if truncated and error.start >= len(body) - 3:
            return CallResult(status, headers, body[: error.start].decode(), truncated=True)
    encoded = base64.b64encode(body).decode()
    return CallResult(status, headers, encoded, "base64", truncated)


def feedback_of(
    resource: str,
    status: int,
    headers: Mapping[str, str],
    wall_clock: float,
    *,
    good: bool = False,
) -> Feedback:
    """Return what an answer says about the API's limits.

    ``Retry-After`` (RFC 9110 §10.2.3), ``RateLimit`` (IETF draft, its fields apart or together) and
    ``X-RateLimit-*``; a limit counts when nothing remains of it.
    """
    pause = _retry_after(headers.get("retry-after", ""), wall_clock)
    verdict = verdict_of(status, pause)
    if pause is None or verdict is Verdict.OK:
        pause = _exhausted_for(headers, wall_clock) if pause is None else pause
    if pause is not None:
        pause = min(max(0.0, pause), LONGEST_PAUSE_SECONDS)
    return Feedback(resource, verdict, True, pause, good)


def _retry_after(value: str, wall_clock: float) -> float | None:
    if re.fullmatch(r"\d{1,9}(?:\.\d+)?", value):
        return float(value)
    try:
        return parsedate_to_datetime(value).timestamp() - wall_clock if value else None
    except (ValueError, TypeError, OverflowError):
        return None


def _exhausted_for(headers: Mapping[str, str], wall_clock: float) -> float | None:
    """Return how long nothing remains of a limit; None when something does."""
    for remaining, reset in _limits(headers, wall_clock):
        if remaining <= 0:
            return reset
    return None


def _limits(headers: Mapping[str, str], wall_clock: float) -> Iterable[tuple[float, float]]:
    """Yield (remaining, seconds until it is reset) of every limit that the headers name."""
    for item in headers.get("ratelimit", "").split(","):
        fields = dict(re.findall(r"\b([rt])\s*=\s*(\d+)", item))
        if "r" in fields and "t" in fields:
            yield float(fields["r"]), float(fields["t"])
    together = dict(re.findall(r"\b(remaining|reset)\s*=\s*(\d+)", headers.get("ratelimit", "")))
    if len(together) == 2:
        yield float(together["remaining"]), float(together["reset"])
    for prefix in ("ratelimit", "x-ratelimit"):
        remaining = _number(headers.get(f"{prefix}-remaining"))
        reset = _number(headers.get(f"{prefix}-reset"))
        if remaining is not None and reset is not None:
            yield remaining, reset - wall_clock if reset > _EPOCH else reset


def _number(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(r"\d{1,15}(?:\.\d+)?", text) else None
