"""Placement of Tangram's own parts: on the node's shared cores, else with a lower weight.

Parts are placed once all of them are ready: they start faster on all cores, while few actions run. A part
that is restarted later is placed when it starts. Where the node shares
cores (`managers.cpu.shared_cores`), the parts are pinned to them. Elsewhere they compete with actions for
every core, with half the weight of an action: as a control group where version 1 is writable, else by
their nice value. A part then takes at most a third of a core that an action computes on, and gets that
much, which control requests need. Node workers (`Program.cpus`) confine themselves, since commands must not
inherit it. For the same reason only their session, which no command belongs to, gets a lower weight: where the
kernel groups processes by session.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import psutil

from managers.common.affinity import confine, usable_cores
from managers.cpu.shared_cores import SharedCores
from tangram_web.supervisor.children import Program
from tangram_web.supervisor.options import Options

#: Weight of all parts together, where an action has 1,024.
SHARES: Final = 512
#: The nice value with about half the weight of 0.
NICE: Final = 3
_CPU_GROUPS: Final = Path("/sys/fs/cgroup/cpu")


class PartPlacement:
    """Places processes; until `settle`, it does nothing."""

    def __init__(
        self, partition: SharedCores, home: Path, groups: Path = _CPU_GROUPS, own_group: str = ""
    ) -> None:
        self.partition = partition
        name = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
        self._group = groups / (own_group or _own_group()).strip("/") / f"tangram-parts-{name}"
        self._grouped = self._settled = False

    @property
    def description(self) -> str:
        """Where the parts run, for the start's output."""
        if self.partition.shared:
            cores = ",".join(map(str, sorted(self.partition.shared)))
            return f"Tangram's own parts run on shared cores ({cores}), which are not granted"
        return "no core is kept for Tangram's own parts: they have half the weight of an action"

    def settle(self, parts: Iterable[tuple[Program, int | None]]) -> None:
        """Place the parts that run, and from now on every one that starts."""
        self._settled = True
        if self.partition.shared:
            confine(os.getpid(), self.partition.shared)
        else:
            self._grouped = self._make_group()
        for program, pid in parts:
            if pid is not None:
                self.place(program, pid)

    def place(self, program: Program, pid: int) -> None:
        """Place one part with the processes that it has started. Those that have ended are ignored."""
        if not self._settled:
            return
        for each in [pid] if program.cpus else _family(pid):
            try:
                self._place(each, is_node=bool(program.cpus))
            except OSError:  # ended; or the kernel allows no change, or not so soon after another
                continue

    def _place(self, pid: int, *, is_node: bool) -> None:
        if self.partition.shared:
            if not is_node:
                confine(pid, self.partition.shared)
        elif is_node:
            if os.getsid(pid) == pid:
                Path(f"/proc/{pid}/autogroup").write_text(f"{NICE}\n")
        elif self._grouped:
            (self._group / "cgroup.procs").write_text(f"{pid}\n")
        elif os.getpriority(os.PRIO_PROCESS, pid) < NICE:
            _lower(pid)

    def close(self) -> None:
        """Remove the control group; no part is left in it."""
        if self._grouped:
            try:
                self._group.rmdir()
            except OSError:  # a process is still ending there: the next start uses it again
                return

    def _make_group(self) -> bool:
        try:
            self._group.mkdir(exist_ok=True)
            (self._group / "cpu.shares").write_text(f"{SHARES}\n")
        except OSError:
            return False
        return True


def partition_of(options: Options, environment: Mapping[str, str]) -> SharedCores:
    """Return the partition of this machine's cores for the nodes that are started here; without one, all are the parts'."""
    if not options.nodes:
        return SharedCores(usable_cores(), frozenset(usable_cores()))
    declared = str(options.cpus) if options.cpus is not None else ""
    settings = {
        "cpus": declared or environment.get("TANGRAM_NODE_CPUS", ""),
        "reserved_cpus": environment.get("TANGRAM_NODE_RESERVED_CPUS", ""),
    }
    return SharedCores.choose(usable_cores(), settings)


def _family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def _lower(pid: int) -> None:
    """Lower the priority of all threads of a process."""
    for name in os.listdir(f"/proc/{pid}/task"):
        try:
            os.setpriority(os.PRIO_PROCESS, int(name), NICE)
        except ProcessLookupError:
            continue


def _own_group() -> str:
    """Return the path of our control group of version 1; the root where it is unknown."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return "/"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return path
    return "/"
