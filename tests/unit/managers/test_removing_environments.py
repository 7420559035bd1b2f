"""Environments are removed after their trajectory, even when the engine is away at first."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from domain.action import EnvironmentSpec
from domain.ids import TrajectoryKey
from managers.cpu.containers.engine import Engine, EngineAway
from managers.cpu.containers.environment import Environment, Share
from managers.cpu.containers.environments import Environments, Site
from managers.cpu.containers.settings import Settings
from managers.cpu.process.workspace import Workspaces

TRAJECTORY = TrajectoryKey("default/t1")


class RestartingEngine:
    """Answers from the second question on."""

    def __init__(self) -> None:
        self.removed: list[str] = []
        self._away = True

    async def remove(self, container: str) -> None:
        if self._away:
            self._away = False
            raise EngineAway("connection refused")
        self.removed.append(container)


def test_a_removal_that_the_engine_missed_is_made_up_for_by_the_next(tmp_path: Path) -> None:
    engine, workspaces = RestartingEngine(), Workspaces(tmp_path)
    workspaces.open()
    site = Site(
        cast("Engine", engine), Settings(), "owner", "boot", tmp_path,
        workspaces, Share(frozenset({0})), None, "",
    )  # fmt: skip

    async def scenario() -> None:
        environments = Environments(site)
        environments.adopt(
            Environment(
                "tangram-1", str(TRAJECTORY), EnvironmentSpec(), tmp_path / "tangram-1",
                workspaces.ensure(TRAJECTORY), 0.0, container="c1",
            )
        )  # fmt: skip
        with pytest.raises(EngineAway):
            await environments.remove(TRAJECTORY)
        await environments.remove(TRAJECTORY)
        assert environments.all() == []

    asyncio.run(scenario())

    assert engine.removed == ["c1"]
    assert not workspaces.of(TRAJECTORY).exists()
