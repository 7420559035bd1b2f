"""Answers of the loop to questions of web processes. Questions come in order with everything else
in the inbox, so whoever asks after it has submitted sees what it submitted."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec
import redis

from contract.receipts import TrajectoryState
from contract.status import SystemStatus
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
from scheduler.runtime.loop.status import Leader, system_status
from scheduler.runtime.rendering import decisions_response, queues_response

if TYPE_CHECKING:
    from scheduler.runtime.loop.scheduler_loop import SchedulerLoop

log = logging.getLogger(__name__)


class Answers:
    """Publishes answers on the channel of the process that asked."""

    def __init__(self, loop: SchedulerLoop, client: redis.Redis) -> None:
        self._loop = loop
        self._client = client

    def answer(self, question: Question) -> None:
        """Answer one question, or say that it cannot be: that is nobody's end."""
        try:
            self._answer(question)
        except (redis.RedisError, MemoryError):
            raise
        except Exception as error:
            log.exception("a question could not be answered: %s", type(question).__name__)
            why = f"the scheduler could not answer ({type(error).__name__})"
            self.refuse(Refuse(question.request_id, question.reply_to, "failed", why))

    def _answer(self, question: Question) -> None:
        """Answer one question; an action that is not live is ``not_live``, with the journal's end."""
        if isinstance(question, StatusQueried):
            self._send(question.reply_to, Reply(question.request_id, body=_raw(self._status())))
            return
        if isinstance(question, DecisionsQueried):
            self._send(
                question.reply_to, Reply(question.request_id, body=self._decisions(question))
            )
            return
        if isinstance(question, QueuesQueried):
            queues = self._loop.machine.queues(question.limit, question.projects)
            view = queues_response(queues)
            self._send(question.reply_to, Reply(question.request_id, body=_raw(view)))
            return
        if isinstance(question, TrajectoryQueried):
            self._send(question.reply_to, self._trajectory(question))
            return
        self._send(question.reply_to, self._standing(question))

    def refuse(self, refusal: Refuse) -> None:
        """Tell a requester why its request was not honoured."""
        reply = Reply(refusal.request_id, ok=False, code=refusal.code, detail=refusal.detail)
        self._send(refusal.reply_to, reply)

    def confirm(self, done: Forget) -> None:
        """Tell a requester, if there is one, that it was honoured."""
        if done.reply_to:
            self._send(done.reply_to, Reply(done.request_id))

    def _standing(self, question: ActionQueried) -> Reply:
        standing = self._loop.machine.explain(question.action_id)
        if standing is None or question.project not in ("", standing.live.action.project):
            return Reply(
                question.request_id, ok=False, code="not_live", detail=self._loop.journal_id
            )
        view = live_view(standing, self._loop.clock.wall_offset())
        return Reply(question.request_id, body=_raw(view))

    def _decisions(self, question: DecisionsQueried) -> msgspec.Raw:
        decisions = self._loop.machine.decisions(question.limit)
        return _raw(decisions_response(decisions, self._loop.clock.wall_offset()))

    def _trajectory(self, question: TrajectoryQueried) -> Reply:
        state = self._loop.machine.state
        key = trajectory_key(question.project, question.trajectory)
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
            return Reply(question.request_id, ok=False, code="not_found")
        return Reply(question.request_id, body=_raw(found))

    def _send(self, channel: str, reply: Reply) -> None:
        self._client.publish(channel, encode(reply))

    def _status(self) -> SystemStatus:
        loop = self._loop
        leader = Leader(
            loop.leadership.name,
            loop.leadership.epoch,
            loop.seq,
            loop.clock.now(),
            loop.clock.wall_offset(),
            loop.stats,
        )
        return system_status(loop.machine, leader)


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(encode(value))
