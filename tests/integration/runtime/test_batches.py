"""Batches end to end: finished rollouts become rows that the ranks of a trainer pull from rollout workers, byte for byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from dispatcher.batches import BatchError, BatchExpired, RankRefused, RowsGone, pull
from dispatcher.layout import Layout, Mesh, Owned, TensorSpec
from domain.rollouts import RolloutOutcome, RolloutResult, Stage
from rollout.ports import Assigned, Record, RolloutPort
from rollout.tokens.sampled import SampledTokens
from rollout.tokens.segments import SampledTurn, segments_of
from rollout.tokens.turn_records import turn_record, turns_of
from tests.integration.runtime.rollout_rig import RolloutRig, finished

ONE = [{"id": "q-1"}]
MASK, VERSION = "loss_mask", "weights_versions"
#: A description of a few bytes with more samples than fit into memory.
_MANY = {"name": "reward", "dtype": "float32", "shape": [2**40]}


def turns_for(
    seed: int, lengths: Sequence[tuple[int, int]], *, logprobs: bool = True
) -> list[SampledTurn]:
    """Return turns of these context and response lengths; turn 2 begins another segment."""
    chance = np.random.default_rng(seed)
    turns = []
    for number, (context, response) in enumerate(lengths):
        values = -chance.random(response, np.float32) if logprobs else None
        turns.append(
            SampledTurn(
                context=chance.integers(0, 1000, context, np.int32),
                tokens=SampledTokens(chance.integers(0, 1000, response, np.int32), values),
                weights_version=3 + number,
                follows=None if number in (0, 2) else number - 1,
                message={"role": "assistant", "content": "x"},
            )
        )
    return turns


class Sampler:
    """A worker's work: the turns of a test, then a reward."""

    def __init__(self, turns: Sequence[SampledTurn], reward: float | None = 1.0) -> None:
        self.turns, self.reward = turns, reward
        self.outcome = RolloutOutcome.COMPLETED

    async def __call__(self, port: RolloutPort, given: Assigned) -> None:
        rollout, attempt = given.rollout, given.attempt
        lease = await port.lease(rollout, attempt, Stage.RUN, 0)
        number = len(await port.read(rollout))
        for turn in (*map(turn_record, self.turns), Record("result", {"detail": {}})):
            await port.append(rollout, attempt, number, turn)
            number += 1
        await port.release(lease)
        await port.finished(rollout, attempt, RolloutResult(self.outcome, self.reward, turns=4))


TURNS = turns_for(1, [(7, 3), (2, 5), (11, 4), (1, 6)])


async def pulled(manifest: Any, rank: int, **options: Any) -> dict[str, np.ndarray]:
    """Pull in a thread, as the rank of a trainer does."""
    return await asyncio.to_thread(partial(pull, manifest, rank, **options))


async def refused(client: Any, **body: Any) -> Any:
    """Return the problem of a batch that is refused."""
    answer = await client.post("/batches", json=body)
    assert answer.status_code >= 400, answer.text
    return answer.json()


