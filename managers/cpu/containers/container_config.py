"""Configuration of a new container. Pure.

Safe by default: no network, no capability, no new privileges, the engine's own filter of system calls,
limits on processes, memory, open files, file size and /dev/shm. When the machine lacks memory, the
kernel ends commands before Tangram. Of the machine only the trajectory's workspace and, read-only, its
control directory are mounted; never the engine's socket. With a disk of the environment its volumes and the files at
/etc that an engine writes are mounted from it as well (`managers.cpu.containers.layer_disks`).

An image's user is often root. Without remapped users that is uid 0 of the host, without capabilities:
what the kernel gives to this uid alone (files of /proc) is masked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import docker.types

from domain.action import EnvironmentSpec
from domain.confinement import NETWORK_EGRESS, NETWORK_NONE
from domain.protection import Protection, UidMode
from managers.cpu.containers.layer_disks import ETC, ETC_FILES, HOSTNAME, VOLUMES
from managers.cpu.containers.settings import ContainerSettings
from managers.cpu.containers.shell import CONTROL, SHELL
from managers.cpu.workspaces import MOUNT

#: Labels. They alone decide whether this driver may remove a container.
OWNER: Final = "tangram.owner"
ENVIRONMENT: Final = "tangram.environment"
TRAJECTORY: Final = "tangram.trajectory"
BOOT: Final = "tangram.boot"
EXPIRES: Final = "tangram.expires"

#: What a container does not see: the lists of engines of versions 20 to 28, and files that uid 0 of the
#: host may read without a capability.
MASKED: Final = (
    "/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys",
    "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list",
    "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
    "/proc/config.gz", "/proc/kallsyms", "/proc/kmsg", "/proc/kpagecgroup", "/proc/kpagecount",
    "/proc/kpageflags", "/proc/pagetypeinfo", "/proc/slabinfo", "/proc/vmallocinfo",
)  # fmt: skip

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
    #: Its disk quota: no file is larger.
    disk_bytes: int = 2**62
    #: Mount point of its own disk; None: it has none.
    disk: Path | None = None
    #: Where its image declares volumes.
    volumes: tuple[str, ...] = ()

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

    def config(self, settings: ContainerSettings) -> dict[str, Any]:
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
            "hostname": HOSTNAME,
            # The first process ignores SIGTERM, so an engine that stops need not wait.
            "stop_timeout": 1,
            **({"user": settings.user} if settings.user else {}),
        }

    def host_config(self, settings: ContainerSettings) -> dict[str, Any]:
        """Return the arguments of the SDK's ``create_host_config``."""
        memory = memory_limit(self.spec, settings)
        binds = [f"{self.workspace}:{MOUNT}:rw"]
        if self.is_direct:
            binds.append(f"{self.control}:{CONTROL}:ro")
        if self.disk is not None:
            binds += [f"{self.disk / ETC / name}:/etc/{name}:rw" for name in ETC_FILES]
        largest = min(settings.max_file_bytes, self.disk_bytes)
        limits = {"nofile": settings.max_open_files, "fsize": largest, "core": 0}
        return {
            "binds": binds,
            "mounts": self._own_volumes(),
            "network_mode": engine_network(self.spec),
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
            "pids_limit": settings.max_processes,
            "mem_limit": memory,
            # The same number: no swap beyond it.
            "memswap_limit": memory,
            "ulimits": [{"Name": n, "Soft": v, "Hard": v} for n, v in limits.items()],
            "read_only": settings.read_only,
            "tmpfs": {"/tmp": f"mode=1777,size={settings.tmp_bytes}"}
            if settings.read_only
            else None,
            "storage_opt": {"size": str(settings.layer_bytes)} if settings.layer_bytes else None,
            "shm_size": settings.shm_bytes,
            "oom_score_adj": settings.oom_score_adj,
            "masked_paths": list(MASKED),
            # Answers of the shell are not logged to a file.
            "log_config": {"Type": "none"},
            **({"cgroup_parent": self.parent} if self.parent else {}),
        }

    def _own_volumes(self) -> list[docker.types.Mount]:
        """Return volumes of the image on its own disk, which the engine fills from the image."""
        if self.disk is None:
            return []
        return [
            docker.types.Mount(path, None, "volume", driver_config=self._on_disk(number))
            for number, path in enumerate(self.volumes)
        ]

    def _on_disk(self, number: int) -> docker.types.DriverConfig:
        device = f"{self.disk}/{VOLUMES}/{number}"
        return docker.types.DriverConfig("local", {"type": "none", "o": "bind", "device": device})


def engine_network(spec: EnvironmentSpec) -> str:
    """Return the engine's network of an environment; one with egress has none but a proxy's socket."""
    return NETWORK_NONE if spec.network == NETWORK_EGRESS else spec.network


def memory_limit(spec: EnvironmentSpec, settings: ContainerSettings) -> int:
    """Return the bytes an environment may use."""
    return spec.memory_bytes or settings.memory_bytes


def kill_advice(kills: int, limit_bytes: int) -> str:
    """Return how often the kernel killed in a container with this limit, and the cure."""
    times = "once" if kills == 1 else f"{kills} times"
    return (
        f"the kernel killed {times} for lack of memory: the environment may use {limit_bytes} bytes,"
        " declare a higher environment.memory_bytes"
    )


#: Options of an engine that map the users of containers to users without rights on the host.
_REMAPPED: Final = frozenset({"userns", "rootless"})
_NOT_REMAPPED: Final = "the engine maps no users: root of an image is uid 0 of the host"
_NOT_FILTERED: Final = "the engine filters no system calls"


def protection(
    info: Mapping[str, Any], isolation: str, settings: ContainerSettings, disk: str = ""
) -> Protection:
    """Return what protects commands in containers of an engine with this ``docker info``; ``disk``: how disk is."""
    options = [_option(text) for text in info.get("SecurityOptions") or ()]
    remapped = any(option.get("name") in _REMAPPED for option in options)
    filtered = any(
        option.get("name") == "seccomp" and option.get("profile") != "unconfined"
        for option in options
    )
    named = settings.user.partition(":")[0]
    safe = remapped or named not in ("", "0", "root")
    missing = [*([] if safe else [_NOT_REMAPPED]), *([] if filtered else [_NOT_FILTERED])]
    return Protection(
        isolation,
        UidMode.OWN if remapped else UidMode.IMAGE,
        seccomp=filtered,
        # The filters of all engines refuse user namespaces to commands without CAP_SYS_ADMIN.
        nested_namespaces_off=filtered,
        version=str(info.get("ServerVersion") or ""),
        disk=disk,
        missing="; ".join(missing),
    )


def _option(text: str) -> dict[str, str]:
    """Read ``name=seccomp,profile=default``."""
    return {name: value for name, _, value in (each.partition("=") for each in text.split(","))}
