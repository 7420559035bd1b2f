"""Settings of the driver for plain processes, as the operator of a node sets them."""

from __future__ import annotations

import contextlib
import resource
from dataclasses import dataclass
from typing import Final

from domain.confinement import APPTAINER, PLAIN
from domain.errors import InvalidRequest
from managers.cpu.process.invocation import ResourceLimits
from managers.cpu.tree.loop_disks import wants_disks

_TREES: Final = ("images", "all")
_ISOLATIONS: Final = ("auto", "bwrap", APPTAINER, PLAIN)
#: Open files that a privileged worker allows itself.
_OPEN_FILES: Final = 262_144


@dataclass(frozen=True)
class ProcessSettings:
    """Settings of this driver on a node."""

    #: ``auto`` uses bwrap where it works; ``bwrap`` and ``apptainer`` refuse to start without theirs.
    isolation: str = "auto"
    grace_seconds: float = 0.5
    patience_seconds: float = 10.0
    max_open_files: int = ResourceLimits.open_files
    max_processes: int = ResourceLimits.processes
    max_file_bytes: int = ResourceLimits.file_bytes
    #: Further system paths that sandboxed commands may read, separated by colons.
    readable_paths: str = ""
    #: Limit of an environment that declares no memory; 0: half of what the node offers.
    environment_memory_bytes: int = 0
    #: Size of /tmp and of /dev/shm in a sandbox; 0: an eighth of what the node offers, at most 4 GiB.
    environment_tmpfs_bytes: int = 0
    #: Prepared environments to keep: ``image=number``, separated by commas.
    environment_warm: str = ""
    #: ``all``: every environment keeps its whole tree, where overlays work; ``images``: one without an image keeps
    #: its workspace alone.
    environment_trees: str = "all"
    #: ``auto``: environments that declare ``disk_bytes`` have a disk of their own where possible.
    environment_disks: str = "auto"
    #: Environments outlive an orderly end of the worker, for the next one; they outlive its crash anyhow.
    environment_keep: bool = False
    #: Time without an action after which an environment is parked; 0: never.
    environment_park_seconds: float = 0.0

    @classmethod
    def parse(cls, given: dict[str, str]) -> ProcessSettings:
        """Parse the node's settings. Raises InvalidRequest that names a wrong one."""
        if given.get("isolation", "auto") not in _ISOLATIONS:
            raise InvalidRequest(f"isolation is one of {', '.join(_ISOLATIONS)}")
        wants_disks(given)
        if given.get("environment_trees", "all") not in _TREES:
            raise InvalidRequest(f"environment_trees is one of {', '.join(_TREES)}")
        values: dict[str, str | int | float] = {}
        for name in cls.__dataclass_fields__:
            default = getattr(cls, name)
            text = given.get(name, "")
            if not text:
                continue
            try:
                values[name] = text == "true" if isinstance(default, bool) else type(default)(text)
            except ValueError:
                raise InvalidRequest(f"{name} is {text!r}: give a number") from None
            if not isinstance(default, str | bool) and not 0 <= float(text) < float("inf"):
                raise InvalidRequest(f"{name} is {text!r}: give a number from 0 up")
        parse_wanted(str(values.get("environment_warm", "")))
        return cls(**values)  # type: ignore[arg-type]

    def resource_limits(self) -> ResourceLimits:
        """Return the limits of each command."""
        return ResourceLimits(self.max_open_files, self.max_processes, self.max_file_bytes)


def parse_wanted(text: str) -> dict[str, int]:
    """Return image → number of environments from ``image=number`` with commas between. Raises InvalidRequest."""
    wanted = {}
    for each in filter(None, (part.strip() for part in text.split(","))):
        image, _, number = each.rpartition("=")
        if not image or not number.isdigit():
            raise InvalidRequest(f"environment_warm has {each!r}: write it like swe:1=8")
        wanted[image] = int(number)
    return wanted


def raise_open_files() -> None:
    """Let this process open as many files as it may, and a privileged one `_OPEN_FILES`."""
    # Each living environment takes three descriptors of ours, and each running action up to five.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(hard, _OPEN_FILES),) * 2)
        return
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
