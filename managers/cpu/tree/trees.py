"""Trees of one driver: which tree an environment has, and how it becomes its ``/``.

`ensure` gives an environment its lowest tree at its first use and stores that in its record; it stays the same
for the environment's life. `mount` makes the tree ready for one bubblewrap. The way (`managers.cpu.tree.mounts`)
is chosen once, at the start of the driver.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from domain.action import EnvironmentSpec
from domain.errors import InvalidRequest
from managers.cpu.tree.base import make_base
from managers.cpu.tree.image_arrivals import ImageArrivals
from managers.cpu.tree.images import ImageFacts, ImageMissing, ImageName, ImageStore
from managers.cpu.tree.layers import (
    BASES,
    ENVIRONMENTS,
    LAYERS,
    RECORD,
    UPPER,
    WORK,
    WORKSPACE,
    LayerStack,
    TreeRecord,
    unused,
    used_lowest,
)
from managers.cpu.tree.mounts import (
    ApptainerOverlay,
    MountedTree,
    SharedWay,
    TreeWay,
    copy_lowest,
    pin_mount_points,
)
from managers.cpu.tree.records import all_records, load_record, store_record
from managers.cpu.tree.switch import upper_of

#: Mount points in every tree; an image and a base have them as directories.
POINTS: Final = ("/proc", "/dev", "/.tangram")


@dataclass(frozen=True)
class TreeUsers:
    """Users of an environment whose worker is root."""

    #: Host uid and gid of its uid 0.
    first_uid: int
    #: Descriptor of its user namespace.
    namespace: int


@dataclass(frozen=True)
class OpenTree:
    """An environment's tree, ready for one bubblewrap."""

    mounted: MountedTree
    #: None without an image: then system paths of the host are bound over it.
    image: ImageFacts | None

    @property
    def home(self) -> str:
        """Home directory of uid 0 inside."""
        return f"/{WORKSPACE}" if self.image is None else self.image.home

    @property
    def variables(self) -> Mapping[str, str]:
        """Variables that the image sets."""
        return {} if self.image is None else self.image.env

    def close(self) -> None:
        """Close it, when bubblewrap has ended."""
        self.mounted.close()


