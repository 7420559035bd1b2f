"""Containers obey the rules of ``network: egress``, on either way, on a real engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from domain.action import EnvironmentSpec, Outcome
from domain.confinement import NETWORK_EGRESS, NETWORK_HOST
from domain.egress import EgressRules
from domain.ids import TrajectoryKey
from domain.ports import RunReport
from managers.cpu.containers import ContainerDriver
from managers.cpu.egress.proxy import EgressProxy
from tests.conformance.containers.conftest import WAYS_OF_TIER, a_driver
from tests.conformance.containers.test_container_warm import until_ready
from tests.conformance.driver import TRAJECTORY, an_order
from tests.conformance.egress import (
    DIRECT,
    PYTHON,
    Door,
    EgressConformance,
    ProxyingDriver,
    listening,
    naming,
    origin,
    secure,
)
from tests.conformance.egress_origin import Origin
from tests.docker_engine import DockerEngine

__all__ = ["origin", "secure"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("way", WAYS_OF_TIER)
class TestEgressOfContainers(EgressConformance):
    @pytest.fixture(autouse=True)
    def place(self, engine: DockerEngine, tmp_path: Path, way: str) -> None:
        self.engine, self.directory, self.way = engine, tmp_path, way

    def make(self, proxy: EgressProxy) -> ProxyingDriver:
        return a_driver(self.engine, self.directory, self.way, proxy=proxy)

    async def test_a_later_command_without_the_network_reaches_nothing(
        self, door: Door, origin: Origin
    ) -> None:
        """The network of a container outlives a command, its proxy does not."""
        origin.files["/word"] = b"hello"
        door.rules = naming(origin)
        assert (await door.fetch(origin)).stdout == "hello"

        report = await door.report(PYTHON, "-c", DIRECT % 3128, network="none")

        assert report.result is not None
        assert report.result.stdout.splitlines()[0] == "Connection refused"

    async def test_nothing_listens_in_a_container_after_its_command(
        self, door: Door, origin: Origin
    ) -> None:
        origin.files["/word"] = b"hello"
        door.rules = naming(origin)
        await door.fetch(origin)

        assert listening() == []
        assert door.usage.facts()["open"] == 0

    async def test_a_driver_serves_a_container_of_its_predecessor(
        self, door: Door, origin: Origin
    ) -> None:
        origin.files["/word"] = b"hello"
        door.rules = naming(origin)
        await door.run("sh", "-c", "echo kept > /tmp/file")
        await door.driver.close()
        door.driver = self.make(door.proxy)
        await door.driver.open()

        assert (await door.fetch(origin)).stdout == "hello"
        assert (await door.run("cat", "/tmp/file")).stdout == "kept\n"


async def with_egress(driver: ContainerDriver) -> RunReport:
    order = replace(
        an_order("true"),
        environment=EnvironmentSpec(network=NETWORK_EGRESS),
        egress=EgressRules(("packages.test",)),
    )
    return await driver.run(order, lambda: None)


async def test_a_container_that_waits_is_taken_for_it(engine: DockerEngine, tmp_path: Path) -> None:
    driver = a_driver(engine, tmp_path, "direct", warm="2")
    await driver.open()
    try:
        await until_ready(driver, 2)
        waited = {each.container for each in driver.containers()}

        assert (await with_egress(driver)).outcome is Outcome.COMPLETED

        [taken] = [each for each in driver.containers() if each.trajectory]
        assert taken.container in waited
    finally:
        await driver.remove_environment(TRAJECTORY)
        await driver.close()


async def test_the_network_of_the_node_is_never_joined(
    engine: DockerEngine, tmp_path: Path
) -> None:
    """A container that has the node's network would let its commands pass by the proxy."""
    driver = a_driver(engine, tmp_path, "direct")
    await driver.open()
    try:
        host = EnvironmentSpec(network=NETWORK_HOST)
        await driver.run(replace(an_order("true"), environment=host), lambda: None)

        report = await with_egress(driver)

        assert report.outcome is Outcome.INFRA_FAILED
        assert "has the network of the node" in str(report.detail)
    finally:
        await driver.remove_environment(TRAJECTORY)
        await driver.close()


async def test_a_process_of_another_container_is_refused(
    engine: DockerEngine, tmp_path: Path
) -> None:
    """The number of a first process that ended may be that of any process by now."""
    driver = a_driver(engine, tmp_path, "direct")
    await driver.open()
    try:
        await driver.run(an_order("true"), lambda: None)
        await driver.run(an_order("true", trajectory="trj-2"), lambda: None)
        ours, other = driver.containers()
        first, ours.pid = ours.pid, other.pid

        report = await with_egress(driver)

        ours.pid = first
        assert report.outcome is Outcome.INFRA_FAILED
        assert f"process {other.pid} is not of container" in str(report.detail)
    finally:
        for environment in driver.containers():
            await driver.remove_environment(TrajectoryKey(environment.trajectory))
        await driver.close()
