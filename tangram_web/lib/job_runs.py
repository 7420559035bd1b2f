"""The newest run of each job, as a hash in Redis: workers write it, the Workers page reads it."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any, Final, cast

import msgspec
import redis

from domain.redis_keys import Keys

log = logging.getLogger(__name__)

MOST_ERROR_CHARACTERS: Final = 300


class JobRun(msgspec.Struct, kw_only=True, frozen=True):
    """A job's newest run, and the last error of any run."""

    name: str
    #: ``running``, ``succeeded``, ``retrying`` or ``failed``.
    state: str
    #: The Celery worker, as in ``jobs@host``.
    worker: str = ""
    started_at: datetime | None = None
    #: None while it runs.
    finished_at: datetime | None = None
    retries: int = 0
    error: str = ""
    error_at: datetime | None = None

    @property
    def seconds(self) -> float | None:
        """How long the newest run took; None while it runs."""
        if self.started_at is None or self.finished_at is None:
            return None
        return max(0.0, (self.finished_at - self.started_at).total_seconds())


_decode = msgspec.json.Decoder(JobRun).decode


class JobRuns:
    """Reads and writes the records. A record that cannot be written never fails its job."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._key = keys.job_runs

    def all(self) -> list[JobRun]:
        """Return the newest run of each job, by name. Raises redis.RedisError."""
        rows = cast("dict[bytes, bytes]", self._client.hgetall(self._key))
        return [_decode(body) for _, body in sorted(rows.items())]

    def started(self, name: str, worker: str, retries: int) -> None:
        """Record that a run began, for the first time or as a retry."""
        now = datetime.now(UTC)
        self._change(name, state="running", worker=worker, started_at=now, finished_at=None,
                     retries=retries)  # fmt: skip

    def succeeded(self, name: str) -> None:
        """Record that the run ended well."""
        self._change(name, state="succeeded", finished_at=datetime.now(UTC))

    def failed(self, name: str, error: BaseException, *, retried: bool) -> None:
        """Record that the run raised ``error``."""
        text, now = f"{type(error).__name__}: {error}"[:MOST_ERROR_CHARACTERS], datetime.now(UTC)
        self._change(name, state="retrying" if retried else "failed", finished_at=now, error=text,
                     error_at=now)  # fmt: skip

    def _change(self, name: str, **facts: Any) -> None:
        try:
            body = cast("bytes | None", self._client.hget(self._key, name))
            known = _decode(body) if body else JobRun(name=name, state="")
            changed = msgspec.structs.replace(known, **facts)
            self._client.hset(self._key, name, msgspec.json.encode(changed))
        except redis.RedisError as error:
            log.warning("the run of job %s cannot be recorded: %s", name, error)
