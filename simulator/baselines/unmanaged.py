"""Unmanaged APIs: every trajectory calls by itself, and retries (ARL-Tangram §6.1 "Baselines").

| behaviour | value | source |
|---|---|---|
| errors are retried | at most 3 times | ARL-Tangram §6.1 |
| a call is given up | after 600 s | ARL-Tangram §6.1 |
| a call beyond an API's limit of concurrent calls | refused after 0.2 s | assumed; HTTP 429 |
| before the first, second, third retry | 1, 2, 4 s | assumed; the paper names no pause |
| a service of one's own (`api:judge`) | queues what comes beyond its limit, in order | SGLang |
| a trajectory whose call failed for good | is given up | ARL-Tangram §6.2: ineffective |

Retries count as waiting, so ACT runs from the first try to the last answer. Nothing else costs any
time, in its favour.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from domain.action import Kind, Outcome, Timing
from domain.decisions import Finish
from domain.errors import InvalidRequest
from domain.events import ActionSubmitted, Event
from domain.resources import MILLI
from simulator.agenda import Agenda
from simulator.cluster import Cluster
from simulator.overheads import NONE
from simulator.tally import SimulationTally
from simulator.trainers import Trainers
from simulator.workloads.program import Workload


@dataclass(frozen=True)
class CallRules:
    """See the table above."""

    refused_seconds: float = 0.2
    #: Before each retry; as many as there are.
    pauses: tuple[float, ...] = (1.0, 2.0, 4.0)
    timeout_seconds: float = 600.0
    queueing: frozenset[str] = frozenset({"api:judge"})


RULES: Final = {"unmanaged": CallRules()}


@dataclass
class UnmanagedCall:
    """One action on its way."""

    event: ActionSubmitted
    api: str
    tries: int = 0

    @property
    def submitted_at(self) -> float:
        return self.event.accepted_at


class Unmanaged:
    """A workload against APIs without a manager; runs as `simulator.engine.ClusterSimulation` does."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        rules: CallRules,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.agenda = Agenda()
        self.tally = SimulationTally()
        self.trainers = Trainers(workload, self.agenda, NONE, self._tell)
        self.passes = self.events = 0
        self._rules = rules
        self._limits = cluster.apis
        self._busy: Counter[str] = Counter()
        self._waiting: defaultdict[str, deque[UnmanagedCall]] = defaultdict(deque)
        self._progress = progress

    def run(self) -> SimulationTally:
        """Play the whole workload."""
        self.agenda.at(0.0, self.trainers.begin)
        while not self.trainers.over and self.agenda.advance():
            pass
        return self.tally

    def _tell(self, event: Event) -> None:
        self.events += 1
        if not isinstance(event, ActionSubmitted):
            return  # the end of a trajectory means nothing to an API
        self._submitted(event)

    def _submitted(self, event: ActionSubmitted) -> None:
        action = event.action
        api = next(iter(action.cost), "")
        if action.kind is not Kind.CALL or len(action.cost) != 1 or api not in self._limits:
            raise InvalidRequest("unmanaged: every action must be a call of one API")
        self._try(UnmanagedCall(event, api))

    def _try(self, call: UnmanagedCall) -> None:
        """Call: be served, wait in line, or be refused."""
        rules, now = self._rules, self.agenda.now
        if self._busy[call.api] < self._limits[call.api]:
            self._serve(call)
        elif call.api in rules.queueing:
            self._waiting[call.api].append(call)
            self.agenda.at(now + rules.timeout_seconds, self._lose_patience, call)
        elif call.tries < len(rules.pauses):
            pause = rules.refused_seconds + rules.pauses[call.tries]
            call.tries += 1
            self.agenda.at(now + pause, self._try, call)
        else:
            self.agenda.at(now + rules.refused_seconds, self._give_up, call)

    def _serve(self, call: UnmanagedCall) -> None:
        self._busy[call.api] += 1
        seconds = self.trainers.act_of(call.event.action.id).work.base_seconds
        if seconds > self._rules.timeout_seconds:
            self.agenda.at(self.agenda.now + self._rules.timeout_seconds, self._time_out, call)
        else:
            self.agenda.at(self.agenda.now + seconds, self._answer, (call, self.agenda.now))

    def _answer(self, entry: tuple[UnmanagedCall, float]) -> None:
        call, began_at = entry
        self._free(call.api)
        self._finish(call, Outcome.COMPLETED, began_at)

    def _time_out(self, call: UnmanagedCall) -> None:
        self._free(call.api)
        self._give_up(call)

    def _lose_patience(self, call: UnmanagedCall) -> None:
        if call in self._waiting[call.api]:
            self._waiting[call.api].remove(call)
            self._give_up(call)

    def _give_up(self, call: UnmanagedCall) -> None:
        self._finish(call, Outcome.INFRA_FAILED, self.agenda.now)

    def _free(self, api: str) -> None:
        self._busy[api] -= 1
        if self._waiting[api]:
            self._serve(self._waiting[api].popleft())

    def _finish(self, call: UnmanagedCall, outcome: Outcome, began_at: float) -> None:
        action, now = call.event.action, self.agenda.now
        timing = Timing(began_at - call.submitted_at, 0.0, now - began_at, now - call.submitted_at)
        finish = Finish(
            action_id=action.id, project=action.project, task=action.task, outcome=outcome,
            timing=timing, trajectory=action.trajectory, kind=action.kind,
            attempts=call.tries + 1,
        )  # fmt: skip
        self.tally.held[call.api] += MILLI * timing.execution_seconds
        self.tally.finish(finish, action.family or "call", 0.0, now)
        self.trainers.finished(finish)
        if self._progress is not None and not len(self.tally.rows) % 500:
            self._progress(len(self.tally.rows))
