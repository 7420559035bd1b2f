"""Any interleaving of commands, rewards, forks, snapshots and ends keeps every environment's files, and leaves nothing.

A model beside the driver knows which lines the log of each environment has. Each step changes or reads one
environment, several at once, or restarts the driver; at the end all is removed, and nothing of it is left: no file,
no layer, no mount, no process, no uid.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from domain.action import Outcome
from domain.decisions import ForkEnvironment
from domain.errors import NotFound
from domain.ids import TrajectoryKey
from domain.rewards import RewardRule
from managers.cpu.process import ProcessDriver
from tests.conformance.driver import an_order
from tests.conformance.forking import begins_from
from tests.conformance.isolations import a_driver, isolations
from tests.tiers import by_tier

SEEDS = by_tier(1, 1, 8)
STEPS = by_tier(20, 40, 125)


class World:
    """One driver, and what its environments should hold."""

    def __init__(self, folder: Path, isolation: str, seed: int) -> None:
        self.folder, self.isolation = folder, isolation
        self.random = random.Random(seed)
        self.numbers = itertools.count()
        #: Environment → lines of its log; snapshot → the same.
        self.logs: dict[str, list[str]] = {}
        self.snapshots: dict[str, list[str]] = {}
        self.driver: ProcessDriver

    async def open(self) -> None:
        self.driver = a_driver(self.folder, self.isolation)
        await self.driver.open()

    def any(self) -> str:
        return self.random.choice(sorted(self.logs))

    async def run(self, name: str, line: str, *, judged: bool = False) -> str:
        order = an_order("sh", "-c", line, name=f"act_{next(self.numbers)}", trajectory=name)
        if judged:
            rule = RewardRule("exit_code", files={"given": "1"})
            order = replace(order, action=replace(order.action, reward=rule))
        report = await self.driver.run(order, lambda: None)
        assert report.outcome is Outcome.COMPLETED, report
        assert report.result is not None
        assert report.result.exit_code == 0, report
        return report.result.stdout

    async def step(self) -> None:
        """Do something."""
        choices = [self.begin, self.append, self.append, self.fork, self.fork, self.snapshot]
        choices += [self.restore, self.finish, self.drop, self.restart, self.at_once, self.park]
        choices += [self.judge, self.judge]
        await self.random.choice(choices)()

    async def begin(self) -> None:
        name = f"t{next(self.numbers)}"
        self.logs[name] = []
        await self.append(name)

    async def append(self, name: str = "") -> None:
        """Write a line; delete and make files so that layers have whiteouts."""
        name = name or self.any()
        line = f"{name}-{next(self.numbers)}"
        self.logs[name].append(line)
        made = self.random.randrange(3)
        await self.run(
            name,
            f"echo {line} >>log; mkdir -p d{made}; echo {line} >d{made}/f; rm -rf d{(made + 1) % 3}",
        )

    async def judge(self, name: str = "") -> None:
        """Write a line by the command of a reward, while the environment is sealed."""
        name = name or self.any()
        line = f"{name}-{next(self.numbers)}"
        self.logs[name].append(line)
        await self.run(name, f"test -e given && echo {line} >>log", judged=True)

    async def fork(self, source: str = "") -> None:
        source = source or self.any()
        children = [f"t{next(self.numbers)}" for _ in range(self.random.randint(1, 3))]
        keys = tuple(map(_key, children))
        await self.driver.fork_environment(ForkEnvironment(_key(source), "n1", keys, "r", "web"))
        for child in children:
            self.logs[child] = list(self.logs[source])

    async def snapshot(self) -> None:
        source, name = self.any(), f"s{next(self.numbers)}"
        order = ForkEnvironment(_key(source), "n1", (), "r", "web", project="lab", snapshot=name)
        await self.driver.take_snapshot(order)
        self.snapshots[name] = list(self.logs[source])

    async def restore(self) -> None:
        if self.snapshots:
            name = f"t{next(self.numbers)}"
            snapshot = self.random.choice(sorted(self.snapshots))
            await self.driver.run(begins_from(snapshot, _key(name)), lambda: None)
            self.logs[name] = list(self.snapshots[snapshot])

    async def drop(self) -> None:
        if self.snapshots:
            name = self.random.choice(sorted(self.snapshots))
            del self.snapshots[name]
            await self.driver.drop_snapshot("lab", name)

    async def finish(self) -> None:
        if len(self.logs) > 1:
            name = self.any()
            del self.logs[name]
            await self.driver.remove_environment(_key(name))

    async def park(self) -> None:
        name = self.any()
        with contextlib.suppress(NotFound):  # it does not run
            await self.driver.park_environment(_key(name))

    async def restart(self) -> None:
        await self.driver.close()
        await self.open()

    async def at_once(self) -> None:
        """Write in some environments while others are forked and removed."""
        names = self.random.sample(sorted(self.logs), min(4, len(self.logs)))
        work = [self.append(name) for name in names[:1]]
        work += [self.judge(name) for name in names[1:2]]
        work += [self.fork(name) for name in names[2:3]]
        for name in names[3:]:
            del self.logs[name]
            work.append(self.driver.remove_environment(_key(name)))
        await asyncio.gather(*work)

    async def check(self) -> None:
        """Raise unless an environment has the lines that it should have."""
        name = self.any()
        said = await self.run(name, "cat log")
        assert said.split() == self.logs[name], name

    async def end(self) -> None:
        """Check and remove everything."""
        for name in sorted(self.logs):
            assert (await self.run(name, "cat log")).split() == self.logs[name], name
        await asyncio.gather(*(self.driver.remove_environment(_key(name)) for name in self.logs))
        for name in self.snapshots:
            await self.driver.drop_snapshot("lab", name)
        await self.driver.close()


def _key(name: str) -> TrajectoryKey:
    return TrajectoryKey(f"lab/{name}")


def _mounts(state: Path) -> list[str]:
    """Return the mounts of this namespace at or of a state directory."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if str(state) in line]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("isolation", isolations())
async def test_any_interleaving_keeps_all_files_and_leaves_nothing(
    tmp_path: Path, isolation: str, seed: int
) -> None:
    world = World(tmp_path, isolation, seed)
    await world.open()
    await world.begin()
    for _ in range(STEPS):
        await world.step()
        await world.check()
    await world.end()

    state = tmp_path / "state"
    for name in ("environments", "layers", "snapshots", "yard", "alone"):
        assert os.listdir(state / name) == [], name
    assert _mounts(state) == []
    assert str(state) not in _command_lines()


def _command_lines() -> str:
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(place.read_text(errors="replace"))
        except OSError:  # it has ended
            continue
    return "\n".join(found)
