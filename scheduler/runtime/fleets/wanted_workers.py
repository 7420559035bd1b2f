"""Wanted workers: which workers of our own the fleets declare, and the actions that run their engines. Pure.

Rules
1. A worker is named by its degree and a number among those of its degree.
2. What changes its engine makes another worker of it: the digest of its declaration is part of its action.
3. Another division replaces all workers of a fleet: chunks of those that stayed could split the ones that wide workers need.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from time import time, time_ns
from typing import Final

import msgspec

from domain.action import Action, ExecSpec, Kind
from domain.events import ActionSubmitted
from domain.fleet_engines import PORTS, WorkerProcess
from domain.fleets import FleetSpec
from domain.ids import action_id
from domain.resources import MILLI
from managers.llm.engine_commands import engine_command
from scheduler.runtime.capacity import FleetCapacity

#: Project of the actions that run engines: there is always one of this name.
PROJECT: Final = "default"
GPU: Final = "gpu"

#: Fleet and name of a worker.
WorkerKey = tuple[str, str]


class WantedWorker(msgspec.Struct, frozen=True):
    """A worker of our own that a fleet declares."""

    fleet: str
    name: str
    degree: int
    #: Generations that it runs at once.
    slots: int
    pool: str
    command: tuple[str, ...]
    env: dict[str, str]
    start_seconds: float
    #: That it is a part of, where its fleet may have others.
    division: tuple[int, ...] = ()

    @property
    def declared(self) -> str:
        """Digest of what its engine depends on."""
        parts = (self.degree, self.slots, self.pool, self.command, self.env, self.division)
        return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:16]


def wanted_workers(
    fleets: Mapping[str, FleetCapacity], degrees: Callable[[str, FleetSpec], tuple[int, ...]]
) -> dict[WorkerKey, WantedWorker]:
    """Return the workers of our own that ``fleets`` declare; ``degrees``: how the GPUs of a fleet are divided."""
    return {
        (name, each.name): each
        for name, fleet in fleets.items()
        if fleet.own is not None
        for each in _of_fleet(name, fleet.own, degrees(name, fleet.own))
    }


def _of_fleet(fleet: str, spec: FleetSpec, degrees: tuple[int, ...]) -> Iterable[WantedWorker]:
    numbers: Counter[int] = Counter()
    # That of a fleet without a choice follows from its GPUs: fewer of them leave the other workers as they are.
    division = degrees if len(spec.degrees) > 1 else ()
    for degree in degrees:
        numbers[degree] += 1
        slots = spec.slots * degree
        yield WantedWorker(
            fleet,
            f"own-{degree}x-{numbers[degree]}",
            degree,
            slots,
            spec.pool,
            engine_command(fleet, spec, slots),
            spec.env,
            spec.start_seconds,
            division,
        )


def submission(worker: WantedWorker, port: int) -> ActionSubmitted:
    """Return the submission of an action that runs the engine of ``worker``."""
    action = Action(
        id=action_id(time_ns() // 1_000_000, os.urandom(8)),
        project=PROJECT,
        task=f"fleet-{worker.fleet}",
        kind=Kind.EXEC,
        cost={GPU: (worker.degree * MILLI,)},
        pool=worker.pool,
        exec=ExecSpec(worker.command, env=worker.env),
        engine=WorkerProcess(worker.fleet, worker.name, port, worker.declared),
        metadata={"fleet": worker.fleet, "worker": worker.name},
    )
    return ActionSubmitted(action=action, accepted_at=time())


def next_port(key: WorkerKey, start: int, used: Collection[int]) -> int:
    """Return a free port for the ``start``-th start of a worker: another one than those before."""
    digest = hashlib.sha256("/".join(key).encode()).digest()
    first = int.from_bytes(digest[:4], "big") + start
    ports = (PORTS[(first + offset) % len(PORTS)] for offset in range(len(PORTS)))
    return next(port for port in ports if port not in used)


def why_never(worker: WantedWorker, pools: Mapping[str, list[dict[str, int]]]) -> str:
    """Return why no node that is known can ever run a worker; empty: one can. ``pools``: capacities of the nodes of each."""
    nodes = pools.get(worker.pool)
    if nodes is None:
        return f"there is no pool {worker.pool!r}"
    if not nodes:
        return f"no node of pool {worker.pool!r} has joined"
    most = max(node.get(GPU, 0) for node in nodes) // MILLI
    if most >= worker.degree:
        return ""
    return f"it needs {worker.degree} GPUs of one node, and none of pool {worker.pool!r} has more than {most}"
