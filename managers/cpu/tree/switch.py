"""Switch of a running environment's root: the same mounts upon a new overlay, while its programs go on.

This file is a program without other modules of Tangram (``python -I -S switch.py``). It reads one request a
line and answers each with one line; a child process does the work, since namespaces cannot be left again.

    {"pid": 7, "lowers": ["/a", "/b"], "upper": "/c", "work": "/d"}
    {"pid": 7, "prepared": "/proc/1/fd/9", "at": "/sys/tree"} · {"pid": 7, "check": true}
    {"pid": 7, "seal": true, "paths": ["/", "/workspace"]} · {"pid": 7, "seal": false, "paths": …}
    {"ok": true, "seconds": 0.004} · {"ok": false, "busy": true, "error": "…"}

Theory of operation
1. The mount of the present root is made read-only. The kernel refuses that while a program has a file of it
   open for writing or mapped so: the environment is *busy*, and nothing has changed.
2. A new overlay is mounted apart (its lower directories contain the former upper one), gets clones of all other
   mounts of the environment, and becomes the root of all its programs by pivot_root.
3. The former root is detached. Programs that have a directory of it open stay in it, read-only; so the caller
   looks for them before. An error before the pivot makes the former root writable again.

A root is *sealed* by step 1 alone, for its programs: another mount of the same overlay stays writable, so a command in
a sandbox beside them writes into the tree that they cannot change. A switch changes the mount back on failure; a seal
is taken back by a request.

The child joins the user namespace that owns the environment's mounts: an unprivileged worker may do that for
environments that it has made. A worker that is root mounts the overlay itself, and gives the mount namespace
where it is (``prepared``) and its path there.

``switch.py hold 7 /path`` mounts the root of process 7 at a path in a mount namespace of its own, writes an empty line
and waits for the end of its input: a worker with one uid takes the namespace meanwhile.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import signal
import struct
import sys
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

_SECONDS: Final = 20
_BUSY: Final = 16
#: Numbers of system calls, alike on all architectures but for pivot_root.
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 428, 429, 430, 431, 432
_MOUNT_SETATTR: Final = 442
_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41, "riscv64": 41}
_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x20000
_NS_GET_USERNS, _NS_GET_PARENT = 0xB701, 0xB702
#: First argument of the program that mounts the root of a process.
HOLD: Final = "hold"
_CLONE_ONE: Final = 0x1 | 0x80000  # OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC
_CLONE_TREE: Final = 0x1 | 0x80000 | 0x8000  # OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC, AT_RECURSIVE
_HERE: Final = -100
_EMPTY_PATH: Final = 4
_HERE_EMPTY: Final = 0x1000  # AT_EMPTY_PATH
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6
_DETACH: Final = 2
_READ_ONLY: Final = 1
_ATTRIBUTES: Final = {"nosuid": 2, "nodev": 4, "noexec": 8}
_OCTAL: Final = re.compile(r"\\([0-7]{3})")

_libc: Final = ctypes.CDLL(None, use_errno=True)


class Mounts(NamedTuple):
    """Mounts of an environment, from its mountinfo."""

    #: Options of the root mount, and of its file system.
    options: tuple[str, ...]
    super_options: tuple[str, ...]
    #: Paths of the mounts directly upon the root mount, each once.
    upon_root: tuple[str, ...]


def parse_mounts(mountinfo: str) -> Mounts:
    """Return the mounts of a mount namespace. Raises ValueError for a root that is no overlay."""
    rows = [line.split(" ") for line in mountinfo.splitlines()]
    roots = [row for row in rows if row[4] == "/"]
    if not roots or roots[-1][roots[-1].index("-") + 1] != "overlay":
        raise ValueError("the root of the environment is no overlay")
    root = roots[-1]
    upon = dict.fromkeys(_unescaped(row[4]) for row in rows if row[1] == root[0] and row[4] != "/")
    return Mounts(tuple(root[5].split(",")), tuple(root[-1].split(",")), tuple(upon))


def upper_of(mountinfo: str) -> str:
    """Return the upper directory of a root as its mount was given it; empty for any other root."""
    try:
        options = parse_mounts(mountinfo).super_options
    except ValueError:
        return ""
    return next((each[9:] for each in options if each.startswith("upperdir=")), "")


def stored_mounts(mountinfo: str, paths: Sequence[str]) -> list[str]:
    """Return those of the paths that are mounts of files on a disk, not in memory."""
    kinds = {}
    for line in mountinfo.splitlines():
        row = line.split(" ")
        kinds[_unescaped(row[4])] = row[row.index("-") + 1]
    return [path for path in paths if kinds.get(path, "tmpfs") != "tmpfs"]


def _unescaped(path: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), path)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _call(number: int, what: str, *arguments: Any) -> int:
    given = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *given), what)


def _set_read_only(wanted: bool, path: str = "/") -> None:
    # struct mount_attr: attributes to set, to clear, propagation, user namespace.
    change = struct.pack("4Q", *((_READ_ONLY, 0) if wanted else (0, _READ_ONLY)), 0, 0)
    place = os.fsencode(path)
    _call(_MOUNT_SETATTR, "read-only root", _HERE, place, 0, change, len(change))


def _overlay(lowers: Sequence[str], upper: str, work: str, mounts: Mounts) -> int:
    """Mount an overlay nowhere; return its descriptor."""
    context = _call(_FSOPEN, "fsopen overlay", b"overlay", 1)

    def set_option(name: str, value: str) -> None:
        what = f"overlay {name}={value}"
        _call(_FSCONFIG, what, context, _SET_STRING, name.encode(), os.fsencode(value), 0)

    try:
        for lower in lowers:
            set_option("lowerdir+", lower)
    except OSError:  # Linux before 6.8
        escaped = (each.replace("\\", "\\\\").replace(":", "\\:") for each in lowers)
        set_option("lowerdir", ":".join(escaped))
    set_option("upperdir", upper)
    set_option("workdir", work)
    set_option("index", "off")
    for flag in ("userxattr", "volatile"):
        if flag in mounts.super_options:
            _call(_FSCONFIG, f"overlay {flag}", context, _SET_FLAG, flag.encode(), None, 0)
    _call(_FSCONFIG, "overlay", context, _CREATE, None, None, 0)
    attributes = sum(_ATTRIBUTES.get(each, 0) for each in mounts.options)
    return _call(_FSMOUNT, "mount overlay", context, 1, attributes)


def _prepared(request: dict[str, Any], mounts: Mounts) -> int:
    """Return a clone of an overlay that the worker has mounted in a namespace of its own."""
    place = os.open(request["prepared"], os.O_RDONLY)
    _checked(_libc.setns(place, _NEW_MOUNTS), "enter the prepared mounts")
    new = _call(_OPEN_TREE, "take the new root", _HERE, os.fsencode(request["at"]), _CLONE_TREE)
    attributes = sum(_ATTRIBUTES.get(each, 0) for each in mounts.options)
    change = struct.pack("4Q", attributes, 0, 0, 0)
    _call(_MOUNT_SETATTR, "attributes", new, b"", _HERE_EMPTY, change, len(change))
    return new


def _mounted(request: dict[str, Any], inside: int, mounts: Mounts) -> int:
    """Mount an overlay in the user namespace that owns the mounts ``inside``."""
    owner = fcntl.ioctl(inside, _NS_GET_USERNS)
    _checked(_libc.setns(owner, _NEW_USER), "enter the user namespace")
    _checked(_libc.unshare(_NEW_MOUNTS), "own mounts")
    return _overlay(request["lowers"], request["upper"], request["work"], mounts)


def switch(request: dict[str, Any]) -> None:
    """Give the environment of process ``pid`` its new root. Raises OSError, ValueError. Changes this process."""
    pid = request["pid"]
    with open(f"/proc/{pid}/mountinfo") as file:
        mounts = parse_mounts(file.read())
    inside = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    new = _prepared(request, mounts) if "prepared" in request else _mounted(request, inside, mounts)
    _checked(_libc.setns(inside, _NEW_MOUNTS), "enter the environment")
    _set_read_only(True)
    try:
        paths = [os.fsencode(path) for path in mounts.upon_root]
        clones = [_call(_OPEN_TREE, f"clone {path!r}", _HERE, path, _CLONE_TREE) for path in paths]
        _call(_MOVE_MOUNT, "place the new root", new, b"", _HERE, b"/", _EMPTY_PATH)
        os.fchdir(new)
        for path, clone in zip(paths, clones, strict=True):
            _call(_MOVE_MOUNT, f"place {path!r}", clone, b"", _HERE, b"." + path, _EMPTY_PATH)
        _call(_PIVOT_ROOT[os.uname().machine], "pivot", b".", b".")
    except BaseException:
        _set_read_only(False)
        raise
    _checked(_libc.umount2(b".", _DETACH), "detach the former root")


def _enter(pid: int) -> None:
    """Enter the mounts of an environment."""
    inside = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    if os.geteuid():
        owner = fcntl.ioctl(inside, _NS_GET_USERNS)
        _checked(_libc.setns(owner, _NEW_USER), "enter the user namespace")
    _checked(_libc.setns(inside, _NEW_MOUNTS), "enter the environment")


def check(request: dict[str, Any]) -> None:
    """Raise OSError with EBUSY while a program has a file of the root open for writing."""
    _enter(request["pid"])
    _set_read_only(True)
    _set_read_only(False)


def seal(request: dict[str, Any]) -> None:
    """Make the mounts with files of an environment read-only for its programs, or writable again.

    Raises OSError with EBUSY while a program has a file of them open for writing; then they are writable.
    """
    pid = request["pid"]
    with open(f"/proc/{pid}/mountinfo") as file:
        paths = stored_mounts(file.read(), request["paths"])
    _enter(pid)
    if not request["seal"]:
        for path in paths:
            _set_read_only(False, path)
        return
    for number, path in enumerate(paths):
        try:
            _set_read_only(True, path)
        except OSError:
            for each in paths[:number]:
                _set_read_only(False, each)
            raise


def hold(pid: int, at: str) -> None:
    """Mount the root of a process at a path, in the user namespace around its own. Raises OSError."""
    inside = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    around = fcntl.ioctl(fcntl.ioctl(inside, _NS_GET_USERNS), _NS_GET_PARENT)
    _checked(_libc.setns(around, _NEW_USER), "enter the user namespace")
    _checked(_libc.unshare(_NEW_MOUNTS), "own mounts")
    own = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    _checked(_libc.setns(inside, _NEW_MOUNTS), "enter the environment")
    root = _call(_OPEN_TREE, "take the root", _HERE, b"/", _CLONE_ONE)
    _checked(_libc.setns(own, _NEW_MOUNTS), "leave the environment")
    _call(_MOVE_MOUNT, "place the root", root, b"", _HERE, os.fsencode(at), _EMPTY_PATH)
    os.write(1, b"\n")
    sys.stdin.read()


def _work(request: dict[str, Any]) -> dict[str, Any]:
    began = time.monotonic()
    work = check if "check" in request else seal if "seal" in request else switch
    try:
        work(request)
    except OSError as error:
        text = error.strerror or str(error)
        return {"ok": False, "busy": error.errno == _BUSY and "read-only" in text, "error": text}
    except (ValueError, KeyError) as error:
        return {"ok": False, "busy": False, "error": str(error)}
    return {"ok": True, "seconds": time.monotonic() - began}


def _serve_in_child(request: dict[str, Any]) -> bytes:
    """Return the answer of a child process, which namespaces do not let back."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(_SECONDS)
        try:
            os.write(writer, json.dumps(_work(request)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = file.read()
    os.waitpid(child, 0)
    return said or json.dumps({"ok": False, "busy": False, "error": "it took too long"}).encode()


def main() -> None:
    """Answer the requests of standard input until it ends, or hold a root."""
    if sys.argv[1:2] == [HOLD]:
        hold(int(sys.argv[2]), sys.argv[3])
        return
    for line in sys.stdin:
        answer = _serve_in_child(json.loads(line))
        os.write(1, answer + b"\n")


if __name__ == "__main__":
    main()
