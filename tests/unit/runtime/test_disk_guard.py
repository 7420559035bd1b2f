"""A node with a full disk refuses work and ends the largest writer, without asking anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from domain.ports import EnvironmentDisk
from managers.common.disk_space import DiskFloors, DiskSpace
from scheduler.runtime.node import disk_guard
from scheduler.runtime.node.disk_guard import DiskGuard

MIB = 2**20


class Environments:
    """Environments on a disk of 120 MiB, as a driver reports them."""

    def __init__(self, **grown_mib: int) -> None:
        self.mib = grown_mib
        self.cleared: list[str] = []
        self.calm = 0

    @property
    def space(self) -> DiskSpace:
        return DiskSpace("/data", 120 * MIB, max(0, 120 - sum(self.mib.values())) * MIB, 0, 0)

    def disk_folders(self) -> list[Path]:
        return [Path("/data")]

    async def disk_usage(self) -> list[EnvironmentDisk]:
        return [EnvironmentDisk(n, mib * MIB, mib * MIB, True) for n, mib in self.mib.items()]

    def disk_is_free(self) -> None:
        self.calm += 1

    async def clear_environment(self, name: str, reason: str) -> None:
        del self.mib[name]
        self.cleared.append(f"{name}: {reason}")


def a_guard(users: Environments, patch: pytest.MonkeyPatch, refusals: list[str]) -> DiskGuard:
    patch.setattr(disk_guard, "read_space", lambda _: [users.space])
    return DiskGuard([], [users], DiskFloors(), refusals.append)


async def test_work_is_refused_while_space_is_short_and_taken_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    users, refusals = Environments(a=20), list[str]()
    guard = a_guard(users, monkeypatch, refusals)
    assert await guard.look() == 1.0
    users.mib["a"] = 110
    assert await guard.look() < 1.0
    await guard.look()
    assert guard.refusal == refusals[0] == "the disk of /data has 10 of 120 MiB free"
    users.mib["a"] = 20
    await guard.look()
    assert (refusals[1:], guard.refusal, users.cleared) == ([""], "", [])


@pytest.mark.parametrize(("free_gib", "seconds"), [(10, 1.0), (20, 3.0), (200, 5.0)])
async def test_the_next_look_is_before_a_fast_writer_can_have_come_near_a_floor(
    monkeypatch: pytest.MonkeyPatch, free_gib: int, seconds: float
) -> None:
    guard = a_guard(Environments(), monkeypatch, [])
    large = DiskSpace("/data", 2**40, free_gib * 2**30, 0, 0)
    monkeypatch.setattr(disk_guard, "read_space", lambda _: [large])
    assert await guard.look() == seconds


async def test_the_largest_writer_of_a_full_disk_is_ended_and_its_neighbour_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    users = Environments(small=20, writer=100)
    guard = a_guard(users, monkeypatch, [])
    await guard.look()
    await guard.look()
    assert users.mib == {"small": 20}
    assert users.cleared == [
        "writer: the disk of /data has 0 of 120 MiB free; this environment grew most, by"
        f" {100 * MIB} bytes to {100 * MIB}, so it was ended and its files were deleted"
    ]
    assert guard.refusal == ""


async def test_a_disk_that_something_else_fills_ends_no_environment(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    users = Environments()
    guard = a_guard(users, monkeypatch, [])
    monkeypatch.setattr(
        disk_guard, "read_space", lambda _: [DiskSpace("/data", 120 * MIB, 0, 0, 0)]
    )
    await guard.look()
    await guard.look()
    assert users.cleared == []
    assert caplog.text.count("no environment here has grown: delete files by hand") == 1


async def test_growth_is_counted_from_the_last_time_with_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    users = Environments(a=20)
    guard = a_guard(users, monkeypatch, [])
    await guard.look()
    users.mib["a"] = 110
    await guard.look()
    assert users.calm == 1
