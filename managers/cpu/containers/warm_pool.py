"""Warm pool: containers created in advance, so that a first action need not wait for one.

As many as the configuration of the pool names for an image (``""``: the node's default one), and a few of each image that
was requested last, by the setting of the node. Expiry and network of a container cannot be
changed later, nor can the size of its disk: it is made with a long life, without network and with the node's
default, and serves only such requests. Its memory limit is set when it is taken. Waiting containers have no
trajectory, and are deleted with the driver.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from domain.action import EnvironmentSpec
from domain.confinement import NETWORK_NONE
from domain.errors import TangramError
from domain.ports.images import WarmFacts
from managers.cpu.containers.container_config import engine_network, memory_limit
from managers.cpu.containers.docker_engine import DockerEngine
from managers.cpu.containers.environment import Environment
from managers.cpu.containers.settings import ContainerSettings

#: Lifetime of a waiting container.
LIFE_SECONDS: Final = 2 * 86_400.0
_IMAGES: Final = 4
#: Pause before another attempt after a failure: an image that the engine has not yet.
_PAUSE_SECONDS: Final = 5.0

_log = logging.getLogger(__name__)


class WarmPool:
    """Environments that wait for a trajectory."""

    def __init__(
        self,
        engine: DockerEngine,
        settings: ContainerSettings,
        clock: Callable[[], float],
        make: Callable[[EnvironmentSpec], Awaitable[Environment]],
        discard: Callable[[Environment], None],
    ) -> None:
        self._engine, self._settings, self._clock = engine, settings, clock
        self._make, self._discard = make, discard
        #: Image → waiting containers, oldest first; the image requested last is last.
        self._waiting: OrderedDict[str, list[Environment]] = OrderedDict()
        self._filling: asyncio.Task[None] | None = None
        self._again: asyncio.TimerHandle | None = None
        self._closed = False
        #: Image → number, as the pool asks for.
        self._declared: dict[str, int] = {}
        self._taken: Counter[str] = Counter()
        self._made: Counter[str] = Counter()
        self._problems: dict[str, str] = {}

    def open(self) -> None:
        """Start with the node's default image."""
        if self._settings.image and self._settings.warm:
            self._wanted(self._settings.image)

    def keep_warm(self, wanted: Mapping[str, int]) -> None:
        """Keep so many from now on, image → number, in place of the number of the node's setting."""
        named = {image or self._settings.image: number for image, number in wanted.items()}
        self._declared = {image: number for image, number in named.items() if image}
        for image in self._declared:
            self._waiting.setdefault(image, [])
        for image, waiting in self._waiting.items():
            while len(waiting) > self._number(image):
                self._discard(waiting.pop())
        self._fill()

    def warm_facts(self) -> dict[str, WarmFacts]:
        """Return what is kept, by image."""
        return {
            image: WarmFacts(
                self._number(image), len(waiting), self._taken[image], self._made[image],
                self._problems.get(image, ""),
            )
            for image, waiting in self._waiting.items()
            if self._number(image) or self._made[image]
        }  # fmt: skip

    async def close(self) -> None:
        """Create no more; waiting ones are deleted with all others without a trajectory."""
        self._closed = True
        if self._again is not None:
            self._again.cancel()
        if self._filling is not None:
            await asyncio.wait({self._filling})

    async def take(self, spec: EnvironmentSpec) -> Environment | None:
        """Return a suitable waiting container, if any. Raises TangramError."""
        image = spec.image or self._settings.image
        if not self._number(image) or engine_network(spec) != NETWORK_NONE:
            return None
        waiting = self._wanted(image)
        if spec.disk_bytes and any(each.disk is not None for each in waiting):
            return None  # their disks have the node's default size
        now = self._clock()
        while waiting:
            environment = waiting.pop(0)
            if environment.lost or environment.expires_at < now + spec.ttl_seconds:
                self._discard(environment)
                continue
            self._fill()
            limit = memory_limit(spec, self._settings)
            if limit != memory_limit(environment.spec, self._settings):
                await self._engine.update(
                    environment.container, mem_limit=limit, memswap_limit=limit
                )
            self._taken[image] += 1
            return environment
        return None

    def _wanted(self, image: str) -> list[Environment]:
        waiting = self._waiting.setdefault(image, [])
        self._waiting.move_to_end(image)
        recent = [each for each in self._waiting if each not in self._declared]
        for forgotten in recent[:-_IMAGES]:
            for environment in self._waiting.pop(forgotten):
                self._discard(environment)
        self._fill()
        return waiting

    def _fill(self) -> None:
        if not self._closed and self._filling is None and self._short() is not None:
            self._filling = asyncio.create_task(self._keep_full())

    def _number(self, image: str) -> int:
        return self._declared.get(image, self._settings.warm)

    async def _keep_full(self) -> None:
        """Create missing containers, one after another: actions have priority."""
        image = None
        try:
            while not self._closed and (image := self._short()) is not None:
                spec = EnvironmentSpec(image=image, ttl_seconds=LIFE_SECONDS)
                environment = await self._make(spec)
                self._made[image] += 1
                self._problems.pop(image, None)
                if len(self._waiting.get(image, ())) < self._number(image):
                    self._waiting.setdefault(image, []).append(environment)
                else:
                    self._discard(environment)
        except (TangramError, OSError) as error:
            _log.warning("the warm pool could not create a container: %s", error)
            self._problems[image or ""] = str(error)
            loop = asyncio.get_running_loop()
            self._again = loop.call_later(_PAUSE_SECONDS, self._fill)
        finally:
            self._filling = None

    def _short(self) -> str | None:
        """Return an image that has too few; one that failed last comes after all others."""
        short = [
            image for image, waiting in reversed(self._waiting.items())
            if image and len(waiting) < self._number(image)
        ]  # fmt: skip
        return min(short, key=lambda image: image in self._problems, default=None)
