"""Run of one action in a container: prepare, mark, grow, execute, end leftovers, shrink, report."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from domain.action import Outcome
from domain.allocation import Allocation, UsedResources
from domain.errors import TangramError
from domain.ports import ExecResult, RunOrder, RunReport
from domain.resources import MILLI
from managers.common.start_log import StartLogWriter, WithdrawnError
from managers.cpu.command_line import CannotSpawnError
from managers.cpu.containers.cgroups import Usage, used_between
from managers.cpu.containers.container_config import kill_advice, memory_limit
from managers.cpu.containers.docker_engine import DockerNotFound
from managers.cpu.containers.environment import CpuShare, Environment
from managers.cpu.containers.environment_store import EnvironmentStore, Site
from managers.cpu.containers.exec_backends import (
    ContactLost,
    ContainerTermination,
    ExecBackend,
    Execution,
)
from managers.cpu.containers.invocation import (
    ContainerInvocation,
    build_invocation,
    declared_environment,
    needs_egress,
)
from managers.cpu.containers.living import LivingContainer
from managers.cpu.containers.living_store import LivingContainers
from managers.cpu.containers.reconcile import lose
from managers.cpu.egress.gateway import EgressGateway, EgressUnavailable
from managers.cpu.live_output import LiveOutputs
from managers.cpu.output import exec_result
from managers.cpu.reward_files import RewardFiles
from managers.cpu.workspaces import MOUNT


@dataclass(frozen=True)
class ContainerTools:
    """Objects that all runs of a driver share."""

    site: Site
    environments: EnvironmentStore
    backend: ExecBackend
    marks: StartLogWriter
    egress: EgressGateway
    outputs: LiveOutputs
    living: LivingContainers
    #: Threads of the machine's cores, by their lowest thread.
    cores: Mapping[int, frozenset[int]]
    #: The same for those that are never granted exclusively.
    shared: Mapping[int, frozenset[int]]

    def share_of(self, granted: Allocation | None) -> CpuShare:
        """Return the share of a container for granted cores: all threads of each.

        Without granted cores it may run on any, with the lowest weight. Cores that do not exist, of an
        oversubscribed node, are mapped onto real ones.
        """
        everything = frozenset().union(*self.cores.values())
        if granted is None or not granted.units:
            return CpuShare(everything, yields=True)
        known = sorted(self.cores)
        there = {**self.cores, **self.shared}
        cores = (core if core in there else known[core % len(known)] for core in granted.units)
        milli = granted.amount if granted.shared or granted.amount < MILLI else None
        return CpuShare(frozenset().union(*(there[core] for core in cores)), milli)


def reported(used: Usage | None) -> UsedResources | None:
    """Return usage as part of a result."""
    if used is None:
        return None
    return UsedResources(used.cpu_seconds, used.throttled_seconds, used.peak_memory_bytes)


#: Pauses between searches for a command that started late.
_FIRST_PAUSE_SECONDS: Final = 0.02
_LONGEST_PAUSE_SECONDS: Final = 1.0

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class ContainerRun:
    """One order being executed."""

    def __init__(self, order: RunOrder, started: Callable[[], None], tools: ContainerTools) -> None:
        self.order = order
        self._started = started
        self._tools = tools
        self._share = tools.share_of(order.allocation("cpu"))
        self._stopping: tuple[Outcome, str] | None = None
        self._stopped = asyncio.Event()
        self._environment: Environment | None = None
        self._began_at = self._ended_at = 0.0
        self._over = False
        #: None: what it leaves behind ends with it.
        self._living: LivingContainer | None = None
        self._tag = 0
        #: None: its reward needs no file.
        self._reward = RewardFiles.of(order)

    @property
    def workspace(self) -> str:
        """Name of the environment that it runs in, once it has one."""
        return "" if self._environment is None else self._environment.name

    def stop(self, outcome: Outcome, reason: str) -> None:
        """Stop it with ``outcome``, unless it has ended or is being stopped already."""
        if self._stopping is None and not self._over:
            self._stopping = outcome, reason
            self._stopped.set()

    def resize(self, allocation: Allocation) -> None:
        """Change its cores; a command that does not run yet starts with them."""
        self._share = self._tools.share_of(allocation)
        if self._environment is not None and self._began_at and not self._over:
            self._environment.shares[self.order.mark] = self._share
            self._tools.backend.resize(self._environment, self._environment.wanted(self._share))

    async def live(self) -> RunReport:
        """Run the order to its end. Raises nothing; must not be cancelled."""
        try:
            reward = self._reward
            order = self.order if reward is None else reward.announced(self.order, MOUNT)
            invocation = build_invocation(order)
            return await self._work(invocation)
        except CannotSpawnError as error:
            result = ExecResult(error.exit_code, "", f"tangram: {error}\n", truncated=False)
            return RunReport(Outcome.COMPLETED, 0.0, result)
        except WithdrawnError:
            outcome, reason = self._stopping or (Outcome.INFRA_FAILED, "withdrawn")
            return RunReport(outcome, 0.0, detail=reason, never_started=True)
        except Exception as error:
            if not isinstance(error, (OSError, TangramError)):
                _log.exception("action %s failed in the driver", self.order.id)
            detail = f"the node could not run it: {type(error).__name__}: {error}"
            return RunReport(
                Outcome.INFRA_FAILED, self._seconds(), detail=detail,
                never_started=not self._began_at,
            )  # fmt: skip

    async def _work(self, invocation: ContainerInvocation) -> RunReport:
        tools, spec = self._tools, declared_environment(self.order)
        trajectory = self.order.action.trajectory_key
        if trajectory is not None:
            environment = await self._unless_stopped(
                tools.environments.of(trajectory, spec), _nothing
            )
            return await self._in_turn(environment, invocation)
        making = tools.environments.alone(self.order.id, spec)
        try:
            environment = await self._unless_stopped(asyncio.shield(making), _nothing)
            return await self._in_turn(environment, invocation)
        finally:
            making.add_done_callback(self._discard)

    def _discard(self, made: asyncio.Future[Environment]) -> None:
        if not made.cancelled() and made.exception() is None:
            self._tools.environments.discard(made.result())

    async def _in_turn(
        self, environment: Environment, invocation: ContainerInvocation
    ) -> RunReport:
        lock = environment.lock
        if lock.locked():
            await self._unless_stopped(lock.acquire(), lock.release)
        else:
            await lock.acquire()
        try:
            if environment.lost:
                # Another attempt would fail as well, so this one does not count as never started.
                detail = f"the trajectory's environment is lost: {environment.lost}"
                return RunReport(Outcome.INFRA_FAILED, 0.0, detail=detail)
            environment.used_at = time.monotonic()
            self._environment = environment
            living = self._living = await self._tools.living.ensure(environment)
            if self.order.action.reward is None or living is None:
                return await self._act_prepared(environment, invocation)
            # A reward is judged while nothing of the agent runs beside it.
            try:
                await living.hold()
                return await self._act_prepared(environment, invocation)
            finally:
                await living.release()
        finally:
            environment.used_at = time.monotonic()
            lock.release()

    async def _act_prepared(
        self, environment: Environment, invocation: ContainerInvocation
    ) -> RunReport:
        if self._reward is None:
            return await self._with_network(environment, invocation)
        act = partial(self._with_network, environment, invocation)
        return await self._reward.around(act, environment.workspace)

    async def _with_network(
        self, environment: Environment, invocation: ContainerInvocation
    ) -> RunReport:
        """Act with the network of its environment."""
        if not needs_egress(self.order):
            return await self._act(environment, invocation)
        try:
            server = await self._tools.egress.join(
                self.order, environment.pid, environment.container
            )
        except EgressUnavailable as error:
            detail = f"the node cannot run it with network egress: {error}"
            return RunReport(Outcome.INFRA_FAILED, 0.0, detail=detail)
        try:
            return await self._act(environment, invocation)
        finally:
            await server.close()

    async def _act(self, environment: Environment, invocation: ContainerInvocation) -> RunReport:
        await self._tools.marks.add(self.order.mark)
        if self._stopping is not None:
            raise WithdrawnError
        environment.note_running(self.order.mark)
        disk = self._tools.site.disk
        disk.begin(
            environment.directory, self._tools.site.quota_of(environment), self.stop,
            environment.written, environment.processes, has_disk=environment.disk is not None,
        )  # fmt: skip
        try:
            return await self._act_watched(environment, invocation)
        finally:
            disk.end(environment.directory)
            self._watch_background(environment)

    def _watch_background(self, environment: Environment) -> None:
        """Watch its disk further while it has background processes."""
        living = self._living
        if living is None or not living.background.left:
            return

        def stop(_: Outcome, reason: str) -> None:
            ended = living.end_background()
            _log.warning("ended %d processes in the background: %s", ended, reason)

        site = self._tools.site
        site.disk.begin(
            environment.directory, site.quota_of(environment), stop, environment.written,
            environment.processes,
        )  # fmt: skip

    async def _act_watched(
        self, environment: Environment, invocation: ContainerInvocation
    ) -> RunReport:
        backend = self._tools.backend
        before = self._measure(environment)
        repairs = environment.repairs
        environment.shares[self.order.mark] = self._share
        await backend.grow(environment, environment.wanted(self._share))
        self._began_at = time.monotonic()
        try:
            try:
                if self._living is not None:
                    self._tag = self._tools.living.tagger.tag(self.order.mark)
                    self._living.tag_actions(self._tag)
                execution = await backend.begin(environment, invocation)
            except ContactLost as error:
                patience = self._tools.site.settings.patience_seconds
                return await self._lost(
                    environment, error, await backend.end(environment, patience)
                )
            streams = execution.stdout.kept, execution.stderr.kept
            try:
                with self._tools.outputs.of_run(self.order, *streams):
                    report = await self._supervise(environment, execution, before)
            finally:
                self._over = True
                execution.close()
                self._remove_pipes(environment, execution)
        finally:
            self._over = True
            await self._shrink(environment)
        return _noting(report, environment.repairs - repairs)

    async def _supervise(
        self, environment: Environment, execution: Execution, before: Usage | None
    ) -> RunReport:
        """Wait until the command ends or is stopped; end the processes it left behind."""
        tools = self._tools
        patience = tools.site.settings.patience_seconds
        self._started()
        timer = self._set_timer(self.order.action.timeout_seconds)
        stopped = asyncio.ensure_future(self._stopped.wait())
        status = execution.status
        try:
            either: set[asyncio.Future[Any]] = {status, stopped}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not status.done():
                await tools.backend.ask_to_end(environment)
                await asyncio.wait({status}, timeout=tools.site.settings.grace_seconds)
        finally:
            stopped.cancel()
            if timer is not None:
                timer.cancel()
        if status.done():
            self._ended_at = time.monotonic()
            self._over = True
        left = self._retire() if status.done() else 0
        ending = await self._end(environment, status, patience)
        if ending.remaining:
            lose(environment, f"an action left {ending.remaining}, which could not be ended")
        self._over = True
        if not status.done():
            lose(environment, "its shell answers no more")
            return self._report(None, execution, ending, None)
        if (error := status.exception()) is not None:
            return await self._lost(environment, error, ending)
        used = used_between(before, self._measure(environment))
        report = self._report(status.result(), execution, ending, used, left)
        if left and self._living is not None:
            self._living.drain(self._tag, execution.pipes)
        return report

    def _remove_pipes(self, environment: Environment, execution: Execution) -> None:
        """Delete its own pipes, unless what it left still writes to them."""
        if self._living is None or self._tag not in self._living.background.left:
            for name in execution.pipes:
                (environment.control / name).unlink(missing_ok=True)

    def _retire(self) -> int:
        """Keep what the completed command left in the background; return the number of its processes."""
        judged = self.order.action.reward is not None
        if self._living is None or self._stopping is not None or judged:
            return 0
        return self._living.retire(self._tag, self.order.id)

    async def _end(
        self, environment: Environment, status: asyncio.Future[int], patience: float
    ) -> ContainerTermination:
        """End all processes, until the shell reports the end of the command.

        A command that was stopped at once may reach the shell after the first search, which finds no
        process; the next one does.
        """
        deadline = time.monotonic() + patience
        ending = await self._tools.backend.end(environment, patience)
        pause = _FIRST_PAUSE_SECONDS
        while not status.done() and not ending.remaining and time.monotonic() < deadline:
            await asyncio.wait({status}, timeout=pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            if not status.done():
                ending = ending.then(await self._tools.backend.end(environment, patience))
        return ending

    async def _lost(
        self, environment: Environment, error: BaseException, ending: ContainerTermination
    ) -> RunReport:
        """Return the report after contact was lost, from the engine's data, never a guess (I1)."""
        self._over = True
        outcome, why = Outcome.UNKNOWN, str(error)
        try:
            facts = await self._tools.site.engine.inspect(environment.container)
            state = facts["State"]
            if not state["Running"]:
                if state.get("OOMKilled"):
                    outcome = Outcome.OOM_KILLED
                why = "its container ended while it ran"
                lose(environment, "its container ended while an action ran")
            else:
                lose(environment, f"contact with its container broke off: {error}")
        except DockerNotFound:
            why = "its container was removed while it ran"
            lose(environment, "its container was removed while an action ran")
        except TangramError as away:
            lose(environment, f"the engine went away while an action ran: {away}")
            why = f"{error}; {away}"
        if self._stopping is not None and outcome is not Outcome.OOM_KILLED:
            outcome, why = self._stopping[0], f"{self._stopping[1]}; {why}"
        if ending.remaining:
            why += f"; could not end {ending.remaining}"
        return RunReport(outcome, self._seconds(), detail=why)

    async def _shrink(self, environment: Environment) -> None:
        environment.shares.pop(self.order.mark, None)
        try:
            rest = environment.wanted(self._tools.living.share_at_rest(environment))
            await self._tools.backend.shrink(environment, rest)
        except (OSError, TangramError) as error:
            # The sweep tries again, or finds that the container has ended.
            level = logging.DEBUG if environment.lost else logging.WARNING
            _log.log(level, "%s keeps cores it should not have: %s", environment.name, error)

    def _report(
        self,
        status: int | None,
        execution: Execution,
        ending: ContainerTermination,
        used: Usage | None,
        background: int = 0,
    ) -> RunReport:
        outcome, reason = self._stopping or (Outcome.COMPLETED, None)
        notes = [reason] if reason else []
        if self._stopping is None and used is not None and used.oom_kills and status:
            outcome = Outcome.OOM_KILLED
        if used is not None and used.oom_kills:
            notes.append(self._advice(used))
        if ending.ended != 0:
            left = "" if self._stopping else " it left behind"
            noun = "process" if ending.ended == 1 else "processes"
            notes.append(f"ended {ending.ended or 'the'} {noun}{left}")
        if ending.remaining:
            notes.append(f"could not end {ending.remaining}")
        if background:
            noun = "process" if background == 1 else "processes"
            notes.append(f"left {background} {noun} in the background")
        result = exec_result(status, execution.stdout, execution.stderr, reported(used))
        return RunReport(outcome, self._seconds(), result, detail="; ".join(notes) or None)

    def _advice(self, used: Usage) -> str:
        assert self._environment is not None
        limit = memory_limit(self._environment.spec, self._tools.site.settings)
        return kill_advice(used.oom_kills, limit)

    def _measure(self, environment: Environment) -> Usage | None:
        return self._tools.backend.usage(environment)

    def _set_timer(self, timeout_seconds: float | None) -> asyncio.TimerHandle | None:
        """Measure the time-out from the start, not from the submission (I9)."""
        if timeout_seconds is None:
            return None
        remaining = self._began_at + timeout_seconds - time.monotonic()
        reason = f"execution passed timeout_seconds = {timeout_seconds:g}"
        loop = asyncio.get_running_loop()
        return loop.call_later(max(0.0, remaining), self.stop, Outcome.TIMEOUT, reason)

    def _seconds(self) -> float:
        if not self._began_at:
            return 0.0
        return (self._ended_at or time.monotonic()) - self._began_at

    async def _unless_stopped(self, wanted: Awaitable[_T], undo: Callable[[], None]) -> _T:
        """Wait for ``wanted``; when the action is stopped first, ``undo`` it and raise WithdrawnError."""
        future = asyncio.ensure_future(wanted)
        stopped = asyncio.ensure_future(self._stopped.wait())
        both: set[asyncio.Future[Any]] = {future, stopped}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        if self._stopping is None:
            return await future
        if not future.done():
            future.cancel()
        elif not future.cancelled() and future.exception() is None:
            undo()
        raise WithdrawnError


def _nothing() -> None:
    """Undo nothing: the environment stays with its trajectory."""


def _noting(report: RunReport, repairs: int) -> RunReport:
    """Return the report with a note on foreign changes of its cores while it ran."""
    if not repairs:
        return report
    times = "once" if repairs == 1 else f"{repairs} times"
    note = f"its cores were changed from outside and restored {times}"
    detail = f"{report.detail}; {note}" if report.detail else note
    return RunReport(
        report.outcome, report.execution_seconds, report.result, detail, report.never_started
    )
