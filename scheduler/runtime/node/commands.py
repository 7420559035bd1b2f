"""Reader of a node's commands: one that cannot be read is set aside, and harms no other.

A run order that cannot be read is reported as never started, and must stay so: a worker of another
version, which could read it, reports it again when it finds it among the dead letters.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from time import time
from typing import Any, NamedTuple, cast

import msgspec
import redis.asyncio

from domain.action import Outcome
from domain.codec import COMMANDS_FIELD, NodeCommand
from domain.confirmation import Confirmation
from domain.dead_letters import DeadLetter, dead_letter, encode_letter
from domain.events import ActionFinished
from domain.ids import ActionId
from domain.redis_keys import Keys
from scheduler.runtime.redis.confirmation import check_confirmed

log = logging.getLogger(__name__)


class UnknownCommand(NamedTuple):
    """A command that cannot be read, and the members that every version writes alike."""

    #: Its number in the entry; empty when the whole entry cannot be read.
    place: str
    body: bytes
    error: Exception
    #: The run that it orders, if it is a run order.
    action_id: str = ""
    attempt: int = 1


class ReadCommands(NamedTuple):
    """Commands of one entry of a node's stream."""

    known: list[NodeCommand]
    unknown: list[UnknownCommand]


class _ActionHead(msgspec.Struct):
    id: str


class _RunHead(msgspec.Struct):
    action: _ActionHead
    attempt: int = 1


class _CommandHead(msgspec.Struct):
    """Members of a command that every version writes alike."""

    run: _RunHead | None = None


_raws = msgspec.msgpack.Decoder(list[msgspec.Raw])
_all = msgspec.msgpack.Decoder(list[NodeCommand])
_one = msgspec.msgpack.Decoder(NodeCommand)
_order = msgspec.msgpack.Decoder(_CommandHead)
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class CommandReader:
    """Reads the commands of one node, and sets aside those that it cannot read."""

    def __init__(self, client: redis.asyncio.Redis, keys: Keys, node: str) -> None:
        self._client = client
        self._letters = keys.dead_letters
        self._node = node
        #: Entry → places of its commands that are set aside.
        self._aside: dict[str, set[str]] = defaultdict(set)

    async def open(self) -> None:
        """Load the commands that predecessors set aside. Raises redis.RedisError."""
        asked: Any = self._client.hkeys(self._letters)
        for name in cast("list[bytes]", await asked):
            source, entry_id, place = name.decode().split("|")
            if source == self._source:
                self._aside[entry_id].add(place)

    @property
    def _source(self) -> str:
        return f"node/{self._node}"

    def read(self, stream_id: str, fields: Mapping[bytes, bytes]) -> ReadCommands:
        """Return the commands of an entry; one that is set aside already counts as unreadable."""
        body = fields.get(COMMANDS_FIELD, b"")
        aside = self._aside.get(stream_id)
        if aside is None:
            try:
                return ReadCommands(_all.decode(body), [])
            except _BROKEN:
                pass
        return _one_by_one(body, aside or frozenset())

    async def set_aside(
        self, stream_id: str, unknown: Sequence[UnknownCommand]
    ) -> list[ActionFinished]:
        """Store commands that cannot be read; return the reports of the runs among them.

        Raises redis.RedisError; may be called again then.
        """
        reports = []
        for one in unknown:
            letter = dead_letter(self._source, stream_id, one.place, one.body, one.error, time())
            kept: Any = self._client.hsetnx(self._letters, letter.name, encode_letter(letter))
            await kept
            self._aside[stream_id].add(one.place)
            log.error(
                "a command cannot be read and was set aside as %s: %s", letter.name, letter.reason,
                extra={"action_id": one.action_id},
            )  # fmt: skip
            if one.action_id:
                reports.append(self._never_started(one, letter))
        return reports

    def _never_started(self, order: UnknownCommand, letter: DeadLetter) -> ActionFinished:
        return ActionFinished(
            action_id=ActionId(order.action_id),
            node=self._node,
            outcome=Outcome.INFRA_FAILED,
            attempt=order.attempt,
            never_started=True,
            detail=f"node {self._node} cannot read its order; is it of an older version than the"
            f" scheduler? ({letter.reason})",
        )


async def save_position(
    client: redis.asyncio.Redis, stream: str, position: str, confirmation: Confirmation
) -> None:
    """Store the position behind which commands are read again, and drop those before it.

    The caller forgets what it started of those: replicas confirm first. Raises redis.RedisError.
    """
    async with client.pipeline(transaction=False) as pipeline:
        pipeline.set(f"{stream}:position", position)
        pipeline.xtrim(stream, minid=position)
        if confirmation.replicas:
            pipeline.execute_command(*confirmation.command)
        *_, confirmed = await pipeline.execute()
    if confirmation.replicas:
        check_confirmed(confirmation, int(confirmed))


def _one_by_one(body: bytes, aside: frozenset[str] | set[str]) -> ReadCommands:
    try:
        parts = _raws.decode(body)
    except _BROKEN as error:
        return ReadCommands([], [UnknownCommand("", body, error)])
    read = ReadCommands([], [])
    for number, part in enumerate(parts):
        try:
            if str(number) in aside:
                raise msgspec.DecodeError("it was set aside before")
            read.known.append(_one.decode(part))
        except _BROKEN as error:
            read.unknown.append(_unknown(str(number), bytes(part), error))
    return read


def _unknown(place: str, body: bytes, error: Exception) -> UnknownCommand:
    try:
        run = _order.decode(body).run
    except _BROKEN:
        run = None
    if run is None:
        return UnknownCommand(place, body, error)
    return UnknownCommand(place, body, error, run.action.id, run.attempt)
