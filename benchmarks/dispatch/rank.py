"""One rank of the benchmark, a process on one host: reads commands as JSON lines, answers each by one line.

``prepare`` makes the tensors, ``go`` begins; the answer has when it began and ended by the clock that all processes of the machine share.
"""

from __future__ import annotations

import json
import resource
import socket
import sys
import time
from typing import Any

import numpy as np

from benchmarks.dispatch.controller import Star, fill
from benchmarks.dispatch.work import fingerprint, layouts, made
from dispatcher.layout import Layout, Mesh, Shard, TensorSpec
from dispatcher.plan import plan_transfer
from dispatcher.transport.tcp import TcpTransport, listen

#: One listener for each kind of connection.
KINDS = ("checked", "unchecked", "plain")


def _usual(connection: socket.socket) -> socket.socket:
    """Return a socket with the congestion control that Linux has by default: that of a machine may be another one."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
    return connection


_connected = socket.create_connection


def _connect(*given: Any, **named: Any) -> socket.socket:
    return _usual(_connected(*given, **named))


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _hear() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sys.stdin.readline() or '{"do": "end"}')
    return found


class Rank:
    """Connections of a rank, and what it does with them."""

    def __init__(self, rank: int, host: str) -> None:
        self.rank = rank
        listeners = {kind: _usual(listen(host)) for kind in KINDS}
        _say({kind: listener.getsockname()[:2] for kind, listener in listeners.items()})
        addresses = _hear()
        found = {
            kind: {int(r): tuple(address) for r, address in addresses[kind].items()}
            for kind in KINDS
        }
        self.size = len(found["plain"])
        self.groups = {
            kind: TcpTransport(
                rank,
                found[kind],
                listener=listeners[kind],
                secret=b"benchmark",
                checksums=kind == "checked",
            )
            for kind in KINDS[:2]
        }
        self.star = Star(rank, found["plain"], listeners["plain"])
        _say({})

    def prepare(self, command: dict[str, Any]) -> Any:
        """Return what ``go`` will call."""
        way, mebibytes = command["way"], command["mebibytes"]
        if way == "raw":
            return self._raw(mebibytes)
        if command["pattern"] == "one-way":
            array = np.ones(int(mebibytes * 2**20), np.uint8)
            spec = ("bytes", "uint8", array.shape)
            source, target = (
                Layout(Mesh(dp=self.size), [TensorSpec(*spec, dp=Shard(0, sizes))])
                for sizes in (
                    [array.size, *[0] * (self.size - 1)],
                    [*[0] * (self.size - 1), array.size],
                )
            )
            plan = plan_transfer(source, target)
            tensors = {"bytes": array if self.rank == 0 else array[:0]}
            return lambda: self.groups[way].exchange(plan, tensors, strategy="pairs")["bytes"]
        mine = made(self.rank, self.size, mebibytes)
        if way == "controller":
            return lambda: self.star.gather_and_scatter(mine)
        plan = plan_transfer(*layouts(self.size, mebibytes))
        return lambda: self.groups[way].exchange(plan, {"returns": mine}, strategy="all-to-all")[
            "returns"
        ]

    def _raw(self, mebibytes: float) -> Any:
        """Send bytes from rank 0 to rank 1 as a program does that has nothing to check."""
        array = np.ones(int(mebibytes * 2**20), np.uint8)

        def raw() -> Any:
            if self.rank == 0:
                self.star.connections[1].sendall(array.data)
                self.star.connections[1].recv(1)
            elif self.rank == 1:
                got = np.empty_like(array)
                fill(self.star.connections[0], got)
                self.star.connections[0].sendall(b"!")
                return got
            return array

        return raw


def main() -> None:
    """Serve commands until the input ends."""
    rank = Rank(int(sys.argv[1]), sys.argv[2])
    while (command := _hear())["do"] != "end":
        call = rank.prepare(command)
        _say({})
        _hear()
        began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
        got = call()
        ended, after = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
        report = rank.groups["checked"].report
        if command["way"] == "unchecked":
            report = rank.groups["unchecked"].report
        digest = fingerprint(got) if command.get("digest") else ""
        sent = sum(report.sent.values())
        _say({"began": began, "ended": ended, "cpu": cpu, "digest": digest, "sent": sent})
    for group in rank.groups.values():
        group.close()


if __name__ == "__main__":
    socket.setdefaulttimeout(None)
    socket.create_connection = _connect
    main()
