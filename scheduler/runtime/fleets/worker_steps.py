"""Steps of one worker of our own: from what is declared and what runs to the next events. Pure.

    waits ──granted──▶ starts ──answers──▶ serves ──not declared──▶ drains ──empty──▶ ends
      ▲                  │                   │
      └─────── ended ◀───┴───────────────────┘   the engine ended: it is started again after a pause

Rules
1. A worker has one action at most: another one is submitted when the scheduler knows none of it. So a keeper that takes over adopts what
   runs by looking, and no engine is started twice.
2. A worker joins its fleet when it answers, under a number of its own after each start: caches of a former engine are void.
3. It leaves its fleet before its action ends: drained first, removed when it runs no generation or after `drain_seconds`, ended after that.
4. An engine that ended makes its worker unhealthy until the next one answers. A worker whose next engine waits for GPUs, or is on another
   node, leaves its fleet meanwhile.
5. Pauses before a start double from `first_pause_seconds`, and begin again after an engine that served for
   `well_seconds`, and with another declaration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from contract.fleet_reports import OwnWorkerReport
from contract.fleet_status import FleetWorkerStatus, WorkerEngineStatus
from domain.action import ActionState
from domain.events import ActionCancelRequested, Event
from domain.fleet_events import FleetWorkersChanged
from domain.fleets import FleetWorker, WorkerFact
from domain.ids import ActionId
from scheduler.runtime.fleets.wanted_workers import WantedWorker, WorkerKey, submission

WAITS, STARTS, SERVES, DRAINS, ENDS, ENDED = (
    "waits", "starts", "serves", "drains", "ends", "ended",
)  # fmt: skip
#: Why a worker is unhealthy whose engine ended.
ENGINE_ENDED: Final = "its engine has ended"


class StepTimes(msgspec.Struct, frozen=True):
    """Times of workers of our own, in seconds."""

    #: Between two looks at all workers.
    step_seconds: float = 1.0
    #: Generations of a worker that leaves have so long to end.
    drain_seconds: float = 600.0
    first_pause_seconds: float = 1.0
    most_pause_seconds: float = 60.0
    well_seconds: float = 60.0
    #: So long before another division is considered.
    idle_seconds: float = 5.0


@dataclass(slots=True)
class WorkerMemory:
    """What this keeper knows of a worker beside what the scheduler says."""

    #: The action that runs its engine, or ran it last.
    action: str = ""
    #: With what it was declared.
    declared: str = ""
    #: It was seen, or submitted, and its end was not noted.
    started: bool = False
    starts: int = 0
    failures: int = 0
    again_at: float = 0.0
    served_at: float | None = None
    drained_at: float | None = None
    #: Where it served last.
    node: str = ""
    #: Why its engine ended, once that is known.
    why: str = ""

    def ended(self, now: float, times: StepTimes) -> None:
        """Note that its engine has ended."""
        if self.served_at is not None and now - self.served_at >= times.well_seconds:
            self.failures = 0
        pause = times.first_pause_seconds * 2 ** min(self.failures, 16)
        self.failures += 1
        self.again_at = now + min(pause, times.most_pause_seconds)
        self.started, self.served_at, self.why = False, None, ""


@dataclass(frozen=True, slots=True)
class Situation:
    """A worker at one moment."""

    key: WorkerKey
    #: As its fleet declares it; None: it does not.
    wanted: WantedWorker | None
    engine: WorkerEngineStatus | None
    #: As it is registered in its fleet.
    worker: FleetWorkerStatus | None
    #: Address of its engine; empty: the door of its node is not known.
    url: str = ""
    #: Why the engine does not answer there.
    failing: str = ""
    #: Generations on workers of a deleted fleet.
    left_over: int = 0
    #: Why it can never be granted.
    never: str = ""
    #: Of its next start.
    port: int = 0
    #: Its fleet has GPUs left for a start.
    room: bool = True


class WorkerStep(msgspec.Struct):
    """What follows from a situation."""

    events: list[Event]
    #: None: nothing of the worker is left.
    report: OwnWorkerReport | None = None


def next_step(seen: Situation, memory: WorkerMemory, now: float, times: StepTimes) -> WorkerStep:
    """Return the events that bring a worker nearer to what is declared, and note what was decided."""
    wanted, engine = seen.wanted, seen.engine
    if wanted is None:
        return _retire(seen, memory, now, times, "it is not declared any more")
    if engine is not None and engine.process.declared != wanted.declared:
        return _retire(seen, memory, now, times, "it is declared otherwise")
    if engine is None:
        return _start(seen, wanted, memory, now, times)
    memory.action, memory.started = engine.action, True
    if engine.ending:
        return WorkerStep(_unhealthy(seen), _report(seen, ENDS))
    if engine.state is ActionState.QUEUED:
        return WorkerStep(_removed(seen), _report(seen, WAITS, engine.waits))
    return _follow(seen, wanted, engine, memory, now)


def _start(
    seen: Situation, wanted: WantedWorker, memory: WorkerMemory, now: float, times: StepTimes
) -> WorkerStep:
    if memory.started:
        memory.ended(now, times)
    if memory.declared != wanted.declared:
        memory.declared, memory.failures, memory.again_at = wanted.declared, 0, now
    if seen.never:
        return WorkerStep(_removed(seen), _report(seen, WAITS, seen.never))
    events = _unhealthy(seen)
    if now < memory.again_at:
        rest = memory.again_at - now
        why = f"{memory.why or ENGINE_ENDED}; the next start is in {rest:.0f} s"
        return WorkerStep(events, _report(seen, ENDED, why))
    if not seen.room:
        why = "workers of this fleet that leave have not given their GPUs back"
        return WorkerStep(events, _report(seen, WAITS, why))
    submitted = submission(wanted, seen.port)
    memory.action, memory.started = submitted.action.id, True
    memory.starts += 1
    return WorkerStep([*events, submitted], _report(seen, WAITS))


def _follow(
    seen: Situation,
    wanted: WantedWorker,
    engine: WorkerEngineStatus,
    memory: WorkerMemory,
    now: float,
) -> WorkerStep:
    worker = seen.worker
    if worker is not None and worker.facts.url == seen.url:
        return _serve(seen, worker.facts, engine, memory, now)
    if engine.state is ActionState.RUNNING and not seen.failing and seen.url:
        joined = FleetWorker(
            name=wanted.name, url=seen.url, slots=wanted.slots, degree=wanted.degree, own=True
        )
        gone = () if worker is None else (wanted.name,)
        return WorkerStep(
            [FleetWorkersChanged(fleet=wanted.fleet, removed=gone, joined=(joined,))],
            _report(seen, STARTS),
        )
    moved = bool(memory.node) and engine.node != memory.node
    events = _removed(seen) if moved else _unhealthy(seen)
    why = seen.failing
    if engine.state is ActionState.RUNNING and engine.age_seconds > wanted.start_seconds:
        why = (
            f"it has not answered for {engine.age_seconds:.0f} s since its start, more than the"
            f" {wanted.start_seconds:g} s of start_seconds: {why}"
        )
    return WorkerStep(events, _report(seen, STARTS, why))


def _serve(
    seen: Situation,
    worker: FleetWorker,
    engine: WorkerEngineStatus,
    memory: WorkerMemory,
    now: float,
) -> WorkerStep:
    events: list[Event] = []
    if memory.drained_at is not None:  # it is declared again, before it was empty
        memory.drained_at = None
        events += [_fact(seen, drained=False)] if worker.drained else []
    memory.node = engine.node
    memory.served_at = now if memory.served_at is None else memory.served_at
    return WorkerStep(events, _report(seen, SERVES, worker.unhealthy))


def _retire(
    seen: Situation, memory: WorkerMemory, now: float, times: StepTimes, why: str
) -> WorkerStep:
    worker, engine = seen.worker, seen.engine
    if memory.drained_at is None:
        memory.drained_at = now
    is_late = now - memory.drained_at > times.drain_seconds
    if worker is not None:
        said = f"{why}; {worker.running} generations run"
        if not worker.facts.drained:
            return WorkerStep([_fact(seen, drained=True)], _report(seen, DRAINS, said))
        empty = worker.running == 0 or is_late
        return WorkerStep(_removed(seen) if empty else [], _report(seen, DRAINS, said))
    if engine is None:
        return WorkerStep([])
    if engine.ending:
        return WorkerStep([], _report(seen, ENDS, why))
    if seen.left_over and not is_late:
        return WorkerStep([], _report(seen, DRAINS, f"{why}; {seen.left_over} generations run"))
    reason = f"the engine of worker {seen.key[1]} of fleet {seen.key[0]}: {why}"
    cancel = ActionCancelRequested(
        action_id=ActionId(engine.action), project=engine.project, reason=reason
    )
    memory.drained_at, memory.started, memory.node = None, False, ""
    return WorkerStep([cancel], _report(seen, ENDS, why))


def _unhealthy(seen: Situation) -> list[Event]:
    """Return what makes a worker unhealthy whose engine ended; nothing for one that is."""
    if seen.worker is None or seen.worker.facts.unhealthy:
        return []
    return [_fact(seen, unhealthy=ENGINE_ENDED)]


def _removed(seen: Situation) -> list[Event]:
    if seen.worker is None:
        return []
    return [FleetWorkersChanged(fleet=seen.key[0], removed=(seen.key[1],))]


def _fact(
    seen: Situation, drained: bool | None = None, unhealthy: str | None = None
) -> FleetWorkersChanged:
    fact = WorkerFact(seen.key[1], drained=drained, unhealthy=unhealthy)
    return FleetWorkersChanged(fleet=seen.key[0], facts=(fact,))


def _report(seen: Situation, state: str, detail: str = "") -> OwnWorkerReport:
    engine, wanted = seen.engine, seen.wanted
    degree = 0
    if wanted is not None:
        degree = wanted.degree
    elif seen.worker is not None:
        degree = seen.worker.facts.degree
    elif engine is not None:
        degree = engine.degree
    if engine is None:
        return OwnWorkerReport(seen.key[1], degree, state, detail)
    return OwnWorkerReport(
        seen.key[1], degree, state, detail, engine.node, engine.gpus, engine.action
    )
