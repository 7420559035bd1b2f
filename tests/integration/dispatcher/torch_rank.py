"""One rank of a process group of torch (gloo), as a process under a Python that has torch; prints as `tcp_rank` does."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import sys
import time
from dataclasses import asdict
from typing import Any

import torch.distributed as dist

from dispatcher.transport import DispatchError
from dispatcher.transport.torch import TorchTransport
from tests.integration.dispatcher.cases import fingerprint, prepared


def misbehave(fault: str) -> None:
    """Die or stop in the middle of the collective call."""

    def faulty(*arguments: Any, **named: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL if fault == "kill" else signal.SIGSTOP)

    dist.all_to_all_single = faulty


def main() -> None:
    """Take part in exchanges of one case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rank", type=int)
    parser.add_argument("--size", type=int)
    parser.add_argument("--store")
    parser.add_argument("--case")
    parser.add_argument("--fault")
    parser.add_argument("--round-bytes", type=int, default=1 << 28)
    parser.add_argument("--times", type=int, default=2)
    given = parser.parse_args()
    plan, tensors = prepared(given.case)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{given.store}",
        rank=given.rank,
        world_size=given.size,
        timeout=datetime.timedelta(seconds=60),
    )
    if given.fault:
        misbehave(given.fault)
    try:
        with TorchTransport(round_bytes=given.round_bytes) as group:
            for _ in range(given.times):
                got = group.exchange(plan, tensors.get(given.rank, {}), timeout_seconds=30)
            answer: dict[str, Any] = {"arrays": fingerprint(got), "report": asdict(group.report)}
    except DispatchError as error:
        answer = {"error": error.description(), "at": time.time()}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a call of gloo that waits for a stopped rank would hold the process


main()
