"""A pod with a user namespace, by its namespaces alone: ``python pod_namespaces.py masked|unmasked COMMAND …``, as root.

COMMAND runs as user 10001 without capabilities, without a way to gain any, in namespaces of users (65,536 ids), mounts and processes;
``masked``: with parts of /proc covered, as in a container whose ``procMount`` is the default.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

_NEW_MOUNTS, _NEW_USERS, _NEW_PROCESSES = 0x20000, 0x10000000, 0x20000000
_MAP: Final = "0 100000 65536\n"
_MOUNT: Final = "mount --make-rprivate / && mount -t proc proc /proc"
_MASK: Final = "mount --bind /dev/null /proc/keys && mount -o bind,ro /proc/sys /proc/sys"
_USER: Final = (
    'exec setpriv --reuid 10001 --regid 10001 --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs "$@"'
)  # fmt: skip


def main() -> int:
    """Return the exit status of the command."""
    is_masked, command = sys.argv[1] == "masked", sys.argv[2:]
    (made, say_made), (mapped, say_mapped) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid:
        os.read(made, 1)
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{pid}/{name}").write_text(_MAP)
        os.write(say_mapped, b"x")
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_USERS | _NEW_MOUNTS | _NEW_PROCESSES) != 0:
        os._exit(125)
    os.write(say_made, b"x")
    os.read(mapped, 1)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    child = os.fork()  # the first process of its namespace
    if not child:
        script = " && ".join([_MOUNT, *([_MASK] if is_masked else []), _USER])
        os.execvp("sh", ["sh", "-c", script, "sh", *command])
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    sys.exit(main())
