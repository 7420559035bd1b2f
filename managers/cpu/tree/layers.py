"""Layers of an environment's tree: the directories that an overlay shows as one.

From below: one **lowest** tree, shared and never changed (an image, or the base of the node: empty
directories over which system paths of the host are bound); **sealed** layers, each once the upper layer
of an environment before it was forked, never changed again and shared by a family; and one writable
**upper** layer, which belongs to the environment alone. All are below the state directory of a driver:

    images/DIGEST/tree            an image, by the digest of its content
    bases/DIGEST/tree             a base of the node
    layers/ID                     a sealed layer
    environments/NAME/layer       the upper layer; ``layer/workspace`` is ``/workspace``. Where Apptainer mounts it, a link
                                  to ``overlay/upper``, as its options demand
    environments/NAME/work        scratch of the overlay (same file system)
    environments/NAME/control     files of the environment's init, seen inside at ``/.tangram``
    environments/NAME/record.json the record of this module

The record is the truth about a stack: a layer or an image that no record and no snapshot names is
garbage. It is written before the first mount of a stack and before the old stack's layers are deleted.
Everything but `upper_layer` is pure; `managers.cpu.tree.records` reads and writes the files.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from domain.errors import InvalidRequest

#: Directories of a driver's state directory, and parts of an environment's folder.
ENVIRONMENTS: Final = "environments"
IMAGES: Final = "images"
BASES: Final = "bases"
LAYERS: Final = "layers"
UPPER: Final = "layer"
WORK: Final = "work"
CONTROL: Final = "control"
RECORD: Final = "record.json"
#: Directory of an upper layer that commands see as ``/workspace``.
WORKSPACE: Final = "workspace"
#: Sealed layers of one stack; a fork beyond it merges them first.
MOST_SEALED: Final = 16
#: A directory below the work directory with which the kernel forbids a second mount of a volatile overlay: after
#: a power failure its files may be incomplete, as on any machine that did not wait for its disk.
VOLATILE_MARK: Final = "work/incompat"
#: The options of a mount are one page, with the zero byte at their end.
_OPTION_BYTES: Final = 4095


class LayerStack(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is below an environment's upper layer."""

    #: Digest of the lowest tree; empty: none, as for environments of earlier versions.
    lowest: str = ""
    #: Whether the lowest tree is an image; else it is a base, which needs system paths of the host.
    is_image: bool = False
    #: Ids of the sealed layers, the oldest first.
    sealed: tuple[str, ...] = ()

    @property
    def must_merge(self) -> bool:
        """Whether its sealed layers are merged before one more is added."""
        return len(self.sealed) >= MOST_SEALED

    def with_sealed(self, layer: str) -> LayerStack:
        """Return the stack with one more sealed layer on top."""
        return replace(self, sealed=(*self.sealed, layer))

    def merged(self, layer: str) -> LayerStack:
        """Return the stack with one layer in the place of all sealed ones."""
        return replace(self, sealed=(layer,))

    def lowers(self, state: Path) -> tuple[Path, ...]:
        """Return its directories below a state directory, the topmost first, as an overlay takes them."""
        sealed = [state / LAYERS / layer for layer in reversed(self.sealed)]
        if not self.lowest:
            return tuple(sealed)
        store = IMAGES if self.is_image else BASES
        return (*sealed, state / store / self.lowest / "tree")


class TreeRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record of an environment's tree."""

    stack: LayerStack = LayerStack()
    #: Key of the trajectory; empty in folders of earlier versions, whose names are digests.
    trajectory: str = ""
    #: Name of the image as it was requested.
    image: str = ""
    #: Name of the environment's folder that it was forked from.
    parent: str = ""
    #: Seconds since 1970.
    made_at: float = 0.0
    #: Digest of its image; empty without one.
    digest: str = ""
    #: The upper layer holds the whole tree, copied; nothing is below it.
    whole: bool = False
    #: Records of later versions are refused: their stacks may hold what this one does not know.
    version: int = 1


def encode_record(record: TreeRecord) -> bytes:
    """Return a record as JSON."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def decode_record(content: bytes) -> TreeRecord:
    """Return the record in ``content``. Raises InvalidRequest for one that is none, or of a later version."""
    try:
        record = msgspec.json.decode(content, type=TreeRecord)
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidRequest(f"{RECORD} of an environment cannot be read: {error}") from None
    if record.version > TreeRecord().version:
        raise InvalidRequest(
            f"{RECORD} has version {record.version}: start the version of Tangram that wrote it"
        )
    return record


def forked(
    record: TreeRecord, parent: str, layer: str, children: Sequence[str]
) -> tuple[TreeRecord, list[TreeRecord]]:
    """Return the records of a source and of its children once the source's upper layer is ``layer``.

    ``parent``: name of the source's folder. ``children``: keys of their trajectories.
    """
    stack = record.stack.with_sealed(layer)
    source = replace(record, stack=stack)
    return source, [replace(source, trajectory=child, parent=parent) for child in children]


def used_layers(stacks: Iterable[LayerStack]) -> Counter[str]:
    """Return how many stacks (of environments and snapshots) hold each sealed layer."""
    return Counter(layer for stack in stacks for layer in stack.sealed)


def used_lowest(stacks: Iterable[LayerStack]) -> Counter[str]:
    """Return how many stacks are upon each image or base, by digest."""
    return Counter(stack.lowest for stack in stacks if stack.lowest)


def unused(present: Iterable[str], used: Counter[str]) -> list[str]:
    """Return what is stored and used by no stack, in order."""
    return sorted(each for each in present if not used[each])


def upper_layer(folder: Path) -> Path:
    """Return the upper layer of an environment's folder; one that Apptainer mounts has another place."""
    place = folder / UPPER
    return folder / os.readlink(place) if place.is_symlink() else place


def escaped(path: str) -> str:
    """Return a path as the options of an overlay write it."""
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def overlay_options(lowers: Sequence[str], upper: str, work: str) -> str:
    """Return the options of an overlay; ``lowers`` with the topmost first.

    ``index=off``: a sealed layer was the upper directory of a mount that may still exist, read-only.
    ``volatile``: else the kernel writes the whole disk back whenever an overlay is unmounted; `VOLATILE_MARK`
    is to be deleted before.
    Raises InvalidRequest when they do not fit in one page.
    """
    below = ":".join(map(escaped, lowers))
    options = (
        f"lowerdir={below},upperdir={escaped(upper)},workdir={escaped(work)},index=off,volatile"
    )
    if len(os.fsencode(options)) > _OPTION_BYTES:
        raise InvalidRequest(
            f"the tree has {len(lowers)} layers, whose paths do not fit into one mount: use a shorter"
            " path for the data folder (TANGRAM_HOME)"
        )
    return options
