"""The rules of `domain.ports.moves` as tests: derive from `MovingConformance`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from domain.action import Outcome
from domain.decisions import MoveEnvironment, ReceiveEnvironment
from domain.errors import Conflict, NotFound, TangramError
from domain.moves import IN_USE, TOO_LARGE, packed_name
from domain.ports import Archiving
from domain.ports.moves import MovesEnvironments
from tests.conformance.driver import TRAJECTORY, an_order

ORDER = MoveEnvironment(TRAJECTORY, "n1", 1, "n2", "lab")
FETCH = ReceiveEnvironment(TRAJECTORY, "n2", 1, "n1", "lab")
NAME = packed_name(TRAJECTORY, 1)


async def run(driver: Any, command: str, name: str = "act_1") -> str:
    """Run a command in the trajectory; return what it printed."""
    report = await driver.run(an_order("sh", "-c", command, name=name), lambda: None)
    assert report.outcome is Outcome.COMPLETED, report
    assert report.result.exit_code == 0, report
    return str(report.result.stdout)


async def moved(source: Any, target: Any) -> None:
    """Move the environment of the trajectory, up to the report of the target."""
    await source.moving.pack(ORDER)
    await target.moving.receive(FETCH, source.export_snapshot("lab", NAME))


class MovingConformance(ABC):
    """What every driver that moves environments must do; two drivers are two nodes."""

    #: Whether an environment has files outside of its workspace.
    has_trees = True
    #: A file outside of it that an environment begins with.
    given_file = "/etc/group"

    @abstractmethod
    def make(self, node: str) -> Any:
        """Return the driver of a node, which is not open; each call a new life on the same storage."""

    @pytest.fixture
    async def drivers(self) -> AsyncIterator[tuple[Any, Any]]:
        source, target = self.make("n1"), self.make("n2")
        for driver in (source, target):
            await driver.open()
            assert isinstance(driver, MovesEnvironments)
            assert isinstance(driver, Archiving)
        assert source.moving.works, source.protection.text
        yield source, target
        for driver in (source, target):
            await driver.remove_environment(TRAJECTORY)
            await driver.close()

    async def test_an_environment_goes_on_elsewhere_with_all_its_files(self, drivers):
        source, target = drivers
        outside = (
            f" && mkdir /var/lib/x && ln -s /workspace/a /var/lib/x/link && rm {self.given_file}"
        )
        written = "echo 1 > a && mkdir d && chmod 700 d && ln a d/same"
        await run(source, written + (outside if self.has_trees else ""))

        await moved(source, target)

        look = "cat a &&"
        if self.has_trees:
            look = f"cat /var/lib/x/link && test ! -e {self.given_file} &&"
        said = await run(
            target, f"{look} stat -c %a d && cat d/same && echo 2 >> a && cat a", "act_2"
        )
        assert said == "1\n700\n1\n1\n2\n"
        assert await target.snapshots() == []
        assert await run(source, "cat a", "act_3") == "1\n", (
            "the source has its own until it is removed"
        )

    async def test_a_repeated_order_packs_once_and_begins_once(self, drivers):
        source, target = drivers
        await run(source, "echo 1 > a")
        for _ in range(2):
            await source.moving.pack(ORDER)
        await moved(source, target)
        await run(target, "echo 2 > a", "act_2")
        await moved(source, target)
        assert await source.snapshots() == [("lab", NAME)]
        assert await run(target, "cat a", "act_3") == "2\n"

    async def test_it_moves_on_from_its_target_and_back(self, drivers):
        source, target = drivers
        await run(source, "echo 1 > a" + ("; echo 1 > /var/lib/o" if self.has_trees else ""))
        await moved(source, target)
        await source.remove_environment(TRAJECTORY)
        await source.drop_snapshot("lab", NAME)
        await run(
            target, "echo 2 >> a" + ("; echo 2 >> /var/lib/o" if self.has_trees else ""), "act_2"
        )
        await moved(target, source)
        assert await run(source, "cat a", "act_3") == "1\n2\n"
        if self.has_trees:
            assert await run(source, "cat /var/lib/o", "act_4") == "1\n2\n"

    async def test_files_that_were_uploaded_before_the_first_action_move_too(self, drivers):
        source, target = drivers
        await source.put_file(TRAJECTORY, "up/a", b"1")
        await moved(source, target)
        assert await target.get_file(TRAJECTORY, "up/a", 10) == b"1"
        assert await run(target, "cat up/a", "act_2") == "1"

    async def test_an_environment_above_the_limits_of_the_order_stays_and_goes_on(self, drivers):
        source, _ = drivers
        await run(source, "head -c 300000 /dev/urandom > a")
        with pytest.raises(Conflict) as refused:
            await source.moving.pack(replace(ORDER, most_bytes=200_000))
        assert refused.value.code == TOO_LARGE
        assert await source.snapshots() == []

        await run(
            source, "rm a; n=0; while [ $n -le 4000 ]; do : > $n; n=$((n + 1)); done", "act_2"
        )
        with pytest.raises(Conflict, match="4000 files"):
            await source.moving.pack(replace(ORDER, most_bytes=2_000_000))

        assert await run(source, "rm 1; set -- *; echo $#", "act_3") == "4000\n"
        await run(source, "rm *", "act_4")
        await source.moving.pack(replace(ORDER, most_bytes=2_000_000))

    async def test_a_request_keeps_an_environment_where_it_is(self, drivers):
        source, _ = drivers
        await run(source, "true")
        async with source._removals.using(TRAJECTORY):
            with pytest.raises(Conflict) as refused:
                await source.moving.pack(ORDER)
        assert refused.value.code == IN_USE
        await source.moving.pack(ORDER)

    async def test_an_archive_that_breaks_off_leaves_no_environment(self, drivers):
        source, target = drivers
        await run(source, "head -c 3000000 /dev/urandom > a")
        await source.moving.pack(ORDER)

        async def torn() -> AsyncIterator[bytes]:
            passed = 0
            async for piece in source.export_snapshot("lab", NAME):
                passed += len(piece)
                yield piece
                if passed > 1_000_000:
                    return

        with pytest.raises((TangramError, OSError)):
            await target.moving.receive(FETCH, torn())
        with pytest.raises(NotFound):
            await target.get_file(TRAJECTORY, "a", 10)
        assert await target.snapshots() == []
        await moved(source, target)
        assert await run(target, "wc -c < a", "act_2") == "3000000\n"

    async def test_what_is_packed_outlives_its_driver_until_it_is_dropped(self):
        source, target = self.make("n1"), self.make("n2")
        await source.open()
        await run(source, "echo 1 > a" + ("; echo 1 > /var/lib/o" if self.has_trees else ""))
        await source.moving.pack(ORDER)
        await source.close()
        source = self.make("n1")
        await source.open()
        await target.open()
        assert await source.snapshots() == [("lab", NAME)]
        await moved(source, target)
        assert await run(target, "cat a" + (" /var/lib/o" if self.has_trees else ""), "act_2")
        await source.drop_snapshot("lab", NAME)
        await source.drop_snapshot("lab", NAME)
        assert await source.snapshots() == []
        with pytest.raises(NotFound):
            async for _ in source.export_snapshot("lab", NAME):
                pass
        for driver in (source, target):
            await driver.remove_environment(TRAJECTORY)
            await driver.close()
