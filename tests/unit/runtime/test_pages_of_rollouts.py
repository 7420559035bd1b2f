"""Pages of finished rollouts: their size is bounded, and a log that cannot be read does not hold up the others."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from contract.rollout_views import RolloutCompletions, RolloutView
from domain.principals import Principal
from domain.rollouts import RolloutOutcome, RolloutState
from rollout.ports import Record
from scheduler.runtime.gateway.endpoints import rollouts
from scheduler.runtime.gateway.endpoints.rollouts import RolloutEndpoints
from scheduler.runtime.gateway.http import HttpError, HttpRequest
from scheduler.runtime.rollouts.log_store import RolloutLogs

IDS = [f"rol_{number:028x}" for number in range(3)]
READER = Principal("trainer", "default", frozenset())


async def no_body() -> Any:
    raise AssertionError("the request has no body")


async def page_of(logs: RolloutLogs, accept: bytes = b"", query: bytes = b"") -> Any:
    """Return the page of all three, as it is sent."""
    views = [
        RolloutView(id=each, state=RolloutState.FINISHED, outcome=RolloutOutcome.COMPLETED)
        for each in IDS
    ]

    async def rows(project: str | None, after: int, limit: int) -> RolloutCompletions:
        found = views[:limit]
        return RolloutCompletions(found, str(len(found)), len(views) > limit)

    context: Any = SimpleNamespace(
        queries=None,
        live_rollouts=1,
        tail=SimpleNamespace(seq=3),
        backend=SimpleNamespace(rollout_completions=rows),
        rollout_logs=logs,
    )
    scope: dict[str, Any] = {
        "path": "/api/v1/rollouts/completions",
        "headers": [(b"accept", accept)],
    }
    scope["query_string"] = query
    answer = await RolloutEndpoints(context).completions(HttpRequest(scope, no_body), READER)
    assert answer.status == 200
    return (
        msgspec.msgpack.decode(answer.content)
        if b"msgpack" in accept
        else json.loads(answer.content)
    )


@pytest.mark.parametrize("accept", [b"", b"application/vnd.tangram.rollout+msgpack"])
@pytest.mark.parametrize("damage", ["a byte of it", "a turn", "an artefact"])
async def test_a_damaged_log_is_named_and_the_feed_goes_on(
    tmp_path: Path, damage: str, accept: bytes
) -> None:
    logs = RolloutLogs(tmp_path)
    logs.create([(each, Record("request", {})) for each in IDS])
    logs.append(IDS[0], 1, 1, Record("result", {"detail": {"files": 3}}))
    if damage == "a byte of it":
        logs.append(IDS[1], 1, 1, Record("result", {}))
        file = tmp_path / IDS[1] / "log"
        content = bytearray(file.read_bytes())
        content[12] ^= 1
        file.write_bytes(content)
    else:
        bad = Record("turn", {}) if damage == "a turn" else Record("artefact", {"facts": 3})
        logs.append(IDS[1], 1, 1, bad)

    page = await page_of(logs, accept)

    assert [each["id"] for each in page["items"]] == IDS
    assert page["next"] == "3"
    first, second, third = page["items"]
    assert (first["segments"], first["detail"], first["log_problem"]) == ([], {"files": 3}, "")
    assert (second["segments"], second["outcome"], bool(second["log_problem"])) == (
        None, "completed", True,
    )  # fmt: skip
    assert third["log_problem"] == ""


@pytest.mark.parametrize(("room", "fit"), [(2.5, 2), (0.5, 1), (3, 3)])
async def test_a_page_with_tokens_is_bounded_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: float, fit: int
) -> None:
    logs = RolloutLogs(tmp_path)
    logs.create([(each, Record("request", {})) for each in IDS])
    monkeypatch.setattr(rollouts, "PAGE_BYTES", int(logs.size(IDS[0]) * room))

    page = await page_of(logs)
    assert [each["id"] for each in page["items"]] == IDS[:fit]
    assert (page["next"], page["more"]) == (str(fit), fit < 3)

    assert len((await page_of(logs, query=b"segments=false"))["items"]) == 3


async def test_a_page_without_tokens_reads_heads_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = RolloutLogs(tmp_path)
    logs.create([(each, Record("request", {})) for each in IDS])
    logs.append(IDS[0], 1, 1, Record("artefact", {"name": "patch"}, {"content": b"diff"}))
    logs.append(IDS[0], 1, 2, Record("result", {"detail": {"files": 3}}))
    monkeypatch.setattr(RolloutLogs, "read", None)

    page = await page_of(logs, query=b"segments=false")

    first = page["items"][0]
    assert first["log_problem"] == ""
    assert (first["detail"], first["segments"]) == ({"files": 3}, None)
    assert first["artefacts"] == [{"name": "patch", "bytes": 4}]


async def test_a_disk_that_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = RolloutLogs(tmp_path)
    logs.create([(each, Record("request", {})) for each in IDS])

    def fails(*_: object, **__: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "open", fails)
    page = await page_of(logs)

    assert {each["segments"] for each in page["items"]} == {None}
    assert all("Input/output error" in each["log_problem"] for each in page["items"])


async def test_an_artefact_of_a_damaged_log_says_that_the_log_is_damaged(tmp_path: Path) -> None:
    """It is there: 410 would say that it was acknowledged."""
    logs = RolloutLogs(tmp_path)
    logs.create([(IDS[0], Record("request", {}))])
    logs.append(IDS[0], 1, 1, Record("artefact", {"name": "patch"}, {"content": b"12345678"}))
    logs.append(IDS[0], 1, 2, Record("result", {}))
    file = tmp_path / IDS[0] / "log"
    file.write_bytes(file.read_bytes().replace(b"12345678", b"12345679"))
    view = RolloutView(id=IDS[0], state=RolloutState.FINISHED, project="default")
    context: Any = SimpleNamespace(rollout_logs=logs, queries=None, live_rollouts=1)
    endpoints = RolloutEndpoints(context)

    async def found(*_: object) -> RolloutView:
        return view

    endpoints._lookup = SimpleNamespace(find=found)  # type: ignore[assignment]
    scope: dict[str, Any] = {"path": "/", "headers": []}

    with pytest.raises(HttpError) as refused:
        await endpoints.artefact(HttpRequest(scope, no_body), READER, IDS[0], "patch")

    assert (refused.value.status, refused.value.code) == (500, "rollout_log_damaged")
    assert f"the log of {IDS[0]} is damaged" in str(refused.value)
