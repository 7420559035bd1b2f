"""FleetRouter: the path of one generation from its submission to its report."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from time import time
from typing import Final, Protocol

import msgspec

from domain.action import Action, Outcome
from domain.codec import JournalEntry, encode
from domain.decisions import Abort, Finish, Grant, Requeue
from domain.errors import TangramError, Unavailable
from domain.events import (
    NO_RESULT,
    ActionCancelRequested,
    ActionFinished,
    ActionStarted,
    ActionSubmitted,
    LeasesRenewed,
)
from domain.fleet_events import FleetWorkersChanged
from domain.fleets import (
    HOLD_SECONDS,
    FleetEngine,
    FleetWorker,
    TokenUsage,
    WorkerFact,
    fleet_name,
    fleet_of,
)
from domain.ids import ActionId
from domain.project_limits import Load, loads_of
from managers.llm.cache_moves import cache_name
from scheduler.runtime.capacity import FleetCapacity
from scheduler.runtime.fleet_router.exchange import (
    ClientAnswer,
    PriorityRefused,
    WorkerExchange,
)
from scheduler.runtime.fleet_router.forwarded_request import ForwardedRequest
from scheduler.runtime.fleet_router.held_generations import (
    Change,
    ClientLeft,
    HeldGeneration,
    HeldGenerations,
    Interrupted,
)
from scheduler.runtime.fleet_router.outbox import Outbox
from scheduler.runtime.fleet_router.wire_priorities import WirePriorities
from scheduler.runtime.fleet_router.worker_http import BrokenOff, NotReached, WorkerClient
from scheduler.runtime.gateway.http import ClientGone, Send

log = logging.getLogger(__name__)

#: Time between two renewals of what is held.
RENEW_SECONDS: Final = HOLD_SECONDS / 5
#: A worker that the capacity does not name yet is looked for again after this time.
_LOOK_AGAIN_SECONDS: Final = 0.05
_LOOKS: Final = 40
#: Pauses before looking whether a worker that broke off listens.
_LOOKS_AT_ENDING: Final = (0.0, 0.05, 0.2)
#: Longest wait for the reports of a process that ends.
_LAST_SECONDS: Final = 2.0


class AppendWork(Protocol):
    """Append messages to the inbox; ``urgent``: also while it is long. Raises CapacityError, Unavailable, HttpError."""

    def __call__(
        self, messages: Sequence[bytes], *, loads: Sequence[Load] = (), urgent: bool = False
    ) -> Awaitable[object]: ...


@dataclass(frozen=True)
class GenerationEnd:
    """How a generation ended."""

    action_id: ActionId
    outcome: Outcome
    detail: str = ""
    #: The client has the beginning of an answer.
    begun: bool = False
    #: With the worker that answered; waits, and attempts that failed, are not counted.
    execution_seconds: float = 0.0


class FleetRouter:
    """The generations of one web process."""

    def __init__(
        self,
        append: AppendWork,
        fleets: Callable[[], Mapping[str, FleetCapacity]],
        refresh: Callable[[], Awaitable[None]],
        client: WorkerClient | None = None,
    ) -> None:
        """``fleets``: the newest capacity; ``refresh``: reads it again."""
        self._append = append
        self._fleets = fleets
        self._refresh = refresh
        self._client = client or WorkerClient()
        self._priorities = WirePriorities()
        self._held = HeldGenerations(self._report_cancelled)
        self._outbox = Outbox(lambda messages: append(messages, urgent=True), encode)

    # Of the web process

    def concerns(self, kinds: Set[type]) -> bool:
        """Return whether an entry with decisions of ``kinds`` changes anything here."""
        return self._held.concerns(kinds)

    def reduce(self, entry: JournalEntry) -> None:
        """Follow the journal."""
        self._held.reduce(entry)

    def skipped(self) -> None:
        """An entry of the journal could not be read."""
        self._held.skipped()

    async def run(self) -> None:
        """Send reports and renewals until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._outbox.run())
            group.create_task(self._renew())

    def close(self) -> None:
        """Close the connections to workers."""
        self._client.close()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            self._client.sweep()
            if names := self._held.granted():
                self._outbox.put(LeasesRenewed(action_ids=names))

    # Of one generation

    async def serve(
        self,
        action: Action,
        asked: ForwardedRequest,
        send: Send,
        gone: Callable[[], Awaitable[None]],
        headers: Mapping[str, str],
    ) -> GenerationEnd:
        """Submit a generation, and send the answer of its worker to the client with ``headers``.

        ``gone`` returns when the client has disconnected. An answer that is `completed` was sent whole; after another
        end with ``begun`` its beginning was. Raises ClientGone, Unavailable, and what ``append`` raises.
        """
        held = self._held.open(action)
        watching = asyncio.ensure_future(gone())
        watching.add_done_callback(held.client_left)
        shown = ClientAnswer(send, {**headers, "X-Tangram-Action": action.id})
        try:
            return await self._submitted(held, asked, shown)
        except ClientGone:
            self._leave(held, "its client disconnected")
            raise
        except TangramError as error:
            self._leave(held, str(error))
            raise
        except BaseException as error:  # the web process ends
            self._leave(held, str(error) or "the web process of its client ended")
            await self._outbox.flush(_LAST_SECONDS)
            raise
        finally:
            watching.cancel()

    async def _submitted(
        self, held: HeldGeneration, asked: ForwardedRequest, shown: ClientAnswer
    ) -> GenerationEnd:
        event = ActionSubmitted(action=held.action, accepted_at=time())
        try:
            await self._append([encode(event)], loads=loads_of([held.action]))
        except Unavailable:
            raise
        except TangramError:  # refused, so it is not in the inbox
            self._held.forget(held)
            raise
        end = None
        while end is None:
            end = await self._changed(held, await held.change(), asked, shown)
        if end.outcome is Outcome.COMPLETED:
            await shown.end()
        return end

    async def _changed(
        self, held: HeldGeneration, change: Change, asked: ForwardedRequest, shown: ClientAnswer
    ) -> GenerationEnd | None:
        """Return the end of a generation, if what was decided, or happened, ends it."""
        if isinstance(change, Grant):
            try:
                async with held.served():
                    return await self._attempt(held, change, asked, shown)
            except Interrupted as interrupted:
                change = interrupted.change
        if isinstance(change, Finish):
            return GenerationEnd(held.action.id, change.outcome, change.detail or "", shown.begun)
        if isinstance(change, Abort):
            self._report(held, change.attempt, change.outcome, change.reason)
            return GenerationEnd(held.action.id, change.outcome, change.reason, shown.begun)
        if isinstance(change, ClientLeft):
            raise ClientGone
        if isinstance(change, Requeue) and not shown.begun:
            return None
        raise Unavailable(f"{held.action.id} was lost on its way: ask again")

    async def _attempt(
        self, held: HeldGeneration, grant: Grant, asked: ForwardedRequest, shown: ClientAnswer
    ) -> GenerationEnd | None:
        """Have the worker of a grant answer; None: the generation is reported, and what follows is decided."""
        fleet, worker = await self._worker(held, grant)
        if worker is None:
            why = f"worker {grant.allocations} of fleet {fleet} is not known here"
            self._report(held, grant.attempt, Outcome.INFRA_FAILED, why, never_started=True)
            return None
        self._outbox.put(ActionStarted(action_id=held.action.id, node="", attempt=grant.attempt))
        loop = asyncio.get_running_loop()
        began = loop.time()
        exchange = WorkerExchange(self._client, asked, shown)
        try:
            async with asyncio.timeout(held.action.timeout_seconds):
                usage = await self._ask(exchange, held.action, fleet, worker, grant.rank)
        except TimeoutError:
            seconds = held.action.timeout_seconds
            why, took = f"it took longer than timeout_seconds ({seconds:g})", loop.time() - began
            self._report(held, grant.attempt, Outcome.TIMEOUT, why, execution=took)
            return GenerationEnd(held.action.id, Outcome.TIMEOUT, why, shown.begun, took)
        except (NotReached, BrokenOff) as error:
            return await self._failed(held, grant, fleet, worker, error, shown)
        took = loop.time() - began
        self._report(
            held, grant.attempt, Outcome.COMPLETED, execution=took, usage=usage,
            result={"status": exchange.status, "worker": worker.name},
        )  # fmt: skip
        return GenerationEnd(held.action.id, Outcome.COMPLETED, begun=True, execution_seconds=took)

    async def _ask(
        self, exchange: WorkerExchange, action: Action, fleet: str, worker: FleetWorker, rank: float
    ) -> TokenUsage | None:
        """Ask a worker; without a priority once more, if its engine refuses one."""
        declared = self._fleets().get(fleet)
        engine = FleetEngine.OPENAI if declared is None else declared.engine
        priority = self._priorities.integer(engine, worker, rank, action.priority)
        if engine is FleetEngine.TORCH and action.trajectory_key is not None:
            exchange.cache = cache_name(action.trajectory_key)
        try:
            return await exchange.run(worker, priority)
        except PriorityRefused:
            log.warning(
                "worker %s of fleet %s takes no priorities; its generations are ordered by queues alone",
                worker.name,
                fleet,
            )
            self._priorities.note_refusal(worker.url)
            return await exchange.run(worker, None)

    async def _failed(
        self,
        held: HeldGeneration,
        grant: Grant,
        fleet: str,
        worker: FleetWorker,
        error: Exception,
        shown: ClientAnswer,
    ) -> GenerationEnd | None:
        """Report a worker that did not answer; None: the generation may be routed again."""
        why = f"worker {worker.name} of fleet {fleet} at {worker.url} "
        unsent = isinstance(error, NotReached)
        why += f"cannot be reached: {error}" if unsent else f"broke off: {error}"
        if unsent or await self._is_gone(worker):
            # Before the report, so that the next route leaves it out.
            fact = WorkerFact(worker.name, unhealthy=why)
            self._outbox.put(FleetWorkersChanged(fleet=fleet, facts=(fact,)))
        outcome = Outcome.INFRA_FAILED if unsent else Outcome.UNKNOWN
        self._report(held, grant.attempt, outcome, why, never_started=unsent, delivered=shown.begun)
        if not shown.begun:
            return None
        return GenerationEnd(held.action.id, outcome, why, begun=True)

    async def _is_gone(self, worker: FleetWorker) -> bool:
        """Return whether a worker accepts no connections; one that ends closes its connections before its listening socket."""
        for pause in _LOOKS_AT_ENDING:
            await asyncio.sleep(pause)
            if not await self._client.is_reachable(worker.url):
                return True
        return False

    async def _worker(self, held: HeldGeneration, grant: Grant) -> tuple[str, FleetWorker | None]:
        """Return the fleet and the worker of a grant; None: it is not known."""
        fleet, number = "", 0
        for each in grant.allocations:
            if (found := fleet_of(each.resource)) is not None:
                fleet, number = found
        for look in range(_LOOKS):
            declared = self._fleets().get(fleet)
            known = self._held.workers.get(fleet)
            if declared is not None and known is None:
                known = {each.number: each for each in declared.workers}
            if declared is not None and known is not None and number in known:
                return fleet, known[number]
            if look:
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
            await self._refresh()
        target = "" if held.action.call is None else held.action.call.target
        return fleet or fleet_name(target) or "", None

    # Reports

    def _report(
        self,
        held: HeldGeneration,
        attempt: int,
        outcome: Outcome,
        detail: str | None = None,
        *,
        execution: float = 0.0,
        never_started: bool = False,
        delivered: bool = False,
        usage: TokenUsage | None = None,
        result: dict[str, object] | None = None,
    ) -> None:
        held.reported = attempt
        raw = NO_RESULT if result is None else msgspec.Raw(encode(result))
        self._outbox.put(
            ActionFinished(
                action_id=held.action.id,
                node="",
                outcome=outcome,
                attempt=attempt,
                execution_seconds=execution,
                result=raw,
                detail=detail,
                never_started=never_started,
                delivered=delivered,
                usage=usage,
            )
        )

    def _report_cancelled(self, held: HeldGeneration, attempt: int) -> None:
        self._report(held, attempt, Outcome.CANCELLED, held.left)

    def _leave(self, held: HeldGeneration, why: str) -> None:
        """Cancel a generation whose client does not wait any more."""
        held.left = why
        action, grant = held.action, held.grant
        self._outbox.put(
            ActionCancelRequested(action_id=action.id, project=action.project, reason=why)
        )
        if grant is not None and held.reported != grant.attempt:
            self._report(held, grant.attempt, Outcome.CANCELLED, why)
