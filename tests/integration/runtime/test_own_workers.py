"""Workers of our own are started on GPUs of the pool, serve, and give their GPUs back."""

from __future__ import annotations

import pytest

from domain.fleet_events import FleetWorkersChanged
from tests.integration.runtime.fleet_doors import CHAT, a_chat, web
from tests.integration.runtime.own_rig import SOON, OwnRig

pytestmark = pytest.mark.slow


async def test_declared_gpus_become_workers_that_serve_and_are_given_back_when_they_are_not(
    own: OwnRig,
) -> None:
    own.declare(gpus=2)
    await own.start_gpus(gpus=2)
    own.keep(SOON)

    found = await own.until_serving(2)
    assert sorted(unit for each in found.values() for unit in each.gpus) == [0, 1]
    assert own.gpus_held() == [0, 1]
    workers = await own.until(lambda workers: len(workers) == 2)
    assert all(each.own and each.slots == 4 for each in workers.values())
    async with web(own) as client:
        answer = await client.post(CHAT, json=a_chat("hello", max_tokens=3))
        assert answer.status_code == 200, answer.text

    own.declare(gpus=1)
    await own.until(lambda workers: len(workers) == 1)
    (left,) = await own.until_serving(1)
    await own.until_held(list(found[left].gpus))
    assert own.own()[left] == found[left]  # the one that stays was not started again

    own.declare(gpus=0)
    await own.until_held([])
    changes = [
        (change.removed, [fact.name for fact in change.facts if fact.drained])
        for change in own.journalled()
        if isinstance(change, FleetWorkersChanged)
    ]
    gone = next(name for name in found if name != left)
    assert changes.index(((), [gone])) < changes.index(((gone,), []))
