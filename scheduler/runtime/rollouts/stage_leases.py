"""Leases of stages: submitted as actions, renewed together, and submitted again when one is lost.

Rules
1. The lease of a stage is an action of kind ``lease`` with a key of rollout, stage and number, so a successor adopts
   that of its predecessor while it lasts. One that has ended is followed by another, named by the attempt.
2. One message renews all leases of the worker (`LeasesRenewed`), several times within their time to live.
3. A lease that ends while its stage waits for it or runs, after an outage longer than its time to live, is submitted
   again; a stage that runs goes on meanwhile, and gets the seat of the new one. A lease that is cancelled cancels its
   rollout: an operator asked for that, or its task.
4. The leases of a rollout that was withdrawn are neither renewed nor released: the core has ended them, or a
   successor adopts them.
5. A stage whose resource was not declared when the rollout was accepted, and which needs no seat, takes no lease.
6. The leases of a rollout have a trajectory of their own, which has no environment: they outlive one that is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from contract.responses import ActionResponse
from domain.action import ActionState, Outcome
from domain.backends import llm_resource
from domain.errors import NotFound, TangramError
from domain.events import LeaseReleased, LeasesRenewed
from domain.ids import ActionId
from domain.rollout_events import RolloutCancelRequested
from domain.rollouts import Rollout, Stage
from rollout.ports import Seat, SeatMoved, StageLease, Superseded
from scheduler.runtime.redis.clients import keep_running
from scheduler.runtime.rollouts.assignments import Assignments, seat_of
from scheduler.runtime.rollouts.lease_grants import LeaseGrants
from scheduler.runtime.rollouts.worker_calls import WorkerCalls

log = logging.getLogger(__name__)

TTL_SECONDS: Final = 20.0
#: All but two of these may fail without the loss of a lease.
RENEWALS_PER_TTL: Final = 4
#: A lease whose grant or end was missed in the journal is looked at after this time.
LOOK_SECONDS: Final = 60.0
#: Between two attempts to follow a lease, or to submit it again.
AGAIN_SECONDS: Final = 3.0
#: Id of the lease of a stage that takes none.
_NONE: Final = ""

Pause = Callable[[float], Awaitable[object]]


@dataclass
class _HeldLease:
    """A lease of a stage that this worker waits for or holds."""

    rollout: Rollout
    attempt: int
    key: str
    members: dict[str, Any]
    #: Gets the seat of a lease that follows.
    moved: SeatMoved | None = None
    #: The action that holds the units now.
    action: str = ""
    #: Numbers of the backends whose seats it has.
    seats: tuple[int, ...] = ()
    #: How often it was submitted again.
    again: int = 0
    #: It follows one that was lost while its stage ran, and is not granted yet.
    follows: bool = False


class StageLeases:
    """The leases of one worker."""

    def __init__(
        self,
        calls: WorkerCalls,
        assignments: Assignments,
        grants: LeaseGrants,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self._calls = calls
        self._assignments = assignments
        self._grants = grants
        self._pause = pause
        #: By the id of the lease as the worker knows it.
        self._held: dict[str, _HeldLease] = {}
        self._watching: dict[str, asyncio.Task[None]] = {}

    async def take(
        self,
        rollout: Rollout,
        attempt: int,
        stage: Stage,
        number: int,
        moved: SeatMoved | None = None,
    ) -> StageLease:
        """Wait for the ``number``-th lease of a stage. Raises Superseded, CapacityError.

        ``moved``: gets the seat of each lease that follows it while the stage runs.
        """
        cost = cost_of(rollout, stage)
        if not cost:
            return StageLease(_NONE, stage, 0.0)
        key, members = f"{stage.value}/{number}", _members(rollout, stage, cost)
        held = _HeldLease(rollout, attempt, key, members, moved)
        began = asyncio.get_running_loop().time()
        await self._submit(held)
        if attempt == 1 or not await self._adopted(held):
            await self._granted(held)
        waited = asyncio.get_running_loop().time() - began
        self._held[held.action] = held
        self._watching[held.action] = asyncio.ensure_future(self._watch(held.action, held))
        return StageLease(held.action, stage, waited, self._seat(held))

    async def release(self, lease: StageLease) -> None:
        """Release a lease; may be repeated."""
        held = self._forget(lease.id)
        if held is not None:
            await self._release(held)

    def drop(self, rollout: str) -> None:
        """Renew nothing more of a rollout that was withdrawn."""
        for lease, held in list(self._held.items()):
            if held.rollout.id == rollout:
                self._forget(lease)

    async def keep(self) -> None:
        """Renew all leases together until cancelled."""
        while keep_running():
            await self._pause(TTL_SECONDS / RENEWALS_PER_TTL)
            leases = tuple(ActionId(held.action) for held in self._held.values())
            if leases:
                try:
                    await self._calls.send(LeasesRenewed(action_ids=leases))
                except TangramError as error:
                    log.warning("%d leases of stages are not renewed: %s", len(leases), error)

    async def close(self) -> None:
        """Stop watching; what is held expires, unless a successor adopts it."""
        watching = list(self._watching.values())
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)

    async def _submit(self, held: _HeldLease, suffix: str = "") -> None:
        key = f"lease/{held.key}{suffix}"
        held.action = await self._calls.submit(held.rollout, key, held.members)

    async def _adopted(self, held: _HeldLease) -> bool:
        """Whether the lease of a predecessor is held; one that has ended is followed by another."""
        view: ActionResponse | None = None
        with suppress(NotFound):  # it ended so long ago that its row is deleted
            view = await self._calls.settled(held.rollout, held.action, 0.0)
        if view is None or view.state is ActionState.FINISHED:
            await self._submit(held, f"/{held.attempt}")
            return False
        if view.state is not ActionState.RUNNING:
            return False
        await self._calls.send(LeasesRenewed(action_ids=(ActionId(held.action),)))
        held.seats = _seats(held.rollout, view)
        return True

    async def _granted(self, held: _HeldLease) -> None:
        """Wait until a lease is held, also another one after it ended. Raises Superseded."""
        while not await self._is_held(held):
            await self._pause(AGAIN_SECONDS)
            await self._submit_again(held)

    async def _is_held(self, held: _HeldLease) -> bool:
        """Wait until a lease is held; False: it has ended. Raises Superseded."""
        grant = self._grants.of(held.action)
        end = self._calls.context.tail.finish_of(held.action)
        try:
            state = await self._look(held, grant, end)
            while state not in (ActionState.RUNNING, ActionState.FINISHED):
                state = await self._look(held, grant, end)
            return state is ActionState.RUNNING
        except asyncio.CancelledError:  # a limit of the stage, or the end of the worker
            if held.rollout.id in self._assignments.held:
                with suppress(TangramError):
                    await self._release(held)
            raise
        finally:
            self._grants.discard(held.action, grant)
            self._calls.context.tail.discard(held.action, end)

    async def _look(
        self,
        held: _HeldLease,
        grant: asyncio.Future[Any],
        end: asyncio.Future[ActionResponse | None],
    ) -> ActionState:
        """Wait for the journal; then look at what the lease is. Raises Superseded for a cancelled one."""
        waits = [each for each in (grant, end) if not each.done()]
        if len(waits) == 2:
            await asyncio.wait(waits, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        self._assignments.check(held.rollout, held.attempt)
        if grant.done() and grant.result() is not None:
            wanted = llm_resource(held.rollout.pool)
            held.seats = next((a.units for a in grant.result() if a.resource == wanted), ())
            return ActionState.RUNNING
        view = await self._calls.settled(
            held.rollout, held.action, LOOK_SECONDS if end.done() else 0.0
        )
        self._assignments.check(held.rollout, held.attempt)
        if view.outcome is Outcome.CANCELLED:
            await self._cancel_rollout(held, view)
            raise Superseded(f"the lease {view.id} of {held.rollout.id} is {view.outcome}")
        held.seats = _seats(held.rollout, view)
        return view.state

    def _forget(self, lease: str) -> _HeldLease | None:
        watching = self._watching.pop(lease, None)
        if watching is not None:
            watching.cancel()
        return self._held.pop(lease, None)

    def _seat(self, held: _HeldLease) -> Seat | None:
        """Return the seat that a lease took; None for a lease without one."""
        pool = self._assignments.pools.get(held.rollout.pool)
        if pool is None or not held.seats:
            return None
        backend = pool.numbered(held.seats[0])
        if backend is None:  # it was removed meanwhile
            return None
        return seat_of(held.rollout.pool, backend)

    async def _release(self, held: _HeldLease) -> None:
        action, project = ActionId(held.action), held.rollout.project
        await self._calls.send(LeaseReleased(action_id=action, project=project))

    async def _watch(self, lease: str, held: _HeldLease) -> None:
        """Keep a lease that is not released: another one follows each that ends."""
        while lease in self._held:
            try:
                if not await self._followed(held):
                    return
            except TangramError as error:
                log.warning("the lease of %s is not watched now: %s", held.rollout.id, error)
                await self._pause(AGAIN_SECONDS)

    async def _followed(self, held: _HeldLease) -> bool:
        """Wait for the end of a lease, and for another one; False: the rollout needs none any more."""
        if not held.follows:
            view: ActionResponse | None = None
            with suppress(NotFound):  # it ended so long ago that its row is deleted
                view = await self._calls.ended(held.rollout, held.action)
            if self._assignments.held.get(held.rollout.id) != held.attempt:
                return False
            if view is not None and view.outcome is Outcome.CANCELLED:
                await self._cancel_rollout(held, view)
                return False
            await self._submit_again(held)
            held.follows = True
        try:
            await self._granted(held)
        except Superseded:
            return False
        held.follows = False
        if held.moved is not None:
            held.moved(self._seat(held))
        return True

    async def _submit_again(self, held: _HeldLease) -> None:
        log.warning(
            "the lease %s of %s has ended: it is submitted again", held.action, held.rollout.id
        )
        await self._submit(held, f"/{held.attempt}.{held.again + 1}")
        held.again += 1

    async def _cancel_rollout(self, held: _HeldLease, view: ActionResponse) -> None:
        rollout, why = held.rollout, view.detail or f"a lease of it is {view.outcome}"
        await self._calls.send(
            RolloutCancelRequested(rollout_id=rollout.id, project=rollout.project, reason=why)
        )


def cost_of(rollout: Rollout, stage: Stage) -> dict[str, int]:
    """Return the cost of the lease of a stage; empty: it takes none."""
    cost = {f"stage:{stage.value}": 1} if stage in rollout.stages else {}
    if stage is Stage.RUN and rollout.pool:  # a generation of a fleet takes its slot itself
        cost[llm_resource(rollout.pool)] = 1
    return cost


def lease_trajectory(rollout: Rollout) -> str:
    """Return the name of the trajectory of a rollout's leases. It ends with the rollout, as all of its trajectories."""
    return f"{rollout.id}.stages"


def _members(rollout: Rollout, stage: Stage, cost: dict[str, int]) -> dict[str, Any]:
    """Return the action of a lease, with the members of ``POST /actions``."""
    return {
        "kind": "lease",
        "cost": cost,
        "lease": {"ttl_seconds": TTL_SECONDS},
        "priority": rollout.priority,
        "trajectory": lease_trajectory(rollout),
        "group": rollout.group,
        "family": f"stage:{stage.value}",
        "metadata": {"rollout": rollout.id, "stage": stage.value},
    }


def _seats(rollout: Rollout, view: ActionResponse) -> tuple[int, ...]:
    """Return the numbers of the backends whose seats a held lease has."""
    if view.placement is None:
        return ()
    return view.placement.units.get(llm_resource(rollout.pool), ())