async def made(client: Any, **body: Any) -> Any:
    """Return the manifest of a batch."""
    answer = await client.post("/batches", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def rollouts_of(rig: RolloutRig, count: int, **options: Any) -> list[str]:
    """Submit samples of one instance and wait for their ends."""
    async with rig.client() as client:
        ids = await client.rollouts.submit("t", "noop", ONE, samples=count, **options)
        for each in ids:
            await finished(client, each)
    return ids


async def test_ranks_pull_their_rows_from_a_worker_exactly_as_the_log_has_them(
    rollouts: RolloutRig,
) -> None:
    await rollouts.start_worker(Sampler(TURNS))
    ids = await rollouts_of(rollouts, 5)
    async with rollouts.rig.client() as client:
        manifest = await made(client, rollouts=ids, layout={"ranks": 2})
        parts = [await pulled(manifest, rank) for rank in range(2)]
        listed = (await client.get("/batches")).json()["items"]
    [first, second] = segments_of(turns_of(rollouts.logs.read(ids[0])))
    assert [row["segment"] for row in manifest["rows"]] == [0, 1] * 5
    assert sorted([*parts[0]["rows"], *parts[1]["rows"]]) == list(range(10))
    for part in parts:
        ends = np.cumsum(part["lengths"])
        for at, row in enumerate(part["rows"]):
            segment = (first, second)[row % 2]
            whole = slice(ends[at] - part["lengths"][at], ends[at])
            behind = slice(ends[at] - len(segment.response_ids), ends[at])
            both = [*segment.prompt_ids, *segment.response_ids]
            assert part["tokens"][whole].tolist() == both
            assert part[MASK][behind].tolist() == segment.loss_mask.tolist()
            assert part["logprobs"][behind].tolist() == segment.logprobs.tolist()  # type: ignore[union-attr]
            assert part[VERSION][behind].tolist() == segment.weights_versions.tolist()
            assert not part[MASK][whole][: len(segment.prompt_ids)].any()
        assert part["rewards"].tolist() == [1.0] * len(part["rows"])
    [summary] = listed
    assert [(each["worker"], each["rank"], each["bytes"]) for each in summary["pulls"]] == [
        ("w1", owner["rank"], owner["bytes"]) for owner in manifest["owners"]
    ]


async def test_a_group_is_a_batch_and_the_gateway_serves_it_without_workers(
    rollouts: RolloutRig,
) -> None:
    await rollouts.start_worker(Sampler(turns_for(2, [(3, 4)], logprobs=False), reward=0.25))
    await rollouts_of(rollouts, 3, group="g")
    async with rollouts.rig.served() as served, rollouts.rig.client() as client:
        manifest = await made(client, group="g", layout={"ranks": 1, "owners": None})
        [near] = [await pulled(manifest, 0)]
        await rollouts.stop_worker()
        again = (await client.get(f"/batches/{manifest['id']}?rank=0")).json()
        assert again["workers"] == []
        far = await pulled(again, 0, gateway=str(served.url))
    assert [row["sample"] for row in manifest["rows"]] == [0, 1, 2]
    assert all(np.array_equal(near[name], far[name], equal_nan=True) for name in near)
    assert np.isnan(near["logprobs"][near[MASK] == 1]).all()


async def test_what_cannot_train_is_refused_by_rollout_with_the_cure_or_left_out(
    rollouts: RolloutRig,
) -> None:
    work = Sampler(TURNS)
    await rollouts.start_worker(work)
    [good, acknowledged] = await rollouts_of(rollouts, 2)
    work.reward = None
    [without] = await rollouts_of(rollouts, 1)
    work.outcome = RolloutOutcome.FAILED
    [failed] = await rollouts_of(rollouts, 1)
    async with rollouts.client() as sdk, rollouts.rig.client() as client:
        await sdk.rollouts.acknowledge([acknowledged])
        every = [good, acknowledged, without, failed]
        problem = await refused(client, rollouts=every, layout={"ranks": 1})
        manifest = await made(client, rollouts=every, layout={"ranks": 1}, leave_out=True)
    assert (problem["status"], problem["code"]) == (409, "batch_incomplete")
    codes = {each["rollout"]: each["code"] for each in problem["errors"]}
    assert codes == {
        acknowledged: "rollout_acknowledged",
        without: "rollout_without_reward",
        failed: "rollout_not_completed",
    }
    assert {each["rollout"]: each["code"] for each in manifest["left_out"]} == codes
    assert {row["rollout"] for row in manifest["rows"]} == {good}


async def test_an_unfinished_rollout_is_refused_until_its_end(rollouts: RolloutRig) -> None:
    async with rollouts.client() as sdk, rollouts.rig.client() as client:
        [waiting] = await sdk.rollouts.submit("t", "noop", ONE)
        problem = await refused(client, rollouts=[waiting], layout={"ranks": 1})
        await rollouts.start_worker(Sampler(TURNS))
        await finished(sdk, waiting)
        manifest = await made(client, rollouts=[waiting], layout={"ranks": 1})
    assert (problem["code"], problem["errors"][0]["code"]) == (
        "batch_incomplete",
        "rollout_unfinished",
    )
    assert "wait for its end" in problem["detail"]
    assert len(manifest["rows"]) == 2


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"rollouts": ["rol_" + "0" * 28], "layout": {"ranks": 1}}, 404, "no rollout"),
        ({"group": "none", "layout": {"ranks": 1}}, 404, "group 'none'"),
        ({"layout": {"ranks": 1}}, 422, "one of them"),
        ({"group": "g", "layout": {}}, 422, "ranks"),
        ({"group": "g", "layout": {"ranks": 0}}, 422, "ranks"),
        ({"group": "g", "layout": {"mesh": {"dp": 2, "ranks": [1, 1]}}}, 422, "different"),
        ({"group": "g", "layout": {"mesh": {}, "tensors": []}}, 422, "give a tensor"),
        ({"group": "g", "layout": {"tensors": [_MANY]}}, 422, "a batch has at most 4096 rollouts"),
    ],
)
async def test_a_request_that_names_nothing_is_refused_with_the_member(
    rollouts: RolloutRig, body: dict[str, Any], status: int, text: str
) -> None:
    async with rollouts.rig.client() as client:
        problem = await refused(client, **body)
    assert problem["status"] == status
    assert text in problem["detail"]


