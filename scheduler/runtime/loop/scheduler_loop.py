"""Scheduler loop: reads the inbox, asks the core, commits its decisions to the journal.

One pass: read a batch from the inbox (or wait until the next timer), stamp journal time, ask the
machine once, commit once, answer queries. Housekeeping is done between passes, at most twice a
second. A pass in which the core raises leaves nothing behind; the passes after it take fewer
messages at a time (`poison_messages`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from threading import Event
from time import monotonic, perf_counter, thread_time
from typing import Final, cast

import msgspec
import redis

from domain.codec import InboxPart, JournalEntry, encode
from domain.dead_letters import DeadLetter
from domain.decisions import Decision, Forget, Grant, Refuse, Wake
from domain.errors import Fenced, Unavailable, Unreadable
from domain.events import (
    ConfigApplied,
    NodeForgetAsked,
    NodeJoined,
    NodeRevoked,
    Question,
    TaskOpened,
    TimeAdvanced,
)
from domain.events import Event as DomainEvent
from domain.fleet_events import FleetWorkersChanged
from domain.inventory import Config
from domain.redis_keys import Keys
from domain.rollout_events import BackendsChanged, RolloutsSubmitted
from scheduler.core.machine import Machine
from scheduler.core.state.supply import MakeLedger
from scheduler.runtime.liveness import LIFE_SECONDS, REFUSING, show_life
from scheduler.runtime.local_nodes.leader_side import LocalNodes
from scheduler.runtime.loop import action_log
from scheduler.runtime.loop.housekeeping import (
    JOURNAL_RETENTION_SECONDS,
    Housekeeping,
    JournalRetention,
)
from scheduler.runtime.loop.inbox import Inbox
from scheduler.runtime.loop.leadership import (
    Leadership,
    LeadershipPaused,
    LeadershipRefused,
    LeaseRenewal,
)
from scheduler.runtime.loop.loop_stats import LoopStats
from scheduler.runtime.loop.node_commands import node_commands
from scheduler.runtime.loop.poison_messages import (
    Caution,
    CoreRaised,
    NoMessageToBlame,
    PoisonedGrant,
    PoisonMessage,
    restart_core,
)
from scheduler.runtime.loop.query_handler import QueryHandler
from scheduler.runtime.loop.queue_accounts import QueueAccounts
from scheduler.runtime.loop.recovery import StandbyState, free_machines, recover
from scheduler.runtime.loop.report_collector import ReportCollector
from scheduler.runtime.loop.term import JournalClock, Term
from scheduler.runtime.loop.watchdog import HungPass, PassWatch, Unwatched
from scheduler.runtime.redis.confirmation import reason_of

log = logging.getLogger(__name__)

#: Longest wait of a pass, so that housekeeping is done in time.
MAX_WAIT_SECONDS = 0.9
RETRY_SECONDS = 0.2
#: Period in which a loop that must not lead checks whether it may.
REFUSED_SECONDS = 1.0

#: Events that may change the capacity.
_OF_CAPACITY: Final = (
    NodeJoined, NodeForgetAsked, NodeRevoked, ConfigApplied, TaskOpened, BackendsChanged, RolloutsSubmitted,
    FleetWorkersChanged,
)  # fmt: skip


class SchedulerLoop:
    """The one reader of the inbox and writer of the journal, while it is leader."""

    term: Term
    housekeeping: Housekeeping
    queries: QueryHandler
    accounts: QueueAccounts

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
        watch: PassWatch | None = None,
        redis_package: str = "",
        socket: Path | None = None,
    ) -> None:
        """``consumers``: readers of the journal that miss nothing, however late they first start.

        ``socket``: path at which node workers of this machine reach the leader (`local_nodes`).
        """
        self._client = client
        self._keys = keys
        self._make_ledger = make_ledger
        self._config = config
        self._retention = JournalRetention(journal_seconds, consumers)
        self.leadership = leadership
        self._local_nodes = LocalNodes(socket, keys)
        self.inbox = Inbox(client, keys, leadership, self._local_nodes)
        self._standby = StandbyState(client, keys, make_ledger, config)
        self._stood_by_at = float("-inf")
        self._refused: LeadershipRefused | LeadershipPaused | None = None
        self.caution = Caution()
        self._watch = watch or Unwatched()
        self.stats = LoopStats(redis_package)

    def run(self, stop: Event) -> None:
        """Lead whenever possible until ``stop`` is set; survives the loss of Redis and of epochs."""
        while not stop.is_set():
            try:
                self._serve_term(stop)
            except Fenced as error:
                log.warning("stepping down: %s", error)
            except redis.RedisError as error:
                log.warning("redis takes no decision, starting over: %s", reason_of(error))
                self.inbox.close()
                self.leadership.disconnect()
                stop.wait(RETRY_SECONDS)
            except Unavailable as error:
                log.warning("cannot lead, the second store of the epoch is away: %s", error)
                stop.wait(RETRY_SECONDS)

    def _serve_term(self, stop: Event) -> None:
        """Stand by, then lead; a loop that must not lead waits."""
        if self._refused is not None and not self._refused.over():
            self._stand_by()
            stop.wait(REFUSED_SECONDS)
            return
        self._refused = None
        if not self.leadership.wait(stop, self._follow):
            return
        try:
            self._lead(stop)
        except Unreadable as error:
            log.error("this loop does not lead: %s", error)
            self._withdraw(LeadershipRefused(self._client, self._keys, error))
        except NoMessageToBlame as error:
            self.caution.doubt(error)
            seconds = self.caution.pause_seconds(monotonic())
            log.exception("%s; this loop stands back for %g s", error, seconds)
            self._withdraw(LeadershipPaused(str(error), seconds))

    def _withdraw(self, refused: LeadershipRefused | LeadershipPaused) -> None:
        self._refused = refused
        self._stood_by_at = float("-inf")
        self.leadership.resign()  # a loop of another version may be able to lead

    def _follow(self) -> bool:
        """Keep a state that is level with the leader's; return whether there is more to do at once."""
        if self.__dict__.pop("term", None) is not None:  # one that is over
            for part in ("housekeeping", "queries", "accounts"):
                self.__dict__.pop(part, None)
            free_machines()
        self._stand_by()
        return self._standby.follow()

    def _stand_by(self) -> None:
        """Store a sign of life, so that the absence of a standby is visible before it matters."""
        if monotonic() - self._stood_by_at >= LIFE_SECONDS:
            self._stood_by_at = monotonic()
            name = self.leadership.name
            if self._refused is None:
                behind = self._standby.seconds_behind()
                why = "" if behind is not None else self._standby.why
                show_life(
                    self._client, self._keys, name, "standby", behind_seconds=behind, cold=why
                )
            else:
                show_life(self._client, self._keys, name, REFUSING, why=self._refused.reason)

    def _lead(self, stop: Event) -> None:
        reports = ReportCollector(self._client, self._keys, self.leadership.epoch, self.stats)
        with LeaseRenewal(self.leadership) as renewal, closing(self._local_nodes), reports:
            self.take_over(renewal.progress)
            while not stop.is_set():
                renewal.progress()
                try:
                    self.run_once()
                except CoreRaised as raised:
                    self._local_nodes.close()  # the search reads the inbox only
                    self.restart_core(raised, renewal.progress)
            self.housekeeping.snapshot()
        self.leadership.resign()

    def restart_core(self, raised: CoreRaised, progress: Callable[[], None] = lambda: None) -> None:
        """Recover after a pass in which the core raised. Raises what `take_over` does, and NoMessageToBlame."""

        def recovered() -> Machine:
            self.take_over(progress)
            return self.term.machine

        restart_core(raised, self.caution, self.inbox.handed, recovered, progress)

    def take_over(self, progress: Callable[[], None] = lambda: None) -> None:
        """Recover the machine from the journal. The first thing a new leader does."""
        started = perf_counter()
        self.leadership.finish_aside()
        self.leadership.release_held()
        recovered = self._standby.take(progress) or recover(
            self._client, self._keys, self._make_ledger, self._config, progress
        )
        clock = JournalClock(recovered.machine.state.now)
        self.term = Term(recovered.machine, clock, recovered.journal_id, recovered.seq)
        self.inbox.begin(recovered.inbox_id, recovered.inbox_part)
        self.caution.begin(self._hung_at() == recovered.seq + 1, monotonic())
        self.housekeeping = Housekeeping(
            self._client,
            self._keys,
            self.term,
            self.inbox,
            self.leadership,
            self.stats,
            self._retention,
            recovered.replayed,
            max(recovered.replay_seconds, perf_counter() - started),
        )
        self.queries = QueryHandler(self._client, self.term, self.leadership, self.stats)
        self._wake_at = recovered.machine.state.timers.asked_wake
        self.accounts = QueueAccounts(recovered.machine.state)
        self.accounts.write(self.leadership, self.inbox.settled_id)
        self.housekeeping.publish_capacity()
        self.housekeeping.show_life()
        log.info(
            "leading in epoch %d: %d entries replayed in %.3f s, %d actions live",
            self.leadership.epoch,
            recovered.replayed,
            perf_counter() - started,
            len(self.term.machine.state.actions),
        )

    def _hung_at(self) -> int | None:
        """Return the number of the journal entry at which the last leader hung that a watchdog ended."""
        stored = self._client.get(self._keys.hung_pass)
        try:
            return msgspec.json.decode(cast("bytes", stored), type=HungPass).seq if stored else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def run_once(self, max_wait_seconds: float = MAX_WAIT_SECONDS) -> None:
        """Do one pass. Raises Fenced, CoreRaised or a Redis error: then the machine is unusable."""
        if self.caution.poisoned:
            self._end_poisoned()
        if self.caution.calm:
            self._local_nodes.open()
        limit = self.caution.limit
        self.inbox.waits_outside = self.accounts.waits_outside
        commands = self.inbox.read(self._patience(max_wait_seconds), limit)
        began = perf_counter()
        queries = [command for command in commands if isinstance(command, Question)]
        events: list[DomainEvent] = [c for c in commands if not isinstance(c, Question)]
        messages = len(events)
        events += self.housekeeping.due()
        now = self.term.clock.now()
        if self._wake_at is not None and self._wake_at <= now:
            self._wake_at = None
            events.append(TimeAdvanced())
        if limit is not None:
            self._handle_carefully(events[:messages], events[messages:], now)
        elif events:
            self._handle(events, now, messages)
            if self.caution.in_a_row:
                self.caution.went_well(events[:messages], all_taken=False)
        for query in queries:
            self._answer(query)
        self.queries.flush()
        self.inbox.settle()
        self._local_nodes.committed(self.inbox.settled_id)
        self.accounts.write(self.leadership, self.inbox.settled_id)
        if commands:
            self.stats.record_pass(perf_counter() - began, len(events))
        else:
            self._watch.ensure()

    def _answer(self, query: Question) -> None:
        if self.caution.rehearses(monotonic()) and self.queries.hangs(query):
            log.error("a query does not end and is refused: %s", type(query).__name__)
            why = "the scheduler could not answer in time"
            self.queries.refuse(Refuse(query.request_id, query.reply_to, "failed", why))
            return
        self._watch.begin(self.term.seq + 1)
        try:
            self.queries.answer(query)
        finally:
            self._watch.end()

    def _patience(self, max_wait_seconds: float) -> float:
        unwritten = self.accounts.patience_seconds
        if unwritten is not None:
            max_wait_seconds = min(max_wait_seconds, unwritten)
        if self._wake_at is None:
            return max_wait_seconds
        return min(max_wait_seconds, max(0.001, self._wake_at - self.term.clock.now()))

    def _handle_carefully(
        self, messages: Sequence[DomainEvent], noticed: Sequence[DomainEvent], now: float
    ) -> None:
        """Handle the loop's own events first and apart: no message is to blame for those."""
        inbox, condemned = self.inbox, self.caution.condemned
        settled = inbox.settled_id, inbox.settled_part
        self._handle([*noticed, TimeAdvanced()], now, 0, place=settled)
        self.caution.condemned = None
        if condemned is not None and inbox.handed == [condemned.handed]:
            self._set_aside(condemned, now)
            messages = ()
        elif messages:
            self._handle(messages, now, len(messages))
        self.caution.went_well(messages, all_taken=not inbox.handed)

    def _set_aside(self, condemned: PoisonMessage, now: float) -> None:
        letter, instead = condemned.letter, condemned.stand_in or TimeAdvanced()
        self._handle([instead], now, 0, letter=letter)
        log.error(
            "a message of the inbox %s and was set aside as %s", letter.reason, letter.name,
            extra={"kind": letter.kind, "action_id": letter.action_id},
        )  # fmt: skip
        if condemned.refusal is not None:
            self.queries.refuse(condemned.refusal)

    def _end_poisoned(self) -> None:
        """End waiting actions that cannot be granted, before anything else is decided."""
        ends = [each.end for each in self.caution.poisoned.values() if not each.submitted]
        if ends:
            settled = self.inbox.settled_id, self.inbox.settled_part
            self._handle(ends, self.term.clock.now(), 0, place=settled)

    def _after_set_aside(self, poisoned: Iterable[PoisonedGrant]) -> None:
        for each in poisoned:
            del self.caution.poisoned[each.end.action_id]
            log.error(
                "an action %s and was set aside as %s", each.letter.reason, each.letter.name,
                extra={"action_id": each.end.action_id},
            )  # fmt: skip

    def _handle(
        self,
        events: Sequence[DomainEvent],
        now: float,
        messages: int,
        *,
        place: tuple[str, InboxPart | None] | None = None,
        letter: DeadLetter | None = None,
    ) -> None:
        """Decide on ``events`` and commit; the first ``messages`` of them are from the inbox.

        ``place``: how far the inbox is settled by this commit; by default all that was read.
        """
        events, poisoned = self.caution.end_poisoned(events)
        for event in events:
            event.at = now
        term, epoch = self.term, self.leadership.epoch
        inbox_id, part = place or (self.inbox.read_id, self.inbox.read_part)
        if self.caution.rehearses(monotonic()):
            self.caution.rehearse(term.machine, events, messages)
        began, cpu_began = perf_counter(), thread_time()
        self._watch.begin(term.seq + 1)
        try:
            decisions = term.machine.handle(*events)
            self.stats.record_decision(perf_counter() - began, thread_time() - cpu_began)
            term.seq += 1
            offset = term.clock.wall_offset()
            entry = encode(
                JournalEntry(term.seq, epoch, now, offset, inbox_id, list(events), decisions, part)
            )
            commands = node_commands(term.machine, self._keys, epoch, decisions, events)
        except MemoryError:
            raise  # no event is to blame
        except Exception as error:
            at, alone = term.machine.at_work, self.caution.limit == 1
            raise CoreRaised(events[:messages], at.event, alone, events, at.names) from error
        finally:
            self._watch.end()
        letters = [each.letter for each in poisoned] + ([letter] if letter else [])
        for each in letters[:-1]:
            self.leadership.set_aside(each)
        if not letters:
            ahead = self.inbox.ask_ahead
            term.journal_id, *ids = self.leadership.commit(entry, inbox_id, commands, ahead)
        else:
            written = self.leadership.commit_aside(entry, inbox_id, commands, letters[-1])
            term.journal_id, *ids = written
            self._after_set_aside(poisoned)
        self._local_nodes.send(
            [
                (stream, entry_id, body)
                for (stream, body), entry_id in zip(commands, ids, strict=True)
            ]
        )
        self._after_commit(events, decisions)

    def _after_commit(self, events: Iterable[DomainEvent], decisions: Sequence[Decision]) -> None:
        # Before the replies: their readers find the new capacity.
        if any(isinstance(event, _OF_CAPACITY) for event in events):
            self.housekeeping.publish_capacity()
        for decision in decisions:
            if isinstance(decision, Wake):
                self._wake_at = decision.wake_at
            elif isinstance(decision, Refuse):
                self.queries.refuse(decision)
            elif isinstance(decision, Forget):
                self.housekeeping.forget(decision)
                self.queries.confirm(decision)
        if self.caution.in_a_row and any(isinstance(each, Grant) for each in decisions):
            self.caution.granted()
        self.term.calibration.observe(self.term.machine.state, decisions)
        self.accounts.record(events, decisions)
        action_log.record(events, decisions)