class Trees:
    """The trees below one state directory; its methods block and may be called from any thread."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self.images = ImageStore(state)
        self.arrivals = ImageArrivals(self.images)
        self._base = ""
        self._way: TreeWay | None = None
        #: Ways that do not work here, and why.
        self.refused: list[tuple[str, str]] = []
        #: Mount points besides `POINTS`, outside of the base's own.
        self.further_points: tuple[str, ...] = ()
        #: Whether environments of trajectories without an image have a tree of their own, upon the base.
        self.everywhere = False
        self._records: dict[str, TreeRecord] = {}
        #: Name of a folder → image that was built for it alone, until its record has it.
        self._reserved: dict[str, ImageName] = {}
        #: Locks of environments that get their first record, or are mounted, now.
        self._turns: weakref.WeakValueDictionary[str, threading.Lock] = (
            weakref.WeakValueDictionary()
        )
        self._choosing = threading.Lock()
        #: Records besides those of environments, whose images and bases are kept.
        self.further_records: Callable[[], Iterable[TreeRecord]] = tuple

    @property
    def way(self) -> str:
        """Name of the way; empty without trees."""
        return "" if self._way is None else self._way.name

    @property
    def has_layers(self) -> bool:
        """Whether stacks have layers: without them, images and forks are copies."""
        return self._way is not None and self._way.has_layers

    @property
    def is_shared(self) -> bool:
        """Whether all sandboxes of an environment see one mount of its layers."""
        return isinstance(self._way, SharedWay)

    @property
    def is_exclusive(self) -> bool:
        """Whether one sandbox at a time may have the tree of an environment."""
        return isinstance(self._way, ApptainerOverlay)

    def open(
        self,
        probe: Path,
        users: TreeUsers | None,
        ways: Iterable[TreeWay],
        works: Callable[[OpenTree], str],
    ) -> None:
        """Make the base, and choose the first way that works.

        ``probe``: an empty folder of an environment, for trials; ``works`` runs a command in its tree, and
        returns why that failed. Raises OSError when a base cannot be made.
        """
        self.images.open()
        for name in (BASES, LAYERS):
            (self._state / name).mkdir(mode=0o700, exist_ok=True)
        self._base = make_base(self._state)
        for way in ways:
            why = self._try(way, probe, users, works)
            if not why:
                break
            way.close()
            self._way = None
            self.refused.append((way.name, why))
        self._clear(probe)

    def _try(
        self, way: TreeWay, probe: Path, users: TreeUsers | None, works: Callable[[OpenTree], str]
    ) -> str:
        self._way = way
        self._clear(probe)
        try:
            tree = self.mount(probe, EnvironmentSpec(), users)
            assert tree is not None
            try:
                return works(tree)
            finally:
                tree.close()
        except (OSError, InvalidRequest) as error:
            return str(error)

    def _clear(self, probe: Path) -> None:
        self.forget(probe.name)
        (probe / RECORD).unlink(missing_ok=True)

    def delete_unused(self) -> None:
        """Delete images without a name, and bases of earlier starts, that no environment is upon."""
        records = [*all_records(self._state).values(), *self.further_records()]
        self.images.collect(Counter(each.digest for each in records))
        stacks = [*(each.stack for each in records), LayerStack(self._base)]
        for base in unused(os.listdir(self._state / BASES), used_lowest(stacks)):
            shutil.rmtree(self._state / BASES / base, ignore_errors=True)

    def ensure(self, folder: Path, spec: EnvironmentSpec, users: TreeUsers | None) -> TreeRecord:
        """Return the record of an environment, which gets its lowest tree at its first use.

        Raises ImageMissing, OSError, InvalidRequest.
        """
        record = self._records.get(folder.name)
        if record is not None:
            return record
        with self._turn(folder.name):
            record = self._records.get(folder.name)
            if record is None:
                is_new = not (folder / RECORD).exists()
                record = load_record(folder)
                if not record.stack.lowest and not record.whole:
                    spec = spec if is_new else EnvironmentSpec()
                    record = self._begun(folder, record, spec, users)
                self._records[folder.name] = record
                # Now, and not before: `used_images` must find it in one of both.
                self._reserved.pop(folder.name, None)
            return record

    def reserve(self, name: str, image: ImageName) -> None:
        """Let an environment that has not begun have its own image, which no name leads to."""
        self._reserved[name] = image

    def reserved(self, name: str) -> str:
        """Return the name of the image that an environment has for itself, before it has begun; empty without."""
        image = self._reserved.get(name)
        return "" if image is None else image.name

    def used_images(self) -> set[str]:
        """Return the digests of images that an environment or a snapshot is upon, or will be. Raises InvalidRequest."""
        reserved = [each.digest for each in list(self._reserved.values())]
        known = list(self._records.values())
        records = [*known, *all_records(self._state).values(), *self.further_records()]
        return {*reserved, *(each.digest for each in records)}

    def _turn(self, name: str) -> threading.Lock:
        """Return the lock of an environment: its first command and its first transfer come at once.

        It is held while the first record is made, and while a mount is: the mark that one leaves in the folder
        (`VOLATILE_MARK`) is deleted by the next one before it mounts, and would forbid it in between.
        """
        with self._choosing:
            return self._turns.setdefault(name, threading.Lock())

    def _begun(
        self, folder: Path, record: TreeRecord, spec: EnvironmentSpec, users: TreeUsers | None
    ) -> TreeRecord:
        """Choose the lowest tree of an environment."""
        image = self._lowest_image(folder.name, spec.image)
        digest = "" if image is None else image.digest
        stack = LayerStack(digest or self._base, is_image=image is not None)
        with contextlib.suppress(FileExistsError):
            (folder / WORK).mkdir(mode=0o700)
            if users is not None:
                os.chown(folder / WORK, users.first_uid, users.first_uid)
        whole = not self.has_layers
        if whole:
            first = None if users is None else users.first_uid
            copy_lowest(stack.lowers(self._state)[0], folder, first)
            stack = LayerStack()
        record = replace(record, stack=stack, image=spec.image or "", digest=digest, whole=whole)
        # Not worth a wait for the disk: without it the environment begins again as it did now.
        store_record(folder, record, durable=False)
        return record

    def _lowest_image(self, name: str, image: str | None) -> ImageFacts | None:
        reserved = self._reserved.get(name)
        if reserved is not None and reserved.name == image:
            return self.images.facts(reserved.digest)
        return self.images.find(image) if image else None

    def store(self, folder: Path, record: TreeRecord) -> None:
        """Store another record of an environment, on disk afterwards. Its commands must not start meanwhile."""
        store_record(folder, record)
        self._records[folder.name] = record

    def has_begun(self, folder: Path) -> bool:
        """Return whether an environment has its lowest tree, which stays."""
        return folder.name in self._records or (folder / RECORD).exists()

    def known(self, name: str) -> TreeRecord | None:
        """Return the present record of an environment that was used."""
        return self._records.get(name)

    def forget(self, name: str) -> None:
        """Drop what is known about an environment whose folder was removed."""
        self._records.pop(name, None)
        self._reserved.pop(name, None)

    def declared(
        self, folder: Path, spec: EnvironmentSpec, users: TreeUsers | None
    ) -> OpenTree | None:
        """Return the tree of an environment as `mount`, None for one without image and layers.

        Raises ImageMissing, also where the node has no trees, OSError, InvalidRequest.
        """
        if spec.image and self._way is None:
            raise ImageMissing(
                f"image {spec.image!r} cannot be used: this node runs commands without a sandbox"
            )
        if not spec.image and not self.is_whole(folder):
            return None
        return self.mount(folder, spec, users)

    def of_running(self, folder: Path, pid: int) -> OpenTree | None:
        """Return the tree that process ``pid`` of a running environment sees, by its own mount; close it.

        None where its root is in memory, and it has a workspace alone. Raises OSError, InvalidRequest.
        """
        way = self._way
        if not isinstance(way, SharedWay) or not upper_of(
            Path(f"/proc/{pid}/mountinfo").read_text()
        ):
            return None
        record = self._records.setdefault(folder.name, load_record(folder))
        return OpenTree(way.mount_of(folder, pid), self._image_of(record))

    def _image_of(self, record: TreeRecord) -> ImageFacts | None:
        return self.images.facts(record.digest) if record.digest else None

    def mount(
        self, folder: Path, spec: EnvironmentSpec, users: TreeUsers | None
    ) -> OpenTree | None:
        """Return the tree of an environment; close it. None where the driver has no trees.

        Raises ImageMissing, OSError, InvalidRequest.
        """
        if self._way is None:
            return None
        record = self.ensure(folder, spec, users)
        owner = None if users is None else users.first_uid
        layers = [
            folder / UPPER,
            *(self._state / LAYERS / each for each in reversed(record.stack.sealed)),
        ]
        pin_mount_points(layers, (*POINTS, *self.further_points), owner)
        namespace = None if users is None else users.namespace
        with self._turn(folder.name):
            mounted = self._way.mount(folder, record.stack, namespace)
        return OpenTree(mounted, self._image_of(record))

    def layers_of(self, folder: Path) -> list[Path]:
        """Return the directories with the files of an environment above its image: its folder, and sealed layers of forks and snapshots."""
        record = self._records.get(folder.name) or load_record(folder)
        return [folder, *(self._state / LAYERS / each for each in record.stack.sealed)]

    def is_layered(self, folder: Path) -> bool:
        """Return whether an environment shows more than its folder: an image, or sealed layers of forks."""
        record = self._records.get(folder.name) or load_record(folder)
        stack = record.stack
        return self._way is not None and bool(stack.lowest or stack.sealed or record.whole)

    def is_whole(self, folder: Path) -> bool:
        """Return whether an environment shows a whole tree, or will from its first use on."""
        is_kept = self.everywhere and folder.parent.name == ENVIRONMENTS
        return is_kept or self.is_layered(folder)

    @property
    def base(self) -> str:
        """Digest of the base of this start."""
        return self._base

    def mount_beside(
        self, folder: Path, record: TreeRecord, users: TreeUsers | None
    ) -> MountedTree:
        """Mount the stack of ``record``, which a running environment gets next. Raises OSError."""
        if self._way is None:
            raise OSError("environments have no trees here")
        namespace = None if users is None else users.namespace
        with self._turn(folder.name):
            return self._way.mount(folder, record.stack, namespace)

    def open_root(self, folder: Path, users: TreeUsers | None) -> int:
        """Return a descriptor of the top of an environment's tree; the environment does not run.

        Raises OSError, InvalidRequest.
        """
        if self._way is None:
            raise OSError("environments have no trees here")
        record = self.ensure(folder, EnvironmentSpec(), users)
        namespace = None if users is None else users.namespace
        with self._turn(folder.name):
            return self._way.open_root(folder, record.stack, namespace)

    def close(self) -> None:
        """End what the way holds."""
        if self._way is not None:
            self._way.close()
            self._way = None
