"""Collector of reports: moves the reports of nodes with a Redis user of their own into the inbox, those that name the node.

Such a node can write one stream of reports and not the inbox, so the key says who sent a report: the one thing that a node cannot
forge. A thread of the leader reads these streams, and moves entry by entry.

Rules
1. A report passes that is of a kind that nodes send and names its sender. Others are dropped, counted and logged; whether the action
   runs on that node is the core's check, as for every report.
2. An entry is appended to the inbox and deleted from its stream at once, by the leader of the epoch alone: it arrives once, whatever
   fails between.
3. A message that cannot be read passes if it names its sender: the inbox sets it aside, so that its action does not wait for ever.
4. An entry of more messages than nodes send is dropped.
5. Nothing passes of a node from the moment at which it is revoked (`Keys.revoked_nodes`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from threading import Event, Thread
from types import TracebackType
from typing import Final, cast

import msgspec
import redis

from domain.codec import decode_command, pack_fields
from domain.events import (
    ActionFinished,
    ActionStarted,
    EnvironmentPacked,
    EnvironmentReceived,
    EnvironmentRemoved,
    EnvironmentsForked,
    NodeJoined,
    NodeRefuses,
    ServicePrepared,
)
from domain.redis_keys import Keys
from scheduler.runtime.loop.loop_stats import LoopStats
from scheduler.runtime.redis.connection import Argument, RedisConnection
from scheduler.runtime.redis.lua_scripts import MOVE_REPORTS

log = logging.getLogger(__name__)

#: Between two looks for nodes that report for the first time.
LOOK_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 0.2
#: Entries of each node in one turn.
TURN_ENTRIES: Final = 8
#: Messages of an entry, at most (`scheduler.runtime.node.reporter`).
MOST_MESSAGES: Final = 500

_FROM_NODES: Final = (
    ActionStarted, ActionFinished, ServicePrepared, EnvironmentRemoved, EnvironmentsForked, NodeJoined, NodeRefuses,
    EnvironmentPacked, EnvironmentReceived,
)  # fmt: skip


class _NamedNode(msgspec.Struct):
    name: str = ""


class _ReportHead(msgspec.Struct):
    """The member of a report that every version writes alike."""

    node: str | _NamedNode = ""


_head: Final = msgspec.msgpack.Decoder(_ReportHead)
_BROKEN: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def why_refused(message: bytes, sender: str) -> str:
    """Return why a message of node ``sender`` does not pass; empty: it passes."""
    try:
        named = _head.decode(message).node
    except _BROKEN:
        return "it names no node"
    name = named if isinstance(named, str) else named.name
    try:
        command = decode_command(message)
    except _BROKEN:
        command = None
    if command is not None and not isinstance(command, _FROM_NODES):
        return f"nodes send no {type(command).__name__}"
    if name != sender:
        return f"it is about node {name!r}" if name else "it names no node"
    return ""


class ReportCollector:
    """Moves reports in a thread while this process leads (a context manager)."""

    def __init__(self, client: redis.Redis, keys: Keys, epoch: int, stats: LoopStats) -> None:
        self._client = client
        self._keys = keys
        self._epoch = epoch
        self._stats = stats
        self._connection = RedisConnection(client)
        self._move = client.register_script(MOVE_REPORTS)
        self._over = Event()
        self._thread = Thread(target=self._run, name="report-collector", daemon=True)

    def __enter__(self) -> ReportCollector:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                if not self.collect(LOOK_SECONDS):
                    self._over.wait(LOOK_SECONDS)
            except redis.RedisError as error:
                self._connection.close()
                if "FENCED" in str(error):
                    return  # the loop's next write is fenced, too
                log.warning("reports of nodes wait, redis does not answer: %s", error)
                self._over.wait(RETRY_SECONDS)

    def collect(self, wait_seconds: float) -> bool:
        """Move what has arrived, waiting for it; return whether there are nodes that report so.

        Raises redis.RedisError, also when another process leads.
        """
        reporting, revoked = self._keys.reporting_nodes, self._keys.revoked_nodes
        found = cast("set[bytes]", self._client.sdiff([reporting, revoked]))
        # A node can add any bytes. A name that no node has, has no stream, and harms nothing.
        names = [name.decode(errors="replace") for name in found]
        nodes = {self._keys.reports(name): name for name in names}
        if not nodes:
            return False
        wait = max(1, int(wait_seconds * 1000))
        ask: list[Argument] = ["XREAD", "BLOCK", wait, "COUNT", TURN_ENTRIES, "STREAMS"]
        answer = self._connection.call(*ask, *nodes, *("0-0" for _ in nodes)) or []
        for stream, entries in answer:
            name = stream.decode()
            for entry_id, fields in entries:
                messages = dict(zip(fields[::2], fields[1::2], strict=True))
                self._take(name, nodes[name], entry_id, messages)
        return True

    def _take(
        self, stream: str, node: str, entry_id: bytes, messages: Mapping[bytes, bytes]
    ) -> None:
        passed = self._passed(node, messages)
        keys = [self._keys.epoch, self._keys.inbox, stream, self._keys.revoked_nodes]
        self._connection.run(self._move, keys, [self._epoch, entry_id, node, *pack_fields(passed)])

    def _passed(self, node: str, messages: Mapping[bytes, bytes]) -> list[bytes]:
        if len(messages) > MOST_MESSAGES:
            self._count(node, len(messages), f"an entry has {len(messages)} of them")
            return []
        reasons = {place: why_refused(body, node) for place, body in messages.items()}
        refused = [reason for reason in reasons.values() if reason]
        if refused:
            self._count(node, len(refused), refused[0])
        return [body for place, body in messages.items() if not reasons[place]]

    def _count(self, node: str, number: int, why: str) -> None:
        self._stats.refused_reports += number
        log.warning("refused %d reports of node %s: %s", number, node, why)
