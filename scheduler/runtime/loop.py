"""The scheduler loop: inbox in, journal and commands out.

One pass: read a batch from the inbox (or wait until a timer, at most), stamp journal time, ask the
machine once, commit once, answer questions. Everything else (liveness of nodes, snapshots,
trimming) is done between passes, at most twice a second.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from threading import Event
from time import monotonic, perf_counter
from typing import Any, Final

import redis

from domain.codec import JournalEntry, NodeCommand, encode
from domain.decisions import (
    Abort,
    Decision,
    Evict,
    Forget,
    Grant,
    Prepare,
    Refuse,
    RemoveEnvironment,
    Resize,
    TransferFile,
    Wake,
)
from domain.errors import Fenced, Unavailable, Unreadable
from domain.events import (
    ConfigApplied,
    NodeForgetAsked,
    NodeJoined,
    Question,
    TimeAdvanced,
)
from domain.events import Event as DomainEvent
from domain.inventory import Config
from domain.keys import Keys
from domain.ports import PrepareOrder, RunOrder
from scheduler.core.hosting import service_of
from scheduler.core.machine import Machine
from scheduler.core.state import MakeLedger
from scheduler.runtime import trail
from scheduler.runtime.answers import Answers
from scheduler.runtime.breath import Breath
from scheduler.runtime.clock import JournalClock
from scheduler.runtime.housekeeping import (
    JOURNAL_RETENTION_SECONDS,
    LIFE_SECONDS,
    REFUSING,
    Housekeeping,
    show_life,
)
from scheduler.runtime.inbox import Inbox
from scheduler.runtime.leadership import Leadership
from scheduler.runtime.recovery import recover
from scheduler.runtime.refusal import Refusal
from scheduler.runtime.telemetry import LoopStats

log = logging.getLogger(__name__)

#: A pass waits no longer than this, so that housekeeping is done in time.
MAX_WAIT_SECONDS = 0.5
RETRY_SECONDS = 0.2
#: How often a loop that must not lead looks whether it may by now.
REFUSED_SECONDS = 1.0

#: Decisions that nodes are told as they are, by the field of `NodeCommand`.
_AS_DECIDED: Final[dict[type, str]] = {
    Abort: "abort",
    Resize: "resize",
    RemoveEnvironment: "remove",
    Evict: "evict",
    TransferFile: "transfer",
    Forget: "forget",
}
_TOLD_AS_DECIDED: Final = (Abort, Resize, RemoveEnvironment, Evict, TransferFile, Forget)
#: What may change how much there is.
_OF_CAPACITY: Final = (NodeJoined, NodeForgetAsked, ConfigApplied)


class SchedulerLoop:
    """The one reader of the inbox and writer of the journal, while it is leader."""

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        make_ledger: MakeLedger,
        leadership: Leadership,
        config: Config,
        *,
        journal_seconds: float = JOURNAL_RETENTION_SECONDS,
        consumers: Collection[str] = (),
    ) -> None:
        """``consumers``: readers of the journal that miss nothing, however late they first start."""
        self._client = client
        self._keys = keys
        self._make_ledger = make_ledger
        self._config = config
        self._journal_seconds = journal_seconds
        self.consumers = consumers
        self.leadership = leadership
        self._inbox = Inbox(client, keys, leadership)
        self._stood_by_at = float("-inf")
        self._refusal: Refusal | None = None
        self.stats = LoopStats()

    def run(self, stop: Event) -> None:
        """Lead whenever possible until ``stop`` is set; survives the loss of Redis and of epochs."""
        while not stop.is_set():
            try:
                self._serve_a_term(stop)
            except Fenced as error:
                log.warning("stepping down: %s", error)
            except redis.RedisError as error:
                log.warning("redis does not answer, starting over: %s", error)
                self._inbox.close()
                self.leadership.let_go()
                stop.wait(RETRY_SECONDS)
            except Unavailable as error:
                log.warning("cannot lead, the epoch's second place is away: %s", error)
                stop.wait(RETRY_SECONDS)

    def _serve_a_term(self, stop: Event) -> None:
        """Stand by, then lead; or wait, as one who must not lead."""
        if self._refusal is not None and not self._refusal.over():
            self._stand_by()
            stop.wait(REFUSED_SECONDS)
            return
        self._refusal = None
        if not self.leadership.wait(stop, self._stand_by):
            return
        try:
            self._lead(stop)
        except Unreadable as error:
            log.error("this loop does not lead: %s", error)
            self._refusal = Refusal(self._client, self._keys, error)
            self._stood_by_at = float("-inf")
            self.leadership.resign()  # a loop of another version may be able to

    def _stand_by(self) -> None:
        """Let people see that there is a standby: its absence shows only when it is too late."""
        if monotonic() - self._stood_by_at >= LIFE_SECONDS:
            self._stood_by_at = monotonic()
            name = self.leadership.name
            if self._refusal is None:
                show_life(self._client, self._keys, name, "standby")
            else:
                show_life(self._client, self._keys, name, REFUSING, why=self._refusal.reason)

    def _lead(self, stop: Event) -> None:
        with Breath(self.leadership) as breath:
            self.take_over(breath.progress)
            while not stop.is_set():
                breath.progress()
                self.run_once()
            self.housekeeping.snapshot()
        self.leadership.resign()

    def take_over(self, progress: Callable[[], None] = lambda: None) -> None:
        """Become level with the journal. The first thing a new leader does."""
        started = perf_counter()
        recovered = recover(self._client, self._keys, self._make_ledger, self._config, progress)
        self.machine: Machine = recovered.machine
        self.journal_id, self.seq = recovered.journal_id, recovered.seq
        self._inbox.begin(recovered.inbox_id)
        self.clock = JournalClock(recovered.machine.state.now)
        self.housekeeping = Housekeeping(
            self,
            self._client,
            self._keys,
            self._journal_seconds,
            recovered.replayed,
            perf_counter() - started,
        )
        self.answers = Answers(self, self._client)
        self._wake_at = recovered.machine.state.asked_wake
        self.housekeeping.publish_capacity()
        self.housekeeping.show_life()
        log.info(
            "leading in epoch %d: %d entries replayed in %.3f s, %d actions live",
            self.leadership.epoch,
            recovered.replayed,
            perf_counter() - started,
            len(self.machine.state.actions),
        )

    def run_once(self, max_wait_seconds: float = MAX_WAIT_SECONDS) -> None:
        """Do one pass. Raises Fenced, or a Redis error; the machine is then of no more use."""
        commands = self._inbox.read(self._patience(max_wait_seconds))
        began = perf_counter()
        questions = [command for command in commands if isinstance(command, Question)]
        events: list[DomainEvent] = [c for c in commands if not isinstance(c, Question)]
        events += self.housekeeping.due()
        now = self.clock.now()
        if self._wake_at is not None and self._wake_at <= now:
            self._wake_at = None
            events.append(TimeAdvanced())
        if events:
            self._handle(events, now)
        for question in questions:
            self.answers.answer(question)
        self._inbox.settle()
        if commands:
            self.stats.record_pass(perf_counter() - began, len(events))

    @property
    def inbox_id(self) -> str:
        """Place in the inbox up to which everything is in the journal, or was answered."""
        return self._inbox.settled_id

    def _patience(self, max_wait_seconds: float) -> float:
        if self._wake_at is None:
            return max_wait_seconds
        return min(max_wait_seconds, max(0.001, self._wake_at - self.clock.now()))

    def _handle(self, events: Sequence[DomainEvent], now: float) -> None:
        for event in events:
            event.at = now
        began = perf_counter()
        decisions = self.machine.handle(*events)
        self.stats.record_decision(perf_counter() - began)
        self.seq += 1
        entry = JournalEntry(
            self.seq,
            self.leadership.epoch,
            now,
            self.clock.wall_offset(),
            self._inbox.read_id,
            list(events),
            decisions,
        )
        self.journal_id = self.leadership.commit(
            encode(entry), self._inbox.read_id, self._node_commands(decisions)
        )
        self._after_commit(events, decisions)

    def _after_commit(self, events: Iterable[DomainEvent], decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Wake):
                self._wake_at = decision.wake_at
            elif isinstance(decision, Refuse):
                self.answers.refuse(decision)
            elif isinstance(decision, Forget):
                self.housekeeping.forget(decision)
                self.answers.confirm(decision)
        trail.follow(events, decisions)
        if any(isinstance(event, _OF_CAPACITY) for event in events):
            self.housekeeping.publish_capacity()

    def _node_commands(self, decisions: Iterable[Decision]) -> list[tuple[str, bytes]]:
        by_node: dict[str, list[NodeCommand]] = defaultdict(list)
        epoch = self.leadership.epoch
        #: Forgotten in this pass: what is decided for them is told to those that they were.
        identities: dict[str, str] = {}
        for decision in decisions:
            if isinstance(decision, Grant):
                if decision.node is not None:
                    order = self._order(decision)
                    if order is not None:
                        by_node[decision.node].append(NodeCommand(epoch, run=order))
            elif isinstance(decision, _TOLD_AS_DECIDED):
                field: dict[str, Any] = {_AS_DECIDED[type(decision)]: decision}
                by_node[decision.node].append(NodeCommand(epoch, **field))
                if isinstance(decision, Forget):
                    identities[decision.node] = decision.identity
            elif isinstance(decision, Prepare) and (told := self._prepare_order(decision)):
                by_node[decision.node].append(NodeCommand(epoch, prepare=told))
        nodes = self.machine.state.nodes
        for name in by_node.keys() - identities.keys():
            identities[name] = nodes[name].inventory.identity
        return [
            (self._keys.commands(name, identities[name]), encode(commands))
            for name, commands in by_node.items()
        ]

    def _order(self, granted: Grant) -> RunOrder | None:
        live = self.machine.live(granted.action_id)
        if live is None or live.lease_expires_at is not None:
            return None
        trajectory = self.machine.state.trajectory_of(live)
        environment = trajectory.environment if trajectory else live.action.environment
        order = RunOrder(live.action, granted.allocations, granted.attempt, environment)
        if live.action.call is not None:
            order.api = self.machine.state.config.apis.get(live.action.call.target)
            order.service = service_of(self.machine.state, live.action)
        return order

    def _prepare_order(self, decided: Prepare) -> PrepareOrder | None:
        """Return what the node is told; None for a service that was taken away in the same pass."""
        service = self.machine.state.config.services.get(decided.home.service)
        if service is None:
            return None
        return PrepareOrder(service, decided.home, decided.memory_bytes, decided.awake)
