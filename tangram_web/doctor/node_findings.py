"""Findings about single nodes: silence, door, disks, control groups and user namespaces. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from contract.machine_facts import CgroupFacts, DiskFacts, MachineFacts
from domain.confinement import SANDBOX_CURE, can_sandbox
from tangram_web.doctor.cluster_facts import ClusterFacts, ExaminedNode
from tangram_web.doctor.cluster_finding import ClusterFinding, fault, note, unknown
from tangram_web.problems import kinds
from tangram_web.problems.wording import duration

DOOR, CGROUPS, SANDBOX, MACHINE = "door", "cgroups", "sandbox", "machine"
#: A disk with less than this multiple of its floor is noted.
NEAR_FLOOR: Final = 2.0
#: Beginning of `domain.protection.Protection.memory` where no control group limits memory.
_WATCHED: Final = "watched"
_DELEGATE: Final = "let its service manager delegate them (systemd: Delegate=memory pids with DelegateSubgroup=worker), or run the worker as root"


def nodes(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """Find what is wrong with each node."""
    for node in facts.nodes:
        if node.is_silent:
            yield _silent(node, facts)
            continue
        yield from _door(node, facts)
        yield from _sandbox(node)
        if node.machine is None:
            yield unknown(
                MACHINE, node.name,
                f"Node {node.place} does not report its clock, disks, control groups and user namespaces:"
                f" its worker is of another version ({node.version or 'unknown'}).",
                "upgrade its worker",
            )  # fmt: skip
            continue
        yield from _disks(node, node.machine)
        if node.machine.cgroups is not None:
            yield from _cgroups(node, node.machine.cgroups)


def _silent(node: ExaminedNode, facts: ClusterFacts) -> ClusterFinding:
    since = "" if node.lost_at is None else f" for {duration(max(0.0, facts.now - node.lost_at))}"
    drained = "; it is drained" if node.drained else ""
    sentence = f"Node {node.place} is lost: no heartbeat has reached Redis{since}{drained}."
    cure = f"see on its machine whether its worker runs and reaches {facts.redis} (a firewall?). {kinds.NODE_LOST.to_do}"
    return (note if node.drained else fault)(kinds.NODE_LOST.key, node.name, sentence, cure)


def _door(node: ExaminedNode, facts: ClusterFacts) -> Iterator[ClusterFinding]:
    if not node.has_door:
        yield unknown(
            DOOR, node.name, f"Node {node.place} has stored no address of its door.",
            "upgrade or restart its worker: files, sessions and output of its environments pass there",
        )  # fmt: skip
    elif node.door_problem:
        said = node.door_problem[:1].upper() + node.door_problem[1:]
        sentence = f"{said} (tried by the web process on {facts.web_host})."
        cure = (
            f"open that port from {facts.web_host} to the node's machine, or set TANGRAM_NODE_DOOR and"
            " TANGRAM_NODE_DOOR_ADDRESS of its worker to an address that web processes reach"
        )
        yield fault(DOOR, node.name, sentence, cure)


def _disks(node: ExaminedNode, machine: MachineFacts) -> Iterator[ClusterFinding]:
    kind, refusal = kinds.DISK_SHORT, machine.disk_refusal
    if refusal:
        full = [each for each in machine.disks or () if f" {each.path} has " in refusal]
        space = f" ({_space(full[0])})" if full else ""
        yield fault(
            kind.key, node.name,
            f"Node {node.place} has a full disk. It takes no new work: {refusal}{space}.", kind.to_do,
        )  # fmt: skip
        return
    for disk in machine.disks or ():
        if disk.free_bytes < NEAR_FLOOR * disk.floor_bytes:
            yield note(
                kind.key, node.name,
                f"Node {node.place} will soon have a full disk: {disk.path} has {_space(disk)} free,"
                f" and the node takes no new work below {disk.floor_bytes:,} bytes.", kind.to_do,
            )  # fmt: skip


def _space(disk: DiskFacts) -> str:
    share = disk.free_bytes / disk.total_bytes if disk.total_bytes else 0.0
    return f"{disk.free_bytes:,} bytes, {share:.1%}"


def _sandbox(node: ExaminedNode) -> Iterator[ClusterFinding]:
    """Find nodes that can run no sandbox where their isolation or their pool needs one."""
    why = "" if node.machine is None else node.machine.no_user_namespaces
    if not can_sandbox(node.isolation, node.protection):
        if not node.needs_sandbox:
            return
        missing = why or ("" if node.protection is None else node.protection.missing)
        because = f": {missing}" if missing else ""
        yield fault(
            SANDBOX, node.name,
            f"Node {node.place} gets no actions, as pool {node.pool} requires a sandbox and isolation {node.isolation} is none{because}.",
            f"{SANDBOX_CURE}; or set sandbox: off for pool {node.pool}",
        )  # fmt: skip
    elif why and node.isolation in ("bwrap", "apptainer"):
        yield fault(
            SANDBOX, node.name,
            f"Node {node.place} has isolation {node.isolation}, and its machine forbids user namespaces: {why}.",
            SANDBOX_CURE,
        )  # fmt: skip


def _cgroups(node: ExaminedNode, found: CgroupFacts) -> Iterator[ClusterFinding]:
    """Find nodes that limit the memory of no environment, since they may not use control groups."""
    memory = "" if node.protection is None else node.protection.memory
    if not memory.startswith(_WATCHED) or found.job:
        return  # limited; or in a job of Slurm, whose groups are Slurm's
    lacking = f"Node {node.place} limits the memory of no environment"
    if found.version == 0:
        yield fault(
            CGROUPS, node.name, f"{lacking}: no control groups are mounted there ({memory}).",
            "mount version 2 at /sys/fs/cgroup, or show it to the container of the worker",
        )  # fmt: skip
    elif found.version == 1:
        yield fault(
            CGROUPS, node.name,
            f"{lacking}: its control groups are of version 1, which an ordinary account may not use ({memory}).",
            "boot its machine with systemd.unified_cgroup_hierarchy=1, or run the worker as root",
        )  # fmt: skip
    elif found.contained:
        yield note(
            CGROUPS, node.name,
            f"{lacking} by itself: its container limits all of them together, and delegates no control groups of version 2 ({memory}).",
            "give the container writable control groups, where one environment must not end the others",
        )  # fmt: skip
    else:
        yield fault(
            CGROUPS, node.name,
            f"{lacking}: its machine has control groups of version 2, and its worker may not make any ({memory}).",
            _DELEGATE,
        )  # fmt: skip
