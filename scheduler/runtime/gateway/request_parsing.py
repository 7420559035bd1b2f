"""Parsing of JSON bodies and query parameters, with errors that name the field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from math import inf
from typing import Any, TypeVar

import msgspec

from contract.repeated_names import repeated_name
from contract.requests import MAX_WAIT_SECONDS
from domain.codec import encode
from domain.errors import InvalidRequest, NotFound
from domain.events import TaskOpened, TrajectoriesForked, TrajectoryOpened
from domain.manifest import located
from scheduler.runtime.gateway.http import HttpError

T = TypeVar("T")
#: `contract.requests.Name` as a whole.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}")


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Return the body as the decoder's type.

    Raises HttpError 400 for a body that is not JSON or has a name twice in one object, InvalidRequest
    with a JSON Pointer for JSON of another shape.
    """
    found = decode_unchecked(decoder, body)
    check_names(body)
    return found


def decode_unchecked(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Return the body as the decoder's type, of a repeated name the last value."""
    try:
        return decoder.decode(body or b"null")
    except msgspec.ValidationError as error:
        text, pointer = located(str(error))
        raise InvalidRequest(text, pointer=pointer) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, "malformed_json", f"the body is not valid JSON: {error}") from None


def check_names(body: bytes) -> None:
    """Raise HttpError 400 for valid JSON with a name twice in one object."""
    try:
        name = repeated_name(body)
    except RecursionError:
        raise HttpError(400, "malformed_json", "the body is nested too deeply") from None
    if name is not None:
        raise HttpError(400, "repeated_name", f"{name[:128]!r} appears twice in one object")


def check_batch(body: bytes, items: list[bytes]) -> None:
    """Raise HttpError 400 when the object around the ``items`` of a batch has a name twice.

    Each item is checked when it is decoded.
    """
    around, start = [], 0
    for item in items:
        at = body.find(item, start)
        around.append(body[start:at])
        start = at + len(item)
    around.append(body[start:])
    if b"".join(around).translate(None, b" \t\r\n,") != b'{"actions":[]}':
        check_names(body)


def json_text(value: Any, pointer: str) -> str:
    """Return ``value`` as JSON. Raises InvalidRequest for a value that was read but cannot be written."""
    try:
        return msgspec.json.encode(value).decode()
    except (OverflowError, RecursionError, TypeError) as error:
        raise InvalidRequest(f"this cannot be forwarded: {error}", pointer=pointer) from None


def packed(event: TaskOpened | TrajectoryOpened | TrajectoriesForked) -> bytes:
    """Return an event with a client's metadata as bytes. Raises InvalidRequest for what cannot be stored."""
    try:
        return encode(event)
    except (OverflowError, TypeError, RecursionError) as error:
        raise InvalidRequest(
            f"metadata holds a value that cannot be stored: {error}", pointer="/metadata"
        ) from None


def checked_name(name: str, what: str) -> str:
    """Return the name of a task or trajectory in a path. Raises NotFound for an impossible name."""
    if not _NAME.fullmatch(name):
        raise NotFound(f"there is no {what} {name!r}")
    return name


def wait_seconds(query: Mapping[str, str], prefer: str = "") -> float:
    """Return the seconds that the client waits (``?wait=`` or ``Prefer: wait=``), bounded."""
    text = query.get("wait")
    if text is None and prefer:
        asked = re.search(r"(?:^|[,;\s])wait=(\d+)", prefer)
        text = asked[1] if asked else "0"
    return _wait_seconds(text or "0")


def largest_result(prefer: str) -> float:
    """Return the size above which the client reads a result from the object store (``Prefer: largest-result=``)."""
    asked = re.search(r"(?:^|[,;\s])largest-result=(\d{1,15})\b", prefer) if prefer else None
    return float(asked[1]) if asked else inf


@lru_cache(64)
def _wait_seconds(text: str) -> float:
    return min(number(text, "wait"), MAX_WAIT_SECONDS)


def number(text: str, name: str, most: float = 1e9) -> float:
    """Return a query parameter as a number from 0 to ``most``; raise InvalidRequest otherwise."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:
        raise InvalidRequest(
            f"{name}={text!r} is not a number from 0 to {most:g}", pointer=f"?{name}"
        )
    return value
