"""What a container is created with. Pure.

Safe by default: no network, no capability, no way to gain one, limits on processes, memory, open
files and file size. Nothing of the machine is mounted but the trajectory's workspace and, read-only,
its control directory; never the engine's socket.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from domain.action import EnvironmentSpec
from managers.cpu.containers.settings import Settings
from managers.cpu.containers.shell import CONTROL, SHELL
from managers.cpu.process.workspace import MOUNT

#: Labels. Who may remove a container is decided by these alone.
OWNER: Final = "tangram.owner"
ENVIRONMENT: Final = "tangram.environment"
TRAJECTORY: Final = "tangram.trajectory"
BOOT: Final = "tangram.boot"
EXPIRES: Final = "tangram.expires"

#: The first process where no shell is attached: it waits for orphans and cannot be signalled from
#: inside. Killing its sleep only starts another one.
WAITING: Final = "trap '' HUP INT QUIT TERM; while :; do sleep 3600 & wait; done"


@dataclass(frozen=True)
class Blueprint:
    """Everything that decides how one container is made."""

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
        """Whether its first process is a shell that we talk to."""
        return bool(self.parent)

    def labels(self) -> dict[str, str]:
        """Return what tells that the container is ours, and until when."""
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
            # Otherwise the SDK asks for the shell to end with the first stream attached to it.
            "detach": True,
            "working_dir": MOUNT,
            "labels": self.labels(),
            "hostname": "tangram",
            # The first process hears no polite signal, so an engine that stops need not wait.
            "stop_timeout": 1,
        }

    def host_config(self, settings: Settings) -> dict[str, Any]:
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
            # Answers of the shell are not worth a file that grows.
            "log_config": {"Type": "none"},
            **({"cgroup_parent": self.parent} if self.parent else {}),
        }


def memory_limit(spec: EnvironmentSpec, settings: Settings) -> int:
    """Return the bytes an environment may use."""
    return spec.memory_bytes or settings.memory_bytes
