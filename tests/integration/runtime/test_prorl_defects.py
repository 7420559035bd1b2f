"""ProRL's door and the defects of ProRL's own server that its clients met (A1), over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from domain.errors import Unavailable
from domain.rollouts import RolloutOutcome, RolloutResult
from scheduler.runtime.gateway.native_rollouts import NativeRollouts
from scheduler.runtime.redis.facade_records import FacadeClaims
from tests.integration.runtime.prorl_rig import (
    HANDLERS,
    INSTANCE,
    JOB,
    RUN_SWE,
    Agent,
    body,
    process,
    prorl,
    started,
)
from tests.integration.runtime.rollout_rig import RolloutRig


async def test_a1_1_errors_keep_their_type(rollouts: RolloutRig) -> None:
    """A trainer can distinguish a bad request, a missing server and a time-out by the status."""
    agent = Agent(RolloutResult(RolloutOutcome.TIMEOUT, reason="INIT took 500 s"), turns=0)
    await rollouts.start_worker(agent, handlers=HANDLERS)
    async with prorl(rollouts) as client:
        not_started = await process(client, JOB)
        (await client.post("/start")).raise_for_status()
        twice = await client.post("/start")
        no_server = await process(client, JOB)
        await client.post("/add_llm_server", json={"address": "http://127.0.0.1:8000"})
        unknown = await process(client, body({**INSTANCE, "data_source": "unheard"}, RUN_SWE))
        malformed = [
            await process(client, text) for text in (b'{"instance": 1}', b"{", b"[]", b"\xff")
        ]
        timeout = await process(client, JOB)
        agent.result = RolloutResult(RolloutOutcome.INFRA_FAILED, reason="its node is lost")
        broken = await process(client, JOB)

    answers = (not_started, twice, no_server, unknown, timeout, broken)
    assert [(each.status_code, each.json()["code"]) for each in answers] == [
        (503, "not_running"), (400, "running"), (503, "no_llm_server"), (400, "unknown_handler"),
        (504, "timeout"), (503, "infra_failed"),
    ]  # fmt: skip
    assert "not registered" in unknown.json()["detail"]
    assert "INIT took 500 s" in timeout.json()["detail"]
    assert [each.status_code for each in malformed] == [400] * 4


async def test_a1_2_a_cancel_says_what_it_did_and_the_job_has_a_result(
    rollouts: RolloutRig,
) -> None:
    agent = Agent(held=True)
    await rollouts.start_worker(agent, handlers=HANDLERS)
    async with prorl(rollouts) as client:
        early = await client.post("/cancel", json={"job_id": "j"})
        await started(client)
        unknown = await client.post("/cancel", json={"job_id": "j"})
        waiting = asyncio.ensure_future(process(client, body(INSTANCE, RUN_SWE, job_id="j")))
        await agent.until_begun(1)
        cancelled = await client.post("/cancel", json={"job_id": "j"})
        result = await waiting
        again = await client.post("/cancel", json={"job_id": result.json()["job_id"]})

    assert (early.status_code, unknown.status_code, unknown.json()["code"]) == (
        503,
        404,
        "unknown_job",
    )
    assert cancelled.json() == {"status": "Cancel requested for job j"}
    assert result.status_code == 200
    said = result.json()
    assert (said["resolved"], said["critical_error"], said["filter"]) == (False, "cancelled", True)
    assert said["error"] == "cancelled: cancelled by its client"
    assert again.json()["status"].endswith("is finished: cancelled")


async def test_a1_3_requests_at_once_get_their_own_answers(rollouts: RolloutRig) -> None:
    agent = Agent(held=True)
    await rollouts.start_worker(agent, slots=16, handlers=HANDLERS)
    async with prorl(rollouts) as client:
        await started(client)
        jobs = [
            asyncio.ensure_future(process(client, body(INSTANCE, RUN_SWE, job_id=f"j{n}"))) for n in range(8)
        ]  # fmt: skip
        await agent.until_begun(8)
        answers = await asyncio.gather(*(
            client.get("/status") if n % 2 else client.post("/cancel", json={"job_id": f"j{n // 2}"})
            for n in range(16)
        ))  # fmt: skip
        results = await asyncio.gather(*jobs)
    for number, answer in enumerate(answers):
        if number % 2:
            assert answer.json()["status"] == "running"
        else:
            assert answer.json() == {"status": f"Cancel requested for job j{number // 2}"}
    assert {each.json()["critical_error"] for each in results} == {"cancelled"}


async def test_a1_5_a_job_waits_in_its_queue_without_any_limit(rollouts: RolloutRig) -> None:
    """No worker has it for longer than the door's limit, which counts work alone; then it runs."""
    async with prorl(rollouts, **{"X-Tangram-Timeout": "0.2"}) as client:
        await started(client)
        waiting = asyncio.ensure_future(process(client, JOB))
        async with asyncio.timeout(120):
            while (await client.get("/status")).json()["init_queue"] != 1:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)  # what is tested is time itself
        assert not waiting.done()
        agent = Agent()
        await rollouts.start_worker(agent, handlers=HANDLERS)
        assert (await waiting).json()["resolved"] is True
    assert agent.begun[0].rollout.limits.total_seconds == 0.2


