"""Polar's wire: submit, poll, delete, early stop and callback, with bodies as its trainers send them."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np
import pytest

from domain.rollouts import RolloutOutcome, RolloutResult, Stage
from facades import polar
from facades.polar import tasks, watches
from rollout.ports import Assigned, Record, RolloutPort
from rollout.tokens.sampled import SampledTokens
from rollout.tokens.segments import SampledTurn
from rollout.tokens.turn_records import turn_record
from scheduler.runtime.gateway.callbacks import Callbacks
from scheduler.runtime.gateway.native_calls import NativeCalls
from tests.api_server import answer, local_api
from tests.integration.runtime.rollout_rig import RolloutRig

URL = "http://tangram/polar"
#: A published client's body; members that no one here reads are in it.
TASK: dict[str, Any] = {
    "task_id": "golden-task",
    "instruction": "Summarize the case.",
    "num_samples": 2,
    "dispatch_priority": 7,
    "timeout_seconds": 900.0,
    "metadata": {"case_id": "case_0001", "timestep": 12, "prompt_source": "free", "instance_id": "i-1"},
    "agent": {
        "harness": "noop",
        "model_name": "gsj/Qwen/Qwen3-0.6B",
        "settings": {"temperature": 0.7, "max_tokens": 8192, "workdir": "/workspace"},
        "env": {}, "mcp_servers": [], "skills_path": None,
    },
    "builder": {"strategy": "prefix_merging", "config": {"end_of_turn_token_id": 151645}},
    "evaluator": {"strategy": "harbor", "config": {}, "env": {}, "refresh_runtime": False},
}  # fmt: skip

TURN = turn_record(
    SampledTurn(
        context=np.array([5, 6], np.int32),
        tokens=SampledTokens(np.array([7, 8], np.int32), np.array([-0.5, -0.25], np.float32)),
        weights_version=3,
        message={"role": "assistant", "content": "x"},
    )
)


class Sessions:
    """A worker's work: one turn, then the end that the test says; samples in ``held`` wait until they are let go."""

    def __init__(self, *held: int) -> None:
        self.held = {sample: asyncio.Event() for sample in held}
        self.begun = asyncio.Event()
        self.end: Callable[[int], RolloutResult] = lambda sample: RolloutResult(
            RolloutOutcome.COMPLETED, float(sample), turns=1
        )
        self.requests: list[dict[str, Any]] = []
        self.given: list[Assigned] = []

    def let_go(self) -> None:
        """Let all samples end."""
        for event in self.held.values():
            event.set()

    async def __call__(self, port: RolloutPort, given: Assigned) -> None:
        rollout, attempt = given.rollout, given.attempt
        self.given.append(given)
        self.begun.set()
        [first, *_] = await port.read(rollout)
        self.requests.append(dict(first.header))
        if rollout.sample in self.held:
            await self.held[rollout.sample].wait()
        await port.release(await port.lease(rollout, attempt, Stage.RUN, 0))
        await port.append(rollout, attempt, 1, TURN)
        await port.append(rollout, attempt, 2, Record("result", {"detail": {}}))
        await port.finished(rollout, attempt, self.end(rollout.sample))


@asynccontextmanager
async def trainer(rollouts: RolloutRig, token: str = "trainer") -> AsyncIterator[httpx.AsyncClient]:
    """Return a trainer's HTTP client."""
    async with rollouts.rig.client(token) as client, asyncio.timeout(120):
        try:
            yield client
        finally:
            await end_watches()


async def end_watches() -> None:
    """End the watches of all web processes of the test, before their connections."""
    found = [task for task in asyncio.all_tasks() if "PolarWatches._" in str(task.get_coro())]
    for task in found:
        task.cancel()
    await asyncio.gather(*found, return_exceptions=True)


async def submitted(client: httpx.AsyncClient, **members: Any) -> httpx.Response:
    return await client.post(f"{URL}/rollout/task/submit", json={**TASK, **members})


async def ended(client: httpx.AsyncClient, task: str = "golden-task") -> dict[str, Any]:
    """Poll a task until it is terminal, as `RolloutClient.wait` does."""
    while True:
        found: dict[str, Any] = (await client.get(f"{URL}/rollout/task/{task}")).json()
        if found["status"] != "running":
            return found
        await asyncio.sleep(0.02)


