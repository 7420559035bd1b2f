"""Worker of a node: joins, reads commands, executes them through drivers, shows life."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import time
from typing import Any, cast

import redis
import redis.asyncio

from domain.action import Kind, Outcome
from domain.allocation import Home
from domain.codec import NodeCommand
from domain.confinement import SANDBOX_CURE, can_sandbox
from domain.confirmation import NONE_NEEDED, Confirmation
from domain.events import ActionFinished, NodeJoined, NodeRefuses
from domain.inventory import NodeInventory, ResourceInventory
from domain.ports import (
    DiskUsing,
    Driver,
    DriverContext,
    Evicting,
    Forking,
    Leftover,
    PrepareOrder,
    Preparing,
    Protecting,
)
from domain.ports.images import KeepsPrepared
from domain.protection import Protection
from domain.redis_keys import Keys
from domain.version import VERSION
from managers.common.disk_space import DiskFloors
from managers.registry import Registry
from scheduler.runtime.body_store import BodyStore
from scheduler.runtime.node.commands import CommandReader, save_position
from scheduler.runtime.node.disk_guard import DiskGuard
from scheduler.runtime.node.door.areas import door_routes
from scheduler.runtime.node.door.gate import EnvironmentGate
from scheduler.runtime.node.door.server import DoorOptions, NodeDoor
from scheduler.runtime.node.environment_forks import EnvironmentForks
from scheduler.runtime.node.environment_moves import EnvironmentMoves
from scheduler.runtime.node.environment_removals import EnvironmentRemovals
from scheduler.runtime.node.file_transfers import FileTransfers
from scheduler.runtime.node.identity import NodeIdentity, new_identity, next_incarnation
from scheduler.runtime.node.image_fetcher import ImageFetcher
from scheduler.runtime.node.life_signs import LifeSigns
from scheduler.runtime.node.order_executor import BackgroundTasks, OrderExecutor
from scheduler.runtime.node.progress import CommandProgress
from scheduler.runtime.node.reporter import Reporter
from scheduler.runtime.node.routing import DriverRouting
from scheduler.runtime.node.snapshot_fetcher import SnapshotFetcher
from scheduler.runtime.node.unstarted import UnstartedAttempts, unstarted_report
from scheduler.runtime.object_store.objects import ObjectStore
from scheduler.runtime.object_store.store_address import open_store
from scheduler.runtime.redis.clients import keep_running
from scheduler.runtime.redis.connection import AsyncRedisConnection
from scheduler.runtime.redis.door_addresses import DoorAddresses
from scheduler.runtime.redis.response_streams import RedisResponseStreams

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.5
RETRY_SECONDS = 0.2


@dataclass(frozen=True)
class NodeOptions:
    """Options of a node that an operator sets."""

    name: str
    pool: str
    state_directory: Path
    resources: Mapping[str, ResourceInventory]
    version: str = ""
    #: Folders whose file systems need free space; those of drivers are known to them.
    disk_folders: Sequence[Path] = ()
    disk_floors: DiskFloors = field(default_factory=DiskFloors)
    #: Path at which the leader accepts nodes of this machine; None: all goes through Redis.
    leader_socket: Path | None = None
    #: Wall clock of this machine.
    clock: Callable[[], float] = time
    #: It has a Redis user of its own: it reports in a stream of its own, and not in the inbox.
    own_user: bool = False
    confirmation: Confirmation = NONE_NEEDED


class Forgotten(Exception):
    """This node was forgotten while it was away; a restart makes it join as a new node."""


class NodeWorker:
    """One node. `run` returns when cancelled, after its drivers have ended their runs."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        keys: Keys,
        options: NodeOptions,
        drivers: list[Driver],
        closing: Sequence[Callable[[], None]] = (),
        door: NodeDoor | None = None,
        bodies: BodyStore | None = None,
        store: ObjectStore | None = None,
    ) -> None:
        self._client = client
        self._commands = AsyncRedisConnection(client)
        self._keys = keys
        self._options = options
        self._drivers = drivers
        #: Called after the drivers are closed.
        self._closing = closing
        self._door = door
        self._bodies = bodies or BodyStore(None)
        self._routing = DriverRouting(drivers)
        self._reader = CommandReader(client, keys, options.name)
        own = options.name if options.own_user else ""
        self._reporter = Reporter(client, keys, options.leader_socket, own, options.confirmation)
        self._transfers = FileTransfers(client, keys, self._routing.by_kind.get(Kind.EXEC))
        self._forks = EnvironmentForks(
            client, keys, options.name, self._reporter, self._routing.by_kind.get(Kind.EXEC), store
        )
        self._moves = EnvironmentMoves(
            options.name, self._reporter, self._routing.by_kind.get(Kind.EXEC),
            SnapshotFetcher(client, keys, own_user=options.own_user),
            EnvironmentGate() if door is None else door.gate, options.state_directory / "moves",
        )  # fmt: skip
        self._removals = EnvironmentRemovals(
            options.name, drivers, self._forks, self._moves, self._reporter
        )
        self._background = BackgroundTasks()
        self._unstarted = UnstartedAttempts(options.state_directory)
        users = [each for each in drivers if isinstance(each, DiskUsing)]
        self._guard = DiskGuard(options.disk_folders, users, options.disk_floors, self._refuse)
        self._life = LifeSigns(
            client, keys, options.name, drivers, self._guard, door, options.clock
        )
        self._epoch, self._has_joined = 0, False
        self.joined = asyncio.Event()

    async def run(self) -> None:
        """Work until cancelled."""
        self._set_identity(next_incarnation(self._options.state_directory))
        leftovers = [left for driver in self._drivers for left in await driver.open()]
        unstarted = self._unstarted.open() - {left.mark for left in leftovers}
        try:
            await self._moves.open()
            if self._door is not None:
                await self._door.open(self.identity.incarnation)
            async with asyncio.TaskGroup() as group:
                # Before Redis is asked for anything: it may have ended because a disk is full.
                group.create_task(self._guard.run())
                await self._begin(leftovers, unstarted)
                group.create_task(self._reporter.run())
                group.create_task(self._heartbeat())
                group.create_task(self._read())
        finally:
            if self._door is not None:
                await self._door.close()
            self._commands.close()
            await self._forks.copies.close()
            for driver in self._drivers:
                await driver.close()
            self._unstarted.close()
            for close in self._closing:
                close()

    async def _begin(self, leftovers: list[Leftover], unstarted: set[str]) -> None:
        """Find the position of the predecessor, report what it left, and join."""
        position = await self._with_retries(self._saved_position)
        await self._with_retries(self._reader.open)
        behind = await self._with_retries(partial(self._commands_behind, position))
        if any(command.forget is not None for command in behind):
            self._unstarted.remove(unstarted)
            await self._join_again(behind, leftovers)
            position, behind, leftovers, unstarted = "0-0", [], [], set()
        self._progress = CommandProgress(position)
        known = self._reports_of_attempts(leftovers, unstarted)
        self._progress.passed(known.keys() - {each.run.mark for each in behind if each.run})
        self._runs = OrderExecutor(
            self._options.name, self._drivers, self._routing, self._reporter, self._progress,
            self._background, known, lambda: self._guard.refusal, self._bodies, self._unstarted.add,
        )  # fmt: skip
        await self._with_retries(partial(self._bodies.join, self._client, self._keys))
        await self._with_retries(self._forks.drop_unregistered)
        await self._with_retries(self._show_life)
        self._join()
        for mark, report in known.items():
            self._reporter.report(report, partial(self._progress.ended, mark))

    def _set_identity(self, identity: NodeIdentity) -> None:
        self.identity = identity
        self._stream = self._keys.commands(self._options.name, identity.identity)

    async def _commands_behind(self, position: str) -> list[NodeCommand]:
        """Return the commands that will be read, some of them again."""
        entries = cast("list[Any]", await self._client.xrange(self._stream, f"({position}"))
        read = [self._reader.read(key.decode(), fields) for key, fields in entries]
        return [command for each in read for command in each.known]

    async def _join_again(self, behind: list[NodeCommand], leftovers: list[Leftover]) -> None:
        """Become a new node after it was forgotten: none of its former commands is run.

        OrderExecutor of a dead predecessor have ended by now. After a crash within, this is repeated.
        """
        log.warning("node %s was forgotten: it joins as a new node", self._options.name)
        await self._removals.forget(behind)
        for driver in self._drivers:
            driver.forget([left.mark for left in leftovers])
        former = self._stream
        self._set_identity(new_identity(self._options.state_directory, self.identity))

        async def clear() -> None:
            await self._client.delete(former, f"{former}:position")

        await self._with_retries(clear)

    def _join(self) -> None:
        options, identity = self._options, self.identity
        executor = self._routing.by_kind.get(Kind.EXEC)
        inventory = NodeInventory(
            name=options.name,
            identity=identity.identity,
            incarnation=identity.incarnation,
            pool=options.pool,
            resources=self._routing.resources(options.resources),
            isolation=executor.isolation if executor is not None else "none",
            hostname=socket.gethostname(),
            version=options.version,
            protection=self._protection(),
            forks=isinstance(executor, Forking),
            warms=any(isinstance(each, KeepsPrepared) for each in self._drivers),
            moves=self._moves.works,
        )
        self._log_protection(inventory)
        self._reporter.report(NodeJoined(node=inventory), self.joined.set)
        self._reporter.stream = self._stream
        self._has_joined = True
        if self._guard.refusal:
            self._refuse(self._guard.refusal)

    def _reports_of_attempts(
        self, leftovers: list[Leftover], unstarted: set[str]
    ) -> dict[str, ActionFinished]:
        """Return, by mark, the ends of the attempts that predecessors started, and of those that they did not."""
        known = {
            left.mark: ActionFinished(
                action_id=left.action_id,
                node=self._options.name,
                outcome=Outcome.INFRA_FAILED if left.ended else Outcome.UNKNOWN,
                attempt=left.attempt,
                detail=left.detail or "the node worker died during the run",
            )
            for left in leftovers
        }
        for mark in sorted(unstarted):
            known[mark] = unstarted_report(mark, self._options.name)
        return known

    def _log_protection(self, inventory: NodeInventory) -> None:
        protection = inventory.protection
        if can_sandbox(inventory.isolation, protection):
            log.info(
                "commands run with: %s", protection.text if protection else inventory.isolation
            )
            return
        log.warning(
            "commands run without a sandbox: %s. Pool %s gives this node no actions if it has"
            " sandbox: required; %s",
            protection.text if protection else inventory.isolation,
            inventory.pool,
            SANDBOX_CURE,
        )

    def _protection(self) -> Protection | None:
        """Return what protects commands; None where no driver reports it."""
        found = [each.protection for each in self._drivers if isinstance(each, Protecting)]
        return found[0] if found else None

    def _refuse(self, reason: str) -> None:
        """Ask the scheduler to grant nothing here, or to grant again."""
        if not self._has_joined:  # joining resets it, and reports it again
            return
        name, incarnation = self._options.name, self.identity.incarnation
        self._reporter.report(NodeRefuses(node=name, incarnation=incarnation, reason=reason))

    async def _read(self) -> None:
        await self.joined.wait()
        await (leader := self._reporter.leader).tend()
        after = self._progress.position
        while keep_running():
            try:
                entries = await leader.next_commands(self._commands, self._stream, after)
            except redis.RedisError as error:
                log.warning("commands wait, redis does not answer: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            for stream_id, fields in entries:
                read, never_started = self._reader.read(stream_id, fields), []
                if read.unknown:
                    set_aside = partial(self._reader.set_aside, stream_id, read.unknown)
                    never_started = await self._with_retries(set_aside)
                self._take(stream_id, read.known, never_started)
                after = stream_id
            await asyncio.sleep(0)  # pending reports are sent first

    def _take(
        self, stream_id: str, commands: list[NodeCommand], never_started: list[ActionFinished]
    ) -> None:
        marks = [c.run.mark for c in commands if c.run and c.run.action.kind is not Kind.NOOP]
        self._progress.began(stream_id, len(commands) + len(never_started), marks)
        settled = partial(self._progress.settled, stream_id)
        for report in never_started:
            self._reporter.report(report, settled)
        for command in commands:
            if command.epoch < self._epoch:
                log.warning("refused a command of epoch %d, now %d", command.epoch, self._epoch)
                if command.run is not None:
                    self._progress.ended(command.run.mark)
                settled()
                continue
            self._epoch = command.epoch
            self._execute(command, settled)

    def _execute(self, command: NodeCommand, settled: Callable[[], None]) -> None:
        if command.run is not None:
            self._moves.used(command.run.action.trajectory_key)
            self._runs.begin(command.run, settled)
        elif command.abort is not None:
            self._runs.abort(command.abort)
            settled()
        elif command.resize is not None:
            self._runs.resize(command.resize)
            settled()
        elif command.remove is not None:
            self._background.spawn(self._removals.remove(command.remove.trajectory, settled))
        elif command.evict or command.prepare or command.warm:
            self._make_ready(command)
            settled()
        elif command.transfer is not None:
            self._background.spawn(self._transfers.handle(command.transfer))
            settled()
        elif command.fork is not None:
            self._background.spawn(self._forks.make(command.fork, settled))
        elif command.move or command.receive or command.end_move:
            self._move(command, settled)
        elif command.forget is not None:
            # Never settled, so that the next worker reads it as well.
            raise Forgotten(f"node {self._options.name} was forgotten")

    def _move(self, command: NodeCommand, settled: Callable[[], None]) -> None:
        """Take part in a move of an environment."""
        moves, spawn = self._moves, self._background.spawn
        if command.move is not None:
            spawn(moves.pack(command.move, settled))
        elif command.receive is not None:
            spawn(moves.receive(command.receive, settled))
        elif (end := command.end_move) is not None and end.lives_on == self._options.name:
            moves.stays(end.trajectory)  # before the next command
            spawn(moves.end(end, settled))
        elif end is not None:
            spawn(self._removals.remove(end.trajectory, settled, copied=True))

    def _make_ready(self, command: NodeCommand) -> None:
        """Load or unload a service, or prepare environments, ahead of any grant."""
        if command.evict is not None:
            self._background.spawn(self._evict(command.evict.home))
        if command.prepare is not None:
            self._background.spawn(self._prepare(command.prepare))
        for driver in self._drivers:
            if command.warm is not None and isinstance(driver, KeepsPrepared):
                driver.prepared.keep_warm(command.warm.images)

    async def _evict(self, home: Home) -> None:
        for driver in self._drivers:
            if isinstance(driver, Evicting):
                await driver.evict(home)

    async def _prepare(self, order: PrepareOrder) -> None:
        for driver in self._drivers:
            if isinstance(driver, Preparing):
                self._reporter.report(await driver.prepare(order))

    async def _heartbeat(self) -> None:
        saved = self._progress.position
        while keep_running():
            await asyncio.sleep(HEARTBEAT_SECONDS)
            if self.joined.is_set():
                await self._reporter.leader.tend()
            try:
                await self._show_life()
                if self._progress.position != saved or self._progress.has_spent():
                    saved = await self._save_position()
            except redis.RedisError as error:
                log.warning("the sign of life is not stored, redis does not answer: %s", error)

    async def _show_life(self) -> None:
        await self._life.show(self.identity.incarnation)

    async def _saved_position(self) -> str:
        saved = cast("bytes | None", await self._client.get(f"{self._stream}:position"))
        return saved.decode() if saved else "0-0"

    async def _save_position(self) -> str:
        position, marks = self._progress.position, self._progress.spent_marks()
        try:
            await save_position(self._client, self._stream, position, self._options.confirmation)
        except redis.RedisError:
            self._progress.not_yet(marks)
            raise
        for driver in self._drivers:
            driver.forget(marks)
        self._unstarted.remove(marks)
        return position

    async def _with_retries(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        while keep_running():
            try:
                return await call()
            except redis.RedisError as error:
                log.warning("waiting for redis: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
        raise asyncio.CancelledError


def node_worker(
    client: redis.asyncio.Redis,
    keys: Keys,
    registry: Registry,
    *,
    name: str,
    pool: str,
    state_directory: Path,
    settings: Mapping[str, str],
    version: str = VERSION,
    open_secret: Callable[[str], str] = str,
    leader_socket: Path | None = None,
    confirmation: Confirmation = NONE_NEEDED,
) -> NodeWorker:
    """Return a worker that offers the resources that the managers find on this machine.

    ``leader_socket``: see `NodeOptions`; ``open_secret``: `DriverContext`. Raises InvalidRequest when a declared setting (``cpus``, ``gpus``) cannot be read.
    """
    for problem in registry.problems:
        log.warning("a manager was left out: %s", problem)
    resources: dict[str, ResourceInventory] = {}
    drivers: list[Driver] = []
    response_streams = RedisResponseStreams(client, keys)
    own_user = bool(settings.get("own_redis_user"))
    store = open_store(settings.get("object_store", ""))
    fetch_snapshot = SnapshotFetcher(client, keys, own_user=own_user, store=store).fetch
    fetch_image = None if store is None else ImageFetcher(client, keys, store).fetch
    for kind, manager in registry.managers.items():
        context = DriverContext(
            name, state_directory / kind, dict(resources), dict(settings), response_streams,
            open_secret, fetch_snapshot, fetch_image,
        )  # fmt: skip
        if manager.probe is not None:
            have = manager.probe(context)
            if have.capacity:
                resources[kind] = have
                context = replace(context, resources=dict(resources))
        if manager.make_driver is not None:
            drivers.append(manager.make_driver(context))
    named = [Path(each) for each in settings.get("disk_folders", "").split(":") if each]
    options = NodeOptions(
        name, pool, state_directory, resources, version, [*named, state_directory],
        DiskFloors.parse(settings), leader_socket, own_user=own_user, confirmation=confirmation,
    )  # fmt: skip
    folder = settings.get("bodies_directory", "")
    bodies = BodyStore(Path(folder) if folder else None)
    door = NodeDoor(
        DoorAddresses(client, keys, own_key=options.own_user),
        name,
        DoorOptions.parse(settings, state_directory / "door"),
        door_routes(drivers, store, bodies),
    )
    return NodeWorker(client, keys, options, drivers, [response_streams.close], door, bodies, store)


__all__ = ["Forgotten", "NodeOptions", "NodeWorker", "node_worker"]
