"""Records of Polar's tasks, in Redis: what every web process reads of a task.

A submission stores a *claim* (`PolarRecord` in state ``submitting``) before it submits. The key of its rollouts has the nonce of the claim,
so that a repetition of the same body continues a submission whose web process was killed, or whose answer was lost: it gets the same rollouts.

    task/ID                 the record
    metadata/ID/NONCE       the metadata of the task, compressed
    submitting/ID/NONCE     held by the web process that submits
    watch/ID/NONCE          held by the web process that watches (`facades.polar.watches`)

Rules
1. A change names the record that it replaces; of two web processes one makes it.
2. The record of a task has at most `MAX_ROLLOUTS` ids (39 bytes each) and a URL: it is always below the bound of a record. Metadata have
   a record of their own, which is checked before anything is submitted.
3. Records of earlier versions have the metadata in them.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from domain.errors import InvalidRequest
from facades.polar.messages import PolarTask
from scheduler.runtime.gateway.facade import FacadePort
from scheduler.runtime.gateway.http import encode_json

KEEP_SECONDS: Final = 24 * 3600
TOMBSTONE_SECONDS: Final = 300
#: A web process that submits was killed when it has not ended after so long.
SUBMITTING_SECONDS: Final = 60
#: A record is stored `KEEP_SECONDS` longer at each change, of which a task has at most three.
_METADATA_SECONDS: Final = 4 * KEEP_SECONDS
#: Most bytes of metadata, compressed and as base64.
MOST_METADATA: Final = 60_000
_PACKED: Final = "zlib"


class PolarRecord(msgspec.Struct, omit_defaults=True):
    """What is stored of a task. ``state``: submitting, running, cancelled, or tombstone."""

    state: str
    #: Distinguishes tasks of one id.
    nonce: str
    samples: int = 0
    rollouts: list[str] = []
    #: Of earlier versions.
    metadata: dict[str, Any] = {}
    early_stop: int | None = None
    #: Usable sessions when the others were cancelled.
    stopped: int | None = None
    callback: str = ""
    #: End of the callback: ``sent``, or why it was not.
    called: str = ""
    #: Of the body that was submitted, as hexadecimal digits.
    digest: str = ""
    #: All rollouts have ended, and a watch has seen it.
    watched: bool = False

    @property
    def is_watched(self) -> bool:
        """Whether something is left to do at the ends of its rollouts."""
        stops = self.early_stop is not None and self.stopped is None and not self.watched
        return self.state == "running" and (stops or bool(self.callback and not self.called))


class PolarRecords:
    """The records of the tasks of all projects. All methods raise Unavailable when Redis does not answer."""

    def __init__(self, port: FacadePort) -> None:
        self._timed = port.timed

    async def get(self, project: str, task_id: str) -> PolarRecord | None:
        """Return the record of a task; None for an unknown one."""
        found = await self._timed.get(project, _name(task_id))
        return None if found is None else msgspec.convert(found, PolarRecord)

    async def add(self, project: str, task_id: str, record: PolarRecord) -> bool:
        """Store the record of a task unless there is one; return whether it was stored."""
        return await self._timed.add(project, _name(task_id), _stored(record), _seconds(record))

    async def replace(
        self, project: str, task_id: str, before: PolarRecord, after: PolarRecord
    ) -> bool:
        """Store ``after`` if the record is ``before``; return whether it was."""
        texts = (_stored(before), _stored(after))
        return await self._timed.replace(project, _name(task_id), *texts, _seconds(after))

    async def remove(self, project: str, task_id: str, before: PolarRecord) -> None:
        """Remove the record of a task if it is ``before``."""
        await self._timed.remove(project, _name(task_id), _stored(before))

    async def put_metadata(
        self, project: str, task_id: str, record: PolarRecord, packed: str
    ) -> None:
        """Store metadata that `packed_metadata` returned; a repetition stores the same."""
        if packed:
            name = f"metadata/{task_id}/{record.nonce}"
            await self._timed.add(project, name, {_PACKED: packed}, _METADATA_SECONDS)

    async def metadata(self, project: str, task_id: str, record: PolarRecord) -> Mapping[str, Any]:
        """Return the metadata of a task; empty when they are forgotten."""
        found = await self._timed.get(project, f"metadata/{task_id}/{record.nonce}")
        if found is None:
            return record.metadata
        return await asyncio.to_thread(_unpacked, found[_PACKED])

    async def hold(self, project: str, task_id: str, nonce: str) -> dict[str, Any] | None:
        """Begin to submit a task; return what `let_go` takes, None while another web process submits it."""
        held = {"by": secrets.token_hex(8)}
        name = _submitting(task_id, nonce)
        return held if await self._timed.add(project, name, held, SUBMITTING_SECONDS) else None

    async def let_go(self, project: str, task_id: str, nonce: str, held: dict[str, Any]) -> None:
        """State that this web process submits a task no more."""
        await self._timed.remove(project, _submitting(task_id, nonce), held)


def claim_of(task: PolarTask) -> PolarRecord:
    """Return the record of a task that is being submitted."""
    return PolarRecord(
        "submitting",
        secrets.token_hex(8),
        samples=task.num_samples,
        early_stop=task.early_stop_min_usable_sessions,
        callback=task.callback_url or "",
        digest=hashlib.blake2b(encode_json(task), digest_size=16).hexdigest(),
    )


def key_of(task_id: str, record: PolarRecord) -> str:
    """Return the key of the rollouts of a task: a repetition of its submission gets the same ones."""
    return f"{task_id}/{record.nonce}"


def packed_metadata(metadata: Mapping[str, Any]) -> str:
    """Return metadata as they are stored; empty for none. Blocks. Raises InvalidRequest for what is too large."""
    if not metadata:
        return ""
    packed = b64encode(zlib.compress(encode_json(metadata))).decode()
    if len(packed) > MOST_METADATA:
        raise InvalidRequest(
            f"metadata has {len(packed)} bytes when compressed, at most {MOST_METADATA} are stored with a task:"
            " put large members into the image of the environment",
            pointer="/metadata",
        )
    return packed


def _unpacked(packed: str) -> dict[str, Any]:
    return msgspec.json.decode(zlib.decompress(b64decode(packed)), type=dict[str, Any])


def _seconds(record: PolarRecord) -> int:
    return TOMBSTONE_SECONDS if record.state == "tombstone" else KEEP_SECONDS


def _stored(record: PolarRecord) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(record)
    return found


def _name(task_id: str) -> str:
    return f"task/{task_id}"


def _submitting(task_id: str, nonce: str) -> str:
    return f"submitting/{task_id}/{nonce}"
