"""Verdicts on a rollout: what its tests said, and what to do when it has no reward. Pure.

Handlers store what tests said as artefact ``tests``: JSON with some of ``count``, ``passed``, ``tests`` (those that did not pass → how),
``unloaded`` and ``error``. An artefact of another shape is a file like any other.
"""

from __future__ import annotations

import shlex
from typing import Any, Final, NamedTuple

import msgspec

from domain.rollouts import RolloutOutcome
from tangram_web.records.models import RolloutRecord

#: Name of the artefact with what tests said.
TESTS: Final = "tests"
#: Tests that are listed, and characters of a text about one.
LISTED: Final = 100
_CHARACTERS: Final = 300


class VerdictOfTests(NamedTuple):
    """What the tests of EVAL said."""

    total: int | None
    passed: int | None
    #: Tests that did not pass, with how they ended.
    others: list[tuple[str, str]]
    #: Tests that are not listed.
    more: int
    error: str


def verdict_of_tests(content: bytes | None) -> VerdictOfTests | None:
    """Return what an artefact ``tests`` says; None without one, and for one of another shape."""
    try:
        said = msgspec.json.decode(content or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    tests, unloaded = said.get("tests"), said.get("unloaded")
    others = [(_short(k), _short(v)) for k, v in tests.items()] if isinstance(tests, dict) else []
    if isinstance(unloaded, list):
        others += [(_short(each), "not loaded") for each in unloaded]
    total, passed = (_whole(said.get(name)) for name in ("count", "passed"))
    error = _short(said.get("error") or said.get("detail") or "")
    if total is None and passed is None and not others and not error:
        return None
    return VerdictOfTests(total, passed, others[:LISTED], max(0, len(others) - LISTED), error)


def _short(value: Any) -> str:
    return str(value)[:_CHARACTERS]


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class Cure(NamedTuple):
    """A cause and the next step."""

    cause: str
    step: str
    #: Shell line of the next step; empty without one.
    line: str = ""
    #: Page of the cause, by its name; empty without one.
    page: str = ""
    page_title: str = ""


def cure_of(record: RolloutRecord) -> Cure | None:
    """Return what to do; None for a rollout with a reward, and for one that is not finished."""
    if record.outcome is None or record.reward is not None:
        return None
    again = _again(record)
    match RolloutOutcome(record.outcome):
        case RolloutOutcome.COMPLETED:
            return Cure(
                "EVAL ended without a number.",
                "The reason and the actions of EVAL are below. A sample without a reward never trains.",
            )
        case RolloutOutcome.FAILED:
            return Cure(
                "The handler or the agent raised an error.",
                "Read the error below, correct the handler or its options, and submit the instance again.",
                again,
            )
        case RolloutOutcome.TIMEOUT:
            return Cure(
                "A stage took longer than its limit. Waits for leases and for actions are not counted.",
                "See which turns took the time; raise init_seconds, run_seconds, eval_seconds or total_seconds in"
                " limits, and submit the instance again.",
                again,
            )
        case RolloutOutcome.CANCELLED:
            return Cure(
                "It was cancelled: by a request, or with the lease of its stage.",
                "The audit names the request. Submit the instance again to have it run.",
                again,
                "dashboard:audit",
                "Audit",
            )
        case RolloutOutcome.INFRA_FAILED:
            return _infrastructure(record, again)


def _infrastructure(record: RolloutRecord, again: str) -> Cure:
    cause = "Tangram, a node or every backend failed; the agent is not the cause."
    step = "Correct what the reason names, and submit the instance again."
    if "backend" in record.reason.lower():
        return Cure(cause, step, again, "rollouts:backends", "Backends")
    return Cure(cause, step, again, "dashboard:workers", "Nodes and parts")


def _again(record: RolloutRecord) -> str:
    words = ["tangram", "rollout", "submit", record.handler, "--task", record.task]
    words += ["--instance", record.instance or "0"]
    if record.llm:
        words += ["--llm", record.llm]
    return shlex.join(words)
