"""Answers to the queries of web processes.

Queries pass through the inbox in order with everything else, so a client that submits and then
queries sees its submission.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import redis

from contract.receipts import TrajectoryState
from domain.codec import Reply, encode
from domain.decisions import Forget, Refuse
from domain.events import (
    ActionQueried,
    DecisionsQueried,
    Question,
    QueuesQueried,
    StatusQueried,
    TrajectoryQueried,
)
from domain.ids import trajectory_key
from scheduler.runtime.action_views import live_view
from scheduler.runtime.loop.leadership import Leadership
from scheduler.runtime.loop.loop_stats import LoopStats
from scheduler.runtime.loop.status import system_status
from scheduler.runtime.loop.term import Term
from scheduler.runtime.rendering import decisions_response, queues_response

log = logging.getLogger(__name__)


class QueryHandler:
    """Publishes answers on the channel of the process that sent the query."""

    def __init__(
        self, client: redis.Redis, term: Term, leadership: Leadership, stats: LoopStats
    ) -> None:
        self._client = client
        self._term = term
        self._leadership = leadership
        self._stats = stats

    def answer(self, query: Question) -> None:
        """Answer one query; an error of its handler is answered and logged, and ends nothing else."""
        try:
            reply = self._reply(query)
        except (redis.RedisError, MemoryError):
            raise
        except Exception as error:
            log.exception("a query could not be answered: %s", type(query).__name__)
            why = f"the scheduler could not answer ({type(error).__name__})"
            reply = Reply(query.request_id, ok=False, code="failed", detail=why)
        self._send(query.reply_to, reply)

    def refuse(self, refusal: Refuse) -> None:
        """Tell a requester why its request was refused."""
        reply = Reply(refusal.request_id, ok=False, code=refusal.code, detail=refusal.detail)
        self._send(refusal.reply_to, reply)

    def confirm(self, done: Forget) -> None:
        """Tell the requester, if there is one, that a node is forgotten."""
        if done.reply_to:
            self._send(done.reply_to, Reply(done.request_id))

    def _reply(self, query: Question) -> Reply:
        term = self._term
        if isinstance(query, ActionQueried):
            return self._action(query)
        if isinstance(query, TrajectoryQueried):
            return self._trajectory(query)
        body: Any
        if isinstance(query, DecisionsQueried):
            decisions = term.machine.decisions(query.limit)
            body = decisions_response(decisions, term.clock.wall_offset())
        elif isinstance(query, QueuesQueried):
            body = queues_response(term.machine.queues(query.limit, query.projects))
        else:
            assert isinstance(query, StatusQueried)
            body = system_status(term, self._leadership, self._stats)
        return Reply(query.request_id, body=_raw(body))

    def _action(self, query: ActionQueried) -> Reply:
        """Return a live action; one that is not live is ``not_live``, with the journal's end."""
        status = self._term.machine.explain(query.action_id)
        if status is None or query.project not in ("", status.live.action.project):
            end = self._term.journal_id
            return Reply(query.request_id, ok=False, code="not_live", detail=end)
        view = live_view(status, self._term.clock.wall_offset())
        return Reply(query.request_id, body=_raw(view))

    def _trajectory(self, query: TrajectoryQueried) -> Reply:
        state = self._term.machine.state
        key = trajectory_key(query.project, query.trajectory)
        trajectory = state.trajectories.get(key)
        if trajectory is not None:
            found = TrajectoryState(
                "open" if trajectory.closing is None else "finishing",
                task=trajectory.task,
                pool=trajectory.pool,
                node=trajectory.node,
                live_actions=len(trajectory.live),
            )
        elif key in state.tombstones:
            found = TrajectoryState("finished", detail=state.tombstones[key].why)
        else:
            return Reply(query.request_id, ok=False, code="not_found")
        return Reply(query.request_id, body=_raw(found))

    def _send(self, channel: str, reply: Reply) -> None:
        self._client.publish(channel, encode(reply))


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(encode(value))
