"""Hosts of a benchmark: network namespaces on one bridge, each behind links of a declared rate; or loopback where they cannot be made.

Each host has a veth pair. Both of its ends have a token bucket, so that a host sends and receives at the rate at most, as through a port of
a switch. Everything has names with `PREFIX`, is removed at the end, and, left over from a run that was killed, before the next one.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Final

PREFIX: Final = "tgdsp"
_BRIDGE: Final = f"{PREFIX}br"
_NETWORK: Final = "10.213.77"
_LOCK: Final = Path(gettempdir()) / f"{PREFIX}.lock"


@dataclass(frozen=True)
class Host:
    """Where a rank runs: its address, and what stands before its command."""

    address: str
    command: tuple[str, ...] = ()


def _run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def remove() -> None:
    """Remove the namespaces, links and bridge of this benchmark, of whichever run."""
    for line in _run("ip", "netns", "list").splitlines():
        if line.startswith(PREFIX):
            _run("ip", "netns", "delete", line.split()[0])
    for link in json.loads(_run("ip", "-json", "link", "show") or "[]"):
        if link["ifname"].startswith(PREFIX):
            # The other end of a pair goes with the first one.
            subprocess.run(
                ["ip", "link", "delete", link["ifname"]], capture_output=True, check=False
            )


def _shape(command: Sequence[str], link: str, mbit: int) -> None:
    bucket = max(32, mbit * 1000 // 8 // 250)  # what a link carries in 4 ms, in kB
    _run(
        *command,
        *("tc", "qdisc", "add", "dev", link, "root", "tbf"),
        *("rate", f"{mbit}mbit", "burst", f"{bucket}kb", "latency", "50ms"),
    )


def _make(number: int, mbit: int) -> Host:
    name, outer = f"{PREFIX}{number}", f"{PREFIX}{number}o"
    inside = ("ip", "netns", "exec", name)
    address = f"{_NETWORK}.{number + 1}"
    _run("ip", "netns", "add", name)
    _run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", name)
    _run("ip", "link", "set", outer, "master", _BRIDGE, "up")
    _run(*inside, "ip", "address", "add", f"{address}/24", "dev", "eth0")
    _run(*inside, "ip", "link", "set", "lo", "up")
    _run(*inside, "ip", "link", "set", "eth0", "up")
    _shape((), outer, mbit)
    _shape(inside, "eth0", mbit)
    return Host(address, inside)


@contextmanager
def shaped(count: int, mbit: int) -> Iterator[list[Host]]:
    """Give hosts behind links of so many megabits a second. Raises OSError or CalledProcessError where that is not possible here."""
    if os.geteuid() != 0 or not shutil.which("tc") or not shutil.which("ip"):
        raise PermissionError("network namespaces need root, ip and tc")
    with _alone():
        yield from _shaped(count, mbit)


@contextmanager
def _alone() -> Iterator[None]:
    """Keep other runs away: each removes what it finds under `PREFIX`. Raises SystemExit beside one."""
    with _LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(
                "another run of this benchmark has the hosts: wait for its end"
            ) from None
        yield


def _shaped(count: int, mbit: int) -> Iterator[list[Host]]:
    remove()
    try:
        _run("ip", "link", "add", _BRIDGE, "type", "bridge")
        _run("ip", "link", "set", _BRIDGE, "up")
        yield [_make(number, mbit) for number in range(count)]
    finally:
        remove()


@contextmanager
def loopback(count: int) -> Iterator[list[Host]]:
    """Give hosts that share this machine's loopback."""
    yield [Host("127.0.0.1")] * count
