"""A quiet environment is packed by one driver and begun by another; what is not quiet is refused with a code."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from domain.action import EnvironmentSpec
from domain.decisions import MoveEnvironment, ReceiveEnvironment
from domain.errors import Conflict, TangramError
from domain.moves import IN_MEMORY, IN_USE, PROCESS, SESSION, TOO_LARGE, packed_name
from domain.ports.moves import MovesEnvironments
from domain.ports.sessions import SessionSpec
from managers.cpu.process import ProcessDriver
from tests.conformance.driver import TRAJECTORY, an_order
from tests.conformance.isolations import a_driver, isolations

pytestmark = pytest.mark.skipif("bwrap" not in isolations(), reason="no bubblewrap here")

ORDER = MoveEnvironment(TRAJECTORY, "n1", 1, "n2", "lab")
FETCH = ReceiveEnvironment(TRAJECTORY, "n2", 1, "n1", "lab")
NAME = packed_name(TRAJECTORY, 1)


@pytest.fixture
async def drivers(tmp_path: Path) -> AsyncIterator[tuple[ProcessDriver, ProcessDriver]]:
    """The drivers of two nodes."""
    source, target = a_driver(tmp_path / "n1", "bwrap"), a_driver(tmp_path / "n2", "bwrap")
    for driver in (source, target):
        await driver.open()
    assert isinstance(source, MovesEnvironments)
    if not source.moving.works:
        pytest.skip("environments have no whole trees here")
    yield source, target
    for driver in (source, target):
        await driver.close()


async def run(driver: ProcessDriver, command: str, name: str = "act_1") -> str:
    report = await driver.run(an_order("sh", "-c", command, name=name), lambda: None)
    assert report.result is not None, report
    assert report.result.exit_code == 0, report
    return report.result.stdout


async def test_an_environment_goes_on_elsewhere_with_its_whole_tree(drivers):
    source, target = drivers
    await run(
        source, "echo 1 > a && mkdir /tmp/x && ln -s /workspace/a /tmp/x/link && rm /etc/hosts"
    )

    await source.moving.pack(ORDER)
    await target.moving.receive(FETCH, source.export_snapshot("lab", NAME))

    assert target.environments is not None
    assert target.environments.of(TRAJECTORY).processes() == []
    said = await run(
        target, "cat /tmp/x/link && test ! -e /etc/hosts && echo 2 >> a && cat a", "act_2"
    )
    assert said == "1\n1\n2\n"
    assert await target.snapshots() == []
    assert await run(source, "cat a", "act_3") == "1\n", (
        "the source has its own until it is removed"
    )


async def test_a_repeated_order_packs_once_and_begins_once(drivers):
    source, target = drivers
    await run(source, "echo 1 > a")
    for _ in range(2):
        await source.moving.pack(ORDER)
    for _ in range(2):
        await target.moving.receive(FETCH, source.export_snapshot("lab", NAME))
    assert await source.snapshots() == [("lab", NAME)]
    assert await run(target, "cat a", "act_2") == "1\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [("sleep 600 > /dev/null 2>&1 &", PROCESS), ("echo 1 > /dev/shm/a", IN_MEMORY)],
)
async def test_what_a_snapshot_does_not_have_keeps_an_environment_where_it_is(
    drivers, command, code
):
    source, _ = drivers
    await run(source, command)
    with pytest.raises(Conflict) as refused:
        await source.moving.pack(ORDER)
    assert refused.value.code == code
    assert await source.snapshots() == []


async def test_an_environment_above_the_size_of_the_order_stays_and_goes_on(drivers):
    source, _ = drivers
    await run(source, "head -c 300000 /dev/urandom > a && ls -l a > b")

    with pytest.raises(Conflict) as refused:
        await source.moving.pack(replace(ORDER, most_bytes=200_000))

    assert refused.value.code == TOO_LARGE
    assert await source.snapshots() == []
    await run(source, "rm a; seq 4001 | xargs touch", "act_2")
    with pytest.raises(Conflict, match="4000 files"):
        await source.moving.pack(replace(ORDER, most_bytes=2_000_000))
    assert "4001" in await run(source, "rm b; ls | wc -l", "act_3")
    await run(source, "rm *", "act_4")
    await source.moving.pack(replace(ORDER, most_bytes=2_000_000))


async def test_a_session_and_a_request_keep_an_environment_where_it_is(drivers):
    source, _ = drivers
    await run(source, "true")
    spec = SessionSpec(name="s", shell=("sh",), pty=False)
    await source.sessions.open(TRAJECTORY, spec, EnvironmentSpec())
    with pytest.raises(Conflict) as refused:
        await source.moving.pack(ORDER)
    assert refused.value.code == SESSION
    await source.sessions.close(TRAJECTORY, "s")
    async with source._removals.using(TRAJECTORY):
        with pytest.raises(Conflict) as refused:
            await source.moving.pack(ORDER)
    assert refused.value.code == IN_USE
    await source.moving.pack(ORDER)


async def test_an_archive_that_breaks_off_leaves_no_environment(drivers):
    source, target = drivers
    await run(source, "head -c 3000000 /dev/urandom > a")
    await source.moving.pack(ORDER)

    async def torn():
        passed = 0
        async for piece in source.export_snapshot("lab", NAME):
            passed += len(piece)
            yield piece
            if passed > 1_000_000:
                return

    with pytest.raises((TangramError, OSError)):
        await target.moving.receive(FETCH, torn())
    assert not target._workspaces.of(TRAJECTORY).exists()
    assert await target.snapshots() == []
