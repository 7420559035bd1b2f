"""redis confirmation: what a submission and a commit of the loop cost with and without a confirmation by a replica.

On a master with two replicas, all with ``appendfsync always``, as `benchmarks.redis_failover` has them. Both ways take turns in one
process, so that the load of the machine is the same for both; each call is alone, as at a low rate. Under load requests share one
append, and one confirmation. Replicas on other machines add the time to them and back.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from benchmarks.record import quantiles, store
from benchmarks.redis_failover import Replicated
from domain.confirmation import NONE_NEEDED, Confirmation
from domain.redis_keys import Keys
from scheduler.runtime.gateway.submitter import Submitter
from scheduler.runtime.loop.leadership import Leadership
from scheduler.runtime.redis.clients import connect, connect_async

WAYS: Final = {"without": NONE_NEEDED, "confirmed": Confirmation(replicas=1)}
#: Of one way, before it is the turn of the other one.
TURN: Final = 20
BODY: Final = b"x" * 600


async def submissions(url: str, count: int) -> dict[str, list[float]]:
    """Return the seconds of each append of a request."""
    took: dict[str, list[float]] = defaultdict(list)
    client = connect_async(url)
    keys = Keys("cost")
    submitters = {way: Submitter(client, keys, confirmation=each) for way, each in WAYS.items()}
    serving = [asyncio.ensure_future(each.run()) for each in submitters.values()]
    for _ in range(count // TURN):
        for way, submitter in submitters.items():
            for _ in range(TURN):
                began = time.perf_counter()
                await submitter.append([BODY])
                took[way].append(time.perf_counter() - began)
    for each in serving:
        each.cancel()
    await asyncio.wait(serving)
    await client.aclose()
    return took


def commits(url: str, count: int) -> dict[str, list[float]]:
    """Return the seconds of each commit of a journal entry with commands of two nodes."""
    took: dict[str, list[float]] = defaultdict(list)
    with connect(url) as client:
        keys = Keys("cost")
        leader = Leadership(client, keys, "cost", lease_seconds=600.0)
        leader.try_elect()
        orders = [(keys.commands(node, "i"), BODY) for node in ("n1", "n2")]
        for _ in range(count // TURN):
            for way, confirmation in WAYS.items():
                leader.confirmation = confirmation
                for _ in range(TURN):
                    began = time.perf_counter()
                    leader.commit(BODY, "0-0", orders)
                    took[way].append(time.perf_counter() - began)
        leader.disconnect()
    return took


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--store", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tangram-confirm-") as directory:
        servers = Replicated(Path(directory), 3, 1)
        try:
            servers.start()
            measured = {
                "submission": asyncio.run(submissions(servers.url, options.count)),
                "commit": commits(servers.url, options.count),
            }
        finally:
            servers.stop()
    found: dict[str, Any] = {
        what: {way: quantiles(seconds) for way, seconds in ways.items()}
        for what, ways in measured.items()
    }
    print(found)
    if options.store:
        print("stored in", store("redis_confirmation", {"count": options.count, **found}))


if __name__ == "__main__":
    main()
