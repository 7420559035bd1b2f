"""One rank of a TCP group, as a process of its own: reads its part from the command line, prints what it got or the error as JSON.

A rank may misbehave in the middle of an exchange: ``--fault kill|stop|corrupt`` when it sends its second part.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dispatcher.transport import DispatchError, streams
from dispatcher.transport.frames import Head, send_part
from dispatcher.transport.tcp import TcpTransport
from tests.integration.dispatcher.cases import fingerprint, prepared


def misbehave(fault: str, after: int) -> None:
    """Let the part with this number be the last one that is sent as it should be."""
    sent = 0

    def faulty(connection: socket.socket, head: Head, parts: Sequence[memoryview]) -> None:
        nonlocal sent
        sent += 1
        if sent > after and fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if sent == after + 1 and fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if sent > after and fault == "corrupt":
            changed = bytearray(parts[0])
            changed[len(changed) // 2] ^= 1
            parts = [memoryview(changed), *parts[1:]]
        send_part(connection, head, parts)

    streams.send_part = faulty  # type: ignore[attr-defined]


def main() -> None:
    """Take part in one exchange, or in several equal ones."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rank", type=int)
    parser.add_argument("--listener", type=int)
    parser.add_argument("--addresses", type=json.loads)
    parser.add_argument("--case")
    parser.add_argument("--strategy")
    parser.add_argument("--checksums", type=int, default=1)
    parser.add_argument("--fault")
    parser.add_argument("--after", type=int, default=1)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--gate", action="store_true")
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--secret", default="secret of this test")
    given = parser.parse_args()
    answer: dict[str, Any] = {}
    plan, tensors = prepared(given.case)
    if given.fault:
        misbehave(given.fault, given.after)
    try:
        with TcpTransport(
            given.rank,
            {int(rank): (host, port) for rank, (host, port) in given.addresses.items()},
            listener=socket.socket(fileno=given.listener),
            secret=given.secret.encode(),
            checksums=bool(given.checksums),
            connect_seconds=20,
        ) as group:
            sys.stdout.write("open\n")
            sys.stdout.flush()
            if given.gate:
                sys.stdin.readline()
            for _ in range(given.times):
                got = group.exchange(
                    plan,
                    tensors.get(given.rank, {}),
                    strategy=given.strategy,
                    timeout_seconds=given.timeout,
                )
            answer = {"arrays": fingerprint(got), "report": asdict(group.report)}
    except DispatchError as error:
        answer = {"error": error.description(), "at": time.time()}
    sys.stdout.write(json.dumps(answer) + "\n")


main()
