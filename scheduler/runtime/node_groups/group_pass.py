"""One pass over a node group: what is listed, what is wanted, and the steps between."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from contract.node_group_reports import InstanceReport, NodeGroupEstimate, NodeGroupReport
from contract.pool_demands import PoolDemand
from contract.responses import rfc3339
from contract.status import NodeLoad
from domain.errors import TangramError
from domain.events import Event, NodeFenced, NodeForgetAsked
from domain.inventory import Config
from domain.node_groups import NodeGroupSpec
from managers.launch.launcher import (
    Instance,
    InstanceState,
    LaunchError,
    LaunchOrder,
    LaunchRefused,
    MachinesSilent,
    NodeLauncher,
    fingerprint_of,
    launches_at_once_of,
    reach_of,
)
from managers.launch.plan import NodeWork, Steps, is_outdated, plan
from scheduler.runtime.node_groups.pool_sight import ComingNodes, GroupSight, shape_of
from scheduler.runtime.node_groups.ports import (
    FindLauncher,
    GroupSize,
    MakeWorkerCommand,
    NodeDrains,
    WantedNodes,
)
from scheduler.runtime.node_groups.starts import NodeStarts

log = logging.getLogger(__name__)

#: Pauses between launches after a failure, doubled up to the second.
FIRST_PAUSE_SECONDS: Final = 5.0
LONGEST_PAUSE_SECONDS: Final = 300.0
#: An engine that fails for so long is given up, if its group is deleted or has another one.
GIVE_UP_SECONDS: Final = 600.0
#: Launches of one pass: the next pass sees what became of them.
_MOST_LAUNCHES: Final = 16
#: Between two questions to a launcher about its engine.
CHECK_SECONDS: Final = 60.0

Store = Callable[[str, NodeGroupReport], Awaitable[None]]
Append = Callable[[list[Event]], Awaitable[None]]


def because(group: str) -> str:
    """Return the beginning of the reason of a drain that the keeper made. It is stored: do not change it."""
    return f"node group {group}: "


@dataclass(frozen=True)
class KeeperPorts:
    """What passes use."""

    #: Tells several Tangrams on one engine apart.
    installation: str
    find_launcher: FindLauncher
    command: MakeWorkerCommand
    drains: NodeDrains
    store: Store
    append: Append
    wanted: WantedNodes


@dataclass(frozen=True)
class Surroundings:
    """What all passes of one moment have in common."""

    loads: Mapping[str, NodeLoad]
    #: Node → reason of its drain.
    drains: Mapping[str, str]
    #: What waits, by pool; without a pool that the scheduler did not answer about.
    demands: Mapping[str, PoolDemand] = field(default_factory=dict)
    #: Group → its nodes on the way. Each pass writes those of its group: another one does not ask for nodes for the same actions.
    coming: dict[str, ComingNodes] = field(default_factory=dict)
    #: Pool → its groups with bounds.
    peers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    #: Pool → seconds of silence after which the actions of its nodes end.
    grace_of: Callable[[str], float] = Config().grace_of


@dataclass
class GroupPass:
    """The passes over one group."""

    name: str
    ports: KeeperPorts
    report: NodeGroupReport
    _launcher: NodeLauncher | None = None
    _made_of: tuple[str, Mapping[str, str]] | None = None
    _pause_seconds: float = 0.0
    _launches_at: float = 0.0
    _fails_since: float | None = None
    #: Node → incarnation whose work was ended.
    _fenced: dict[str, int] = field(default_factory=dict)
    _size: GroupSize | None = None
    _starts: NodeStarts = field(default_factory=NodeStarts)
    _check_at: float = 0.0
    #: Why the last launch failed; shown until the next one is tried.
    _launch_error: str = ""
    #: Handles of instances that failed before their nodes joined, and whether none has joined since.
    _failed: set[str] = field(default_factory=set)
    _is_failing: bool = False
    _fingerprint: str = ""
    #: Instance of a silent node, and its start → since when.
    _silent: dict[tuple[str, str, str, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        estimate = self.report.estimate
        if estimate is not None and estimate.start_seconds:  # what the keeper before has measured
            self._starts.seconds = estimate.start_seconds
        # Also while the engine does not answer yet.
        if self.report.spec.count is not None:
            self.report.wanted = self.report.spec.count

    async def run(self, declared: NodeGroupSpec | None, around: Surroundings, now: float) -> bool:
        """Make a pass; ``declared`` is None for a deleted group, ``now`` a monotonic clock.

        Returns whether the group is over: deleted, and nothing is left of it. Raises Fenced, RedisError.
        """
        self.report.error = ""
        try:
            if declared is not None and declared.engine == self.report.spec.engine:
                self.report.spec = declared
            instances = await self._listed()
            await self._check_engine(now)
            if declared is not None and not instances:
                self.report.spec = declared
            spec = self.report.spec
            is_leaving = declared is None or spec.engine != declared.engine
            fingerprint = fingerprint_of(spec, self._reach())
            self._describe(spec, instances, around, fingerprint)
            if self._starts.look(self.report.instances, now) or fingerprint != self._fingerprint:
                self._pause_seconds, self._launches_at, self._is_failing = 0.0, 0.0, False
            self._fingerprint = fingerprint
            wanted = 0 if is_leaving else self._wanted(spec, around, now)
            self.report.wanted = wanted
            self._announce(spec, wanted, around)
            work = self._work(instances, around, now)
            steps = plan(self.name, spec, wanted, instances, work, time.time(), fingerprint)
            self.report.rollout = steps.rollout
            self._measure()
            self._look_at_failed(instances, around, now)
            await self._let_go(instances, steps, around)
            await self._take(steps, spec, now)
            if is_leaving and instances and all(e.state is InstanceState.UNKNOWN for e in instances):  # fmt: skip
                raise LaunchError("; ".join(self.report.silent.values()))
        except TangramError as error:
            self.report.error = str(error)
            return self._is_given_up(declared, around, now)
        self._fails_since = None
        return declared is None and not instances and not self.report.launched

    def _is_given_up(
        self, declared: NodeGroupSpec | None, around: Surroundings, now: float
    ) -> bool:
        """Whether a deleted group is over although its engine fails: for long, and none of its nodes lives."""
        self._fails_since = now if self._fails_since is None else self._fails_since
        if declared is not None and declared.engine == self.report.spec.engine:
            return False
        loads = [around.loads.get(node) for node in self.report.launched]
        if now - self._fails_since < GIVE_UP_SECONDS or any(e and not e.lost for e in loads):
            return False
        if declared is not None:
            self.report.spec, self._fails_since = declared, None
        return declared is None

    async def close(self) -> None:
        """Close the connection to the engine."""
        if self._launcher is not None:
            await asyncio.to_thread(self._launcher.close)
            self._launcher = None

    async def _listed(self) -> list[Instance]:
        launcher = await self._launcher_of(self.report.spec)
        self.report.silent = {}
        try:
            return await asyncio.to_thread(launcher.instances, self.ports.installation, self.name)
        except MachinesSilent as error:
            self.report.silent = error.silent
            return error.found + self._unknown(error)

    def _unknown(self, error: MachinesSilent) -> list[Instance]:
        """Return the instances that may run on machines that do not answer: they were there, or their launch was not seen."""
        seen = {each.name: each for each in self.report.instances}
        found = {each.name for each in error.found}
        unknown = []
        for name in self.report.launched:
            last = seen.get(name, InstanceReport(name, "", ""))
            if name not in found and (not last.machine or last.machine in error.silent):
                unknown.append(
                    Instance(
                        name, InstanceState.UNKNOWN, last.handle, last.machine, None,
                        "its machine does not answer", last.restarts, last.fingerprint,
                    )
                )  # fmt: skip
        return unknown

    def _reach(self) -> Collection[str]:
        return reach_of(self._launcher) if self._launcher is not None else ()

    async def _launcher_of(self, spec: NodeGroupSpec) -> NodeLauncher:
        made_of = (spec.engine, spec.options)
        if self._launcher is None or self._made_of != made_of:
            await self.close()
            self._launcher = await asyncio.to_thread(self.ports.find_launcher, *made_of)
            self._made_of, self._check_at = made_of, 0.0
        return self._launcher

    def _wanted(self, spec: NodeGroupSpec, around: Surroundings, now: float) -> int:
        """Return the number of nodes that the group should have, and write into the report why."""
        if not spec.is_elastic:
            self.report.estimate, self._size = None, None
            return spec.within(0)
        demand = around.demands.get(spec.pool)
        if demand is None:
            wanted = spec.within(self.report.wanted)
            self.report.estimate = NodeGroupEstimate(
                wanted, reason="it stays as it is: the scheduler does not say what waits"
            )
            return wanted
        if self._size is None:
            self._size = self.ports.wanted(self.name)
        coming = {
            group: nodes
            for group, nodes in around.coming.items()
            if group != self.name and nodes.pool == spec.pool
        }
        aside = sum(
            each.joined and each.drained and not self._has_drained(each.name, around)
            for each in self.report.instances
        )
        sight = GroupSight(
            self.report.ready, self.report.wanted, self._starts.ages(now), self._starts.seconds,
            demand, coming, aside, around.peers.get(spec.pool, frozenset()) - {self.name},
        )  # fmt: skip
        estimate = self.report.estimate = self._size.decide(spec, sight, now)
        if estimate.wanted != self.report.wanted:
            log.info("node group %s: %d nodes instead of %d: %s",
                     self.name, estimate.wanted, self.report.wanted, estimate.reason)  # fmt: skip
        return estimate.wanted

    def _announce(self, spec: NodeGroupSpec, wanted: int, around: Surroundings) -> None:
        """Let the other groups of the pool know what is starting."""
        missing = max(0, wanted - self.report.ready)
        around.coming[self.name] = ComingNodes(spec.pool, shape_of(spec), missing)

    async def _check_engine(self, now: float) -> None:
        """Ask what keeps the engine from placing node workers, now and then: it takes several calls."""
        if self._launcher is not None and now >= self._check_at:
            self.report.problems = await asyncio.to_thread(self._launcher.problems)
            self._check_at = now + CHECK_SECONDS

    def _work(
        self, instances: list[Instance], around: Surroundings, now: float
    ) -> dict[str, NodeWork]:
        """Return the work of the nodes that have joined."""
        given_up = self._given_up(instances, around, now)
        return {
            each.name: NodeWork(
                load.actions,
                load.trajectories,
                load.drained,
                self._has_drained(each.name, around),
                load.lost,
                each.name in given_up,
            )
            for each in instances
            if (load := around.loads.get(each.name)) is not None
        }

    def _given_up(self, instances: list[Instance], around: Surroundings, now: float) -> set[str]:
        """Return the nodes that are silent for longer than their grace period, since their instance started or moved.

        One that is drained stays as it is, and one that waits for a machine is its own successor.
        """
        before, self._silent = self._silent, {}
        for each in instances:
            load = around.loads.get(each.name)
            if load and load.lost and not load.drained and each.state is not InstanceState.PENDING:
                start = each.name, each.handle, each.machine, each.restarts
                self._silent[start] = before.get(start, now)
        grace = around.grace_of(self.report.spec.pool)
        return {start[0] for start, since in self._silent.items() if now - since > grace}

    def _has_drained(self, node: str, around: Surroundings) -> bool:
        return around.drains.get(node, "").startswith(because(self.name))

    def _describe(
        self,
        spec: NodeGroupSpec,
        instances: list[Instance],
        around: Surroundings,
        fingerprint: str,
    ) -> None:
        """Write what was found into the report."""
        found = []
        for each in instances:
            load = around.loads.get(each.name)
            joined = load is not None and not load.lost
            found.append(
                InstanceReport(
                    each.name, each.state.value, each.handle, each.machine, each.reason, each.restarts,
                    each.ends_at, joined, each.name in around.drains, is_outdated(each, fingerprint),
                    each.fingerprint,
                )
            )  # fmt: skip
        self.report.spec, self.report.instances = spec, found
        self.report.ready = sum(each.joined and not each.drained for each in found)
        known = {*self.report.launched, *(each.name for each in instances)}
        self.report.launched = sorted(known)

    def _measure(self) -> None:
        """Write since when nodes are missing, and the longest launch, into the report."""
        report = self.report
        joined = [each for each in report.instances if each.joined]
        report.launch_seconds = max(round(self._starts.longest, 1), report.launch_seconds)
        since = report.below_since or rfc3339(time.time())
        report.below_since = since if len(joined) < report.wanted else ""

    async def _take(self, steps: Steps, spec: NodeGroupSpec, now: float) -> None:
        """Do what is planned; the first failure ends it, and the next pass goes on."""
        for node in steps.resume:
            await self.ports.drains.resume(node)
        for node, why in steps.drain.items():
            await self.ports.drains.drain(node, because(self.name) + why)
        launcher = await self._launcher_of(spec)
        for node in steps.end:
            await asyncio.to_thread(launcher.end, self.ports.installation, self.name, node)
        if steps.launch and now >= self._launches_at:
            await self._launch(launcher, steps.launch[:_MOST_LAUNCHES], spec, now)
        elif steps.launch:
            self.report.error = self._launch_error

    async def _launch(
        self, launcher: NodeLauncher, names: list[str], spec: NodeGroupSpec, now: float
    ) -> None:
        # Stored before the engine is asked: a successor must know which nodes are the group's.
        before = set(self.report.launched)
        self.report.launched = sorted(before.union(names))
        await self.ports.store(self.name, self.report)
        fingerprint = fingerprint_of(spec, reach_of(launcher))
        slots = asyncio.Semaphore(launches_at_once_of(launcher))
        failures: list[TangramError] = []
        #: Those that may be there.
        launched: set[str] = set()

        async def launch(name: str) -> None:
            async with slots:
                if failures:
                    return  # the next pass goes on
                try:
                    command, variables = self.ports.command(name, spec)
                    order = LaunchOrder(
                        self.ports.installation, self.name, name, spec, command, variables, fingerprint
                    )  # fmt: skip
                    launched.add(name)
                    await asyncio.to_thread(launcher.launch, order)
                    self._starts.launched(name, now)
                except TangramError as error:
                    failures.append(error)
                    if isinstance(error, LaunchRefused):
                        launched.discard(name)

        await asyncio.gather(*(launch(name) for name in names))
        self.report.launched = sorted(before | launched)
        if failures:
            self._wait_longer(str(failures[0]), now)
            raise failures[0]
        if not self._is_failing:
            self._pause_seconds = 0.0

    def _wait_longer(self, why: str, now: float) -> None:
        """Launch less often, and show why."""
        pause = min(LONGEST_PAUSE_SECONDS, 2 * self._pause_seconds or FIRST_PAUSE_SECONDS)
        self._pause_seconds, self._launches_at = pause, now + pause
        self._launch_error = why

    def _look_at_failed(self, instances: list[Instance], around: Surroundings, now: float) -> None:
        """Count instances that failed before their nodes joined as launches that failed."""
        found = {
            each.handle: each
            for each in instances
            if each.state is InstanceState.FAILED and each.name not in around.loads
        }
        new = [each for handle, each in found.items() if handle not in self._failed]
        if new:
            self._failed |= found.keys()
            self._is_failing = True
            why = new[0].reason or "its engine does not say why"
            self._wait_longer(f"{new[0].name} failed before its node joined: {why}", now)

    async def _let_go(self, instances: list[Instance], steps: Steps, around: Surroundings) -> None:
        """End what hangs on nodes whose instances are gone and not launched again; then forget them."""
        kept = {each.name for each in instances} | set(steps.launch)
        events: list[Event] = []
        for node in [each for each in self.report.launched if each not in kept]:
            load = around.loads.get(node)
            if load is None:
                if self._has_drained(node, around):
                    # The next node of this name is a new one.
                    await self.ports.drains.resume(node)
                self.report.launched = [each for each in self.report.launched if each != node]
            elif load.lost and not load.actions and not load.trajectories:
                events.append(NodeForgetAsked(node=node))
            elif load.lost and self._fenced.get(node) != load.incarnation:
                # Once: leases stay until they expire, since their trainers hold them.
                self._fenced[node] = load.incarnation
                events.append(NodeFenced(node=node, incarnation=load.incarnation))
        if events:
            await self.ports.append(events)


def first_report(spec: NodeGroupSpec) -> NodeGroupReport:
    """Return the report of a group that has none."""
    return NodeGroupReport(spec)
