"""The asyncio driver and the event heap take the same time for the same order."""

from __future__ import annotations

import pytest

from domain.allocation import Allocation
from domain.elasticity import Elasticity
from domain.ids import ResourceId
from domain.ports import RunOrder
from simulator.driver import ModelledDriver
from simulator.work import ActionWork
from tests.builders import an_action
from tests.unit.simulator.scripts import act, played, script


@pytest.mark.parametrize("cores", [1, 2, 4, 7])
def test_driver_and_engine_agree_on_how_long_an_order_takes(cores: int) -> None:
    move = act("a", 8.0, amdahl=0.8, cost={"cpu": cores}, key="cpu")
    workload = script([move])
    played(workload)
    held = Allocation(ResourceId("cpu:n1"), cores * 1000)

    driver = ModelledDriver(lambda action: move.work)

    play = driver.script(RunOrder(move.action, (held,)))
    assert play.seconds == workload.answers["a"].timing.execution_seconds


async def test_a_declared_duration_is_played() -> None:
    action = an_action("a", duration_seconds=0.02, elasticity=Elasticity(amdahl=1.0), key="cpu")
    held = Allocation(ResourceId("cpu:n1"), 2000)

    report = await ModelledDriver().run(RunOrder(action, (held,)), lambda: None)

    assert report.execution_seconds >= 0.01
    assert report.result is not None
    assert report.result.exit_code == 0


def test_units_are_read_from_the_key_resource() -> None:
    work = ActionWork(9.0, Elasticity(amdahl=1.0), "api:search")
    action = an_action("a", kind="lease", cost={"api:search": 3})
    order = RunOrder(action, (Allocation(ResourceId("api:search"), 3000),))

    assert ModelledDriver(lambda _: work).script(order).seconds == 3.0
