"""Look-up of rollouts: live ones by a query of the loop, finished ones by the journal's tail or their rows."""

from __future__ import annotations

import asyncio

from contract.responses import rfc3339
from contract.rollout_status import RolloutStatus
from contract.rollout_views import RolloutView
from domain.errors import NotFound, Unavailable
from domain.principals import Principal
from domain.rollouts import RolloutState
from scheduler.runtime.gateway.context import ROW_POLL_SECONDS, ROW_SECONDS, GatewayContext
from scheduler.runtime.gateway.http import HttpRequest
from scheduler.runtime.rollouts.log_store import is_rollout_id
from scheduler.runtime.rollouts.rollout_ends import RolloutEnd


class RolloutLookup:
    """Finds rollouts for the endpoints of a web process."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context

    async def find(
        self, request: HttpRequest, principal: Principal, rollout: str, seconds: float = 0.0
    ) -> RolloutView:
        """Return a rollout, waiting up to ``seconds`` for its end. Raises NotFound, Unavailable, ClientGone."""
        ends = self._context.rollout_ends
        if (end := ends.recent(rollout)) is not None:
            return _seen(principal, finished_view_of(end), rollout)
        future = ends.of(rollout)
        try:
            live = await self._live(principal, rollout)
            if live is None:
                return _seen(principal, await self._row(principal, rollout), rollout)
            if not seconds:
                return live
            ended = await self._context.wait_for(request, future, seconds)
        finally:
            ends.discard(rollout, future)
        if ended is not None:
            return _seen(principal, finished_view_of(ended), rollout)
        return await self._live(principal, rollout) or await self.find(request, principal, rollout)

    async def _live(self, principal: Principal, rollout: str) -> RolloutView | None:
        found = await self._context.queries.rollouts(
            project=principal.project or "", rollout_id=rollout
        )
        return live_view_of(found.rollouts[0]) if found.rollouts else None

    async def _row(self, principal: Principal, rollout: str) -> RolloutView | None:
        """Return a rollout that is not live: its end may be read and its row written a little later.

        That of another project is returned as it is, and live perhaps: there is no end to wait for.
        """
        ends = self._context.rollout_ends
        for _ in range(int(ROW_SECONDS / ROW_POLL_SECONDS)):
            if (end := ends.recent(rollout)) is not None:
                return finished_view_of(end)
            found = await self._context.backend.rollout_view(rollout)
            if found is not None and (found.outcome or not principal.sees(found.project)):
                return found
            if found is None and await self._context.rows_are_current():
                return None
            await asyncio.sleep(ROW_POLL_SECONDS)
        raise Unavailable("the row of this rollout is not written yet; try again")


def live_view_of(status: RolloutStatus) -> RolloutView:
    """Return the view of a rollout that is not finished."""
    return RolloutView(
        id=status.id,
        state=status.state,
        project=status.project,
        task=status.task,
        handler=status.handler,
        instance=status.instance,
        group=status.group,
        sample=status.sample,
        llm=status.llm,
        priority=status.priority,
        waiting=status.waiting,
        position=status.position,
        stage=None if status.stage is None else status.stage.value,
        queued=status.queued,
        awaited=status.awaited,
        worker=status.worker,
        attempt=status.attempt,
        turns=status.turns,
        tokens=status.tokens,
        door=status.door,
        submitted_at=status.submitted_at,
    )


def finished_view_of(end: RolloutEnd) -> RolloutView:
    """Return the view of a finished rollout by the decision that finished it."""
    finish, result = end.finish, end.finish.result
    return RolloutView(
        id=finish.rollout_id,
        state=RolloutState.FINISHED,
        outcome=result.outcome,
        reward=result.reward,
        reason=result.reason,
        project=finish.project,
        task=finish.task,
        handler=finish.handler,
        instance=finish.instance,
        group=finish.group,
        sample=finish.sample,
        worker=finish.worker,
        attempt=finish.attempts,
        times=list(result.times),
        queue_seconds=finish.queue_seconds,
        total_seconds=finish.total_seconds,
        turns=result.turns,
        prompt_tokens=result.prompt_tokens,
        response_tokens=result.response_tokens,
        weights_versions=result.weights_versions,
        door=finish.door,
        submitted_at=rfc3339(end.at - finish.total_seconds),
        finished_at=rfc3339(end.at),
    )


def checked_rollout(rollout: str) -> str:
    """Return the id in a path. Raises NotFound for an impossible one."""
    if not is_rollout_id(rollout):
        raise NotFound(f"there is no rollout {rollout[:64]!r}")
    return rollout


def _seen(principal: Principal, found: RolloutView | None, rollout: str) -> RolloutView:
    if found is None or not principal.sees(found.project):
        raise NotFound(f"there is no rollout {rollout!r}")
    return found
