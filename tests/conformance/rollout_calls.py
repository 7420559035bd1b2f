"""What the calls of rollouts and backends promise a trainer, of a real Tangram and of the client's in-memory server.

A *service* runs rollouts of handler ``noop``, which end when the suite lets them: with the number of the sample as reward.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import pytest

from tangram_client._rollout_calls import RolloutInfo
from tangram_client.aio import AsyncClient
from tangram_client.errors import NotFoundError


class RolloutService(Protocol):
    """A server, and the ends of its rollouts."""

    client: AsyncClient
    #: With the right to change backends.
    operator: AsyncClient

    async def begun(self, rollout: str) -> None:
        """Return once a worker has the rollout."""

    async def let_end(self) -> None:
        """Let all rollouts that run, now or later, end."""


UNKNOWN = "rol_" + "0" * 28


async def samples_of_an_instance_are_a_group(service: RolloutService) -> None:
    calls = service.client.rollouts
    two = [{"id": "a"}, {"id": "b"}]
    made = await calls.submit("t", "noop", two, samples=2)
    listed = await calls.list(task="t")
    assert [each.id for each in listed] == made
    assert [(each.instance, each.sample) for each in listed] == [
        ("a", 0), ("a", 1), ("b", 0), ("b", 1),
    ]  # fmt: skip
    groups = [each.group for each in listed]
    assert groups[0] == groups[1] != groups[2] == groups[3]
    assert [each.id for each in await calls.list(group=groups[2])] == made[2:]
    [named] = await calls.submit("t", "noop", [{"id": "c"}], group="run/7")
    assert [each.id for each in await calls.list(group="run/7")] == [named]
    await service.let_end()
    ends = [await calls.wait(each) for each in made]
    assert [(each.outcome, each.reward) for each in ends] == [
        ("completed", 0.0), ("completed", 1.0),
    ] * 2  # fmt: skip
    assert all(each.segments is not None for each in ends)


async def completions_have_each_end_once_in_pages(service: RolloutService) -> None:
    calls = service.client.rollouts
    start = (await calls.completions("now")).next
    made = await calls.submit("t", "noop", [{"id": "a"}], samples=3)
    await service.let_end()
    found: list[RolloutInfo] = []
    cursor = start
    while len(found) < 3:
        page = await calls.completions(cursor, limit=1, wait_seconds=30, tokens=False)
        found += page.items
        cursor = page.next
    assert sorted(each.id for each in found) == sorted(made)
    assert {each.segments for each in found} == {None}
    rest = await calls.completions(cursor)
    assert (rest.items, rest.more) == ((), False)
    assert (await calls.completions("now")).items == ()


async def a_parked_rollout_ends_after_it_is_resumed(service: RolloutService) -> None:
    calls = service.client.rollouts
    [first, second] = await calls.submit("t", "noop", [{"id": "a"}], samples=2)
    await service.begun(first)
    await calls.park(first)
    await calls.park(first)
    await service.let_end()
    await calls.wait(second)
    assert (await calls.get(first)).state == "parked"
    assert [each.id for each in await calls.list(task="t")] == [first]
    await calls.resume(first)
    assert (await calls.wait(first)).outcome == "completed"
    await calls.park(first)
    assert (await calls.get(first)).state == "finished"


async def a_cancelled_rollout_has_its_reason_and_no_reward(service: RolloutService) -> None:
    calls = service.client.rollouts
    [rollout] = await calls.submit("t", "noop", [{"id": "a"}])
    await calls.cancel(rollout, reason="not needed")
    await calls.cancel(rollout)
    found = await calls.wait(rollout)
    assert (found.outcome, found.reward, found.reason) == ("cancelled", None, "not needed")
    assert await calls.list(task="t") == []


async def unknown_rollouts_are_not_found_but_can_be_cancelled(service: RolloutService) -> None:
    calls = service.client.rollouts
    with pytest.raises(NotFoundError):
        await calls.get(UNKNOWN)
    await calls.cancel(UNKNOWN)
    assert list(await calls.acknowledge([UNKNOWN])) == []


async def many_are_changed_in_one_request_with_a_result_for_each(service: RolloutService) -> None:
    calls = service.client.rollouts
    [ended] = await calls.submit("t", "noop", [{"id": "a"}])
    await calls.cancel(ended)
    await calls.wait(ended)
    made = await calls.submit("t", "noop", [{"id": "b"}], samples=4)
    await service.begun(made[0])
    found = await calls.park_many([made[0], ended, "nosuch", made[1], made[0]])
    assert [(each.id, each.status, each.outcome) for each in found] == [
        (made[0], 202, None), (ended, 200, "cancelled"), ("nosuch", 404, None), (made[1], 202, None),
        (made[0], 202, None),
    ]  # fmt: skip
    assert [each.problem is None for each in found] == [True, True, False, True, True]
    assert [(await calls.get(each)).state for each in made[:2]] == ["parked"] * 2
    await calls.cancel_many([made[1], UNKNOWN], reason="not needed")
    assert (await calls.wait(made[1])).reason == "not needed"
    await calls.resume_many([made[0], made[2]])
    await service.let_end()
    ends = [await calls.wait(each) for each in made]
    assert [each.outcome for each in ends] == ["completed", "cancelled", "completed", "completed"]


async def an_acknowledged_rollout_has_no_tokens(service: RolloutService) -> None:
    calls = service.client.rollouts
    [first, second] = await calls.submit("t", "noop", [{"id": "a"}], samples=2)
    await service.begun(second)
    await calls.park(second)
    await service.let_end()
    await calls.wait(first)
    assert list(await calls.acknowledge([first, second])) == [first]
    found = await calls.get(first)
    assert (found.reward, found.segments) == (0.0, None)


async def replaced_backends_serve_the_next_weights_version(service: RolloutService) -> None:
    backends = service.operator.backends
    with pytest.raises(NotFoundError):
        await backends.clear("policy")
    assert list(await backends.replace("policy", ["http://127.0.0.1:1/v1"])) == ["127.0.0.1:1"]
    assert await _versions(service) == {"127.0.0.1:1": 1}
    await backends.replace("policy", ["http://127.0.0.1:2", "http://127.0.0.1:3"], seats=4)
    assert await _versions(service) == {"127.0.0.1:2": 2, "127.0.0.1:3": 2}


async def _versions(service: RolloutService) -> dict[str, int]:
    pools = await service.operator.backends.list()
    (pool,) = [each for each in pools if each["pool"] == "policy"]
    return {str(each["name"]): int(each["weights_version"]) for each in pool["backends"]}


Scenario = Callable[[RolloutService], Awaitable[None]]
SCENARIOS: tuple[Scenario, ...] = (
    samples_of_an_instance_are_a_group,
    completions_have_each_end_once_in_pages,
    a_parked_rollout_ends_after_it_is_resumed,
    a_cancelled_rollout_has_its_reason_and_no_reward,
    unknown_rollouts_are_not_found_but_can_be_cancelled,
    many_are_changed_in_one_request_with_a_result_for_each,
    an_acknowledged_rollout_has_no_tokens,
    replaced_backends_serve_the_next_weights_version,
)
