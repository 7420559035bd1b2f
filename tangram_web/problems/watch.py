"""Watch over the system: judges problems once a second and publishes them, in one process at a time.

Each projector worker runs a watch; the one with the claim (`ProblemStore.claim`) judges. It continues from
what is stored, so a restart raises and announces nothing twice. Readers take the stored problems, or follow
the topics ``problems``, ``resources`` and ``gpus``; of a project while a page follows it.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Mapping, Sequence
from threading import Event
from time import time
from typing import Any, Final
from zlib import crc32

import msgspec
import redis
from django.conf import settings
from django.db import Error as DatabaseError

from domain.redis_keys import Keys
from tangram_web.live.gpu_use import use_body
from tangram_web.live.publisher import FramePublisher
from tangram_web.live.topic_store import followed_projects, stored_snapshot
from tangram_web.live.topics import GPUS, OVERVIEW, PROBLEMS, RESOURCES, TopicFrame
from tangram_web.problems.announcing import announce
from tangram_web.problems.collecting import FactCollector
from tangram_web.problems.facts import SystemFacts
from tangram_web.problems.health import UNKNOWN_SECONDS
from tangram_web.problems.judge import ProblemState, SystemProblem, judge
from tangram_web.problems.reading import problems_body, seen_in
from tangram_web.problems.resources import mark, resource_rows
from tangram_web.problems.stored import ProblemStore, StoredProblems
from tangram_web.problems.trends import Trends, TrendStore
from tangram_web.problems.usual import UsualCompletion

log = logging.getLogger(__name__)

JUDGE_SECONDS: Final = 1.0
#: The same while there is no problem and nothing waits or runs: half of what a condition has to hold at least.
CALM_SECONDS: Final = 2.0
#: Unchanged problems are stored again this often, as a sign of life.
STORE_SECONDS: Final = 4.0
#: After its start a watch finds snapshots that a projector of another version stored; live pages publish them again meanwhile.
FOREIGN_SECONDS: Final = 30.0
_encode = msgspec.msgpack.Encoder().encode


class ProblemWatch:
    """Judges, announces and publishes."""

    def __init__(
        self, client: redis.Redis, keys: Keys, publisher: FramePublisher, name: str = ""
    ) -> None:
        self._client = client
        self._keys = keys
        self._publisher = publisher
        self._name = name or f"{socket.gethostname()}:{secrets.token_hex(4)}"
        self._store = ProblemStore(client, keys)
        self._collector = FactCollector(client, keys)
        self._trend_store = TrendStore(client, keys)
        self._trends = Trends()
        self._usual = UsualCompletion(client, keys)
        #: None while another process judges.
        self._stored: StoredProblems | None = None
        #: Wall clock of the newest judgement that is stored.
        self._saved_at = 0.0
        self._began: float | None = None
        #: Until the next turn.
        self.pause_seconds = JUDGE_SECONDS

    def try_turn(self, now: float) -> None:
        """Do `turn`; what it cannot read is logged, and tried again. Raises KeyError for a snapshot without a member, unless another
        version may have stored it.
        """
        self._began = now if self._began is None else self._began
        try:
            self.turn(now)
        except redis.RedisError as error:
            log.warning("problems cannot be judged and are tried again: %s", error)
        except KeyError as error:
            if now - self._began > FOREIGN_SECONDS:
                raise
            log.warning("problems are judged once a snapshot of another version is replaced, which has no %s", error)  # fmt: skip

    def turn(self, now: float) -> bool:
        """Judge and publish once; return False while another process does. Raises redis.RedisError."""
        if not self._store.claim(self._name):
            self._stored = None
            return False
        if self._stored is None:
            self._begin(now)
        assert self._stored is not None
        facts = self._collector.collect(now)
        said = self._store.acknowledgements()
        problems = judge(facts, self._stored.problems, now, settings.TANGRAM_PROBLEMS, said)
        self._withdraw(problems, said)
        before = self._stored
        self._stored = StoredProblems(
            at=now,
            problems=self._announced(problems),
            roles=self._collector.roles,
            web=self._collector.web,
            usual_p95=self._usual.at(now),
        )
        self._save(before)
        self._publish(facts)
        self.pause_seconds = CALM_SECONDS if _is_calm(facts, problems) else JUDGE_SECONDS
        return True

    def _save(self, before: StoredProblems) -> None:
        """Store the problems, unless they are those that were stored lately."""
        assert self._stored is not None
        same = (before.problems, before.usual_p95) == (
            self._stored.problems,
            self._stored.usual_p95,
        )
        if not same or self._stored.at - self._saved_at >= STORE_SECONDS:
            self._store.save(self._stored)
            self._saved_at = self._stored.at

    def close(self) -> None:
        """Store the trends and give the claim back, if it has it."""
        if self._stored is not None and self._store.claim(self._name):
            self._trend_store.save(self._trends.long)
        self._store.release(self._name)

    def _begin(self, now: float) -> None:
        self._stored = self._store.load()
        roles = self._stored.roles
        if now - self._stored.at > UNKNOWN_SECONDS:
            # The whole system was stopped: its parts have their time to start again.
            roles = dict.fromkeys(roles, now)
            self._collector.web_since = now
        self._collector.roles = dict(roles)
        self._collector.web = dict(self._stored.web)
        self._trends = Trends(self._trend_store.load())
        self._trends.restore(stored_snapshot(self._client, RESOURCES).get("rows", ()))

    def _withdraw(self, problems: list[SystemProblem], said: Mapping[str, object]) -> None:
        """Delete acknowledgements of incidents that are over."""
        raised = {each.id for each in problems if each.is_raised}
        self._store.withdraw(*(said.keys() - raised))

    @staticmethod
    def _announced(problems: list[SystemProblem]) -> list[SystemProblem]:
        try:
            return announce(problems)
        except DatabaseError as error:
            log.warning("problems cannot be announced and are tried again: %s", error)
            return problems

    def _publish(self, facts: SystemFacts) -> None:
        assert self._stored is not None
        projects = followed_projects(self._client, self._keys.prefix, facts.now)
        frames = [frame for project in ("", *projects) for frame in self._frames(facts, project)]
        self._publisher.publish({frame.topic: frame for frame in frames})

    def _frames(self, facts: SystemFacts, project: str) -> list[TopicFrame]:
        assert self._stored is not None
        overview: dict[str, Any] | None = facts.overview
        if project:
            overview = stored_snapshot(self._client, f"{OVERVIEW}@{project}") or None
        seen = seen_in(self._stored.problems, project)
        names = {node["name"] for node in facts.nodes or ()}
        rows = resource_rows(
            overview, facts.resources, self._collector.fleets, names, project=project
        )
        mark(rows, seen)
        if not project and self._trends.add(rows, facts.now):
            self._trend_store.save(self._trends.long)
        body = problems_body(self._stored, seen, overview)
        suffix = f"@{project}" if project else ""
        packed = [msgspec.structs.asdict(row) for row in rows]
        return [
            _frame(f"{PROBLEMS}{suffix}", facts.now, body),
            _frame(f"{RESOURCES}{suffix}", facts.now, {"rows": packed}),
            _frame(f"{GPUS}{suffix}", facts.now, use_body(self._collector.gpus)),
        ]


def _is_calm(facts: SystemFacts, problems: Sequence[SystemProblem]) -> bool:
    """Whether nothing waits or runs, and no problem comes or goes."""
    counts = (facts.overview or {}).get("counts")
    over, held = ProblemState.CLEARED, (ProblemState.HELD, ProblemState.ACKNOWLEDGED)
    stay = all(
        each.state is over or (each.state in held and each.gone_at is None) for each in problems
    )
    return stay and not facts.inbox_entries and counts is not None and not any(counts.values())


def _frame(topic: str, now: float, body: dict[str, Any]) -> TopicFrame:
    revision = crc32(_encode({name: value for name, value in body.items() if name != "judged"}))
    return TopicFrame(topic, int(now * 1000), revision, now, now, body)


def watch(stop: Event) -> None:
    """Watch until stopped."""
    from channels.layers import get_channel_layer

    from tangram_web.lib import bus

    client = redis.Redis.from_url(settings.TANGRAM_REDIS_URL, socket_timeout=5.0)
    with FramePublisher(get_channel_layer(), client, settings.TANGRAM_KEY_PREFIX) as publisher:
        watching = ProblemWatch(client, bus.keys(), publisher)
        while not stop.is_set():
            watching.try_turn(time())
            stop.wait(watching.pause_seconds)
        try:
            watching.close()
        except redis.RedisError:
            pass  # the claim expires