async def test_a_token_pulls_the_rows_of_its_rank_alone_until_it_expires(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rollouts.start_worker(Sampler(TURNS))
    ids = await rollouts_of(rollouts, 2)
    async with rollouts.rig.client() as client:
        manifest = await made(client, rollouts=ids, layout={"ranks": 2}, expires_seconds=60)
        shown = (await client.get(f"/batches/{manifest['id']}?rank=1")).json()
    assert [bool(owner.get("token")) for owner in shown["owners"]] == [False, True]
    with pytest.raises(BatchError, match="it has those of 1"):
        await pulled(shown, 0)
    own, other = manifest["owners"]
    swapped = {**manifest, "owners": [{**own, "token": other["token"]}]}
    with pytest.raises(RankRefused, match="that of rank 1"):
        await pulled(swapped, 0)
    more = {**manifest, "owners": [{**own, "rows": [*own["rows"], *other["rows"]]}]}
    with pytest.raises(RankRefused, match="is not rank 0's"):
        await pulled(more, 0)
    forged = {**manifest, "owners": [{**own, "token": own["token"][:-1] + "!"}]}
    with pytest.raises(RankRefused, match="token of a rank"):
        await pulled(forged, 0)
    monkeypatch.setattr("scheduler.runtime.batches.row_streams.time", lambda: 4e9)
    with pytest.raises(BatchExpired, match="create it again"):
        await pulled(manifest, 0)


async def test_rows_of_acknowledged_rollouts_are_gone_by_name(rollouts: RolloutRig) -> None:
    await rollouts.start_worker(Sampler(TURNS))
    ids = await rollouts_of(rollouts, 3)
    async with rollouts.client() as sdk, rollouts.rig.client() as client:
        manifest = await made(client, rollouts=ids, layout={"ranks": 1})
        await sdk.rollouts.acknowledge([ids[1]])
    with pytest.raises(RowsGone, match="acknowledge") as caught:
        await pulled(manifest, 0)
    assert caught.value.rollout == ids[1]


async def test_the_same_key_gets_the_same_batch_and_another_body_is_refused(
    rollouts: RolloutRig,
) -> None:
    await rollouts.start_worker(Sampler(TURNS))
    ids = await rollouts_of(rollouts, 2)
    body = {"rollouts": ids, "layout": {"mesh": {"dp": 1, "tp": 2, "ranks": [4, 5]}}}
    async with rollouts.rig.client() as client:
        key = {"Idempotency-Key": "step-1"}
        answers = await asyncio.gather(
            *(client.post("/batches", json=body, headers=key) for _ in range(4))
        )
        other = await client.post("/batches", json={**body, "leave_out": True}, headers=key)
        listed = (await client.get("/batches")).json()["items"]
    manifests = [answer.json() for answer in answers]
    assert {each["id"] for each in manifests} == {manifests[0]["id"]}
    assert json.dumps(manifests[0]) == json.dumps(manifests[3])
    assert manifests[0]["id"] in {each["id"] for each in listed}
    assert [(o["rank"], o["rows"]) for o in manifests[0]["owners"]] == [
        (4, [0, 1, 2, 3]), (5, [0, 1, 2, 3]),
    ]  # fmt: skip
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")


async def test_a_layout_of_the_dispatcher_names_the_owner_of_each_rollout(
    rollouts: RolloutRig,
) -> None:
    await rollouts.start_worker(Sampler(TURNS))
    ids = await rollouts_of(rollouts, 4)
    specs = [TensorSpec("reward", "float32", (4,), dp=Owned([1, 0, -1, 1]))]
    layout = Layout(Mesh(dp=2, tp=2, ranks=(3, 2, 1, 0)), specs).description()
    async with rollouts.rig.client() as client:
        manifest = await made(client, rollouts=ids, layout=layout)
        problem = await refused(client, rollouts=ids[:3], layout=layout)
    owned = {owner["rank"]: owner["rows"] for owner in manifest["owners"]}
    assert owned == {0: [0, 1, 6, 7], 1: [0, 1, 6, 7], 2: [2, 3], 3: [2, 3]}
    assert (problem["status"], "4 samples, and the request 3" in problem["detail"]) == (422, True)


async def test_another_project_sees_no_batch_and_no_rollout(rollouts: RolloutRig) -> None:
    await rollouts.start_worker(Sampler(TURNS))
    ids = await rollouts_of(rollouts, 1)
    async with rollouts.rig.client() as client, rollouts.rig.client("stranger") as stranger:
        manifest = await made(client, rollouts=ids, layout={"ranks": 1})
        problem = await refused(stranger, rollouts=ids, layout={"ranks": 1})
        missing = await stranger.get(f"/batches/{manifest['id']}")
        listed = (await stranger.get("/batches")).json()["items"]
    assert (problem["status"], missing.status_code, listed) == (404, 404, [])
