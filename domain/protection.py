"""Protection of commands on a node: what separates an action from the machine and from its neighbours.

A driver finds it when it opens, and the node worker reports it when the node joins. `isolation` names
the mechanism, `uids` the host users that commands have. Every value is what the driver tried and saw
work, not what it was configured to do; `missing` names what the machine does not permit.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class UidMode(StrEnum):
    """Host users that the commands of a node have."""

    #: A range of uids for each family of environments; they own nothing outside.
    OWN = "own"
    #: The user of the node worker, which is not root.
    WORKER = "worker"
    #: The user of a container's image; where that is root, uid 0 of the host without capabilities.
    IMAGE = "image"
    #: The root of the host (or of the container that the worker runs in).
    ROOT = "root"


_UIDS = {
    UidMode.OWN: "own uids for each environment",
    UidMode.WORKER: "the uid of the worker",
    UidMode.IMAGE: "the image's user, without capabilities",
    UidMode.ROOT: "uid 0 of the host",
}


class Protection(msgspec.Struct, frozen=True, omit_defaults=True):
    """Protection that a node gives to what runs on it."""

    #: ``bwrap``, ``process``, ``docker-direct``, ``docker-api``, or the name of another driver's kind.
    isolation: str
    uids: UidMode = UidMode.WORKER
    #: System calls are filtered.
    seccomp: bool = False
    #: Commands cannot make user namespaces.
    nested_namespaces_off: bool = False
    #: Path and version of the program that makes sandboxes; empty without one.
    program: str = ""
    version: str = ""
    #: How memory of commands is limited; empty where the driver does not say.
    memory: str = ""
    #: How the disk that environments use is limited; empty where the driver does not say.
    disk: str = ""
    #: How environments get the tree that they see at ``/``; empty where they have none of their own.
    trees: str = ""
    #: A sentence: what is missing, and why; empty when nothing is.
    missing: str = ""

    @property
    def sandboxed(self) -> bool:
        """Whether commands are separated from the machine: a pool that requires it may use the node."""
        return self.isolation != "process" and self.uids is not UidMode.ROOT

    @property
    def text(self) -> str:
        """One line for pages, ``doctor`` and logs."""
        if self.isolation == "process":
            parts = [f"plain processes with {_UIDS[self.uids]}, not isolated"]
        else:
            parts = [f"{self.isolation} {self.version}".rstrip(), _UIDS[self.uids]]
            parts.append("system calls filtered" if self.seccomp else "system calls not filtered")
            off = "off" if self.nested_namespaces_off else "possible"
            parts.append(f"nested user namespaces {off}")
        if self.memory:
            parts.append(f"memory {self.memory}")
        if self.disk:
            parts.append(f"disk {self.disk}")
        if self.trees:
            parts.append(f"trees by {self.trees}")
        line = ", ".join(parts)
        return f"{line}; {self.missing}" if self.missing else line
