"""Calls that share an answer: identical ones under way become one, and answers are kept for a while.

An API opts in (`domain.apis.Cache`). Two calls are identical when target, method, path, headers, body
and the rule for their reward are. Only calls that may be made twice are merged: GET and HEAD, and
those that are replay-safe.

Rules
1. The first of identical calls *leads*; the others *follow*: they wait in no line, hold nothing and
   cost no quota. When the leader completes, they complete with its answer. When it ends in any other
   way, the first follower leads.
2. A good answer is kept for the declared time. A call that finds one completes at once.
3. CachedAnswer answers of one API take a declared number of bytes; the oldest make room.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from domain.action import Action
from domain.events import ActionFinished
from domain.ids import ActionId
from domain.inventory import Config

_SAFE_METHODS = frozenset({"GET", "HEAD"})
#: An answer may take this part of an API's room at most.
_SHARE = 4

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class CachedAnswer(NamedTuple):
    """An answer, as its node reported it, and until when it is kept."""

    result: bytes
    reward: float | None
    until: float


@dataclass(slots=True)
class CallCoalescing:
    """Who makes a call for whom, and what was answered lately. Part of the snapshot."""

    #: Key of a call → who makes it.
    leaders: dict[str, ActionId] = field(default_factory=dict)
    #: Leader → its key, and who follows it, in order of arrival.
    following: dict[ActionId, tuple[str, list[ActionId]]] = field(default_factory=dict)
    #: Follower → its leader.
    behind: dict[ActionId, ActionId] = field(default_factory=dict)
    #: API → key → answer, oldest first.
    kept: dict[str, dict[str, CachedAnswer]] = field(default_factory=dict)

    def find(self, target: str, key: str, now: float) -> CachedAnswer | None:
        """Return a kept answer that is still good."""
        answer = self.kept.get(target, {}).get(key)
        return answer if answer is not None and now < answer.until else None

    def join(self, key: str, action_id: ActionId) -> ActionId | None:
        """Let an action make the call, or follow who makes it already and is returned."""
        leader = self.leaders.setdefault(key, action_id)
        if leader == action_id:
            self.following.setdefault(action_id, (key, []))
            return None
        self.following[leader][1].append(action_id)
        self.behind[action_id] = leader
        return leader

    def leave(self, action_id: ActionId) -> list[ActionId]:
        """Take out an action that is over; return who followed it."""
        leader = self.behind.pop(action_id, None)
        if leader is not None:
            self.following[leader][1].remove(action_id)
            return []
        key, followers = self.following.pop(action_id, ("", []))
        if key:
            del self.leaders[key]
        for follower in followers:
            del self.behind[follower]
        return followers

    def keep(self, config: Config, action: Action, report: ActionFinished, now: float) -> None:
        """Keep an answer if it is good, and its API wants that."""
        key, feedback = coalescing_key(config, action), report.feedback
        if key is None or action.call is None or feedback is None or not feedback.good:
            return
        cache = config.apis[action.call.target].cache
        result = bytes(report.result)
        if cache is None or not cache.ttl_seconds or len(result) * _SHARE > cache.size_bytes:
            return
        kept = self.kept.setdefault(action.call.target, {})
        kept.pop(key, None)
        kept[key] = CachedAnswer(result, report.reward, now + cache.ttl_seconds)
        room = cache.size_bytes - sum(len(answer.result) for answer in kept.values())
        for old in list(_oldest(kept, room)):
            del kept[old]

    def forget(self, config: Config) -> None:
        """Drop the answers of APIs that are declared otherwise now."""
        self.kept = {
            target: answers
            for target, answers in self.kept.items()
            if target in config.apis and config.apis[target].cache is not None
        }


def _oldest(kept: dict[str, CachedAnswer], room: int) -> Iterator[str]:
    """Yield who must go until there is room."""
    for key, answer in kept.items():
        if room >= 0:
            return
        room += len(answer.result)
        yield key


def coalescing_key(config: Config, action: Action) -> str | None:
    """Return what identical calls have in common; None for one that is made on its own."""
    call = action.call
    if call is None or call.stream:  # whose answer goes to one reader as it comes
        return None
    api = config.apis.get(call.target)
    if api is None or api.cache is None:
        return None
    if call.method not in _SAFE_METHODS and not action.replay_safe:
        return None
    same = (api.base_url, call.target, call.method, call.path, call.headers, call.body)
    return blake2b(_encode((same, action.reward)), digest_size=16).hexdigest()
