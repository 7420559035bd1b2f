"""A node that lacks a snapshot gets it from the one that has it, with all that its files have."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest

from domain.action import Outcome
from domain.errors import Unavailable
from domain.ports import DriverContext, ExecResult
from managers.cpu.process import ProcessDriver
from tests.conformance.driver import TRAJECTORY, an_order
from tests.conformance.forking import CHILD, OTHER, a_snapshot, begins_from
from tests.conformance.isolations import isolations

FILES = (
    "mkdir -p d/e; echo 1 >d/a; ln d/a d/hard; ln -s a d/link; mkfifo f; chmod 751 d; chmod 4755 d/a; "
    "touch -d 2001-01-01 d/e"
)
LISTING = "find . -printf '%P %y %l %m\\n' | sort; find . -type f -printf '%n\\n'; cat d/a; stat -c %Y d/e"


@pytest.fixture(params=isolations())
async def nodes(
    tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[list[ProcessDriver]]:
    """Return two nodes; the second one gets snapshots of the first."""
    found: list[ProcessDriver] = []

    async def fetch(project: str, name: str) -> AsyncGenerator[bytes, None]:
        async for piece in found[0].export_snapshot(project, name):
            yield piece

    for number in range(2):
        context = DriverContext(
            f"n{number}", tmp_path / f"n{number}", {}, {"isolation": request.param}
        )
        if number:
            context = dataclasses.replace(context, fetch_snapshot=fetch)
        found.append(ProcessDriver(context))
        await found[-1].open()
    yield found
    for driver in found:
        await driver.close()


async def said(driver: ProcessDriver, line: str, trajectory: str) -> str:
    order = an_order("sh", "-c", line, name=f"act_{os.urandom(4).hex()}", trajectory=trajectory)
    report = await driver.run(order, lambda: None)
    assert isinstance(report.result, ExecResult), report
    assert report.result.exit_code == 0, report
    return report.result.stdout


async def test_a_fetched_snapshot_has_the_same_files(nodes):
    first, second = nodes
    await said(first, FILES, "trj-1")
    expected = await said(first, LISTING, "trj-1")
    await first.take_snapshot(a_snapshot())

    await asyncio.gather(
        *(second.run(begins_from("kept", each), lambda: None) for each in (CHILD, OTHER))
    )

    assert await said(second, LISTING, "trj-2") == expected
    assert await second.snapshots() == [("lab", "kept")]
    await first.drop_snapshot("lab", "kept")
    await first.remove_environment(TRAJECTORY)
    assert await said(second, "cat d/a; echo 2 >d/a", "trj-3") == "1\n"
    assert await said(second, "cat d/a", "trj-2") == "1\n"


async def test_an_archive_that_breaks_off_leaves_nothing(nodes, tmp_path, monkeypatch):
    first, second = nodes
    await said(first, "head -c 3000000 /dev/urandom >big", "trj-1")
    await first.take_snapshot(a_snapshot())
    whole = first.export_snapshot

    async def broken(project: str, name: str) -> AsyncIterator[bytes]:
        async for piece in whole(project, name):
            yield piece
            if len(piece) > 1000:
                raise Unavailable("the node broke off")

    monkeypatch.setattr(first, "export_snapshot", broken)
    report = await second.run(begins_from("kept"), lambda: None)

    assert report.outcome is Outcome.INFRA_FAILED
    assert "broke off" in (report.detail or "")
    assert list((tmp_path / "n1" / "layers").iterdir()) == []
    assert list((tmp_path / "n1" / "yard").iterdir()) == []
    monkeypatch.undo()
    report = await second.run(begins_from("kept", OTHER), lambda: None)
    assert report.outcome is Outcome.COMPLETED


async def test_a_name_that_has_another_snapshot_by_now_is_fetched_again(nodes):
    first, second = nodes
    await said(first, "echo 1 >a", "trj-1")
    await first.take_snapshot(a_snapshot())
    await second.run(begins_from("kept"), lambda: None)
    await first.drop_snapshot("lab", "kept")
    await said(first, "echo 2 >a", "trj-1")
    await first.take_snapshot(a_snapshot())

    await second.run(begins_from("kept", OTHER), lambda: None)

    assert await said(second, "cat a", "trj-3") == "2\n"
    assert await said(second, "cat a", "trj-2") == "1\n"


async def test_two_archives_of_a_snapshot_are_equal(nodes):
    """A copy in the object store is named by the digest of an archive, and sent from the next one."""
    first, _ = nodes
    await said(first, FILES, "trj-1")
    await first.take_snapshot(a_snapshot())
    archives = [
        b"".join([piece async for piece in first.export_snapshot("lab", "kept")]) for _ in range(2)
    ]

    assert archives[0] == archives[1]
