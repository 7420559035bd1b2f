"""Many services on one card, in real time: each call waits, is served, and is gone.

One call is worked on at a time. ``static`` keeps in memory the services that fit and are called most,
and refuses the others. ``shared`` serves all: it restores the service that it serves next and evicts the one that was
used longest ago. It goes on with services that are in memory for a turn (four restores, decision 14), then
the oldest call goes first; ``fcfs`` is the same without turns.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from statistics import mean
from typing import Any, NamedTuple

from benchmarks.gpu_card_machine import Clock
from benchmarks.gpu_card_models import Service
from managers.gpu.torch_worker.weights import synchronize

HOT_SHARE = 0.8
_TURN_RESTORES = 4
RIVALS = ("static", "shared", "fcfs")


class Call(NamedTuple):
    """A call of a service."""

    at_seconds: float
    service: int


def arrivals(seconds: float, rate: float, services: int, hot: int, seed: int = 1) -> list[Call]:
    """Return calls in bursts: 80 % go to ``hot`` services, which change four times."""
    rng, found, at, until = random.Random(seed), [], 0.0, 0.0
    favourites = list(range(hot))
    while (at := at + rng.expovariate(rate)) < seconds:
        if at >= until:
            favourites, until = rng.sample(range(services), hot), until + seconds / 4
        among = favourites if rng.random() < HOT_SHARE else range(services)
        found.append(Call(at, rng.choice(among)))
    return found


class Card:
    """Resident services, least recently used first."""

    def __init__(self, services: list[Service], room: int) -> None:
        """``room``: how many of the services fit at once."""
        self._services = services
        self._room = room
        self.resident: list[int] = []
        self.switches: list[float] = []

    def bring(self, number: int) -> None:
        """Let a service be in memory."""
        if number in self.resident:
            self.resident.remove(number)
        else:
            began = time.perf_counter()
            while len(self.resident) >= self._room:
                self._services[self.resident.pop(0)].weights.release()
            self._services[number].restore()
            self.switches.append(time.perf_counter() - began)
        self.resident.append(number)

    def empty(self) -> None:
        """Evict all services."""
        while self.resident:
            self._services[self.resident.pop()].weights.release()


def choose(waiting: deque[Call], resident: list[int], turn_is_over: bool) -> Call:
    """Return the call to serve next: the oldest, within a turn the oldest of the resident services."""
    if turn_is_over:
        return waiting[0]
    return next((call for call in waiting if call.service in resident), waiting[0])


def play(card: Card, services: list[Service], calls: list[Call], call_seconds: float,
         turns: bool, clock: Clock) -> dict[str, Any]:  # fmt: skip
    """Serve the calls in real time, as long as there is time; return what came out."""
    coming, waiting = deque(calls), deque[Call]()
    acts: list[float] = []
    card.switches.clear()
    began, turn_until = time.perf_counter(), 0.0
    while (coming or waiting) and clock.left():
        now = time.perf_counter() - began
        while coming and coming[0].at_seconds <= now:
            waiting.append(coming.popleft())
        if not waiting:
            time.sleep(max(0.0, coming[0].at_seconds - now))
            continue
        call = choose(waiting, card.resident, not turns or now >= turn_until)
        waiting.remove(call)
        cached = call.service in card.resident
        card.bring(call.service)
        if not cached:
            turn_until = time.perf_counter() - began + _TURN_RESTORES * card.switches[-1]
        _work(services[call.service], call_seconds)
        acts.append(time.perf_counter() - began - call.at_seconds)
    found = summary(acts, card.switches, time.perf_counter() - began)
    return {**found, "unserved": len(coming) + len(waiting)}


def _work(service: Service, seconds: float) -> None:
    """Let the model compute for so long."""
    until = time.perf_counter() + seconds
    while True:
        service.ask()
        synchronize(service.device)
        if time.perf_counter() >= until:
            return


def summary(acts: list[float], switches: list[float], wall_seconds: float) -> dict[str, Any]:
    """Return the figures of one rival."""
    ordered, switched = sorted(acts) or [0.0], sorted(switches) or [0.0]
    return {
        "served": len(acts),
        "calls_per_second": round(len(acts) / wall_seconds, 3),
        "mean_act_seconds": round(mean(ordered), 4),
        "p99_act_seconds": round(ordered[len(ordered) * 99 // 100], 4),
        "switches": len(switches),
        "median_switch_seconds": round(switched[len(switched) // 2], 4),
        "p99_switch_seconds": round(switched[len(switched) * 99 // 100], 4),
    }


def compare(services: list[Service], room: int, calls: list[Call],
            call_seconds: float, clock: Clock) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Let each rival meet the same calls."""
    often = [number for number, _ in Counter(each.service for each in calls).most_common(room)]
    found: dict[str, dict[str, Any]] = {}
    for name in RIVALS:
        card = Card(services, room)
        for number in often:
            card.bring(number)
        served = [call for call in calls if name != "static" or call.service in often]
        result = play(card, services, served, call_seconds, name == "shared", clock)
        found[name] = {**result, "refused": len(calls) - len(served)}
        card.empty()
    return found