async def test_a_task_is_submitted_polled_and_has_a_trace_for_each_session(
    rollouts: RolloutRig,
) -> None:
    work = Sessions(1)
    await rollouts.start_worker(work)
    async with trainer(rollouts) as client:
        made = await submitted(client)
        assert (made.status_code, made.json()) == (
            200, {"task_id": "golden-task", "status": "running"},
        )  # fmt: skip
        while True:
            between = (await client.get(f"{URL}/rollout/task/golden-task")).json()
            if between["completed_sessions"] == 1:
                break
            await asyncio.sleep(0.02)
        work.let_go()
        found = await ended(client)
    assert (between["status"], between["total_sessions"]) == ("running", 2)
    assert {name: found[name] for name in ("task_id", "status", "total_sessions", "completed_sessions")} == {
        "task_id": "golden-task", "status": "completed", "total_sessions": 2, "completed_sessions": 2,
    }  # fmt: skip
    session = found["results"][1]
    assert (session["status"], session["error"], session["node_id"]) == ("COMPLETED", None, "w1")
    assert session["metadata"] == TASK["metadata"]
    [trace] = session["trajectory"]["traces"]
    assert trace["prompt_ids"] == [5, 6]
    assert trace["response_ids"] == [7, 8]
    assert trace["loss_mask"] == [1, 1]
    assert trace["response_logprobs"] == [-0.5, -0.25]
    assert (trace["reward"], math.isfinite(trace["reward"])) == (1.0, True)
    assert session["timing"]["run_ms"] >= 0


