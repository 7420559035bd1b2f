"""What verl-tool's agent loop observes, with a real shell and a real Python."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from domain.action import Outcome
from domain.ids import TrajectoryKey
from facades import verltool
from managers.cpu.fake import Play
from tests.integration.runtime import test_sessions
from tests.integration.runtime.rig import Rig
from tests.integration.runtime.test_sessions import SessionDriver

URL = "http://tangram/verltool/get_observation"

shells = test_sessions.sessions


@pytest.fixture
def node(shells: SessionDriver, monkeypatch: pytest.MonkeyPatch) -> SessionDriver:
    """The node, with the environment of the client's trajectory ``t1``."""
    shells.environment.trajectory = TrajectoryKey("default/vt-t1")
    monkeypatch.setattr(verltool, "WORKSPACE", str(shells.environment.workspace))
    return shells


async def observed(client: httpx.AsyncClient, *actions: str, **fields: Any) -> dict[str, Any]:
    body = {"trajectory_ids": ["t1"] * len(actions), "actions": actions, **fields}
    answer = await client.post(URL, json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_python_and_shell_last_and_the_order_is_that_of_the_actions(
    rig: Rig, node: SessionDriver
) -> None:
    async with rig.client() as client:
        first = await observed(client, "<python>x = 41</python>", "<bash>cd /; export A=b</bash>")
        second = await observed(
            client,
            "<bash>pwd; echo $A; echo err >&2</bash>",
            "nothing to run",
            "```python\nx + int(input())\n```",
            extra_fields=[{}, None, {"stdin": "1"}],
        )

    assert (first["valids"], first["dones"]) == ([True, True], [False, False])
    assert second["observations"] == [
        "\n<output>\n/\nb\nerr\n</output>\n",
        {"obs": "", "invalid_reason": "no valid tool found for action"},
        "\n```output\n42\n```\n",
    ]
    assert second["valids"] == [True, False, True]


async def test_a_client_that_hangs_up_ends_its_command(
    rig: Rig, node: SessionDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verltool, "TIMEOUT_SECONDS", 600.0)  # nothing else ends it
    async with rig.client() as client:
        await observed(client, "<bash>true</bash>")
        transport = client._transport
        assert isinstance(transport, httpx.ASGITransport)
        asked = {"trajectory_ids": ["t1"], "actions": ["<bash>sleep 600</bash>"]}
        unread = [{"type": "http.request", "body": json.dumps(asked).encode()}]
        assert rig.loop is not None
        actions = rig.loop.loop.term.machine.state.actions

        async def receive() -> dict[str, Any]:
            if unread:
                return unread.pop()
            while not actions:
                await asyncio.sleep(0.005)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            assert message.get("body", b"") == b"", message["body"]

        scope = {
            "type": "http", "method": "POST", "path": "/verltool/get_observation",
            "query_string": b"", "headers": [(b"authorization", b"Bearer trainer")],
        }  # fmt: skip
        await asyncio.wait_for(transport.app(scope, receive, send), 120)
        async with asyncio.timeout(60):
            while actions:
                await asyncio.sleep(0.005)


async def test_a_cell_that_takes_too_long_is_ended_and_the_names_go_on(
    rig: Rig, node: SessionDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.client() as client:
        await observed(client, "<python>x = 42</python>")
        monkeypatch.setattr(verltool, "TIMEOUT_SECONDS", 1.0)
        late = await observed(client, "<python>print('so far')\nwhile True: pass</python>")
        slow = await observed(client, "<bash>echo begun; sleep 600</bash>")
        monkeypatch.setattr(verltool, "TIMEOUT_SECONDS", 60.0)
        after = await observed(client, "<python>x</python>", "<bash>echo on</bash>")

    (text,) = late["observations"]
    assert "so far" in text
    assert "KeyboardInterrupt" in text
    assert "timed out after 1 seconds" in text
    assert "begun" in slow["observations"][0]
    assert "timed out" in slow["observations"][0]
    assert after["observations"] == ["\n<output>\n42\n</output>\n", "\n<output>\non\n</output>\n"]


async def test_a_python_that_ended_is_replaced_and_the_observation_says_so(
    rig: Rig, node: SessionDriver
) -> None:
    async with rig.client() as client:
        ended = await observed(client, "<python>import os; os._exit(3)</python>")
        after = await observed(client, "<python>6 * 7</python>")

    assert "exit status 3" in ended["observations"][0]
    assert "state is lost" in ended["observations"][0]
    assert after["observations"] == ["\n<output>\n42\n</output>\n"]


async def test_finish_ends_the_trajectory_with_the_boxed_answer(
    rig: Rig, node: SessionDriver
) -> None:
    async with rig.client() as client:
        await observed(client, "<python>1</python>")
        found = await observed(client, r"It is \boxed{42}.", finish=[True])
        state = (await client.post("/trajectories/vt-t1/finish")).json()["state"]
        again = await observed(client, "", finish=[True])
        unknown = await client.post(
            URL, json={"trajectory_ids": "none", "actions": "so", "finish": [True]}
        )

    assert found == {"observations": ["42"], "dones": [True], "valids": [True]}
    assert state in {"finishing", "finished"}
    assert again == {"observations": [""], "dones": [True], "valids": [True]}
    assert unknown.json() == {"observations": ["so"], "dones": [True], "valids": [False]}


@pytest.mark.parametrize("outcome", [Outcome.INFRA_FAILED, Outcome.UNKNOWN, Outcome.OOM_KILLED])
async def test_what_our_side_failed_is_done_and_not_valid(
    rig: Rig, node: SessionDriver, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.client() as client:
        await observed(client, "<bash>true</bash>")
        monkeypatch.setattr(node, "run", super(SessionDriver, node).run)
        node.script = lambda _: Play(outcome=outcome, detail="a disk broke")
        found = await observed(client, "<bash>true</bash>", "<python>1</python>")

    assert (found["dones"], found["valids"]) == ([True, True], [False, False])
    assert all("a disk broke" in each["error"] for each in found["observations"])


@pytest.mark.parametrize(
    "body",
    [
        {"trajectory_ids": ["a", "b"], "actions": ["x"]},
        {"trajectory_ids": ["a"], "actions": ["x"], "finish": []},
        {"trajectory_ids": ["a"], "actions": ["x"], "extra_fields": [{}, {}]},
        {"actions": ["x"]},
        {"trajectory_ids": [1], "actions": ["x"]},
    ],
)
async def test_a_request_that_cannot_be_meant_is_422(rig: Rig, body: dict[str, Any]) -> None:
    async with rig.client() as client:
        answer = await client.post(URL, json=body)

    assert answer.status_code == 422, answer.text
    assert answer.json()["detail"]


async def test_health_names_the_tools_without_a_token(rig: Rig) -> None:
    async with rig.client(token="unknown") as client:
        health = await client.get("http://tangram/verltool/health")
        refused = await client.post(URL, json={"trajectory_ids": ["a"], "actions": ["x"]})

    assert health.json() == {"status": "healthy", "tools": ["python", "bash", "finish"]}
    assert refused.status_code == 401
