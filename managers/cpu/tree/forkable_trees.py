"""Trees of a driver as its forks need them: records with users, and a stack as the root of a running environment."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from domain.action import EnvironmentSpec
from domain.decisions import ForkEnvironment
from domain.errors import Unavailable
from managers.cpu.environment.protocol import LivingEnvironment
from managers.cpu.process.families import Families
from managers.cpu.tree.layers import UPPER, WORK, TreeRecord
from managers.cpu.tree.records import load_record
from managers.cpu.tree.stage import TREE
from managers.cpu.tree.switch import parse_mounts
from managers.cpu.tree.switcher import RootSwitcher
from managers.cpu.tree.trees import Trees, TreeUsers


class ForkableTrees:
    """Implements `managers.cpu.tree.forking.ForkedTrees`."""

    def __init__(self, state: Path, trees: Trees) -> None:
        self._state = state
        self._trees = trees
        #: Changes the mounts of running environments.
        self.switcher = RootSwitcher()
        #: Uids of environments, known once the driver is open.
        self.families: Families | None = None

    @property
    def has_layers(self) -> bool:
        """Whether stacks have layers."""
        return self._trees.has_layers

    @property
    def marks(self) -> str:
        """Namespace of the overlay's marks: ``trusted`` where the worker mounts, else ``user``."""
        return "user" if self.families is None else "trusted"

    def adapted(self, record: TreeRecord) -> TreeRecord:
        """Return the record of another node's environment with the base of this node."""
        stack = record.stack
        if not stack.lowest or stack.is_image:
            return record
        return replace(record, stack=replace(stack, lowest=self._trees.base))

    async def has_image(self, record: TreeRecord) -> bool:
        """Return whether the image below a record is here, or could be pulled; True without one. Raises ImageMissing."""
        stack, images = record.stack, self._trees.images
        if stack.is_image and not images.has(stack.lowest):
            await self._trees.arrivals.ensure(record.image)
        return not stack.is_image or images.has(stack.lowest)

    def record_of(self, folder: Path, order: ForkEnvironment) -> TreeRecord:
        """Return the record of the source, which gets its lowest tree if it has none yet."""
        if not self._trees.way:
            return load_record(folder)
        spec = order.environment or EnvironmentSpec()
        with self._users(folder) as users:
            return self._trees.ensure(folder, spec, users)

    def begin(self, folder: Path, spec: EnvironmentSpec) -> None:
        """Give an environment its tree before it runs. Raises ImageMissing, OSError."""
        if self._trees.way:
            with self._users(folder) as users:
                self._trees.ensure(folder, spec, users)

    def store(self, folder: Path, record: TreeRecord) -> None:
        """Store another record of an environment."""
        self._trees.store(folder, record)

    def can_switch(self, environment: LivingEnvironment) -> bool:
        """Return whether the root of a running environment is an overlay."""
        try:
            parse_mounts(Path(f"/proc/{environment.pid}/mountinfo").read_text())
        except (OSError, ValueError):
            return False
        return True

    def expect_switch(self) -> None:
        """Start what switches roots, which takes longer than a switch."""
        self.switcher.begin()

    def switch(self, environment: LivingEnvironment, record: TreeRecord) -> None:
        """Give a running environment the stack of ``record`` as its root. Raises Conflict, Unavailable."""
        folder = environment.directory
        if self.families is None:
            lowers = record.stack.lowers(self._state)
            self.switcher.switch(environment.pid, lowers, folder / UPPER, folder / WORK)
            return
        with self._users(folder) as users:
            mounted = self._trees.mount_beside(folder, record, users)
            try:
                if mounted.namespace is None:
                    raise Unavailable("this node cannot mount the layers of a running environment")
                self.switcher.switch_to(environment.pid, mounted.namespace, TREE)
            finally:
                mounted.close()

    def open_root(
        self, folder: Path, running: Callable[[str], LivingEnvironment | None] | None = None
    ) -> int:
        """Return a descriptor of the top of an environment's tree, as its programs see it. Raises OSError.

        ``running``: finds a running environment by the name of its folder. Beside its overlay nothing may
        write into its layer, which would not notice.
        """
        living = None if running is None else running(folder.name)
        if living is not None:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                return os.open(living.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        with self._users(folder) as users:
            return self._trees.open_root(folder, users)

    def close(self) -> None:
        """End the program that switches roots."""
        self.switcher.close()

    @contextmanager
    def _users(self, folder: Path) -> Iterator[TreeUsers | None]:
        if self.families is None:
            yield None
            return
        namespace = self.families.enter(folder)
        try:
            yield TreeUsers(namespace.uid, namespace.handle)
        finally:
            self.families.leave(namespace)
