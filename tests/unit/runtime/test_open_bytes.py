"""Requests of one owner wait while theirs that are open have too many bytes; those of another do not."""

from __future__ import annotations

import asyncio

from scheduler.runtime.open_bytes import OpenBytes


class Requests:
    """Requests that are open until they are ended."""

    def __init__(self) -> None:
        self.bytes = OpenBytes(10)
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, name: str, size: int, owner: str = "p") -> None:
        """Begin one."""
        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._open(name, size, owner))
        await asyncio.sleep(0)

    async def _open(self, name: str, size: int, owner: str) -> None:
        async with self.bytes.room(owner, size):
            self.begun.append(name)
            await self._ends[name].wait()

    async def end(self, name: str) -> None:
        """End one, and let those that wait begin."""
        self._ends[name].set()
        await asyncio.wait({self.tasks[name]})
        await asyncio.sleep(0)


async def test_requests_wait_for_room_in_their_order():
    requests = Requests()
    for name, size in (("a", 6), ("b", 4), ("c", 5), ("d", 1)):
        await requests.begin(name, size)
    await requests.begin("other", 9, owner="q")
    assert requests.begun == ["a", "b", "other"]
    await requests.end("b")
    assert requests.begun == ["a", "b", "other"]
    await requests.end("a")
    assert requests.begun == ["a", "b", "other", "c", "d"]


async def test_one_that_is_alone_has_room_however_large():
    requests = Requests()
    await requests.begin("large", 99)
    await requests.begin("small", 1)
    assert requests.begun == ["large"]
    await requests.end("large")
    assert requests.begun == ["large", "small"]


async def test_one_that_is_given_up_keeps_no_room():
    requests = Requests()
    await requests.begin("a", 10)
    await requests.begin("b", 10)
    await requests.begin("c", 10)
    requests.tasks["b"].cancel()
    requests.tasks["a"].cancel()
    await asyncio.wait({requests.tasks["a"], requests.tasks["b"]})
    await asyncio.sleep(0)
    assert requests.begun == ["a", "c"]


async def test_nothing_is_kept_of_an_owner_without_requests():
    requests = Requests()
    await requests.begin("a", 10)
    await requests.begin("b", 10)
    await requests.end("a")
    await requests.end("b")
    assert not requests.bytes._open
    assert not requests.bytes._waiting
