"""Every driver obeys the rules of its port."""

from __future__ import annotations

from pathlib import Path

import pytest

from domain.ids import ActionId
from domain.ports import Driver, Leftover
from managers.cpu.fake import FakeDriver, FakeStorage
from managers.cpu.process import ProcessDriver
from simulator.driver import ModelledDriver
from tests.conformance.driver import FOREVER, DriverConformance, Performance, an_order
from tests.conformance.forking import SnapshottingConformance
from tests.conformance.isolations import a_driver, isolations


class TestFakeDriver(SnapshottingConformance):
    @pytest.fixture(autouse=True)
    def storage(self) -> None:
        self.shared = FakeStorage()

    def make(self) -> Driver:
        return FakeDriver(storage=self.shared)

    async def test_processes_that_outlived_a_crash_are_ended_by_the_next_driver(self) -> None:
        driver = FakeDriver(storage=self.shared)
        performance = Performance(driver, an_order(*FOREVER))
        await performance.started.wait()
        driver.forget([an_order().mark])
        successor = FakeDriver(storage=driver.crash())
        assert await successor.open() == [Leftover(ActionId("act_1"), 1, ended=True)]


class TestModelledDriver(DriverConformance):
    @pytest.fixture(autouse=True)
    def storage(self) -> None:
        self.shared = FakeStorage()

    def make(self) -> Driver:
        return ModelledDriver(storage=self.shared)


@pytest.mark.parametrize("isolation", isolations())
class TestProcessDriver(SnapshottingConformance):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path, isolation: str) -> None:
        self.directory, self.isolation = tmp_path, isolation

    def make(self) -> Driver:
        return a_driver(self.directory, self.isolation)

    def has_whole_trees(self, driver: Driver) -> bool:
        assert isinstance(driver, ProcessDriver)
        return driver.trees.everywhere
