"""Forks of the environments of one driver: the plan (`fork`) is carried out on folders, layers and programs.

A child's folder is made in the yard and then moved to its place, so a child that is there is complete, and a
repeated order makes those that are missing. Sealed layers that no record names any more are deleted.

While a running environment is examined and switched, its programs are frozen, unless it has none but the shells
of idle sessions. What `fork` raises leaves no child and no layer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

from msgspec.structs import replace

from domain.decisions import ForkEnvironment
from domain.errors import Conflict, InvalidRequest
from domain.forks import COPIED, SEALED, ForkReport
from domain.ids import TrajectoryKey
from managers.cpu.environment.protocol import LivingEnvironment
from managers.cpu.tree.copying import copy_tree, make_room, merge_layers
from managers.cpu.tree.fork import ForkPlan, ForkWay, choose_way, plan_fork
from managers.cpu.tree.fork_log import LoggedChild, finish, write_log
from managers.cpu.tree.fork_log import recover as recover_children
from managers.cpu.tree.layers import (
    LAYERS,
    UPPER,
    WORK,
    LayerStack,
    TreeRecord,
    unused,
    upper_layer,
    used_layers,
)
from managers.cpu.tree.occupants import Occupant, find_occupants
from managers.cpu.tree.records import all_stacks, write_record
from managers.cpu.tree.seal import MARK, make_like, make_upper, new_layer_id, recover, seal
from managers.cpu.tree.snapshot import SNAPSHOTS, sync_tree
from managers.cpu.workspaces import Workspaces, safe_name

_log = logging.getLogger(__name__)
#: Copies at once.
_THREADS: Final = 16
_WRITES: Final = ["a program has a file open for writing"]


class ForkedTrees(Protocol):
    """The part of a driver's trees that forks need; its methods block."""

    @property
    def has_layers(self) -> bool:
        """Whether stacks have layers."""

    @property
    def marks(self) -> str:
        """Namespace of the overlay's marks: ``user`` or ``trusted``."""

    def adapted(self, record: TreeRecord) -> TreeRecord:
        """Return the record of another node's environment with the base of this node."""

    async def has_image(self, record: TreeRecord) -> bool:
        """Return whether the image below a record is here, or could be pulled. Raises ImageMissing."""

    def record_of(self, folder: Path, order: ForkEnvironment) -> TreeRecord:
        """Return the record of the source, which gets its lowest tree if it has none yet."""

    def store(self, folder: Path, record: TreeRecord) -> None:
        """Store another record of an environment."""

    def can_switch(self, environment: LivingEnvironment) -> bool:
        """Return whether the root of a running environment is an overlay."""

    def expect_switch(self) -> None:
        """Start what switches roots, which takes longer than a switch."""

    def switch(self, environment: LivingEnvironment, record: TreeRecord) -> None:
        """Give a running environment the stack of ``record`` as its root. Raises Conflict, Unavailable."""


class SessionShells(Protocol):
    """The sessions of an environment, as forks see them."""

    def idle_shells(self, environment: LivingEnvironment) -> Collection[int]:
        """Return the host ids of shells that are idle and will re-enter their directory."""

    async def refresh_directories(self, environment: LivingEnvironment) -> None:
        """Let idle shells re-enter their directory, after the root was switched."""


class NoSessions:
    """For drivers without sessions."""

    def idle_shells(self, environment: LivingEnvironment) -> Collection[int]:
        """Return nothing."""
        return ()

    async def refresh_directories(self, environment: LivingEnvironment) -> None:
        """Do nothing."""


