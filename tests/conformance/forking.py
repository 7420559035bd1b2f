"""The rules of `domain.ports.drivers.Forking` as tests: derive from `ForkingConformance`, or from
`SnapshottingConformance` for a driver that keeps snapshots, too."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from domain.action import EnvironmentSpec, Outcome
from domain.decisions import ForkEnvironment
from domain.errors import Conflict, NotFound
from domain.ids import ActionId, TrajectoryKey
from domain.ports import RunOrder
from tests.conformance.driver import FOREVER, TRAJECTORY, DriverConformance, Performance, an_order

CHILD = TrajectoryKey("lab/trj-2")
OTHER = TrajectoryKey("lab/trj-3")


def a_fork(
    source: TrajectoryKey, *children: TrajectoryKey, on_busy: str = "refuse"
) -> ForkEnvironment:
    """Return the order to fork an environment."""
    return ForkEnvironment(source, "n1", children, "r1", "web-1", on_busy)


def a_snapshot(source: TrajectoryKey = TRAJECTORY, name: str = "kept") -> ForkEnvironment:
    """Return the order to take a snapshot."""
    return ForkEnvironment(source, "n1", (), "r1", "web-1", project="lab", snapshot=name)


def begins_from(snapshot: str, trajectory: TrajectoryKey = CHILD) -> RunOrder:
    """Return an order whose environment begins from a snapshot."""
    name = trajectory.partition("/")[2]
    order = an_order("true", name=f"act_{name}", trajectory=name)
    return replace(order, environment=EnvironmentSpec(snapshot=snapshot))


class ForkingConformance(DriverConformance):
    """What every driver that forks environments must do."""

    async def test_a_fork_begins_with_the_files_of_its_source(self, driver: Any) -> None:
        await driver.put_file(TRAJECTORY, "a/b", b"1")

        report = await driver.fork_environment(a_fork(TRAJECTORY, CHILD, OTHER))

        assert report.way in {"sealed", "copied"}
        assert report.seconds >= report.frozen_seconds >= 0
        for child in (CHILD, OTHER):
            assert await driver.get_file(child, "a/b", 10) == b"1"

    async def test_source_and_forks_do_not_see_each_others_changes(self, driver: Any) -> None:
        await driver.put_file(TRAJECTORY, "a", b"1")
        await driver.fork_environment(a_fork(TRAJECTORY, CHILD, OTHER))
        await driver.put_file(TRAJECTORY, "a", b"2")
        await driver.put_file(CHILD, "a", b"3")
        await driver.put_file(CHILD, "b", b"4")

        found = [await driver.get_file(each, "a", 10) for each in (TRAJECTORY, CHILD, OTHER)]

        assert found == [b"2", b"3", b"1"]
        with pytest.raises(NotFound):
            await driver.get_file(TRAJECTORY, "b", 10)

    async def test_a_fork_of_a_fork_has_the_files_of_both(self, driver: Any) -> None:
        await driver.put_file(TRAJECTORY, "a", b"1")
        await driver.fork_environment(a_fork(TRAJECTORY, CHILD))
        await driver.put_file(CHILD, "b", b"2")
        await driver.fork_environment(a_fork(CHILD, OTHER))

        assert await driver.get_file(OTHER, "a", 10) == b"1"
        assert await driver.get_file(OTHER, "b", 10) == b"2"

    async def test_a_repeated_fork_keeps_what_the_forks_have_written(self, driver: Any) -> None:
        await driver.put_file(TRAJECTORY, "a", b"1")
        await driver.fork_environment(a_fork(TRAJECTORY, CHILD))
        await driver.put_file(CHILD, "a", b"2")

        await driver.fork_environment(a_fork(TRAJECTORY, CHILD, OTHER))

        assert await driver.get_file(CHILD, "a", 10) == b"2"
        assert await driver.get_file(OTHER, "a", 10) == b"1"

    async def test_forks_outlive_their_source_and_each_other(self, driver: Any) -> None:
        await driver.put_file(TRAJECTORY, "a", b"1")
        await driver.fork_environment(a_fork(TRAJECTORY, CHILD, OTHER))

        await driver.remove_environment(TRAJECTORY)
        await driver.remove_environment(OTHER)

        assert await driver.get_file(CHILD, "a", 10) == b"1"
        assert (await driver.run(an_order("true", trajectory="trj-2"), lambda: None)).outcome is (
            Outcome.COMPLETED
        )

    async def test_a_fork_while_a_command_runs_is_refused_and_leaves_nothing(
        self, driver: Any
    ) -> None:
        performance = Performance(driver, an_order(*FOREVER))
        await performance.started.wait()

        with pytest.raises(Conflict):
            await driver.fork_environment(a_fork(TRAJECTORY, CHILD, on_busy="copy"))

        driver.stop(ActionId("act_1"), Outcome.CANCELLED, "enough")
        await performance.task
        with pytest.raises(NotFound):
            await driver.get_file(CHILD, "a", 10)

    async def test_forks_outlive_their_driver(self) -> None:
        async with self.life() as (driver, _):
            await driver.put_file(TRAJECTORY, "a", b"1")
            await driver.fork_environment(a_fork(TRAJECTORY, CHILD))  # type: ignore[attr-defined]
        async with self.life() as (driver, _):
            assert await driver.get_file(CHILD, "a", 10) == b"1"


class SnapshottingConformance(ForkingConformance):
    """What every driver that also keeps snapshots must do."""

    async def test_a_snapshot_outlives_its_environment_and_others_begin_from_it(
        self, driver: Any
    ) -> None:
        await driver.put_file(TRAJECTORY, "a", b"1")
        report = await driver.take_snapshot(a_snapshot())
        await driver.put_file(TRAJECTORY, "a", b"2")
        await driver.remove_environment(TRAJECTORY)

        for child in (CHILD, OTHER):
            assert (await driver.run(begins_from("kept", child), lambda: None)).outcome is (
                Outcome.COMPLETED
            )
            assert await driver.get_file(child, "a", 10) == b"1"

        assert report.size_bytes > 0
        assert await driver.snapshots() == [("lab", "kept")]

    async def test_an_unknown_snapshot_fails_the_action_with_its_name(self, driver: Any) -> None:
        report = await driver.run(begins_from("nosuch"), lambda: None)
        assert report.outcome is Outcome.INFRA_FAILED
        assert "nosuch" in report.detail

    async def test_a_snapshot_is_taken_once_and_its_name_is_not_taken_over(
        self, driver: Any
    ) -> None:
        await driver.put_file(TRAJECTORY, "a", b"1")
        await driver.take_snapshot(a_snapshot())
        await driver.put_file(TRAJECTORY, "a", b"2")
        await driver.take_snapshot(a_snapshot())
        await driver.put_file(OTHER, "a", b"3")
        with pytest.raises(Conflict):
            await driver.take_snapshot(a_snapshot(OTHER))

        await driver.run(begins_from("kept"), lambda: None)
        assert await driver.get_file(CHILD, "a", 10) == b"1"

    async def test_environments_go_on_after_their_snapshot_is_dropped(self, driver: Any) -> None:
        await driver.put_file(TRAJECTORY, "a", b"1")
        await driver.take_snapshot(a_snapshot())
        await driver.run(begins_from("kept"), lambda: None)
        await driver.drop_snapshot("lab", "kept")
        await driver.drop_snapshot("lab", "kept")

        assert await driver.snapshots() == []
        assert await driver.get_file(CHILD, "a", 10) == b"1"
        report = await driver.run(begins_from("kept", OTHER), lambda: None)
        assert report.outcome is Outcome.INFRA_FAILED

    async def test_snapshots_outlive_their_driver(self) -> None:
        async with self.life() as (driver, _):
            await driver.put_file(TRAJECTORY, "a", b"1")
            await driver.take_snapshot(a_snapshot())  # type: ignore[attr-defined]
        async with self.life() as (driver, _):
            await driver.run(begins_from("kept"), lambda: None)
            assert await driver.get_file(CHILD, "a", 10) == b"1"
