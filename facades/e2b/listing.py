"""Listing of sandboxes: filters, order and pages of E2B's control API, and how a sandbox is shown. Pure."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote

from contract.receipts import TrajectoryDetails, TrajectoryReceipt
from domain.errors import InvalidRequest
from facades.e2b.sandbox import ENVD_VERSION, SandboxFacts, cores_of, facts_of, is_paused

MOST: Final = 100
CLIENT: Final = "tangram"
#: Header with the token of the next page.
NEXT: Final = "x-next-token"
_STATES: Final = ("running", "paused")


class SandboxPage(NamedTuple):
    """Some sandboxes, and the token of the next page; empty: there is none."""

    items: list[dict[str, Any]]
    next: str


def shown(name: str, found: TrajectoryDetails, facts: SandboxFacts) -> dict[str, Any]:
    """Return a sandbox as lists and details show it."""
    environment = found.environment or None
    return {
        "templateID": facts.template,
        "alias": facts.template,
        "sandboxID": name,
        "clientID": CLIENT,
        "envdVersion": ENVD_VERSION,
        "startedAt": found.opened_at,
        "endAt": found.expires_at,
        "cpuCount": max(1, round(cores_of(facts))),
        "memoryMB": environment.memory_bytes // 2**20 if environment else 0,
        "diskSizeMB": environment.disk_bytes // 2**20 if environment else 0,
        "metadata": facts.metadata,
        "state": "paused" if is_paused(found) else "running",
        "lifecycle": {
            "onTimeout": "pause" if facts.pauses else "kill",
            "autoResume": bool(facts.resume_seconds),
        },
    }


def page_of(found: Iterable[TrajectoryReceipt], query: Mapping[str, str]) -> SandboxPage:
    """Return the page that a query asks for, latest first. Raises InvalidRequest."""
    rows = [shown(each.id, each, facts) for each in found if (facts := facts_of(each)) is not None]
    chosen = [row for row in rows if _matches(row, query)]
    ascending = query.get("order") == "asc"
    chosen.sort(key=_place, reverse=not ascending)
    limit = limit_of(query)
    if after := _place_of_token(query.get("nextToken", "")):
        # Times of the journal are shown on a clock that may be set meanwhile.
        after = next((_place(row) for row in rows if row["sandboxID"] == after[1]), after)
        chosen = [
            row for row in chosen if (_place(row) > after) is ascending and _place(row) != after
        ]
    items = chosen[:limit]
    more = len(chosen) > limit
    return SandboxPage(items, _token(items[-1]) if more else "")


def _matches(row: dict[str, Any], query: Mapping[str, str]) -> bool:
    states = [each for each in query.get("state", "").split(",") if each] or _STATES
    if row["state"] not in states:
        return False
    # The SDKs quote names and values before they make a query of them.
    wanted = parse_qsl(query.get("metadata", ""), keep_blank_values=True)
    if any(row["metadata"].get(unquote(name)) != unquote(value) for name, value in wanted):
        return False
    if (template := query.get("template")) and row["templateID"] != template:
        return False
    after = query.get("startedAfter")
    return not after or _instant(row["startedAt"]) > _instant(after)


def _instant(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text.replace(" ", "+"))
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise InvalidRequest(f"{text[:60]!r} is no time with a zone", pointer="?startedAfter")
    return found


def _place(row: dict[str, Any]) -> tuple[str, str]:
    return row["startedAt"], row["sandboxID"]


def _token(row: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode("|".join(_place(row)).encode()).decode()


def _place_of_token(token: str) -> tuple[str, str] | None:
    if not token:
        return None
    try:
        started, bar, name = base64.urlsafe_b64decode(token).decode().partition("|")
    except ValueError:
        bar = ""
    if not bar:
        raise InvalidRequest("give the token of a page before", pointer="?nextToken")
    return started, name


def limit_of(query: Mapping[str, str]) -> int:
    """Return how many items a page has. Raises InvalidRequest."""
    text = query.get("limit", "")
    if not text:
        return MOST
    if not (text.isascii() and text.isdigit() and int(text[:9]) >= 1):
        raise InvalidRequest(f"{text[:20]!r} is no number from 1 on", pointer="?limit")
    return min(int(text[:9]), MOST)