async def test_a1_7_i7_stop_ends_what_this_session_made_and_nothing_else(
    rollouts: RolloutRig,
) -> None:
    agent = Agent(held=True)
    worker = await rollouts.start_worker(agent, handlers=HANDLERS)
    async with (
        prorl(rollouts) as client,
        prorl(rollouts, **{"X-Tangram-Task": "other"}) as other,
        rollouts.client() as native,
    ):
        await started(client)
        await started(other)
        ours = asyncio.ensure_future(process(client, JOB))
        theirs = asyncio.ensure_future(process(other, JOB))
        [beside] = await native.rollouts.submit("T", "noop", [{"id": "a"}])
        await agent.until_begun(3)
        (await client.post("/stop")).raise_for_status()
        answer = await ours
        left = {each.id for each in await native.rollouts.list()}
        assert not theirs.done()
        agent.released.set()
        assert (await theirs).json()["resolved"] is True
        assert (await other.get("/status")).status_code == 200
    assert (answer.status_code, answer.json()["code"]) == (503, "not_running")
    assert beside in left
    assert len(left) == 2
    assert len(worker.withdrawn) == 1


async def test_a1_7_a_stop_that_failed_between_two_cancels_is_completed_by_its_repetition(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel_all, broke_off = NativeRollouts.cancel_all, False

    async def failing(self: NativeRollouts, rollouts: Iterable[str], reason: str) -> None:
        nonlocal broke_off
        names = list(rollouts)
        breaks = not broke_off and len(names) > 1
        broke_off = broke_off or breaks
        await cancel_all(self, names[:1] if breaks else names, reason)
        if breaks:
            raise Unavailable("no leader")

    monkeypatch.setattr(NativeRollouts, "cancel_all", failing)
    agent = Agent(held=True)
    await rollouts.start_worker(agent, handlers=HANDLERS)
    async with prorl(rollouts) as client, rollouts.client() as native:
        await started(client)
        jobs = [asyncio.ensure_future(process(client, JOB)) for _ in range(3)]
        await agent.until_begun(3)
        failed = await client.post("/stop")
        assert len(await native.rollouts.list()) >= 1
        again = await client.post("/stop")
        answers = await asyncio.gather(*jobs)
        left = await native.rollouts.list()
    assert [(each.status_code, each.json()["code"]) for each in (failed, again)] == [
        (503, "unavailable"),
        (503, "not_running"),
    ]
    assert [each.status_code for each in answers] == [503] * 3
    assert left == []


async def test_a1_8_a_reused_job_id_is_the_same_job_and_both_callers_are_answered(
    rollouts: RolloutRig,
) -> None:
    agent = Agent(held=True)
    await rollouts.start_worker(agent, handlers=HANDLERS)
    same = body(INSTANCE, RUN_SWE, job_id="j")
    async with prorl(rollouts) as client, prorl(rollouts) as second:
        await started(client)
        first = asyncio.ensure_future(process(client, same))
        await agent.until_begun(1)
        twin = asyncio.ensure_future(process(second, same))
        other = await process(client, body({**INSTANCE, "x": 1}, RUN_SWE, job_id="j"))
        agent.released.set()
        answers = [(await each).json() for each in (first, twin)]
        late = (await process(client, same)).json()
    assert (other.status_code, other.json()["code"]) == (400, "idempotency_key_reused")
    assert answers[0] == answers[1] == late
    assert len(agent.begun) == 1


async def test_a1_8_a_repeated_job_adopts_the_one_that_its_client_left_and_twins_stay_apart(
    rollouts: RolloutRig,
) -> None:
    agent = Agent(held=True)
    await rollouts.start_worker(agent, handlers=HANDLERS)
    async with prorl(rollouts) as client:
        await started(client)
        twins = [asyncio.ensure_future(process(client, JOB)) for _ in range(2)]
        await agent.until_begun(2)
        left = asyncio.ensure_future(process(client, JOB))
        await agent.until_begun(3)
        left.cancel()  # its connection closes
        topics = list(rollouts.rig.redis.scan_iter(f"{rollouts.rig.keys.prefix}:facade-claims:*"))
        async with asyncio.timeout(120):  # the server notes the disconnect
            while b"" not in rollouts.rig.redis.hvals(topics[0]):
                await asyncio.sleep(0.01)
        repeated = asyncio.ensure_future(process(client, JOB))
        agent.released.set()
        jobs = [(await each).json()["job_id"] for each in (*twins, repeated)]
    assert len(agent.begun) == 3
    assert set(jobs) == {given.rollout.id for given in agent.begun}
    assert rollouts.rig.redis.hlen(topics[0]) == 0  # each has its answer


async def test_a1_8_a_job_of_a_web_process_that_was_killed_is_adopted(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claims end with its sign of life. One that only hung does not answer with a job that is another's by now."""

    async def renews_nothing(_: FacadeClaims) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("scheduler.runtime.redis.facade_records.ALIVE_SECONDS", 0.6)
    monkeypatch.setattr(FacadeClaims, "_renew", renews_nothing)
    agent = Agent(held=True)
    await rollouts.start_worker(agent, handlers=HANDLERS)
    async with prorl(rollouts) as hung, prorl(rollouts) as successor:
        await started(hung)
        lost = asyncio.ensure_future(process(hung, JOB))
        await agent.until_begun(1)
        adopted = asyncio.ensure_future(process(successor, JOB))
        topic = next(rollouts.rig.redis.scan_iter(f"{rollouts.rig.keys.prefix}:facade-claims:*"))
        [first] = rollouts.rig.redis.hvals(topic)
        async with asyncio.timeout(120):
            while rollouts.rig.redis.hvals(topic) == [first]:
                await asyncio.sleep(0.01)
        agent.released.set()
        answer = (await adopted).json()
        refused = await lost
    assert [given.rollout.id for given in agent.begun] == [answer["job_id"]]
    assert refused.status_code == 503
    assert "another request has this job" in refused.text


async def test_a1_8_an_outage_of_redis_gives_two_clients_no_one_job(
    rollouts: RolloutRig,
) -> None:
    """A group would have twins."""
    agent = Agent(held=True)
    await rollouts.start_worker(agent, handlers=HANDLERS)
    async with prorl(rollouts) as client, prorl(rollouts) as second:
        await started(client)
        first = asyncio.ensure_future(process(client, JOB))
        await agent.until_begun(1)
        prefix = rollouts.rig.keys.prefix
        [life] = rollouts.rig.redis.scan_iter(f"{prefix}:facade-claimant:*")
        rollouts.rig.redis.delete(life)
        twin = asyncio.ensure_future(process(second, JOB))
        await agent.until_begun(2)
        agent.released.set()
        jobs = [(await each).json()["job_id"] for each in (first, twin)]
    assert sorted(jobs) == sorted(given.rollout.id for given in agent.begun)


async def test_a1_9_servers_that_were_cleared_serve_no_job_and_others_have_other_weights(
    rollouts: RolloutRig,
) -> None:
    await rollouts.start_worker(Agent(), handlers=HANDLERS)
    async with prorl(rollouts) as client, rollouts.client("operator") as native:
        await started(client)
        twice = await client.post("/add_llm_server", json={"address": "http://127.0.0.1:8000"})
        assert twice.json() == {"status": "Added LLM server address: http://127.0.0.1:8000"}
        [pool] = await native.backends.list()
        assert [(each["address"], each["weights_version"]) for each in pool["backends"]] == [
            ("http://127.0.0.1:8000", 1)
        ]
        (await client.post("/clear_llm_server")).raise_for_status()
        assert (await process(client, JOB)).status_code == 503
        await client.post("/add_llm_server", json={"address": "http://127.0.0.1:8001/v1"})
        assert (await process(client, JOB)).status_code == 200
        [pool] = await native.backends.list()
    assert [(each["address"], each["weights_version"]) for each in pool["backends"]] == [
        ("http://127.0.0.1:8001", 2)
    ]


async def test_a1_10_a_session_outlives_its_web_process_and_needs_a_token(
    rollouts: RolloutRig,
) -> None:
    async with prorl(rollouts) as client:
        await started(client)
    await rollouts.start_worker(Agent(), handlers=HANDLERS)
    async with prorl(rollouts) as client:
        assert (await client.post("/start")).status_code == 400
        assert (await process(client, JOB)).json()["resolved"] is True
        refused = await client.post("/stop", headers={"Authorization": "Bearer unknown"})
        narrow = await client.post(
            "/add_llm_server", json={}, headers={"Authorization": "Bearer trainer"}
        )
    assert (refused.status_code, list(refused.json())) == (401, ["detail", "code"])
    assert narrow.status_code == 403
