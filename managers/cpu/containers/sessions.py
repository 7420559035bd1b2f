"""Sessions of containers: how the container driver opens them, and runs actions in them.

The processes of a session have a tag of their own, by which they outlive actions and are listed. While an action runs
in a session the whole container has the granted cores, as it has for every action; beside another action of the same
trajectory it has the cores of both. At rest an environment with programs runs on the shared cores with the lowest
weight.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from domain.action import EnvironmentSpec
from domain.allocation import Allocation
from domain.errors import Unavailable
from domain.ids import TrajectoryKey
from domain.ports import RunOrder
from managers.common.removals import Removals
from managers.cpu.containers.cgroup_backend import apply
from managers.cpu.containers.cgroups import used_between
from managers.cpu.containers.container_config import kill_advice, memory_limit
from managers.cpu.containers.environment import Environment, together
from managers.cpu.containers.living import LivingContainer
from managers.cpu.environment.protocol import LivingEnvironment
from managers.cpu.sessions.host import SessionHost
from managers.cpu.sessions.run import SessionRun, SessionTools
from managers.cpu.sessions.serving import SessionPlaces, SessionService

if TYPE_CHECKING:
    from managers.cpu.containers.run import ContainerTools


class ContainerSessions:
    """The sessions of one container driver."""

    def __init__(self, removals: Removals) -> None:
        self._removals = removals
        self._host = SessionHost()
        self._tools: ContainerTools | None = None
        places = SessionPlaces(self._find, self._open, _no_variables, self._tag)
        self.service = SessionService(self._host, places)

    async def begin(self, tools: ContainerTools) -> None:
        """Take over the sessions of a predecessor, in the containers that were adopted."""
        self._tools = tools
        for living in tools.living.all():
            tools.living.rest(living.environment)
            await self._host.adopt(living)

    def start(self, order: RunOrder, started: Callable[[], None]) -> SessionRun:
        """Return the run of an action in a session."""
        tools = self._open_tools()

        def cores_of(environment: LivingEnvironment) -> ContainerCores:
            assert isinstance(environment, LivingContainer)
            return ContainerCores(environment, order.mark, tools)

        @contextmanager
        def watched(run: SessionRun, environment: LivingEnvironment) -> Iterator[None]:
            assert isinstance(environment, LivingContainer)
            of = environment.environment
            disk = tools.site.disk
            quota = tools.site.quota_of(of)
            has_disk = of.disk is not None
            disk.begin(of.directory, quota, run.stop, of.written, of.processes, has_disk=has_disk)
            try:
                yield
            finally:
                disk.end(of.directory)

        shared = SessionTools(
            self._host, self._find, cores_of,
            lambda mark, withdrawn: tools.marks.after(mark, _nothing, withdrawn),
            tools.outputs, watched, tools.site.settings.grace_seconds, self._watch_kills,
        )  # fmt: skip
        return SessionRun(order, started, shared)

    def _watch_kills(self, living: LivingEnvironment) -> Callable[[], str]:
        """Watch the control group of a container."""
        assert isinstance(living, LivingContainer)
        environment, tools = living.environment, self._open_tools()
        before = tools.backend.usage(environment)

        def since() -> str:
            used = used_between(before, tools.backend.usage(environment))
            if used is None or not used.oom_kills:
                return ""
            return kill_advice(used.oom_kills, memory_limit(environment.spec, tools.site.settings))

        return since

    def idle_shells(self, environment: Environment) -> Collection[int]:
        """Return the host ids of shells that run no command, and of keepers."""
        return self._host.idle_shells(environment.name)

    def forget(self, environment: str) -> None:
        """Forget the sessions of an environment that has ended."""
        self._host.forget(environment)

    def close(self) -> None:
        """Close all descriptors; sessions end with their containers, or wait for the next worker."""
        self._tools = None
        self._host.release()

    def _open_tools(self) -> ContainerTools:
        if self._tools is None:
            raise Unavailable("the driver is closed")
        return self._tools

    def _find(self, trajectory: TrajectoryKey) -> LivingContainer:
        return self._open_tools().living.of(trajectory)

    async def _open(self, trajectory: TrajectoryKey, spec: EnvironmentSpec) -> LivingContainer:
        async with self._removals.using(trajectory):
            return await self._open_tools().living.open(trajectory, spec)

    def _tag(self, environment: LivingEnvironment, name: str) -> int:
        return self._open_tools().living.tagger.tag(f"session {environment.name} {name}")


class ContainerCores:
    """The granted cores of one action in a session."""

    def __init__(self, living: LivingContainer, mark: str, tools: ContainerTools) -> None:
        self._environment = living.environment
        self._mark = mark
        self._tools = tools

    def act(self, pids: Sequence[int], allocation: Allocation | None) -> None:
        """Give the container the granted cores, also after a resize."""
        environment = self._environment
        environment.shares[self._mark] = self._tools.share_of(allocation)
        with suppress(OSError):  # the container has ended
            apply(environment, together(environment.shares.values()))

    def rest(self) -> None:
        """Take them back."""
        self._environment.shares.pop(self._mark, None)
        self._tools.living.rest(self._environment)


def _no_variables(_: LivingEnvironment) -> Mapping[str, str]:
    """Return nothing: the init has those of its image, and its programs inherit them."""
    return {}


def _nothing() -> None:
    """Start nothing: the mark alone is written."""
