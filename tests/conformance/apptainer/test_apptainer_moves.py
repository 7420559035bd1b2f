"""Isolation ``apptainer`` moves environments as all drivers do, with the stand-in as their program."""

from __future__ import annotations

from pathlib import Path

import pytest

from domain.errors import Conflict
from domain.moves import PROCESS
from managers.cpu.process import ProcessDriver
from tests.conformance.apptainer.conftest import containers
from tests.conformance.moving import ORDER, MovingConformance, run


class TestApptainerMoving(MovingConformance):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.directory = tmp_path

    def make(self, node: str) -> ProcessDriver:
        folder = self.directory / node
        folder.mkdir(exist_ok=True)
        return containers(folder)

    async def test_a_program_keeps_an_environment_where_it_is(self, drivers):
        source, _ = drivers
        await run(source, "sleep 600 > /dev/null 2>&1 &")
        with pytest.raises(Conflict) as refused:
            await source.moving.pack(ORDER)
        assert refused.value.code == PROCESS
