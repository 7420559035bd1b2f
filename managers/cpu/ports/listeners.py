"""Listeners in the host's network: which process listens on a port there.

An environment with ``network: host`` has no network of its own. A port is its own only where one of its
processes holds the listening socket; the kernel names the socket by an inode, in ``/proc/net/tcp`` and among
the descriptors of its processes.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_LISTENING: Final = "0A"


def is_listener(
    port: int, pids: Iterable[int], proc: Path = Path("/proc"), address: str = ""
) -> bool:
    """Say whether every listener on a port of this network is held by one of the processes. Blocks.

    False without a listener, and where another process listens on the same port too: which of them gets a
    connection cannot be known. ``address``: IPv4 address; listeners on others do not count.
    """
    listening = set(_listening(port, proc, address))
    return bool(listening) and listening <= set(_held(pids, proc))


def _listening(port: int, proc: Path, address: str) -> Iterator[str]:
    """Yield the inodes of sockets that listen on a port, and on no other than this address."""
    wanted = f"{int.from_bytes(socket.inet_aton(address), sys.byteorder):08X}" if address else ""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / "self" / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                host, _, local = fields[1].rpartition(":")
                if int(local, 16) == port and fields[3] == _LISTENING and wanted in ("", host):
                    yield fields[9]


def _held(pids: Iterable[int], proc: Path) -> Iterator[str]:
    """Yield the inodes of the sockets that processes have open."""
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            folder = proc / str(pid) / "fd"
            for name in os.listdir(folder):
                with contextlib.suppress(OSError):
                    target = os.readlink(folder / name)
                    if target.startswith("socket:["):
                        yield target[len("socket:[") : -1]
