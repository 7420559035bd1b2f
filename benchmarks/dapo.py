"""dapo: informative prompts a second, Efficient DAPO against plain DAPO, with rollouts of declared durations (Fig. 3).

``python -m benchmarks.dapo [--prompts 8] [--samples 4] [--slots 16] [--iterations 6] [--warm 2] [--mean 2.0] [--sigmas 0.5,1.0,1.5]
[--virtual]``. Both submit to the same Tangram with the same instances, and have at most prompts × samples rollouts live, of which
``--slots`` run at once. Plain DAPO submits a batch, waits for all of it, keeps the informative prompts and repeats that until it has
enough; what it has beyond that is discarded. Durations are log-normal, every second prompt is informative. The first iterations are not
counted: Efficient DAPO returns short rollouts first and carries the long ones. ``--virtual`` computes the same with the client's in-memory
server, in virtual time. Target: at least 1.5 times.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from benchmarks.record import store
from benchmarks.stack import tangram
from tangram_client import Client
from tangram_client.dapo import Dapo, differ
from tangram_client.testing import FakeServer, PlannedRollout

TARGET = 1.5
_TURNS = 10


@dataclass(frozen=True)
class DapoCase:
    """One measurement."""

    prompts: int
    samples: int
    iterations: int
    mean_seconds: float
    sigma: float
    #: Rollouts that run at once.
    slots: int
    #: First iterations that are not counted.
    warm: int = 0
    seed: int = 1

    @property
    def at_once(self) -> int:
        """Rollouts that are live at any time."""
        return self.prompts * self.samples

    def instances(self, number: int = 1024) -> list[dict[str, Any]]:
        """Return prompts whose rollouts have log-normal durations; every second one has rewards that differ."""
        source = random.Random(self.seed)
        shift = math.log(self.mean_seconds) - self.sigma**2 / 2
        found = []
        for position in range(number):
            informative = source.random() < 0.5
            same = float(source.random() < 0.5)
            rewards = [float(sample % 2) if informative else same for sample in range(self.samples)]
            seconds = [source.lognormvariate(shift, self.sigma) for _ in rewards]
            data = {"seconds": seconds, "reward": rewards, "turns": _TURNS}
            found.append({"id": f"p-{position}", "data": data})
        return found


#: Yields a number of informative prompts for each iteration.
Way = Callable[[Client, DapoCase], Iterator[int]]


def efficient(client: Client, case: DapoCase) -> Iterator[int]:
    """Efficient DAPO."""
    dapo = Dapo(
        client, "dapo", "noop", case.instances(), prompts=case.prompts, samples=case.samples,
        at_once=case.at_once,
    )  # fmt: skip
    try:
        for _ in range(case.warm + case.iterations):
            batch = dapo.batch()
            dapo.acknowledge(batch)
            yield len(batch)
    finally:
        dapo.close()


def plain(client: Client, case: DapoCase) -> Iterator[int]:
    """Plain DAPO: whole batches, until enough prompts are informative."""
    source = cycle(case.instances())
    for _ in range(case.warm + case.iterations):
        informative = 0
        while informative < case.prompts:
            batch = [next(source) for _ in range(case.prompts)]
            made = client.rollouts.submit("dapo", "noop", batch, samples=case.samples)
            found = [client.rollouts.wait(rollout) for rollout in made]
            client.rollouts.acknowledge(made)
            for first in range(0, len(found), case.samples):
                group = found[first : first + case.samples]
                informative += differ([each.reward for each in group if each.reward is not None])
        yield case.prompts


WAYS: Mapping[str, Way] = {"plain": plain, "efficient": efficient}


def rate(way: Way, client: Client, case: DapoCase, now: Callable[[], float]) -> float:
    """Return informative prompts a second."""
    iterations, found, began = way(client, case), 0, now()
    for number, informative in enumerate(iterations, start=1):
        if number <= case.warm:
            began = now()
        else:
            found += informative
    return found / (now() - began)


def virtual(way: Way, case: DapoCase) -> float:
    """Return the rate with the client's in-memory server."""
    server = FakeServer()
    server.rollouts.slots = case.slots

    def plan(rollout: Mapping[str, Any]) -> PlannedRollout:
        data, sample = rollout["data"], rollout["sample"]
        return PlannedRollout(data["seconds"][sample], data["reward"][sample])

    server.rollouts.plan = plan
    with Client(server.url, server.token, transport=server.transport, clock=server.clock) as client:
        return rate(way, client, case, server.clock.now)


def compared(case: DapoCase, measure: Callable[[Way, DapoCase], float]) -> dict[str, Any]:
    """Return the rates of both ways, and their ratio."""
    rates = {name: round(measure(way, case), 3) for name, way in WAYS.items()}
    return {"sigma": case.sigma, **rates, "ratio": round(rates["efficient"] / rates["plain"], 2)}


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--mean", type=float, default=2.0)
    parser.add_argument("--sigmas", default="0.5,1.0,1.5")
    parser.add_argument("--virtual", action="store_true")
    options = parser.parse_args()
    cases = [
        DapoCase(
            options.prompts,
            options.samples,
            options.iterations,
            options.mean,
            float(sigma),
            options.slots,
            options.warm,
        )
        for sigma in options.sigmas.split(",")
    ]
    if options.virtual:
        rows = [compared(case, virtual) for case in cases]
    else:
        os.environ["TANGRAM_ROLLOUT_SLOTS"] = str(options.slots)
        with tangram() as stack, Client(f"http://{stack.host}:{stack.port}", stack.token) as client:
            rows = [
                compared(case, lambda way, each: rate(way, client, each, time.monotonic))
                for case in cases
            ]
    for row in rows:
        print(row)
    least = min(row["ratio"] for row in rows)
    print(f"least: {least} times as many informative prompts a second (target: {TARGET})")
    if not options.virtual:
        found = {"rows": rows, "least_ratio": least, "target": TARGET, **vars(options)}
        print("stored in", store("dapo", found))


if __name__ == "__main__":
    main()