async def test_a_task_reaches_the_handler_as_instance_options_sampling_and_limits(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def known(native: NativeCalls, image: str) -> str:
        return image

    monkeypatch.setattr(polar, "image_of", known)
    work = Sessions()
    await rollouts.start_worker(work)
    async with trainer(rollouts) as client:
        runtime = {
            "backend": "docker", "image": "swe:1", "prepare": [{"type": "exec", "command": "make", "cwd": "/a b"}],
            "memory_mb": 512, "cpus": 2, "allow_internet": False,
        }  # fmt: skip
        await submitted(client, metadata={**TASK["metadata"], "agent_timeout": 60}, runtime=runtime)
        await ended(client)
    [request, _] = work.requests
    assert request["instance"]["id"] == "i-1"
    assert request["instance"]["instruction"] == "Summarize the case."
    assert request["instance"]["case_id"] == "case_0001"
    assert request["instance"]["setup"] == ["cd '/a b' && make"]
    assert request["instance"]["evaluator"]["strategy"] == "harbor"
    assert request["sampling"] == {
        "temperature": 0.7,
        "max_tokens": 8192,
        "model": "Qwen/Qwen3-0.6B",
    }
    assert request["options"] == {"workdir": "/workspace"}
    assert request["environment"]["image"] == "swe:1"
    assert request["environment"]["memory_bytes"] == 512 * 1024**2
    rollout = work.given[0].rollout
    assert (rollout.task, rollout.group, rollout.door, rollout.priority) == (
        "polar", "golden-task", "polar", 7,
    )  # fmt: skip
    assert (rollout.limits.init_seconds, rollout.limits.run_seconds) == (900.0, 60.0)


async def test_sessions_that_failed_have_no_reward_and_their_errors(rollouts: RolloutRig) -> None:
    work = Sessions()
    outcomes = [RolloutOutcome.TIMEOUT, RolloutOutcome.INFRA_FAILED]
    work.end = lambda sample: RolloutResult(outcomes[sample], reason="why", turns=1)
    await rollouts.start_worker(work)
    async with trainer(rollouts) as client:
        await submitted(client)
        found = await ended(client)
    assert [each["status"] for each in found["results"]] == ["TIMEOUT", "ERROR"]
    assert [each["error"] for each in found["results"]] == ["timeout: why", "infra_failed: why"]
    rewards = [t["reward"] for each in found["results"] for t in each["trajectory"]["traces"]]
    assert rewards == [None, None]


async def test_a_second_task_of_an_id_is_409_until_the_first_has_ended(
    rollouts: RolloutRig,
) -> None:
    work = Sessions(0, 1)
    await rollouts.start_worker(work)
    async with trainer(rollouts) as client:
        answers = await asyncio.gather(*(submitted(client) for _ in range(4)))
        assert sorted(each.status_code for each in answers) == [200, 409, 409, 409]
        refused = next(each for each in answers if each.status_code == 409)
        assert refused.json() == {"detail": "task golden-task is already running"}
        work.let_go()
        await ended(client)
        assert len(work.given) == 2
        assert (await submitted(client)).status_code == 200
        await ended(client)
    assert len(work.given) == 4


async def test_delete_cancels_and_a_cancel_that_comes_first_is_a_tombstone(
    rollouts: RolloutRig,
) -> None:
    work = Sessions(0, 1)
    await rollouts.start_worker(work)
    async with trainer(rollouts) as client:
        unknown = await client.delete(f"{URL}/rollout/task/golden-task")
        assert (unknown.status_code, unknown.json()) == (404, {"detail": "Task not found"})
        await submitted(client)
        deleted = await client.delete(f"{URL}/rollout/task/golden-task")
        assert (deleted.status_code, deleted.json()["status"]) == (200, "cancelled")
        again = await client.delete(f"{URL}/rollout/task/golden-task")
        assert again.json()["status"] == "cancelled"
        while (await ended(client))["completed_sessions"] < 2:
            await asyncio.sleep(0.02)
        early = await client.delete(f"{URL}/rollout/task/late?register_if_missing=true")
        assert (early.status_code, early.json()["status"]) == (200, "cancelled")
        assert (await client.get(f"{URL}/rollout/task/late")).status_code == 404
        late = await submitted(client, task_id="late")
    assert (late.status_code, late.json()["detail"]) == (
        409, "task late was cancelled before submission",
    )  # fmt: skip
    assert {each.rollout.group for each in work.given} <= {"golden-task"}


async def test_a_cancel_that_overtakes_its_submission_leaves_no_rollout(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Sessions(0, 1)
    await rollouts.start_worker(work)
    claimed, go_on = asyncio.Event(), asyncio.Event()
    replace = tasks.PolarTasks.submit

    async with trainer(rollouts) as client:

        async def slow(self: Any, native: Any, task: Any, members: Any) -> None:
            call = native.call

            async def late(operation: str, *parameters: str, **options: Any) -> Any:
                if operation == "rollouts_submit":
                    claimed.set()
                    await go_on.wait()
                return await call(operation, *parameters, **options)

            native.call = late
            await replace(self, native, task, members)

        monkeypatch.setattr(tasks.PolarTasks, "submit", slow)
        submitting = asyncio.ensure_future(submitted(client))
        await claimed.wait()
        cancelled = await client.delete(f"{URL}/rollout/task/golden-task?register_if_missing=true")
        go_on.set()
        refused = await submitting
        while (await client.get("/rollouts", params={"task": "polar"})).json()["items"]:
            await asyncio.sleep(0.02)
    assert (cancelled.status_code, refused.status_code) == (200, 409)


async def test_an_early_stop_cancels_the_others_without_a_reward(rollouts: RolloutRig) -> None:
    work = Sessions(2, 3)
    await rollouts.start_worker(work)
    async with trainer(rollouts) as client:
        await submitted(client, num_samples=4, early_stop_min_usable_sessions=2)
        found = await ended(client)
    assert found["completed_sessions"] == 4
    usable, stopped = found["results"][:2], found["results"][2:]
    assert [each["status"] for each in usable] == ["COMPLETED"] * 2
    assert [each["status"] for each in stopped] == ["ERROR"] * 2
    assert all(each["trajectory"]["traces"] == [] for each in stopped)
    assert all(each["metadata"]["early_stop_cancelled"] for each in stopped)
    assert all(
        each["trajectory"]["metadata"]["early_stop_usable_sessions"] == 2 for each in stopped
    )


async def test_the_callback_gets_the_result_and_is_repeated_until_it_is_taken(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "PAUSES", (0.0, 0.0))
    rollouts.rig.callbacks = Callbacks(loopback=True)
    await rollouts.start_worker(Sessions())
    async with local_api() as api, trainer(rollouts) as client:
        api.says(answer(503), answer(200))
        url = f"http://127.0.0.1:{api.port}/callbacks/session_result"
        assert (await submitted(client, callback_url=url)).status_code == 200
        while len(api.asked) < 2:
            await asyncio.sleep(0.02)
        polled = await ended(client)
    bodies = [json.loads(each.body) for each in api.asked]
    assert bodies[0] == bodies[1]
    assert (bodies[0]["status"], bodies[0]["results"]) == ("completed", polled["results"])


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8300/callbacks", "https://127.0.0.1/x", "https://169.254.169.254/latest",
        "https://[::1]/x", "http://trainer.example/x", "https://user:secret@trainer.example/x", "file:///etc/passwd",
    ],
)  # fmt: skip
async def test_a_callback_into_the_network_of_the_installation_is_refused(
    rollouts: RolloutRig, url: str
) -> None:
    async with trainer(rollouts) as client:
        refused = await submitted(client, callback_url=url)
    assert refused.status_code == 422
    assert refused.json()["detail"][0]["loc"] == ["body", "callback_url"]


