"""Isolation of a driver's commands: the sandbox of this node, and the trees that environments have in it.

Both depend on what the machine permits, so they are tried once, when the driver opens (`Isolation.choose`).
Every environment of a trajectory has a whole tree of its own where overlays work (``environment_trees``): what an
action writes anywhere is kept. Elsewhere an environment without an image keeps its workspace alone, and `protection`
says why: a copy of the base for each environment would cost more than it gives, and sandboxes that mount an overlay each
would not see what the others write.

Isolation ``apptainer`` is used where the settings name it, never by itself. Its images may be built at their first use
(`Isolation.ensure_image`), and its starts have rules of their own (`Isolation.starts`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from domain.action import EnvironmentSpec
from domain.confinement import APPTAINER
from domain.errors import Unavailable
from domain.ids import ActionId
from domain.protection import Protection, UidMode
from managers.common.start_log import WithdrawnError
from managers.cpu.apptainer.builder import BuildRunner, ImageBuilder
from managers.cpu.apptainer.program import Apptainer, find_apptainer
from managers.cpu.apptainer.sandbox import ApptainerSandbox, apptainer_sandbox
from managers.cpu.apptainer.settings import ApptainerSettings
from managers.cpu.apptainer.starts import StartRules
from managers.cpu.process.process_table import ProcessTable
from managers.cpu.process.process_tag import ProcessTagger
from managers.cpu.process.sandbox import Sandbox, find_sandbox
from managers.cpu.process.settings import ProcessSettings
from managers.cpu.tree.forkable_trees import ForkableTrees
from managers.cpu.tree.loop_disks import LoopDisks
from managers.cpu.tree.trees import Trees, TreeUsers
from managers.cpu.workspaces import Workspaces

_TRIAL: Final = ActionId("trial")
_log = logging.getLogger(__name__)


class Isolation:
    """The isolation of one driver."""

    def __init__(
        self,
        settings: ProcessSettings,
        given: Mapping[str, str],
        workspaces: Workspaces,
        trees: Trees,
        forkable: ForkableTrees,
    ) -> None:
        """``given``: all settings of the node. Raises InvalidRequest."""
        self._settings, self._workspaces = settings, workspaces
        self._trees, self._forkable = trees, forkable
        self._containers = ApptainerSettings.parse(given)
        self._apptainer: Apptainer | None = None
        self._builder: ImageBuilder | None = None
        self._hindrance = "the driver is not open"
        #: None: commands are plain processes.
        self.sandbox: Sandbox | None = None
        #: None: environments start as they come, and have the usual loopback address alone.
        self.starts: StartRules | None = None

    @property
    def name(self) -> str:
        """``bwrap``, ``apptainer`` or ``process``."""
        return "process" if self.sandbox is None else self.sandbox.kind

    def protection(self, memory: str, disk: str) -> Protection:
        """Return what protects commands; ``memory``, ``disk``: how theirs are limited."""
        if self.sandbox is not None:
            trees = describe_trees(self._trees, self.sandbox)
            return replace(self.sandbox.protection, memory=memory, disk=disk, trees=trees)
        uids = UidMode.ROOT if os.geteuid() == 0 else UidMode.WORKER
        return Protection("process", uids, memory=memory, disk=disk, missing=self._hindrance)

    def choose(self, prefix: list[str], tmpfs_bytes: int, disks: LoopDisks | None) -> None:
        """Try the sandboxes and the trees of this node. Blocks.

        ``prefix``: tags the processes of trials. ``tmpfs_bytes``: size of a tmpfs that the settings leave open.
        Raises Unavailable where the settings want a sandbox that does not work.
        """
        wanted = self._settings.isolation
        if wanted == "process":
            self._hindrance = "the node's setting isolation is process"
            return
        probe = self._workspaces.alone(_TRIAL)
        try:
            sandbox = self._find(wanted, probe, prefix)
            if sandbox is not None:
                size = self._settings.environment_tmpfs_bytes or tmpfs_bytes
                self.sandbox = sandbox = sandbox.sized(size)
                self._workspaces.owners = self._forkable.families = families = sandbox.families
                if disks is not None and families is not None:
                    disks.shared = families.namespaces.renew
                self._open_trees(sandbox, probe, prefix)
                if wanted == APPTAINER and not self._trees.way:
                    why = "; ".join(each for _, each in self._trees.refused)
                    raise Unavailable(f"Apptainer cannot mount overlays here: {why}")
        finally:
            self._workspaces.remove(probe)
        if sandbox is None:
            self._hindrance = "bubblewrap does not work here: user namespaces are forbidden"
        if wanted == "bwrap" and sandbox is None:
            raise Unavailable("isolation is set to bwrap, which is not installed or not permitted")

    def _find(self, wanted: str, probe: Path, prefix: list[str]) -> Sandbox | None:
        readable = tuple(filter(None, self._settings.readable_paths.split(":")))
        if wanted != APPTAINER:
            return find_sandbox(probe, readable, prefix)
        self._apptainer = find_apptainer(self._containers.program)
        self.starts = StartRules(self._containers.starts)
        sandbox = apptainer_sandbox(probe.parent.parent, self._apptainer, readable)
        why = sandbox.failure(probe, prefix)
        if why:
            sandbox = dataclasses.replace(sandbox, profile=None)
            why = sandbox.failure(probe, prefix)
        if why:
            raise Unavailable(f"isolation is set to apptainer, which does not run here: {why}")
        return sandbox

    def _open_trees(self, sandbox: Sandbox, probe: Path, prefix: list[str]) -> None:
        """Choose how environments get their trees."""
        trees, families = self._trees, sandbox.families
        namespace, users = None, None
        try:
            if families is not None:
                namespace = families.enter(probe)
                users = TreeUsers(namespace.uid, namespace.handle)
            trees.further_points = sandbox.readable
            trees.open(
                probe, users, sandbox.tree_ways(probe.parent.parent),
                lambda tree: sandbox.failure(probe, prefix, tree),
            )  # fmt: skip
            trees.delete_unused()
        except OSError as error:
            _log.warning("environments have no trees of their own: %s", error)
        finally:
            if families is not None and namespace is not None:
                families.leave(namespace)
        lasts = trees.is_shared or trees.is_exclusive
        trees.everywhere = self._settings.environment_trees == "all" and lasts

    def begin(self, state: Path, tagger: ProcessTagger, table: ProcessTable) -> None:
        """Build images from now on, where Apptainer needs them; ``state``: folder of the driver."""
        if self._apptainer is not None and isinstance(self.sandbox, ApptainerSandbox):
            settings = self._settings
            runner = BuildRunner(
                tagger,
                table,
                settings.resource_limits(),
                settings.grace_seconds,
                settings.patience_seconds,
            )
            self._builder = ImageBuilder(
                self._containers, state, self._trees, self._apptainer, runner,
                self.sandbox.image_words,
            )  # fmt: skip
            self._builder.clean()

    async def ensure_image(
        self, spec: EnvironmentSpec, folder: Path, withdrawn: asyncio.Event | None = None
    ) -> None:
        """Pull the image of an environment that has not begun, or build it, where it has a definition.

        Raises ImageMissing with the reason and the end of the build's output, InvalidRequest, and WithdrawnError as soon
        as ``withdrawn`` is set: the pull or build goes on for the next user.
        """
        if not spec.image or self._trees.has_begun(folder):
            return
        if self._builder is None:
            if not self._trees.way:
                return  # it cannot use an image
            making = self._trees.arrivals.ensure(spec.image)
        else:
            making = self._builder.ensure(spec.image, folder.name)
        made = asyncio.ensure_future(making)
        left = asyncio.ensure_future((withdrawn or asyncio.Event()).wait())
        try:
            await asyncio.wait({made, left}, return_when=asyncio.FIRST_COMPLETED)
            if not made.done():
                raise WithdrawnError
            await made
        finally:
            left.cancel()
            made.cancel()

    async def discard_image(self, folder: Path) -> None:
        """Forget an environment's tree, and delete an image that was built for it alone; its folder is removed."""
        if self._builder is None:
            self._trees.forget(folder.name)
        else:
            await self._builder.discard(folder.name)

    async def close(self) -> None:
        """End the pulls and builds."""
        await self._trees.arrivals.close()
        if self._builder is not None:
            await self._builder.close()


def describe_trees(trees: Trees, sandbox: Sandbox) -> str:
    """Return how trees are made, who has one and which users, and why no better way is used; empty without."""
    if not trees.way:
        return ""
    users = "all users" if sandbox.maps_users else "root only"
    owners = "every environment" if trees.everywhere else "environments with an image alone"
    refused = "".join(f"; not by {name}: {why}" for name, why in trees.refused)
    return f"{trees.way} ({owners}, {users} of an image{refused})"
