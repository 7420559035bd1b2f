"""Efficient DAPO against the in-memory server, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks.dapo import DapoCase, compared, virtual
from domain.rollouts import RolloutOutcome, RolloutResult
from rollout.core.groups import summary_of
from tangram_client import AsyncClient, Client, RetryPolicy, Unreachable
from tangram_client._dapo_groups import GroupRules, GroupVerdict, PromptGroup, PromptOrder
from tangram_client._rollout_calls import RolloutInfo
from tangram_client.dapo import AsyncDapo, assigned_servers
from tangram_client.testing import FakeServer, PlannedRollout
from tests.unit.client.dapo_prompts import GOOD, SAME, dapo, names, planned, prompts, states


@pytest.fixture
def server() -> FakeServer:
    server = FakeServer()
    server.rollouts.plan = planned
    return server


def submissions(server: FakeServer) -> list[dict[str, Any]]:
    return [
        json.loads(sent.body)
        for sent in server.sent
        if (sent.method, sent.path) == ("POST", "/api/v1/rollouts")
    ]


def test_a_batch_has_the_prompts_whose_rewards_differ_with_their_tokens(
    server: FakeServer, client: Client
) -> None:
    run = dapo(client, prompts(SAME, GOOD, SAME, GOOD), epochs=1)
    batch = run.batch()
    assert names(batch) == ["p1", "p3"]
    assert [group.rewards for group in batch] == [[0.0, 1.0]] * 2
    assert all(info.segments for group in batch for info in group.rewarded)
    assert (run.counts.informative, run.counts.wasted, run.counts.prompts) == (2, 2, 4)
    assert run.batch() == []


def test_tokens_of_wasted_prompts_are_deleted_and_never_read(
    server: FakeServer, client: Client
) -> None:
    dapo(client, prompts(SAME, GOOD, GOOD)).batch()
    wasted = [each for each in server.rollouts.views.values() if each["instance"] == "p0"]
    assert all(each["segments"] is None for each in wasted[:2])
    read = {sent.path.rpartition("/")[2] for sent in server.sent if "rollouts/rol_" in sent.path}
    assert read.isdisjoint(each["id"] for each in wasted)


def test_the_queue_is_replenished_before_the_batch_has_ended(
    server: FakeServer, client: Client
) -> None:
    """The first prompt takes 100 s; the workers that end early take further prompts meanwhile."""
    slow = prompts(GOOD, seconds=(1.0, 100.0))
    fast = [{**each, "id": f"fast{number}"} for number, each in enumerate(prompts(*[GOOD] * 9))]
    batch = dapo(client, slow + fast, prompts=3).batch()
    assert "p0" not in names(batch)
    assert server.clock.now() < 1_010


def test_at_the_end_of_an_iteration_nothing_runs_and_the_next_one_continues_it(
    server: FakeServer, client: Client
) -> None:
    slow = prompts(GOOD, seconds=(1.0, 10.0))
    fast = [{**each, "id": f"fast{number}"} for number, each in enumerate(prompts(*[GOOD] * 2))]
    run = dapo(client, slow + fast, epochs=1)
    assert names(run.batch()) == ["fast0", "fast1"]
    assert set(states(server)) == {"finished", "parked"}
    assert run.counts.carried == states(server).count("parked") == 1
    used, made = server.rollouts.busy_seconds, len(server.rollouts.views)
    server.clock.advance(1_000)  # the trainer works
    assert names(run.batch()) == ["p0"]
    assert len(server.rollouts.views) == made
    assert server.rollouts.busy_seconds < used + 10.0  # not from its beginning


@pytest.mark.parametrize(
    ("carry", "verbs"), [("park", ["park", "resume"]), ("terminate", ["cancel"])]
)
def test_the_end_of_an_iteration_and_the_begin_of_the_next_one_are_one_request_each(
    server: FakeServer, client: Client, carry: str, verbs: list[str]
) -> None:
    """Twelve rollouts are unfinished then; while they are parked one by one, workers begin others in vain."""
    slow = prompts(*[GOOD] * 6, seconds=(10.0,))
    fast = [{**each, "id": f"fast{number}"} for number, each in enumerate(prompts(*[GOOD] * 2))]
    server.rollouts.slots = 16
    run = dapo(client, slow + fast, epochs=1, at_once=16, carry=carry)
    run.batch()
    assert run.counts.carried + run.counts.terminated == 12
    run.batch()
    asked = [sent.path.rpartition("/")[2] for sent in server.sent if sent.method == "POST"]
    assert [verb for verb in asked if verb in ("park", "resume", "cancel")] == verbs


def test_carry_terminate_cancels_what_is_unfinished(server: FakeServer, client: Client) -> None:
    slow = prompts(GOOD, seconds=(1.0, 10.0))
    fast = [{**each, "id": f"fast{number}"} for number, each in enumerate(prompts(*[GOOD] * 2))]
    run = dapo(client, slow + fast, epochs=1, carry="terminate")
    assert names(run.batch()) == ["fast0", "fast1"]
    ends = [view["outcome"] for view in server.rollouts.views.values()]
    assert ends.count("cancelled") == run.counts.terminated == 1
    assert run.batch() == []
    (completed,) = [
        view
        for view in server.rollouts.views.values()
        if view["instance"] == "p0" and view["outcome"] == "completed"
    ]
    assert completed["segments"] is None


@pytest.mark.parametrize(
    ("errors", "trained", "dropped"), [("drop", ["p1"], 1), ("fewer", ["p0", "p1"], 0)]
)
def test_a_rollout_that_ended_in_an_error_never_trains(
    server: FakeServer, client: Client, errors: str, trained: list[str], dropped: int
) -> None:
    three = prompts((0.0, 1.0, None), (0.0, 1.0, 1.0))
    run = dapo(client, three, samples=3, epochs=1, errors=errors)
    batch = run.batch()
    assert sorted(names(batch)) == trained
    assert run.counts.dropped == dropped
    assert all(info.outcome == "completed" for group in batch for info in group.rewarded)
    assert all(None not in group.rewards for group in batch)


def test_a_failed_rollout_is_repeated_in_its_group_until_the_repeats_are_used(
    server: FakeServer, client: Client
) -> None:
    seen: dict[str, int] = {}

    def plan(rollout: Mapping[str, Any]) -> PlannedRollout:
        number = seen[rollout["instance"]] = seen.get(rollout["instance"], 0) + 1
        failed = number == 1 or rollout["instance"] == "p1"
        return PlannedRollout(1.0, None, "failed") if failed else PlannedRollout(1.0, number % 2)

    server.rollouts.plan = plan
    run = dapo(client, prompts(GOOD, GOOD), epochs=1, errors="repeat", repeats=1)
    batch = run.batch()
    assert names(batch) == ["p0"]
    assert batch[0].rewards == [0.0, 1.0]
    assert len(batch[0].failed) == 1
    assert (run.counts.repeats, run.counts.dropped) == (1, 1)


def test_a_dropped_group_has_no_rollout_that_works_on(server: FakeServer, client: Client) -> None:
    failing = prompts((None, 1.0), seconds=(1.0, 50.0))
    run = dapo(client, failing, epochs=1)
    assert run.batch() == []
    assert [view["outcome"] for view in server.rollouts.views.values()] == [
        "infra_failed",
        "cancelled",
    ]
    assert server.clock.now() < 1_040


def test_a_trainer_that_starts_again_continues_where_its_state_was_stored(
    server: FakeServer, client: Client
) -> None:
    instances = prompts(GOOD, SAME, GOOD, GOOD, SAME, GOOD, GOOD, GOOD, seconds=(1.0, 3.0))
    whole = names(
        [group for batch in dapo(client, instances, epochs=1, run="a") for group in batch]
    )
    first = dapo(client, instances, epochs=1, run="b")
    found = names(first.batch())
    stored = json.loads(json.dumps(first.state()))
    second = dapo(client, instances, epochs=1, state=stored)
    found += names([group for batch in second for group in batch])
    assert sorted(found) == sorted(whole)
    assert second.run == "b"
    assert second.counts.prompts == len(instances)
    of_run = [each["group"] for each in submissions(server) if each["group"].startswith("b/")]
    assert len(of_run) == len(set(of_run)) == len(instances)


def test_a_batch_that_was_not_acknowledged_is_returned_again_and_nothing_is_submitted_twice(
    server: FakeServer, client: Client
) -> None:
    instances = prompts(*[GOOD] * 8, seconds=(1.0, 3.0))
    first = dapo(client, instances, epochs=1, run="c")
    first.acknowledge(first.batch())
    stored = first.state()
    lost = names(first.batch())  # the process is killed while it trains on this one
    second = dapo(client, instances, epochs=1, state=stored)
    again = names([group for batch in second for group in batch])
    assert set(lost) <= set(again)
    assert len(again) == len(set(again)) == 6
    groups = [each["group"] for each in submissions(server)]
    assert len(groups) == len(set(groups)) == len(instances)


def test_a_run_without_a_state_is_recovered_from_the_log_of_completions(
    server: FakeServer, client: Client
) -> None:
    instances = prompts(*[GOOD] * 6, seconds=(1.0, 3.0))
    first = dapo(client, instances, epochs=1, run="d")
    trained = first.batch()
    first.acknowledge(trained)
    lost = names(first.batch())
    second = dapo(client, instances, epochs=1, state={"run": "d"})
    again = names([group for batch in second for group in batch])
    assert set(again).isdisjoint(names(trained))
    assert set(lost) <= set(again)
    assert len(submissions(server)) == len(instances)


def test_lost_answers_make_no_group_twice(server: FakeServer, client: Client) -> None:
    run = dapo(client, prompts(*[GOOD] * 4), epochs=1)
    server.lose_answers(3)
    found = run.batch()
    server.lose_answers(3)
    found += run.batch()
    assert names(found) == ["p0", "p1", "p2", "p3"]
    assert len(server.rollouts.views) == 8


def test_a_server_that_is_away_for_minutes_is_waited_for(
    server: FakeServer, client: Client
) -> None:
    run = dapo(client, prompts(*[GOOD] * 4), epochs=1)
    found = run.batch()
    server.lose_requests(60)
    assert names(found + run.batch()) == ["p0", "p1", "p2", "p3"]
    assert server.clock.now() > 1_120


def test_after_a_longer_outage_the_same_submission_is_sent_again(
    server: FakeServer, client: Client
) -> None:
    run = dapo(client, prompts(*[GOOD] * 4), epochs=1, retry=RetryPolicy(attempts=1))
    assert names(run.batch()) == ["p0", "p1"]
    server.lose_answers(1)
    with pytest.raises(Unreachable):
        run.batch()
    assert names(run.batch()) == ["p2", "p3"]
    assert len(server.rollouts.views) == 8


def test_metadata_of_rollouts_has_the_counts(server: FakeServer, client: Client) -> None:
    run = dapo(client, prompts(SAME, GOOD, GOOD), run="m", metadata={"own": 1}, at_once=2)
    run.batch()
    first, *_, last = [each["metadata"] for each in submissions(server)]
    assert first["own"] == 1
    assert first["dapo"]["run"] == "m"
    assert first["dapo"]["wasted"] == 0
    assert (last["dapo"]["wasted"], last["dapo"]["informative"]) == (1, 1)


def test_an_iteration_ends_with_what_it_has_after_most_prompts(
    server: FakeServer, client: Client
) -> None:
    run = dapo(client, prompts(SAME), most_prompts=5)
    assert run.batch() == []
    assert run.counts.prompts == 5


def test_epochs_are_shuffled_by_the_seed_alone() -> None:
    order = PromptOrder(prompts(*[GOOD] * 50), seed=3, epochs=2)
    first = [order.at(position) for position in range(50)]
    second = [order.at(position) for position in range(50, 100)]
    assert first != second != order.instances
    assert sorted(each["id"] for each in second if each) == sorted(
        each["id"] for each in order.instances
    )
    assert [PromptOrder(order.instances, seed=3).at(place) for place in range(50)] == first
    assert order.at(100) is None


def test_new_weights_are_the_next_version_of_the_pool(server: FakeServer, client: Client) -> None:
    run = dapo(client, prompts(GOOD), llm="policy")
    assert run.update_weights(["http://a:1/v1", "http://b:1"], seats=4) == ["a:1", "b:1"]
    run.update_weights(["http://c:1"])
    (backend,) = server.rollouts.pools["policy"].values()
    assert (backend["name"], backend["weights_version"]) == ("c:1", 2)
    with pytest.raises(ValueError, match="llm"):
        dapo(client, prompts(GOOD)).update_weights(["http://a:1"])


async def test_the_asynchronous_twin_returns_the_same_batches(
    server: FakeServer, aclient: AsyncClient
) -> None:
    run = AsyncDapo(
        aclient, "grpo", "swe", prompts(GOOD, SAME, GOOD, GOOD), prompts=2, samples=2, epochs=1
    )
    assert [names(batch) async for batch in run] == [["p0", "p2"], ["p3"]]


def test_efficient_dapo_has_1_5_times_the_informative_prompts_of_plain_dapo() -> None:
    case = DapoCase(4, 2, 4, mean_seconds=60.0, sigma=0.5, slots=6, warm=1)
    assert compared(case, virtual)["ratio"] >= 1.5


@pytest.mark.parametrize(
    "ends",
    [
        [("completed", 0.0), ("completed", 1.0)],
        [("completed", 1.0), ("completed", 1.0)],
        [("completed", 1.0), ("completed", None)],
        [("failed", None), ("completed", 1.0)],
        [("timeout", None), ("cancelled", None)],
        [("completed", 0.1 + 0.2), ("completed", 0.3)],
    ],
)
def test_the_server_and_the_trainer_judge_groups_alike(
    ends: list[tuple[str, float | None]],
) -> None:
    """The client imports nothing of the server, so the rule is there twice; `summary_of` is that of the pages."""
    group = PromptGroup("r/0", 0, len(ends), {})
    for number, (outcome, reward) in enumerate(ends):
        info = RolloutInfo(f"rol_{number}", "finished", outcome=outcome, reward=reward)
        group.rollouts[info.id] = info
    results = [RolloutResult(RolloutOutcome(outcome), reward) for outcome, reward in ends]
    summary = summary_of(len(ends), results)
    verdict = GroupRules(len(ends), errors="fewer").verdict(group)
    assert tuple(group.rewards) == summary.rewards
    assert (verdict is GroupVerdict.INFORMATIVE) == summary.informative
    assert (verdict in (GroupVerdict.WASTED, GroupVerdict.DROPPED)) == summary.wasted


def test_llm_servers_go_to_the_rollout_server_of_their_host_and_the_rest_in_turn() -> None:
    llm = [
        "http://10.1.0.1:8000/v1", "http://10.1.0.2:8000/v1", "http://10.1.0.9:8000", "10.1.0.8:8000",
        "http://10.1.0.1:8001/v1", "http://10.1.0.7:8000",
    ]  # fmt: skip
    assert assigned_servers(llm, ["http://10.1.0.1:8006", "http://10.1.0.2:8006"]) == {
        "http://10.1.0.1:8006": ["http://10.1.0.1:8000/v1", "http://10.1.0.1:8001/v1", "10.1.0.8:8000"],
        "http://10.1.0.2:8006": ["http://10.1.0.2:8000/v1", "http://10.1.0.9:8000", "http://10.1.0.7:8000"],
    }  # fmt: skip
    two = assigned_servers(
        [f"http://localhost:{port}" for port in range(4)], ["127.0.0.1:1", "127.0.0.1:2"]
    )
    assert [len(each) for each in two.values()] == [2, 2]
    with pytest.raises(ValueError, match="at least one"):
        assigned_servers(llm, [])
