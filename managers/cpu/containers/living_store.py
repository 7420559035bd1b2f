"""Living containers of one driver: which containers have an init, and which may get one.

A container gets its init before its first action, or when a session is opened. Both hold the lock of its actions: the
first process starts the init, and takes one command at a time. Where actions run through the engine there is no shell
that is kept open, so there is no init, and sessions are refused with the way to have them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from signal import Signals
from typing import Final, NamedTuple

from domain.action import EnvironmentSpec
from domain.confinement import NETWORK_EGRESS
from domain.errors import Conflict, NotFound, Unavailable
from domain.ids import TrajectoryKey
from domain.ports.processes import EndSignal, ProgramFacts
from managers.cpu.containers.cgroup_backend import apply
from managers.cpu.containers.environment import CpuShare, Environment
from managers.cpu.containers.environment_store import EnvironmentStore
from managers.cpu.containers.living import (
    LivingContainer,
    adopt_living,
    begin_living,
    kill,
    recognised,
)
from managers.cpu.environment.adoption import InitRecord
from managers.cpu.environment.protocol import EnvironmentLost, NoEnvironment, RewardRuns
from managers.cpu.environment.store import facts_of
from managers.cpu.process.process_tag import ProcessTagger

NO_INIT: Final = (
    "this node runs the actions of containers through the engine, which keeps no sessions: let its worker write"
    " the control groups of containers (root, and an engine on the same machine), or use bubblewrap"
)

_log = logging.getLogger(__name__)


class RestingShares(NamedTuple):
    """Shares of containers in which no action runs."""

    #: Nothing runs in it.
    parked: CpuShare
    #: Programs run in it.
    occupied: CpuShare


class LivingContainers:
    """The living containers of one driver (`Environments`)."""

    def __init__(
        self,
        environments: EnvironmentStore,
        tagger: ProcessTagger,
        on_end: Callable[[str], None],
        shares: RestingShares,
        *,
        possible: bool,
    ) -> None:
        """``on_end`` is called with the name of one that has ended; ``possible``: see the module."""
        self._shares = shares
        self.tagger = tagger
        self._environments = environments
        self._on_end = on_end
        self._possible = possible
        self._living: dict[str, LivingContainer] = {}

    async def open(self, trajectory: TrajectoryKey, spec: EnvironmentSpec) -> LivingContainer:
        """Return a trajectory's environment, whose container is created if missing. Raises Conflict for egress."""
        if not self._possible:
            raise Unavailable(NO_INIT)
        if spec.network == NETWORK_EGRESS:
            # Each of its commands has a proxy of its own, which ends with it.
            raise Conflict(
                "with network egress nothing lasts between the actions of an environment, so it has no"
                " sessions: declare network none, or run the command without a session",
                code="not_kept",
            )
        environment = await self._environments.of(trajectory, spec)
        known = self.known(environment)
        if known is not None:
            with contextlib.suppress(OSError):  # it has ended, which the caller finds
                self._occupy(environment)
            return known
        async with environment.lock:
            if environment.lost:
                raise Unavailable(f"the trajectory's environment is lost: {environment.lost}")
            try:
                self._occupy(environment)
                return await self._begin(environment)
            except (EnvironmentLost, OSError) as error:
                raise Unavailable(f"its container cannot keep programs: {error}") from error

    async def ensure(self, environment: Environment) -> LivingContainer | None:
        """Return the living container of an environment whose lock is held; None where it can be none."""
        egress = environment.spec.network == NETWORK_EGRESS
        if egress or not self._possible or not environment.trajectory:
            return None
        try:
            return await self._begin(environment)
        except (EnvironmentLost, OSError) as error:
            _log.warning("%s keeps no programs between actions: %s", environment.name, error)
            return None

    def share_at_rest(self, environment: Environment) -> CpuShare:
        """Return the share of a container in which no action runs."""
        living = self.known(environment)
        occupied = living is not None and living.is_occupied()
        return self._shares.occupied if occupied else self._shares.parked

    def rest(self, environment: Environment) -> None:
        """Give a container the share of what still acts in it, or that of rest."""
        with contextlib.suppress(OSError):  # it has ended
            apply(environment, environment.wanted(self.share_at_rest(environment)))

    def known(self, environment: Environment) -> LivingContainer | None:
        """Return the living container of an environment, if it lives."""
        living = self._living.get(environment.name)
        return None if living is None or living.ended else living

    def of(self, trajectory: TrajectoryKey) -> LivingContainer:
        """Return the running environment of a trajectory. Raises NoEnvironment."""
        for living in self.all():
            if living.trajectory == trajectory:
                return living
        if not self._possible:
            raise Unavailable(NO_INIT)
        raise NoEnvironment(trajectory)

    def all(self) -> list[LivingContainer]:
        """Return those that live."""
        return [each for each in self._living.values() if not each.ended]

    def recognise(self, environment: Environment) -> InitRecord | None:
        """Keep what a predecessor's init runs in a found container, from now on; return its record."""
        record = recognised(environment, self.tagger) if self._possible else None
        if record is not None:
            environment.spec = record.spec
            known = {self.tagger.environment_tag(environment.name), *record.background}
            environment.keeps = lambda pid: pid == record.pid or self.tagger.read(pid) in known
        return record

    async def adopt(self, environment: Environment, record: InitRecord) -> None:
        """Take over a recognised init; one that does not answer is ended."""
        try:
            living = await adopt_living(environment, self.tagger, record, self._forget)
        except (EnvironmentLost, OSError) as error:
            _log.warning("programs of %s are ended: %s", environment.name, error)
            environment.keeps = None
        else:
            self._living[environment.name] = living

    def check_not_judged(self, trajectory: TrajectoryKey) -> None:
        """Raise RewardRuns while a reward command runs in the container of a trajectory."""
        if any(each.judged for each in self.all() if each.trajectory == trajectory):
            raise RewardRuns

    def sweep(self) -> list[LivingContainer]:
        """End background processes above their TTL; return the environments that have none any more."""
        quiet = []
        for living in self.all():
            if living.background.left:
                living.sweep()
                if not living.background.left:
                    self.rest(living.environment)
                    quiet.append(living)
        return quiet

    def list_processes(self, trajectory: TrajectoryKey) -> list[ProgramFacts]:
        """Return the programs of a trajectory's environment. Raises NoEnvironment, Unavailable."""
        return [facts_of(each) for each in self.of(trajectory).processes()]

    def end_process(
        self, trajectory: TrajectoryKey, pid: int, by: EndSignal = "SIGKILL"
    ) -> ProgramFacts:
        """Send a signal to a program. Raises NoEnvironment, NotFound, Unavailable."""
        for each in self.of(trajectory).processes():
            if each.inner_pid == pid:
                kill(each.pid, Signals[by])
                return facts_of(each)
        raise NotFound(f"no program {pid} runs in the environment")

    def close(self) -> None:
        """Leave all of them to the next worker."""
        for each in self.all():
            each.leave()
        self._living.clear()

    def _occupy(self, environment: Environment) -> None:
        """Let programs start in a container. Raises OSError."""
        apply(environment, environment.wanted(self._shares.occupied))

    async def _begin(self, environment: Environment) -> LivingContainer:
        known = self.known(environment)
        if known is None:
            known = await begin_living(environment, self.tagger, self._forget)
            self._living[environment.name] = known
        return known

    def _forget(self, living: LivingContainer) -> None:
        if self._living.get(living.name) is living:
            del self._living[living.name]
        self._on_end(living.name)
