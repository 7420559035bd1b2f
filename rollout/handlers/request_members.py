"""Members of a trainer's request, read into a struct: the instance and the options of a handler.

    instance = instance_of(job, SweInstance)       # raises InvalidRequest: "instance: FAIL_TO_PASS: Expected …"

Rules
1. A handler reads all members in INIT, also those of EVAL: a bad instance fails before a token of it is sampled.
2. A rollout whose instance is bad has failed, and its reason names the member. It never has reward 0.
3. Unknown members pass: data sets have columns of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from domain.errors import InvalidRequest
from rollout.handlers.base import Job

T = TypeVar("T", bound=msgspec.Struct)

#: Where msgspec found the error: ``$.files['a.py']``.
_PLACE: Final = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_MISSING: Final = re.compile(r"missing required field `([^`]+)`")
_SHOWN: Final = 800


def instance_of(job: Job, kind: type[T]) -> T:
    """Return the instance of a rollout. Raises InvalidRequest, which names the member."""
    return read_members(job.request.instance, kind, "instance")


def options_of(job: Job, kind: type[T]) -> T:
    """Return the options of the handler. Raises InvalidRequest, which names the member."""
    return read_members(job.request.options, kind, "options")


def read_members(stated: Mapping[str, Any], kind: type[T], where: str) -> T:
    """Return a mapping as a struct. Raises InvalidRequest, which names the member of ``where``."""
    try:
        return msgspec.convert(dict(stated), kind)
    except msgspec.ValidationError as error:
        text = str(error)
        if (missing := _MISSING.search(text)) is not None and _PLACE.search(text) is None:
            raise refused(where, missing[1], "is missing") from None
        place = _PLACE.search(text)
        member = place[1] if place is not None else ""
        raise refused(where, member, _PLACE.sub("", text)) from None


def refused(where: str, member: str, problem: str) -> InvalidRequest:
    """Return the error of a member of the instance or the options."""
    place = f"{where}: {member}: " if member else f"{where}: "
    return InvalidRequest(f"{place}{problem[:_SHOWN]}", pointer=f"/{where}/{member}".rstrip("/"))


def from_json(value: Any, member: str) -> Any:
    """Return a member that data sets also give as JSON in a text. Raises InvalidRequest."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise refused("instance", member, f"is a text, and no JSON: {error}") from None


def texts_of(value: Any, member: str) -> tuple[str, ...]:
    """Return a list of texts, which may be JSON in a text. Raises InvalidRequest."""
    found = from_json(value, member) if value else []
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise refused("instance", member, "give a list of texts")
    return tuple(found)


def environment_needed(job: Job, handler: str) -> None:
    """Raise InvalidRequest for a rollout without an environment."""
    if job.request.environment is None:
        raise InvalidRequest(
            f"environment: handler {handler} runs commands; submit the rollouts with an environment,"
            " {} for the usual one",
            pointer="/environment",
        )


def first_text(members: msgspec.Struct, names: Sequence[str]) -> str:
    """Return the first of some members that is given, as text. Raises InvalidRequest, which names them."""
    for name in names:
        value = getattr(members, name)
        if value is not None and str(value).strip():
            return str(value)
    raise refused("instance", names[0], f"is missing: give one of {', '.join(names)}")
