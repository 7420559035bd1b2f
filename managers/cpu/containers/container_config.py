"""Configuration of a new container. Pure.

Safe by default: no network, no capability, no new privileges, limits on processes, memory, open files
and file size. Of the machine only the trajectory's workspace and, read-only, its control directory are
mounted; never the engine's socket.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from domain.action import EnvironmentSpec
from managers.cpu.containers.settings import ContainerSettings
from managers.cpu.containers.shell import CONTROL, SHELL
from managers.cpu.workspaces import MOUNT

#: Labels. They alone decide whether this driver may remove a container.
OWNER: Final = "tangram.owner"
ENVIRONMENT: Final = "tangram.environment"
TRAJECTORY: Final = "tangram.trajectory"
BOOT: Final = "tangram.boot"
EXPIRES: Final = "tangram.expires"

#: The first process where no shell is attached: it waits for orphans and cannot be signalled from
#: inside. Killing its sleep only starts another one.
WAITING: Final = "trap '' HUP INT QUIT TERM; while :; do sleep 3600 & wait; done"


@dataclass(frozen=True)
class ContainerConfig:
    """Parameters of one container."""

    name: str
    owner: str
    trajectory: str
    boot: str
    #: Wall clock, in seconds.
    expires_at: float
    image: str
    spec: EnvironmentSpec
    workspace: Path
    control: Path
    #: Parent in the tree of control groups; empty: the engine's own.
    parent: str

    @property
    def is_direct(self) -> bool:
        """Whether its first process is a shell that takes our commands."""
        return bool(self.parent)

    def labels(self) -> dict[str, str]:
        """Return the labels of owner and expiry."""
        return {
            OWNER: self.owner,
            ENVIRONMENT: self.name,
            TRAJECTORY: self.trajectory,
            BOOT: self.boot,
            EXPIRES: str(int(self.expires_at)),
        }

    def config(self) -> dict[str, Any]:
        """Return the arguments of the SDK's ``create_container``."""
        entry, command = ([SHELL], ["-s"]) if self.is_direct else (["/bin/sh"], ["-c", WAITING])
        return {
            "image": self.image,
            "entrypoint": entry,
            "command": command,
            "stdin_open": self.is_direct,
            # Otherwise the SDK makes the shell end with the first stream attached to it.
            "detach": True,
            "working_dir": MOUNT,
            "labels": self.labels(),
            "hostname": "tangram",
            # The first process ignores SIGTERM, so an engine that stops need not wait.
            "stop_timeout": 1,
        }

    def host_config(self, settings: ContainerSettings) -> dict[str, Any]:
        """Return the arguments of the SDK's ``create_host_config``."""
        memory = memory_limit(self.spec, settings)
        binds = [f"{self.workspace}:{MOUNT}:rw"]
        if self.is_direct:
            binds.append(f"{self.control}:{CONTROL}:ro")
        limits = {"nofile": settings.max_open_files, "fsize": settings.max_file_bytes, "core": 0}
        return {
            "binds": binds,
            "network_mode": self.spec.network,
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
            "pids_limit": settings.max_processes,
            "mem_limit": memory,
            # The same number: no swap beyond it.
            "memswap_limit": memory,
            "ulimits": [{"Name": n, "Soft": v, "Hard": v} for n, v in limits.items()],
            "read_only": settings.read_only,
            "tmpfs": {"/tmp": "mode=1777"} if settings.read_only else None,
            # Answers of the shell are not logged to a file.
            "log_config": {"Type": "none"},
            **({"cgroup_parent": self.parent} if self.parent else {}),
        }


def memory_limit(spec: EnvironmentSpec, settings: ContainerSettings) -> int:
    """Return the bytes an environment may use."""
    return spec.memory_bytes or settings.memory_bytes
