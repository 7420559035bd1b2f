"""Sessions in an environment on this machine, and in a container of a real engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from domain.action import EnvironmentSpec
from managers.cpu.containers.cgroup_backend import apply
from managers.cpu.containers.environment import CpuShare
from managers.cpu.containers.living import LivingContainer
from managers.cpu.environment.protocol import CONTROL
from managers.cpu.sessions.host import SessionHost
from managers.cpu.workspaces import MOUNT
from tests.conformance.containers.conftest import a_driver, engine, tried_engine
from tests.conformance.driver import TRAJECTORY
from tests.conformance.sessions.host_environment import HostEnvironment
from tests.docker_engine import DockerEngine
from tests.tiers import by_tier

__all__ = ["engine", "tried_engine"]

#: Shells, with a terminal or without, of which a container shows the same as the host: one of each is enough there.
LEFT_TO_THE_HOST = by_tier([("bash", False), ("dash", True)], [("bash", False), ("dash", True)], [])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is left to the host."""
    left_out = {item for item in items if _is_left_to_the_host(getattr(item, "callspec", None))}
    if left_out:
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]


def _is_left_to_the_host(callspec: Any) -> bool:
    given = callspec.params if callspec is not None else {}
    return given.get("environment") == "container" and given.get("kind") in LEFT_TO_THE_HOST


class ContainerEnvironment:
    """A living container, with the folder of its workspace; as `HostEnvironment` for these tests."""

    inside, control_inside = MOUNT, CONTROL

    def __init__(self, living: LivingContainer) -> None:
        self._living = living
        self.workspace = living.environment.workspace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._living, name)


@pytest.fixture(params=["host", pytest.param("container", marks=pytest.mark.slow)])
async def environment(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    if request.param == "container":
        async for each in _container(request.getfixturevalue("tried_engine"), tmp_path):
            yield each
        return
    (tmp_path / "env").mkdir()
    environment = HostEnvironment(tmp_path / "env")
    await environment.begin()
    yield environment
    await environment.end()


async def _container(engine: DockerEngine, directory: Path) -> AsyncIterator[ContainerEnvironment]:
    driver = a_driver(engine, directory, "direct")
    await driver.open()
    try:
        assert driver.environments is not None
        living = await driver.environments.open(TRAJECTORY, EnvironmentSpec())
        # As while an action runs: these tests are about shells, not about waiting for a core.
        environment = living.environment
        environment.shares["test"] = CpuShare(frozenset().union(*driver._cores.values()))
        apply(environment, environment.wanted(environment.shares["test"]))
        yield ContainerEnvironment(living)
        await driver.remove_environment(TRAJECTORY)
    finally:
        await driver.close()


@pytest.fixture
async def host(environment: HostEnvironment) -> AsyncIterator[SessionHost]:
    host = SessionHost(environment.control_inside)
    yield host
    for session in host.all(environment.name):
        await host.close(environment.name, session.state.name)
