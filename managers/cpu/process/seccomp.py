"""Seccomp profile of sandboxed commands, and its BPF program for x86_64 and aarch64.

The profile is a list of refusals; all else is allowed, so that compilers, debuggers and language
runtimes work as outside. A refused call fails with EPERM, as it does for a user without privileges, and
programs have a fallback for that.

Refused
- namespaces: `unshare` and `clone` with a flag of one, `setns`. `clone3` fails with ENOSYS, since a
  filter cannot read its flags behind a pointer; libraries then use `clone`.
- mounts (also by the newer calls), `chroot`, `pivot_root`, swap, quota, accounting, reboot
- modules, kexec, bpf, `perf_event_open`, `userfaultfd`: large parts of the kernel for code that needs none
- keyrings, which are shared by all processes of a uid, and files opened by their handle
- clocks and time zone, host name, kernel log, I/O ports, `vhangup`, obsolete calls
- io_uring: its operations pass no filter, and its faults were many; libraries use epoll without it
- `ioctl` TIOCSTI and TIOCLINUX, which type into a terminal
- `sched_setaffinity` in living environments of a node without cpusets (``pinned``), whose background processes
  could run on granted cores otherwise
- calls of another ABI (i386, x32, 32-bit ARM): their numbers differ, so the list would not hold

Allowed on purpose: `ptrace`, `process_vm_readv` and `process_vm_writev` of own processes (gdb, strace),
`personality` (gdb), landlock and a command's own stricter filter, `name_to_handle_at`, memory policy.

Numbers are those of the kernel's tables (arch/x86/entry/syscalls/syscall_64.tbl and, for aarch64,
scripts/syscall.tbl); they never change.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

#: Name → number on x86_64, on aarch64; None where the architecture lacks the call.
REFUSED: Final[Mapping[str, tuple[int | None, int | None]]] = {
    "setns": (308, 268),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "open_tree_attr": (467, 467),
    "swapon": (167, 224), "swapoff": (168, 225), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "acct": (163, 89), "reboot": (169, 142), "nfsservctl": (180, 42),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "create_module": (174, None), "get_kernel_syms": (177, None), "query_module": (178, None),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161), "setdomainname": (171, 162), "syslog": (103, 116),
    "iopl": (172, None), "ioperm": (173, None), "vhangup": (153, 58),
    "uselib": (134, None), "_sysctl": (156, None), "ustat": (136, None), "sysfs": (139, None),
    "lookup_dcookie": (212, 18), "modify_ldt": (154, None),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
}  # fmt: skip
CLONE3: Final = 435
_SET_AFFINITY: Final = (203, 122)

#: Flags of new namespaces, without CLONE_NEWTIME, whose bit is part of a signal number in `clone`.
_NEW_NAMESPACES: Final = 0x7E02_0000
_CLONE_NEWTIME: Final = 0x80
_TIOCSTI: Final = 0x5412
_TIOCLINUX: Final = 0x541C
_X32_BIT: Final = 0x4000_0000

#: Offsets in ``struct seccomp_data``; arguments are 64 bits, little-endian on both architectures.
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT, _SECOND_ARGUMENT_AT = 0, 4, 16, 24
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_IF_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW: Final = 0x7FFF_0000
_ERRNO: Final = 0x0005_0000
_REFUSE: Final = "SCMP_ACT_ERRNO"


@dataclass(frozen=True)
class Architecture:
    """Numbers of one architecture."""

    #: Position in the pairs of `REFUSED`.
    column: int
    #: AUDIT_ARCH_*, which marks the ABI of a call.
    audit: int
    clone: int
    unshare: int
    ioctl: int


ARCHITECTURES: Final = {
    "x86_64": Architecture(0, 0xC000_003E, clone=56, unshare=272, ioctl=16),
    "aarch64": Architecture(1, 0xC000_00B7, clone=220, unshare=97, ioctl=29),
}


@cache
def program_for(machine: str, *, pinned: bool = False) -> bytes | None:
    """Return the filter as an array of ``struct sock_filter``; None for an unknown architecture.

    ``machine`` is named as by ``uname -m``. ``pinned``: programs may not choose their cores.
    """
    known = ARCHITECTURES.get(machine)
    return None if known is None else _assemble(known, pinned=pinned)


def own_program(*, pinned: bool = False) -> bytes | None:
    """Return the filter for this machine."""
    return program_for(platform.machine(), pinned=pinned)


def oci_profile() -> dict[str, Any]:
    """Return the refusals as a profile of the OCI's form, for programs that make the filter themselves.

    They give all refused calls one error. With that of this list, a refused `clone3` would end programs that expect
    ENOSYS, so it is allowed: what it makes has the same filter.
    """
    spaces = [1 << bit for bit in range(32) if (_NEW_NAMESPACES | _CLONE_NEWTIME) >> bit & 1]
    calls: list[dict[str, Any]] = [{"names": sorted(REFUSED), "action": _REFUSE, "args": []}]
    for name, flags in (
        ("clone", [each for each in spaces if each != _CLONE_NEWTIME]),
        ("unshare", spaces),
    ):
        for flag in flags:
            test = {"index": 0, "value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ"}
            calls.append({"names": [name], "action": _REFUSE, "args": [test]})
    for command in (_TIOCSTI, _TIOCLINUX):
        test = {"index": 1, "value": 0xFFFF_FFFF, "valueTwo": command, "op": "SCMP_CMP_MASKED_EQ"}
        calls.append({"names": ["ioctl"], "action": _REFUSE, "args": [test]})
    return {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": calls}


@dataclass(frozen=True)
class _Step:
    """One instruction; jumps name the label where they go, None is the next instruction."""

    code: int
    value: int
    if_true: str | None = None
    if_false: str | None = None


def _assemble(machine: Architecture, *, pinned: bool) -> bytes:
    """Return the program: common calls are compared with each number and then allowed."""
    steps: list[_Step] = []
    labels: dict[str, int] = {}

    def add(code: int, value: int, if_true: str | None = None, if_false: str | None = None) -> None:
        steps.append(_Step(code, value, if_true, if_false))

    add(_LOAD, _ARCHITECTURE_AT)
    add(_JUMP_EQUAL, machine.audit, None, "refuse")
    add(_LOAD, _NUMBER_AT)
    add(_JUMP_AT_LEAST, _X32_BIT, "refuse")
    add(_JUMP_EQUAL, CLONE3, "unknown")
    add(_JUMP_EQUAL, machine.clone, "clone")
    add(_JUMP_EQUAL, machine.unshare, "unshare")
    add(_JUMP_EQUAL, machine.ioctl, "ioctl")
    for numbers in (*REFUSED.values(), *([_SET_AFFINITY] if pinned else [])):
        number = numbers[machine.column]
        if number is not None:
            add(_JUMP_EQUAL, number, "refuse")
    add(_RETURN, _ALLOW)
    labels["clone"] = len(steps)
    add(_LOAD, _FIRST_ARGUMENT_AT)
    add(_JUMP_IF_SET, _NEW_NAMESPACES, "refuse", "allow")
    labels["unshare"] = len(steps)
    add(_LOAD, _FIRST_ARGUMENT_AT)
    add(_JUMP_IF_SET, _NEW_NAMESPACES | _CLONE_NEWTIME, "refuse", "allow")
    labels["ioctl"] = len(steps)
    # The kernel reads 32 bits of this argument, so the upper half cannot hide a command.
    add(_LOAD, _SECOND_ARGUMENT_AT)
    add(_JUMP_EQUAL, _TIOCSTI, "refuse")
    add(_JUMP_EQUAL, _TIOCLINUX, "refuse", "allow")
    for label, answer in (
        ("allow", _ALLOW),
        ("refuse", _ERRNO | errno.EPERM),
        ("unknown", _ERRNO | errno.ENOSYS),
    ):
        labels[label] = len(steps)
        add(_RETURN, answer)
    return b"".join(_encode(step, at, labels) for at, step in enumerate(steps))


def _encode(step: _Step, at: int, labels: Mapping[str, int]) -> bytes:
    # Distances count from the next instruction and have one byte; struct.pack refuses a larger one.
    distances = [
        0 if label is None else labels[label] - at - 1 for label in (step.if_true, step.if_false)
    ]
    return struct.pack("<HBBI", step.code, *distances, step.value)
