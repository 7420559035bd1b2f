"""Images of forks are deleted once nothing begins from them, and no earlier."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from domain.decisions import ForkEnvironment
from domain.ids import TrajectoryKey
from managers.cpu.containers.fork_records import ForkRecords
from managers.cpu.containers.forking import ContainerForking

SOURCE, CHILD, OTHER = (TrajectoryKey(f"lab/trj-{number}") for number in range(3))
ORDER = ForkEnvironment(SOURCE, "n1", (CHILD,), "r1", "web-1", "copy")


class Engine:
    """An engine whose commits end when a test says so."""

    def __init__(self) -> None:
        self.kept = {"image-of-other"}
        self.committed, self.answers = asyncio.Event(), asyncio.Event()

    async def changes(self, container: str) -> set[str]:
        return {"/opt"}

    async def commit(self, container: str, labels: dict[str, str]) -> str:
        self.kept.add("image-of-fork")
        self.committed.set()
        await self.answers.wait()
        return "image-of-fork"

    async def images(self, label: str) -> list[str]:
        return sorted(self.kept)

    async def remove_image(self, image: str) -> None:
        self.kept.remove(image)


class Forking(ContainerForking):
    """Forking of one container that is paused already, without files."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self.records = ForkRecords(folder / "forks", lambda key: key.replace("/", "-"))
        self.records.begin(OTHER, "image-of-other")
        self.copying = asyncio.Event()
        self.copied = asyncio.Event()
        self.source: Any = SimpleNamespace(container="c1", base="python:3.11", disk=None)
        environments: Any = SimpleNamespace(
            known=lambda key: self.source, all=lambda: [self.source], forks=self.records
        )
        workspaces = SimpleNamespace(of=lambda key: folder / key, remove=lambda at: None)
        site: Any = SimpleNamespace(
            engine=engine, owner="o1", directory=folder, workspaces=workspaces
        )
        living: Any = SimpleNamespace(known=lambda environment: None)
        super().__init__(site, environments, living, lambda environment: ())
        self._loop = asyncio.get_running_loop()

    @asynccontextmanager
    async def paused(self, source: Any, order: ForkEnvironment) -> AsyncIterator[Any]:
        yield self.source

    def _copy(self, order: Any, missing: Any, image: str) -> None:
        self._loop.call_soon_threadsafe(self.copying.set)
        asyncio.run_coroutine_threadsafe(self.copied.wait(), self._loop).result(60)
        for key in missing:
            self.records.begin(key, image)


@pytest.mark.parametrize("during", ["commit", "copy"])
async def test_an_image_stays_while_a_fork_is_made_from_it(tmp_path: Path, during: str) -> None:
    engine = Engine()
    forking = Forking(tmp_path, engine)
    async with asyncio.timeout(60):
        fork = asyncio.create_task(forking.fork(ORDER))
        await engine.committed.wait()
        if during == "copy":
            engine.answers.set()
            await forking.copying.wait()
        await forking.forget(OTHER)
        assert "image-of-fork" in engine.kept
        assert ("image-of-other" in engine.kept) == (during == "commit")  # it is left for later
        engine.answers.set()
        forking.copied.set()
        await fork
    await forking.collect()
    assert engine.kept == {"image-of-fork"}
    assert forking.records.image_of(CHILD) == "image-of-fork"

    await forking.forget(CHILD)
    assert engine.kept == set()


async def test_a_record_that_is_replaced_during_a_look_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = ForkRecords(tmp_path, str)
    for name in "abc":
        records.begin(TrajectoryKey(name), f"image-{name}")
    listed = [tmp_path / ".b", *tmp_path.iterdir()]
    monkeypatch.setattr(Path, "iterdir", lambda self: iter(listed))

    assert records.images() == {"image-a", "image-b", "image-c"}