class EnvironmentForking:
    """Makes forks below one state directory."""

    def __init__(
        self,
        state: Path,
        workspaces: Workspaces,
        trees: ForkedTrees,
        running: Callable[[TrajectoryKey], LivingEnvironment | None],
        sessions: SessionShells | None = None,
        further_stacks: Callable[[], Iterable[LayerStack]] = tuple,
    ) -> None:
        """``further_stacks``: stacks besides those of environments, whose layers are kept."""
        self._state = state
        self._workspaces = workspaces
        self._trees = trees
        self._running = running
        self._sessions = sessions or NoSessions()
        self._further_stacks = further_stacks
        #: Layers that no record names yet.
        self._new: set[str] = set()
        self._collecting = asyncio.Lock()
        self._collection: asyncio.Task[None] | None = None
        self._is_wanted = False
        self._finishing: set[asyncio.Task[None]] = set()

    @property
    def marks(self) -> str:
        """Namespace of the marks of overlays: ``user`` or ``trusted``."""
        return self._trees.marks

    def open(self) -> None:
        """Make the directories, and complete what a predecessor left half done. Blocks.

        Environments that were `interrupted` must not run.
        """
        for name in (LAYERS, SNAPSHOTS):
            (self._state / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        recover_children(self._state)
        for folder in self.interrupted():
            try:
                recover(self._state, folder)
            except OSError as error:
                _log.error("the fork of %s cannot be completed: %s", folder.name, error)

    def interrupted(self) -> list[Path]:
        """Return the folders of environments that were being sealed when a predecessor ended. Blocks."""
        return [folder for folder in self._workspaces.all() if (folder / MARK).exists()]

    async def fork(self, order: ForkEnvironment) -> ForkReport:
        """Give each child of ``order`` the files of its source. Raises Conflict, Unavailable, OSError."""
        began = time.monotonic()
        folder = await asyncio.to_thread(self._workspaces.ensure, order.source)
        missing = [key for key in order.children if not self._workspaces.of(key).exists()]
        if not missing:
            return ForkReport(SEALED, 0.0)
        work = _Fork(self, folder, order, missing, self._running(order.source))
        self._new.update(work.ids)
        try:
            await work.make()
        except BaseException:
            for key in missing:
                await asyncio.to_thread(self._workspaces.remove, self._workspaces.of(key))
            raise
        finally:
            self._new.difference_update(work.ids)
            self._finish_soon(work.log)
            if work.left_over:
                await self.collect()
        seconds = time.monotonic() - began
        return ForkReport(work.way_text, seconds, min(work.frozen_seconds, seconds))

    async def snapshot(self, order: ForkEnvironment) -> tuple[TreeRecord, ForkReport]:
        """Seal the files of the source, or copy them; return a record whose layers have them, on disk.

        The layers are kept until `released`. Raises Conflict, Unavailable, StorageFull, OSError.
        """
        began = time.monotonic()
        folder = await asyncio.to_thread(self._workspaces.ensure, order.source)
        work = _Fork(self, folder, order, [], self._running(order.source))
        self._new.update(work.ids)
        try:
            plan = await work.make()
            record = await asyncio.to_thread(work.kept, plan)
            for layer in record.stack.sealed:
                await asyncio.to_thread(sync_tree, self._state / LAYERS / layer)
        except BaseException:
            self.released(work.ids)
            await self.collect()
            raise
        seconds = time.monotonic() - began
        return record, ForkReport(work.way_text, seconds, min(work.frozen_seconds, seconds))

    def keep(self, layers: Iterable[str]) -> None:
        """Keep layers that no record names yet, until they are `released`."""
        self._new.update(layers)

    def adapted(self, record: TreeRecord) -> TreeRecord:
        """Return the record of another node's environment with the base of this node."""
        return self._trees.adapted(record)

    def released(self, layers: Iterable[str]) -> None:
        """Let layers that no record names be deleted from now on."""
        self._new.difference_update(layers)

    async def has_image(self, record: TreeRecord) -> bool:
        """Return whether the image below a record is here, or could be pulled; True without one. Raises ImageMissing."""
        return await self._trees.has_image(record)

    async def begin_from(self, record: TreeRecord, trajectory: TrajectoryKey) -> None:
        """Make the folder of a new environment with the files of a snapshot's record. Raises OSError."""
        await asyncio.to_thread(self._begin_from, record, trajectory)

    def _begin_from(self, record: TreeRecord, trajectory: TrajectoryKey) -> None:
        target = self._workspaces.of(trajectory)
        pattern = self._state / LAYERS / record.stack.sealed[-1]
        with self._workspaces.draft() as draft:
            facts = os.lstat(pattern)
            os.chown(draft, facts.st_uid, facts.st_gid)
            if not self._trees.has_layers:
                make_room(pattern, self._state)
                copy_tree(pattern, draft / UPPER)
                record = replace(record, stack=LayerStack())
            else:
                make_upper(draft / UPPER, pattern)
            make_like(draft / WORK, pattern)
            write_record(draft, replace(record, trajectory=trajectory))
            draft.rename(target)
        self._workspaces.share(target)

    def _finish_soon(self, log: Path | None) -> None:
        """Sync the records of children in the background."""
        if log is not None:
            task = asyncio.create_task(asyncio.to_thread(self._finish, log))
            self._finishing.add(task)
            task.add_done_callback(self._finishing.discard)

    def _finish(self, log: Path) -> None:
        try:
            finish(self._state, log)
        except OSError as error:
            _log.warning("the records of a fork are not all on disk: %s", error)

    def collect_soon(self) -> None:
        """Delete unused layers in the background, once for many calls."""
        self._is_wanted = True
        if self._collection is None or self._collection.done():
            self._collection = asyncio.create_task(self._collect_wanted())

    async def close(self) -> None:
        """Wait for what goes on in the background."""
        if self._finishing:
            await asyncio.wait(self._finishing)
        if self._collection is not None:
            await self._collection

    async def _collect_wanted(self) -> None:
        while self._is_wanted:
            self._is_wanted = False
            await self.collect()

    async def collect(self) -> None:
        """Delete the layers that no environment and no snapshot uses."""
        async with self._collecting:
            await asyncio.to_thread(self._collect)

    def _collect(self) -> None:
        try:
            # The names first: records that are stored later name none of these.
            present = {each.name for each in (self._state / LAYERS).iterdir()} - self._new
            if not present:
                return
            marked = {(folder / MARK).read_text() for folder in self.interrupted()}
            stacks = [*all_stacks(self._state).values(), *self._further_stacks()]
        except FileNotFoundError:
            return
        except InvalidRequest as error:
            _log.error("unused layers are kept: %s", error)
            return
        for layer in unused(present - marked, used_layers(stacks)):
            self._workspaces.remove(self._state / LAYERS / layer)


class _Fork:
    """One fork on its way."""

    def __init__(
        self,
        forking: EnvironmentForking,
        folder: Path,
        order: ForkEnvironment,
        missing: Sequence[TrajectoryKey],
        living: LivingEnvironment | None,
    ) -> None:
        self._state, self._workspaces = forking._state, forking._workspaces
        self._trees, self._sessions = forking._trees, forking._sessions
        self._folder, self._order, self._missing = folder, order, missing
        self._living = living
        self.ids = new_layer_id(), new_layer_id()
        self.way_text = SEALED
        self.frozen_seconds = 0.0
        #: Log of its children, which is to be finished; None: it has none.
        self.log: Path | None = None
        #: A layer may be unused now: after a failure, and after a merge.
        self.left_over = True

    async def make(self) -> ForkPlan:
        """Make it; return the plan that was carried out. Raises Conflict, Unavailable, StorageFull, OSError."""
        expecting = None
        if self._living is not None and self._trees.has_layers:
            expecting = asyncio.create_task(asyncio.to_thread(self._trees.expect_switch))
        try:
            return await self._make()
        finally:
            if expecting is not None:
                await asyncio.wait({expecting})

    async def _make(self) -> ForkPlan:
        record = await asyncio.to_thread(self._trees.record_of, self._folder, self._order)
        async with self._held() as busy:
            way = self._choose(busy)
            try:
                plan = await self._carry_out(record, way)
            except Conflict:
                if way is not ForkWay.SEAL:
                    raise
                plan = await self._carry_out(record, self._choose(_WRITES))
        self.left_over = bool(plan.merge)
        if plan.way is ForkWay.SEAL and self._living is not None:
            await self._sessions.refresh_directories(self._living)
        return plan

    def kept(self, plan: ForkPlan) -> TreeRecord:
        """Return the record of a snapshot; without layers, its one layer is a copy. Blocks."""
        if plan.way is not ForkWay.COPY_ALL:
            return plan.above
        layer = self.ids[0]
        self._copy(upper_layer(self._folder), self._state / LAYERS / layer)
        return replace(plan.above, stack=LayerStack(sealed=(layer,)))

    def _choose(self, busy: Sequence[str]) -> ForkWay:
        living = self._living
        return choose_way(
            has_layers=self._trees.has_layers,
            busy=busy,
            on_busy=self._order.on_busy,
            sealable=self._is_on_one_disk() and (living is None or self._trees.can_switch(living)),
        )

    def _is_on_one_disk(self) -> bool:
        """Return whether its layer can be moved: that of Apptainer and that of a declared disk have their own place."""
        upper, layers = self._folder / UPPER, self._state / LAYERS
        return not upper.is_symlink() and os.lstat(upper).st_dev == os.lstat(layers).st_dev

    async def _carry_out(self, record: TreeRecord, way: ForkWay) -> ForkPlan:
        plan = plan_fork(record, way, self._folder.name, self._missing, self.ids)
        copies = way is not ForkWay.SEAL
        self.way_text = COPIED if copies else SEALED
        if copies and self._living is not None:
            await self._living.freeze()
        began = time.monotonic()
        try:
            await asyncio.to_thread(self._do, plan)
        finally:
            if copies and self._living is not None:
                self.frozen_seconds = time.monotonic() - began
        return plan

    @contextlib.asynccontextmanager
    async def _held(self) -> AsyncIterator[list[str]]:
        """Freeze a running environment that has programs; give what hinders a seal, and thaw it at the end."""
        living = self._living
        if living is None:
            yield []
            return
        idle = self._sessions.idle_shells(living)
        pids = [each.pid for each in living.processes()]
        try:
            if set(pids) - set(idle):
                await living.freeze()
                pids = [each.pid for each in living.processes()]
            yield [each.text for each in await asyncio.to_thread(_occupants, living, pids, idle)]
        finally:
            await living.thaw()

    def _do(self, plan: ForkPlan) -> None:
        """Carry out a plan. The children are written to disk while the source is sealed, and placed after it."""
        if plan.merge:
            self._merge(plan)
        with contextlib.ExitStack() as drafts, ThreadPoolExecutor(_THREADS) as threads:
            pattern = drafts.enter_context(self._workspaces.draft())
            make_upper(pattern / UPPER, upper_layer(self._folder))
            children = [
                (drafts.enter_context(self._workspaces.draft()), record) for record in plan.children
            ]
            filling = threads.submit(self._fill_all, plan, children, pattern / UPPER, threads)
            self._take_layer(plan)
            self.log = filling.result()
            for draft, record in children:
                target = self._workspaces.of(TrajectoryKey(record.trajectory))
                draft.rename(target)
                self._workspaces.share(target)

    def _fill_all(
        self,
        plan: ForkPlan,
        children: Sequence[tuple[Path, TreeRecord]],
        pattern: Path,
        threads: ThreadPoolExecutor,
    ) -> Path | None:
        """Make the children in folders of their own, and log them; return the log."""
        if not children:
            return None

        def fill(child: tuple[Path, TreeRecord]) -> None:
            self._fill(child[0], plan, child[1], pattern)

        # Copies are made side by side; what else a child needs is made faster by one thread.
        made = threads.map(fill, children) if plan.way is ForkWay.COPY_ALL else map(fill, children)
        for _ in made:
            pass
        logged = [
            LoggedChild(safe_name(record.trajectory), os.lstat(draft).st_ino, record)
            for draft, record in children
        ]
        return write_log(self._state, new_layer_id(), logged)

    def _take_layer(self, plan: ForkPlan) -> None:
        """Seal the upper layer of the source, or copy it."""
        if plan.way is ForkWay.SEAL:
            living, trees = self._living, self._trees
            switch = None if living is None else lambda: trees.switch(living, plan.source)
            seal(self._state, self._folder, plan.source, plan.layer, switch, trees.store)
            self._workspaces.share(self._state / LAYERS / plan.layer)
        elif plan.way is ForkWay.COPY_LAYER:
            self._copy(upper_layer(self._folder), self._state / LAYERS / plan.layer)

    def _merge(self, plan: ForkPlan) -> None:
        with self._workspaces.draft() as draft:
            layers = [self._state / LAYERS / layer for layer in plan.merge]
            merge_layers(layers, draft / "merged", self._trees.marks)
            place = self._state / LAYERS / plan.merged
            (draft / "merged").rename(place)
        self._workspaces.share(place)

    def _copy(self, source: Path, target: Path) -> None:
        make_room(source, self._state)
        with self._workspaces.draft() as draft:
            copy_tree(source, draft / "copy")
            (draft / "copy").rename(target)
        self._workspaces.share(target)

    def _fill(self, draft: Path, plan: ForkPlan, record: TreeRecord, pattern: Path) -> None:
        """Make a child in a folder of its own; ``pattern``: an empty upper layer like that of the source."""
        make_like(draft, self._folder)
        if plan.way is ForkWay.COPY_ALL:
            make_room(self._folder / UPPER, self._state)
            copy_tree(self._folder / UPPER, draft / UPPER)
        else:
            make_upper(draft / UPPER, pattern)
        make_like(draft / WORK, pattern)
        write_record(draft, record, durable=False)  # the log of the fork is


def _occupants(
    living: LivingEnvironment, pids: Iterable[int], idle: Collection[int]
) -> list[Occupant]:
    return find_occupants(living.pid, [living.pid, *pids], idle)
