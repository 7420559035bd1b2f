"""Drivers that measure units obey the rules of `domain.ports.Measuring`: on a card, and on declared GPUs without one."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from domain.inventory import ResourceInventory
from domain.ports import DriverContext, Measuring, UnitUse
from domain.resources import MILLI
from managers.gpu.driver import GpuDriver
from scheduler.runtime.node.driver_facts import driver_facts
from tests.fake_nvml import GIB, FakeNvml

CARDS = (
    {"gib": 80, "used_gib": 60, "busy": 35},
    {"gib": 80, "used_gib": 2},
    {"lost": True},
)


class MeasuringConformance(ABC):
    """What every driver that measures must do; its node has GPUs 0 to 2."""

    #: Whether cards are behind the GPUs.
    declared: bool

    @abstractmethod
    def expected(self) -> dict[int, UnitUse]:
        """Return what is measured."""

    @pytest.fixture
    async def driver(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[GpuDriver]:
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(*CARDS))
        have = ResourceInventory(
            3 * MILLI, ((0, 1, 2),), memory_bytes=80 * GIB, oversubscribed=self.declared
        )
        driver = GpuDriver(DriverContext("n1", tmp_path, {"gpu": have}, {}))
        await driver.open()
        yield driver
        await driver.close()

    async def test_only_units_of_the_node_that_answer_are_measured(self, driver: GpuDriver) -> None:
        assert isinstance(driver, Measuring)
        assert driver.measured() == self.expected()

    async def test_figures_are_within_their_bounds(self, driver: GpuDriver) -> None:
        found = driver.measured()
        assert len(found) == len(self.expected())
        for use in found.values():
            assert use.busy_ratio is None or 0 <= use.busy_ratio <= 1
            assert use.total_bytes is not None
            assert 0 <= use.used_bytes <= use.total_bytes

    async def test_the_sign_of_life_has_the_measured_units_alone(self, driver: GpuDriver) -> None:
        facts = await driver_facts([driver])

        found = self.expected()
        assert facts.get("gpus", {}).keys() == {str(unit) for unit in found}
        totals = {str(unit): use.total_bytes for unit, use in found.items()}
        assert facts.get("gpu_memory", {}) == totals


class TestCards(MeasuringConformance):
    declared = False

    def expected(self) -> dict[int, UnitUse]:
        return {0: UnitUse(0.35, 60 * GIB, 80 * GIB), 1: UnitUse(None, 2 * GIB, 80 * GIB)}


class TestDeclaredGpus(MeasuringConformance):
    """Nothing is measured, which is not the same as nothing being used."""

    declared = True

    def expected(self) -> dict[int, UnitUse]:
        return {}
