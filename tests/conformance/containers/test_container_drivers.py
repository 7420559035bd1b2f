"""The container driver obeys the rules of its port, on either way, on a real engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from domain.ports import Driver
from tests.conformance.containers.conftest import WAYS, a_driver
from tests.conformance.forking import ForkingConformance
from tests.docker_engine import DockerEngine

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("way", WAYS)
class TestContainerDriver(ForkingConformance):
    @pytest.fixture(autouse=True)
    def place(self, engine: DockerEngine, tmp_path: Path, way: str) -> None:
        self.engine, self.directory, self.way = engine, tmp_path, way

    def make(self) -> Driver:
        return a_driver(self.engine, self.directory, self.way)
