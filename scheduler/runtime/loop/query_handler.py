"""Answers of the loop to questions of web processes. Questions come in order with everything else
in the inbox, so whoever asks after it has submitted sees what it submitted."""

from __future__ import annotations

import logging
from collections import Counter
from heapq import nlargest
from typing import TYPE_CHECKING, Any

import msgspec
import redis

from contract.responses import rfc3339
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
from domain.ids import ResourceId, trajectory_key
from domain.resources import units
from domain.version import VERSION
from scheduler.core.state.model import State
from scheduler.runtime.action_views import live_view
from scheduler.runtime.rendering import decisions_response, queues_response

if TYPE_CHECKING:
    from scheduler.runtime.loop.scheduler_loop import SchedulerLoop

log = logging.getLogger(__name__)

#: Families of actions whose learned durations are shown.
MOST_FAMILIES = 100


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
            body = {
                "state": "open" if trajectory.closing is None else "finishing",
                "task": trajectory.task,
                "pool": trajectory.pool,
                "node": trajectory.node,
                "live_actions": len(trajectory.live),
            }
            return Reply(question.request_id, body=_raw(body))
        if key in state.tombstones:
            body = {"state": "finished", "detail": state.tombstones[key].why}
            return Reply(question.request_id, body=_raw(body))
        return Reply(question.request_id, ok=False, code="not_found")

    def _send(self, channel: str, reply: Reply) -> None:
        self._client.publish(channel, encode(reply))

    def _status(self) -> dict[str, Any]:
        loop, state = self._loop, self._loop.machine.state
        pools = _census(state)
        return {
            "at": rfc3339(loop.clock.now() + loop.clock.wall_offset()),
            "version": VERSION,
            "leader": loop.leadership.name,
            "epoch": loop.leadership.epoch,
            "seq": loop.seq,
            "revision": state.config.revision,
            "pass_seconds": {
                "p50": loop.stats.quantile_seconds(0.5),
                "p99": loop.stats.quantile_seconds(0.99),
            },
            "cycle_seconds": {
                "p50": loop.stats.deciding_quantile_seconds(0.5),
                "p99": loop.stats.deciding_quantile_seconds(0.99),
            },
            "pools": {
                name: {
                    "queued": counts["queued"],
                    "granted": counts["granted"],
                    "running": counts["running"],
                    "policy": state.config.pools[name].policy if name in state.config.pools else "",
                    "paused": name in state.config.pools and state.config.pools[name].paused,
                }
                for name, counts in pools.items()
            },
            "resources": {
                resource: {
                    "capacity": units(ledger.capacity),
                    "free": units(ledger.free),
                    **self._quotas(resource),
                }
                for resource, ledger in state.ledgers.items()
                if not resource.startswith("memory:")
            },
            "shares": msgspec.to_builtins(loop.machine.shares()),
            "nodes": [self._node(name) for name in state.nodes],
            "trajectories": len(state.trajectories),
            "steered_tasks": {key: said._asdict() for key, said in state.steering.items()},
            "durations": self._durations(),
        }

    def _durations(self) -> dict[str, dict[str, float]]:
        """Return what was learned of the families that were observed most."""
        learned = self._loop.machine.state.durations
        most = nlargest(MOST_FAMILIES, learned.items(), key=lambda item: item[1].observations)
        return {
            family: {"mean_seconds": known.mean_seconds, "observations": known.observations}
            for family, known in most
        }

    def _quotas(self, resource: ResourceId) -> dict[str, Any]:
        """Return how a resource that counts over time stands."""
        ledger = self._loop.machine.state.paced.get(resource)
        if ledger is None:
            return {}
        now = self._loop.clock.now()
        return {
            "ceiling": units(ledger.ceiling),
            "hindrance": ledger.hindrance(now) or None,
            "quotas": [
                {
                    "units": units(use.quota.amount),
                    "window_seconds": use.quota.window_seconds or None,
                    "zone": None if use.quota.window_seconds else use.quota.zone,
                    "used": units(use.used),
                    "left": units(use.left),
                    "eases_in_seconds": None if use.eases_at is None else use.eases_at - now,
                }
                for use in ledger.uses(now)
            ],
        }

    def _node(self, name: str) -> dict[str, Any]:
        state = self._loop.machine.state
        node = state.nodes[name]
        offers = {}
        for kind, have in node.inventory.resources.items():
            ledger = state.node_ledger(kind, name)
            free = ledger.free if ledger is not None else have.capacity
            in_units = (lambda n: n) if kind == "memory" else units
            offers[kind] = {
                "capacity": in_units(have.capacity),
                "free": in_units(free),
                "oversubscribed": have.oversubscribed,
            }
        drained = name in state.config.drained_nodes
        return {
            "name": name,
            "pool": node.inventory.pool,
            "state": "drained" if drained else str(node.state),
            "isolation": node.inventory.isolation,
            "resources": offers,
        }


def _census(state: State) -> dict[str, Counter[str]]:
    """Return how many actions of each pool are in each state.

    Nearly everybody waits in a line, so those are not looked at one by one.
    """
    pools: dict[str, Counter[str]] = {name: Counter() for name in state.config.pools}
    for queue in state.queues.values():
        pools.setdefault(queue.key.pool, Counter())["queued"] += queue.size
    for live in [live for live in state.actions.values() if live.queue is None]:
        pools.setdefault(live.pool, Counter())[live.state.value] += 1
    return pools


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(encode(value))
