"""Reader of logs for pages: digests of them, whole records and artefacts, in the memory of one record.

Apps do not import the scheduler, whose log store knows folders and frames: the setting `TANGRAM_ROLLOUT_LOGS` names what makes
the reader. A digest is kept while its log has the same size, for pages that are loaded again every few seconds.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

from django.conf import settings
from django.utils.module_loading import import_string

from domain.errors import NotFound, TangramError
from rollout.core import records
from rollout.ports import Record
from tangram_web.rollouts.log_digest import LogDigest

#: Digests that are kept.
KEPT: Final = 16


class RolloutLogReader(Protocol):
    """Logs of rollouts on disk."""

    def scan(self, rollout: str) -> Iterator[Record]:
        """Yield the records of a log. Raises NotFound, and TangramError for what cannot be read."""

    def size(self, rollout: str) -> int:
        """Return the bytes of a log; 0 without one."""


class FoundDigest(NamedTuple):
    """A digest, or why there is none."""

    digest: LogDigest | None
    #: The log was deleted: it was acknowledged, or its retention is over.
    deleted: bool = False
    #: Why it cannot be read.
    problem: str = ""


_digests: OrderedDict[tuple[str, int, int], FoundDigest] = OrderedDict()
_guard = threading.Lock()


@cache
def _made(factory: str, folder: str, limit_bytes: int) -> RolloutLogReader:
    made: RolloutLogReader = import_string(factory)(folder, limit_bytes)
    return made


def _reader() -> RolloutLogReader:
    return _made(
        settings.TANGRAM_ROLLOUT_LOGS,
        settings.TANGRAM_BODIES_DIRECTORY,
        settings.TANGRAM_ROLLOUT_LOG_BYTES,
    )


def digest_of(rollout: str, first_turn: int = 0) -> FoundDigest:
    """Return the digest of a log with the window that begins at a turn."""
    key = f"{settings.TANGRAM_BODIES_DIRECTORY}/{rollout}", _reader().size(rollout), first_turn
    with _guard:
        if (known := _digests.get(key)) is not None:
            _digests.move_to_end(key)
            return known
    found = _digested(rollout, first_turn)
    if found.digest is None or found.problem:
        return found
    with _guard:
        _digests[key] = found
        while len(_digests) > KEPT:
            _digests.popitem(last=False)
    return found


def _digested(rollout: str, first_turn: int) -> FoundDigest:
    digest = LogDigest(first_turn)
    try:
        for record in _reader().scan(rollout):
            digest.add(record)
    except NotFound:
        return FoundDigest(None, deleted=True)
    except (TangramError, OSError) as error:
        # What was read before a damaged record is shown with the reason.
        return FoundDigest(digest if digest.records else None, problem=str(error))
    return FoundDigest(digest)


def record_of(rollout: str, number: int) -> dict[str, Any]:
    """Return a whole record: its kind, its header, and the bytes of each array. Raises NotFound, TangramError."""
    for position, record in enumerate(_reader().scan(rollout)):
        if position == number:
            sizes = {name: len(content) for name, content in record.arrays.items()}
            return {"kind": record.kind, "header": record.header, "array_bytes": sizes}
    raise NotFound(f"the log of {rollout} has no record {number}")


def content_of(rollout: str, number: int) -> bytes:
    """Return the bytes of the artefact that a record has. Raises NotFound, TangramError."""
    for position, record in enumerate(_reader().scan(rollout)):
        if position == number and record.kind == records.ARTEFACT:
            return record.arrays.get("content", b"")
    raise NotFound(f"the log of {rollout} has no artefact in record {number}")


def artefact_of(rollout: str, name: str) -> bytes:
    """Return the bytes of an artefact of the last generation and evaluation. Raises NotFound, TangramError."""
    found: dict[str, bytes] = {}  # by stage, the last one last
    for record in _reader().scan(rollout):
        dropped = records.dropped_by(record.kind, record.header)
        if dropped == records.EVERY_STAGE:
            found = {}
        for stage in dropped:
            found.pop(stage, None)
        if record.kind == records.ARTEFACT and record.header.get("name") == name:
            stage = records.stored_in(record.header)
            found.pop(stage, None)
            found[stage] = record.arrays.get("content", b"")
    if not found:
        raise NotFound(f"{rollout} has no artefact {name[:128]!r}")
    return next(reversed(found.values()))
