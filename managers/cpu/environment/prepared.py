"""Prepared environments: environments of an image that wait for a trajectory, as many as their pool asks for.

The pool's configuration names them (``warm: {"swe:1": 8}``, for each node); a node's setting ``environment_warm``
(``TANGRAM_ENVIRONMENT_WARM=swe:1=8,tools:2=2``) has precedence for the images that it names. The image ``""`` is none:
environments upon the base of the node.

A prepared environment has all that an environment has: its range of uids, its record, its layer, control groups, and an
init that runs. Opening a trajectory renames its folder into place (`take`), gives it the trajectory's name and limits
(`managers.cpu.environment.starting`), and another is prepared. Waiting ones use memory, which is measured and limited,
and reserve none. They are folders of actions without a trajectory, so a driver that opens deletes those of its
predecessor; their processes have no record, so it ends these as well.

One whose name has got another image meanwhile is not used but deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from domain.action import EnvironmentSpec
from domain.errors import InvalidRequest, TangramError
from domain.ids import ActionId
from domain.ports.images import WarmFacts
from managers.cpu.environment.kept import KeptEnvironment
from managers.cpu.environment.starting import NO_TRAJECTORY, EnvironmentStarter
from managers.cpu.tree.trees import Trees
from managers.cpu.workspaces import Workspaces

#: Name of a folder that waits.
_WAITING: Final = ActionId("warm")
#: Pause before another attempt after a failure: an image that is not there yet.
_PAUSE_SECONDS: Final = 5.0
_log = logging.getLogger(__name__)


class _Prepared(NamedTuple):
    """One that waits."""

    digest: str
    environment: KeptEnvironment


class PreparedEnvironments:
    """The prepared environments of one driver."""

    def __init__(
        self,
        declared: Mapping[str, int],
        trees: Trees,
        workspaces: Workspaces,
        starter: EnvironmentStarter,
        receive: Callable[[str, KeptEnvironment], None],
        pause_seconds: float = _PAUSE_SECONDS,
    ) -> None:
        """``declared``: by the node's setting. ``receive`` gets each that is taken, with the name of its new folder."""
        self._declared = dict(declared)
        self._wanted = {image: number for image, number in declared.items() if number}
        self._trees, self._workspaces = trees, workspaces
        self._starter, self._receive = starter, receive
        self._pause_seconds = pause_seconds
        self._waiting: defaultdict[str, deque[_Prepared]] = defaultdict(deque)
        self._taken: Counter[str] = Counter()
        self._made: Counter[str] = Counter()
        self._problems: dict[str, str] = {}
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._short = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._closed = False
        self._ending: set[asyncio.Task[None]] = set()

    def keep_warm(self, wanted: Mapping[str, int]) -> None:
        """Keep so many from now on, image → number; the node's own setting has precedence."""
        both = {**wanted, **self._declared}
        self._wanted = {image: number for image, number in both.items() if number}
        self._wake()

    def take(self, image: str, place: Path) -> bool:
        """Move a prepared environment of ``image`` to ``place``, which does not exist; return whether there was one.

        May be called from any thread.
        """
        while (found := self._next(image)) is not None:
            folder = found.environment.directory
            try:
                if self._digest(image) != found.digest or found.environment.ended:
                    self._discard_soon(found)
                    continue
                folder.rename(place)
            except (OSError, TangramError) as error:
                _log.warning("a prepared environment of %r could not be used: %s", image, error)
                self._discard_soon(found)
                continue
            self._receive(place.name, found.environment)
            self._taken[image] += 1
            return True
        return False

    def begin(self) -> None:
        """Prepare what is wanted from now on, in the background."""
        self._loop = asyncio.get_running_loop()
        self._running = self._loop.create_task(self._run(), name="prepared environments")

    async def _run(self) -> None:
        """Prepare missing ones until it is closed, one after another, as actions have priority."""
        while not self._closed:
            self._short.clear()
            self._drop_surplus()
            wanted = dict(self._wanted)
            for image, number in wanted.items():
                while self._is_short(image, number) and await self._prepare(image):
                    if self._wanted != wanted:
                        break
            if self._closed:
                break
            is_full = all(self._kept(image) >= number for image, number in wanted.items())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if is_full else self._pause_seconds):
                    await self._short.wait()

    async def close(self) -> None:
        """Prepare no more, and end all that wait. Their folders are deleted at the next start."""
        self._closed = True
        self._short.set()
        if self._running is not None:
            # It is not cancelled: a sandbox that is being spawned would be left behind.
            await asyncio.wait({self._running})
        self._wanted.clear()
        with self._lock:
            left = [each for kept in self._waiting.values() for each in kept]
            self._waiting.clear()
        await asyncio.gather(*(each.environment.end("the node has ended") for each in left))
        if self._ending:
            await asyncio.wait(self._ending)

    def facts(self, image: str) -> WarmFacts:
        """Return what is kept of an image."""
        waiting = list(self._waiting.get(image, ()))
        return WarmFacts(
            self._wanted.get(image, 0), len(waiting), self._taken[image], self._made[image],
            self._problems.get(image, ""), sum(_memory_of(each.environment) for each in waiting),
        )  # fmt: skip

    def warm_facts(self) -> dict[str, WarmFacts]:
        """Return what is kept of each image that is wanted, or was since the start."""
        return {image: self.facts(image) for image in sorted({*self._wanted, *self._made})}

    def _is_short(self, image: str, number: int) -> bool:
        return not self._closed and self._kept(image) < number

    def _kept(self, image: str) -> int:
        return len(self._waiting.get(image, ()))

    def _next(self, image: str) -> _Prepared | None:
        with self._lock:
            if not self._waiting.get(image):
                return None
            found = self._waiting[image].popleft()
        self._wake()
        return found

    def _drop_surplus(self) -> None:
        """Delete those that have ended, and those beyond what is wanted."""
        dropped: list[_Prepared] = []
        with self._lock:
            for image, waiting in self._waiting.items():
                kept: deque[_Prepared] = deque()
                for each in waiting:
                    fits = not each.environment.ended and len(kept) < self._wanted.get(image, 0)
                    (kept if fits else dropped).append(each)
                self._waiting[image] = kept
        for each in dropped:
            self._discard_soon(each)

    async def _prepare(self, image: str) -> bool:
        try:
            made = await self._made_one(image)
        except (OSError, TangramError, subprocess.SubprocessError) as error:
            if self._problems.get(image) != str(error):
                _log.warning("an environment of %r could not be prepared: %s", image, error)
            self._problems[image] = str(error)
            return False
        self._problems.pop(image, None)
        self._made[image] += 1
        with self._lock:
            self._waiting[image].append(made)
        return True

    async def _made_one(self, image: str) -> _Prepared:
        if image:
            await self._trees.arrivals.ensure(image)
        digest = self._digest(image)
        folder = await asyncio.to_thread(self._workspaces.alone, _WAITING)
        spec = EnvironmentSpec(image or None)
        try:
            await asyncio.to_thread(self._starter.furnish, folder, spec)
            environment = await self._starter.start(folder, NO_TRAJECTORY, spec)
        except BaseException:
            await asyncio.to_thread(self._workspaces.remove, folder)
            self._starter.release(folder.name)
            raise
        finally:
            # It has another name when it is used.
            self._trees.forget(folder.name)
        ended = environment.on_end

        def on_end(each: KeptEnvironment) -> None:
            ended(each)
            self._wake()

        environment.on_end = on_end
        return _Prepared(digest, environment)

    def _digest(self, image: str) -> str:
        """Return what an environment of an image is upon. Raises ImageMissing, InvalidRequest."""
        if image:
            return self._trees.images.find(image).digest
        if not self._trees.everywhere:
            raise InvalidRequest("environments without an image have no tree on this node")
        return self._trees.base

    def _discard_soon(self, unused: _Prepared) -> None:
        loop = self._loop
        if loop is None:  # nothing is prepared before `run`
            return

        def begin() -> None:
            task = loop.create_task(self._discard(unused.environment))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

        loop.call_soon_threadsafe(begin)

    async def _discard(self, environment: KeptEnvironment) -> None:
        await environment.end("it is not needed")
        await asyncio.to_thread(self._workspaces.remove, environment.directory)
        self._starter.release(environment.name)

    def _wake(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._short.set)


def _memory_of(environment: KeptEnvironment) -> int:
    group = environment.limits.memory
    return 0 if group is None else group.usage_bytes()
