"""A fleet on the declared GPUs of a running Tangram: started, asked through the OpenAI door, explained on its page, and ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.acceptance.up.conftest import Tangram

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FLEET = {
    "engine": "vllm", "gpus": 2, "degrees": [1], "slots": 4, "env": {"HF_TOKEN": "confidential"},
    "command": ["{python}", "-m", "managers.llm.fake", "--host", "{host}", "--port", "{port}",
                "--model", "8B", "--slots", "{slots}", "--speed", "100"],
}  # fmt: skip


@pytest.fixture
def admin(tangram: Tangram, admin_token: str) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {admin_token}"}
    with httpx.Client(base_url=tangram.access["url"], headers=headers, timeout=120) as client:
        yield client
        client.delete("/api/v1/fleets/own-model")


def until(read: Callable[[], Any]) -> Any:
    """Wait until something is there."""
    end = time.monotonic() + 120
    while not (found := read()):
        assert time.monotonic() < end
        time.sleep(0.2)
    return found


def engines(client: httpx.Client) -> list[dict[str, Any]]:
    """Return the actions that run engines and are not finished."""
    rows = client.get("/api/v1/actions", params={"task": "fleet-own-model", "limit": 500}).json()
    return [each for each in rows["results"] if each["outcome"] is None]


def test_engines_serve_on_gpus_and_give_them_back(tangram: Tangram, admin: httpx.Client) -> None:
    declared = admin.put("/api/v1/fleets/own-model", json=FLEET)
    assert declared.status_code in (200, 201), declared.text
    assert "confidential" not in admin.get("/api/v1/fleets/own-model").text

    chat = {"model": "own-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}

    def answered() -> httpx.Response | None:
        answer = admin.post("/v1/chat/completions", json=chat)
        return answer if answer.status_code == 200 else None

    assert until(answered).json()["choices"]
    running = until(lambda: len(engines(admin)) == 2 and engines(admin))
    assert sorted(each["placement"]["gpus"] for each in running) == [[0], [1]]

    ended = running[0]["id"]
    admin.post(f"/api/v1/actions/{ended}/cancel")
    again = until(
        lambda: [each for each in engines(admin) if each["id"] not in {r["id"] for r in running}]
    )
    assert len(again) == 1

    assert admin.delete("/api/v1/fleets/own-model").status_code == 204
    until(lambda: not engines(admin))
