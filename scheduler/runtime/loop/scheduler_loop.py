"""The scheduler loop: inbox in, journal and commands out.

One pass: read a batch from the inbox (or wait until a timer, at most), stamp journal time, ask the
machine once, commit once, answer questions. Everything else (liveness of nodes, snapshots,
trimming) is done between passes, at most twice a second. A pass in which the core raises leaves
nothing behind, and those after it take less at a time (`care`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from threading import Event
from time import monotonic, perf_counter
from typing import Final

import redis

from domain.codec import InboxPart, JournalEntry, encode
from domain.dead_letters import DeadLetter
from domain.decisions import Decision, Forget, Refuse, Wake
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
from domain.redis_keys import Keys
from scheduler.core.machine import Machine
from scheduler.core.state.model import MakeLedger
from scheduler.runtime.loop import action_log
from scheduler.runtime.loop.core_restart import begin_anew
from scheduler.runtime.loop.housekeeping import (
    JOURNAL_RETENTION_SECONDS,
    LIFE_SECONDS,
    REFUSING,
    Housekeeping,
    show_life,
)
from scheduler.runtime.loop.inbox import Inbox
from scheduler.runtime.loop.journal_clock import JournalClock
from scheduler.runtime.loop.leadership import Leadership
from scheduler.runtime.loop.leadership_backoff import Pause, Refusal
from scheduler.runtime.loop.lease_renewal import Breath
from scheduler.runtime.loop.loop_stats import LoopStats
from scheduler.runtime.loop.node_commands import node_commands
from scheduler.runtime.loop.poison_messages import Care, Condemned, CoreRaised, StandBack
from scheduler.runtime.loop.query_handler import Answers
from scheduler.runtime.loop.recovery import recover

log = logging.getLogger(__name__)

#: A pass waits no longer than this, so that housekeeping is done in time.
MAX_WAIT_SECONDS = 0.5
RETRY_SECONDS = 0.2
#: How often a loop that must not lead looks whether it may by now.
REFUSED_SECONDS = 1.0

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
        self.inbox = Inbox(client, keys, leadership)
        self._stood_by_at = float("-inf")
        self._refusal: Refusal | Pause | None = None
        self.care = Care()
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
                self.inbox.close()
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
            self._withdraw(Refusal(self._client, self._keys, error))
        except StandBack as error:
            seconds = self.care.pause_seconds(monotonic())
            log.exception("%s; this loop stands back for %g s", error, seconds)
            self._withdraw(Pause(str(error), seconds))

    def _withdraw(self, refusal: Refusal | Pause) -> None:
        self._refusal = refusal
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
                try:
                    self.run_once()
                except CoreRaised as raised:
                    begin_anew(self, raised, breath.progress)
            self.housekeeping.snapshot()
        self.leadership.resign()

    def take_over(self, progress: Callable[[], None] = lambda: None) -> None:
        """Become level with the journal. The first thing a new leader does."""
        started = perf_counter()
        recovered = recover(self._client, self._keys, self._make_ledger, self._config, progress)
        self.machine: Machine = recovered.machine
        self.journal_id, self.seq = recovered.journal_id, recovered.seq
        self.inbox.begin(recovered.inbox_id, recovered.inbox_part)
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
        """Do one pass. Raises Fenced, CoreRaised or a Redis error; the machine is then of no more use."""
        limit = self.care.limit
        commands = self.inbox.read(self._patience(max_wait_seconds), limit)
        began = perf_counter()
        questions = [command for command in commands if isinstance(command, Question)]
        events: list[DomainEvent] = [c for c in commands if not isinstance(c, Question)]
        messages = len(events)
        events += self.housekeeping.due()
        now = self.clock.now()
        if self._wake_at is not None and self._wake_at <= now:
            self._wake_at = None
            events.append(TimeAdvanced())
        if limit is not None:
            self._handle_carefully(events[:messages], events[messages:], now)
        elif events:
            self._handle(events, now, messages)
            if self.care.in_a_row:
                self.care.went_well(events[:messages], all_taken=False)
        for question in questions:
            self.answers.answer(question)
        self.inbox.settle()
        if commands:
            self.stats.record_pass(perf_counter() - began, len(events))

    @property
    def inbox_id(self) -> str:
        """Place in the inbox up to which everything is in the journal, or was answered."""
        return self.inbox.settled_id

    @property
    def inbox_part(self) -> InboxPart | None:
        """What of the next entry is, too."""
        return self.inbox.settled_part

    def _patience(self, max_wait_seconds: float) -> float:
        if self._wake_at is None:
            return max_wait_seconds
        return min(max_wait_seconds, max(0.001, self._wake_at - self.clock.now()))

    def _handle_carefully(
        self, messages: Sequence[DomainEvent], noticed: Sequence[DomainEvent], now: float
    ) -> None:
        """Handle what this loop noticed itself first and apart: no message answers for that."""
        inbox, condemned = self.inbox, self.care.condemned
        settled = inbox.settled_id, inbox.settled_part
        self._handle([*noticed, TimeAdvanced()], now, 0, place=settled)
        self.care.condemned = None
        if condemned is not None and inbox.handed == [condemned.handed]:
            self._set_aside(condemned, now)
            messages = ()
        elif messages:
            self._handle(messages, now, len(messages))
        self.care.went_well(messages, all_taken=not inbox.handed)

    def _set_aside(self, condemned: Condemned, now: float) -> None:
        letter, instead = condemned.letter, condemned.stand_in or TimeAdvanced()
        self._handle([instead], now, 0, letter=letter)
        log.error(
            "a message of the inbox %s and was set aside as %s", letter.reason, letter.name,
            extra={"kind": letter.kind, "action_id": letter.action_id},
        )  # fmt: skip
        if condemned.refusal is not None:
            self.answers.refuse(condemned.refusal)

    def _handle(
        self,
        events: Sequence[DomainEvent],
        now: float,
        messages: int,
        *,
        place: tuple[str, InboxPart | None] | None = None,
        letter: DeadLetter | None = None,
    ) -> None:
        """Decide on ``events`` and commit. The first so many are messages of the inbox.

        ``place``: up to where the inbox is handled then, unless it is all that was read.
        """
        for event in events:
            event.at = now
        inbox_id, part = place or (self.inbox.read_id, self.inbox.read_part)
        began = perf_counter()
        try:
            decisions = self.machine.handle(*events)
            self.stats.record_decision(perf_counter() - began)
            self.seq += 1
            epoch, offset = self.leadership.epoch, self.clock.wall_offset()
            entry = encode(
                JournalEntry(self.seq, epoch, now, offset, inbox_id, list(events), decisions, part)
            )
            commands = node_commands(self.machine, self._keys, epoch, decisions)
        except MemoryError:
            raise  # that says nothing of what was handled
        except Exception as error:
            over, alone = self.machine.stumbled_over, self.care.limit == 1
            raise CoreRaised(events[:messages], over, alone) from error
        if letter is None:
            self.journal_id = self.leadership.commit(entry, inbox_id, commands)
        else:
            self.journal_id = self.leadership.commit_aside(entry, inbox_id, commands, letter)
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
        action_log.follow(events, decisions)
        if any(isinstance(event, _OF_CAPACITY) for event in events):
            self.housekeeping.publish_capacity()