async def test_a_name_that_resolves_to_a_private_address_gets_no_callback() -> None:
    assert "not public" in await Callbacks().post("https://localhost/x", b"{}")


async def test_another_web_process_watches_a_task_whose_own_has_ended(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "WATCH_SECONDS", 1)
    work = Sessions(1, 2)
    await rollouts.start_worker(work)
    async with trainer(rollouts) as first, trainer(rollouts) as second:
        made = await submitted(first, num_samples=3, early_stop_min_usable_sessions=2)
        assert made.status_code == 200
        await end_watches()  # as the end of its web process does
        work.held[1].set()
        found = await ended(second)
    assert [each["status"] for each in found["results"]] == ["COMPLETED", "COMPLETED", "ERROR"]


async def test_a_client_that_hangs_up_leaves_its_task_running(rollouts: RolloutRig) -> None:
    await rollouts.start_worker(Sessions())
    async with rollouts.rig.gateway() as gateway:
        unread = [{"type": "http.request", "body": json.dumps(TASK).encode(), "more_body": False}]

        async def receive() -> dict[str, Any]:
            return unread.pop() if unread else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            assert message.get("status", 200) == 200, message

        scope = {
            "type": "http", "method": "POST", "path": "/polar/rollout/task/submit", "query_string": b"",
            "headers": [(b"authorization", b"Bearer trainer"), (b"content-type", b"application/json")],
        }  # fmt: skip
        await asyncio.wait_for(gateway(scope, receive, send), 120)
    async with trainer(rollouts) as client:
        assert (await client.get(f"{URL}/rollout/task/golden-task")).status_code == 200


async def test_a_task_whose_image_no_node_has_is_503_and_submits_nothing(
    rollouts: RolloutRig,
) -> None:
    async with trainer(rollouts) as client:
        refused = await submitted(client, runtime={"image": "missing:1"})
        assert (await client.get(f"{URL}/rollout/task/golden-task")).status_code == 404
    assert refused.status_code == 503
    assert "missing:1" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"agent": {"import_path": "their.code:Agent"}}, "harness"),
        ({"agent": {"harness": "unheard-of"}}, "unheard-of"),
        ({"builder": {"strategy": "their.code:Builder"}}, "prefix_merging"),
        ({"num_samples": 0}, "num_samples"),
        ({"early_stop_min_usable_sessions": 3}, "num_samples"),
        ({"metadata": {"agent_timeout": True}}, "agent_timeout"),
        ({"metadata": {"eval_sampling_seed_base": 1}}, "seed"),
        ({"runtime": {"image": "a:1", "gpus": 1}}, "GPU"),
        ({"runtime": {"image": "a:1", "prepare": [{"type": "upload_dir", "source": "/a", "target": "/b"}]}}, "image"),
        ({"instruction": 7}, "instruction"),
    ],
)  # fmt: skip
async def test_what_cannot_be_done_is_422_and_submits_nothing(
    rollouts: RolloutRig, members: dict[str, Any], said: str
) -> None:
    work = Sessions()
    await rollouts.start_worker(work)
    async with trainer(rollouts) as client:
        refused = await submitted(client, **members)
        assert refused.status_code == 422, refused.text
        assert said in refused.text
        assert (await client.get(f"{URL}/rollout/task/golden-task")).status_code == 404
        assert (await submitted(client)).status_code == 200  # the id is free


async def test_tasks_of_another_project_are_unknown_and_a_token_is_needed(
    rollouts: RolloutRig,
) -> None:
    await rollouts.start_worker(Sessions(0, 1))
    async with trainer(rollouts) as client:
        await submitted(client)
    async with trainer(rollouts, "stranger") as client:
        assert (await client.get(f"{URL}/rollout/task/golden-task")).status_code == 404
        assert (await client.delete(f"{URL}/rollout/task/golden-task")).status_code == 404
        assert (await client.get(f"{URL}/health")).json() == {"status": "ok"}
        without = {"Authorization": "", "X-Polar-Control-Token": "trainer"}
        known = await client.get(f"{URL}/rollout/task/golden-task", headers=without)
        assert known.json()["total_sessions"] == 2
        refused = await client.get(f"{URL}/rollout/task/golden-task", headers={"Authorization": ""})
        assert refused.status_code == 401
