"""Sessions of kept environments: how the process driver opens them, and runs actions in them.

The processes of a session have a tag of their own, so the list of processes names the session as their owner. An
action moves the session's shell to its granted cores, and what is left there to the shared ones at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from domain.action import EnvironmentSpec
from domain.allocation import Allocation
from domain.confinement import NETWORK_EGRESS
from domain.errors import Unavailable
from domain.ids import TrajectoryKey
from domain.ports import RunOrder
from managers.common.removals import Removals
from managers.cpu.egress.gateway import VARIABLES, EgressUnavailable
from managers.cpu.environment.kept import KeptEnvironment
from managers.cpu.environment.protocol import LivingEnvironment
from managers.cpu.memory_groups import watch_kills
from managers.cpu.process.invocation import PATH, environment_of
from managers.cpu.sessions.host import SessionHost
from managers.cpu.sessions.process_looks import descendants
from managers.cpu.sessions.run import SessionRun, SessionTools
from managers.cpu.sessions.serving import SessionPlaces, SessionService

if TYPE_CHECKING:
    from managers.cpu.environment.store import KeptEnvironments
    from managers.cpu.process.run import ProcessTools

_NONE_KEPT: Final = (
    "this node keeps no environments, so it has no sessions: its commands run without bubblewrap"
)


class ProcessSessions:
    """The sessions of one process driver."""

    def __init__(self, removals: Removals) -> None:
        self._removals = removals
        self._host = SessionHost()
        self._tools: ProcessTools | None = None
        places = SessionPlaces(self._find, self._open, _variables, self._tag)
        self.service = SessionService(self._host, places)

    async def begin(self, tools: ProcessTools) -> None:
        """Take over the sessions of a predecessor, in the environments that were adopted."""
        self._tools = tools
        if tools.environments is not None:
            for environment in tools.environments.all():
                await self._host.adopt(environment)

    def start(self, order: RunOrder, started: Callable[[], None]) -> SessionRun:
        """Return the run of an action in a session."""
        tools = self._tools
        assert tools is not None
        tag = tools.tagger.tag(order.mark)

        def cores_of(environment: LivingEnvironment) -> KeptCores:
            assert isinstance(environment, KeptEnvironment)
            return KeptCores(environment, tag, tools.builder.cpus_of, tools.builder.cpus)

        @contextmanager
        def watched(run: SessionRun, environment: LivingEnvironment) -> Iterator[None]:
            declared = environment_of(order).disk_bytes
            assert isinstance(environment, KeptEnvironment)
            folder = environment.directory
            has_disk = bool(tools.workspaces.disk_bytes(folder))
            tools.disk.begin(
                folder, declared, run.stop, processes=environment.pids, has_disk=has_disk
            )
            try:
                yield
            finally:
                tools.disk.end(folder)

        def ready(mark: str, withdrawn: Callable[[], bool]) -> asyncio.Future[None]:
            trajectory = order.action.trajectory_key
            assert trajectory is not None
            environment = self._find(trajectory)
            marked = partial(tools.launcher.mark, mark, withdrawn)
            if environment.spec.network != NETWORK_EGRESS:
                return marked()
            return asyncio.ensure_future(_with_egress(tools, environment, order, marked))

        shared = SessionTools(
            self._host, self._find, cores_of, ready, tools.outputs, watched,
            tools.grace_seconds, _watch_kills,
        )  # fmt: skip
        return SessionRun(order, started, shared)

    def idle_shells(self, environment: LivingEnvironment) -> Collection[int]:
        """Return the host ids of shells that are idle and will re-enter their directory, and of keepers."""
        return self._host.idle_shells(environment.name)

    async def refresh_directories(self, environment: LivingEnvironment) -> None:
        """Let idle shells re-enter their directory, after the root was switched."""
        for each in self._host.idle(environment.name):
            await each.refresh_directory()

    def forget(self, environment: str) -> None:
        """Forget the sessions of an environment that has ended."""
        self._host.forget(environment)

    def close(self) -> None:
        """Close all descriptors; sessions end with their environments, or wait for the next worker."""
        self._tools = None
        self._host.release()

    def _kept(self) -> KeptEnvironments:
        if self._tools is None or self._tools.environments is None:
            raise Unavailable(_NONE_KEPT)
        return self._tools.environments

    def _find(self, trajectory: TrajectoryKey) -> KeptEnvironment:
        return self._kept().of(trajectory)

    async def _open(self, trajectory: TrajectoryKey, spec: EnvironmentSpec) -> KeptEnvironment:
        async with self._removals.using(trajectory):
            return await self._kept().open(trajectory, spec)

    def _tag(self, environment: LivingEnvironment, name: str) -> int:
        if self._tools is None:
            raise Unavailable(_NONE_KEPT)
        return self._tools.tagger.tag(f"session {environment.name} {name}")


class KeptCores:
    """The granted cores of one action in a kept environment."""

    def __init__(
        self,
        environment: KeptEnvironment,
        tag: int,
        cpus_of: Callable[[Allocation], frozenset[int]],
        all_cpus: Sequence[int],
    ) -> None:
        self._environment = environment
        self._tag = tag
        self._cpus_of = cpus_of
        self._all = frozenset(all_cpus)
        self._acting: list[int] = []

    def act(self, pids: Sequence[int], allocation: Allocation | None) -> None:
        """Run these processes, and what they start, on the granted cores; also after a resize."""
        cpus = self._all if allocation is None else self._cpus_of(allocation)
        self._acting = list(pids)
        with suppress(OSError):  # it has ended
            self._environment.act(self._tag, pids, cpus)

    def rest(self) -> None:
        """Run all that is left of them on the shared cores again."""
        found = self._acting
        if self._environment.limits.cores is None:
            found = [each for pid in found for each in (pid, *descendants(pid))]
        with suppress(OSError):
            self._environment.rest(self._tag, found)


async def _with_egress(
    tools: ProcessTools,
    environment: KeptEnvironment,
    order: RunOrder,
    marked: Callable[[], asyncio.Future[None]],
) -> None:
    """Write the start mark of an action, once its environment reaches what its pool allows."""
    try:
        await tools.networks.serve(environment, order)
    except EgressUnavailable as error:
        raise Unavailable(f"the node cannot run it with network egress: {error}") from error
    await marked()


def _watch_kills(environment: LivingEnvironment) -> Callable[[], str]:
    """Watch the memory group of an environment."""
    assert isinstance(environment, KeptEnvironment)
    return watch_kills(environment.limits.memory)


def _variables(environment: LivingEnvironment) -> dict[str, str]:
    """Return the variables of every program of an environment."""
    assert isinstance(environment, KeptEnvironment)
    base = {"HOME": environment.home, "PATH": PATH, "LANG": "C.UTF-8"}
    proxy = VARIABLES if environment.spec.network == NETWORK_EGRESS else {}
    return {**base, **environment.variables, **proxy}
