"""Problems in Redis: one process judges and writes them, all others read.

The process that holds `Keys.problem_judge` judges; its claim expires after `JUDGE_SECONDS`, so another one
goes on where it stopped. What operators said to problems is a hash that web processes write.
"""

from __future__ import annotations

from typing import Final, cast

import msgspec
import redis

from domain.redis_keys import Keys
from tangram_web.lib import bus
from tangram_web.problems.facts import WebProcessFact
from tangram_web.problems.judge import Acknowledgement, SystemProblem

JUDGE_SECONDS: Final = 5
_RENEW: Final = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
return 1
"""


class StoredProblems(msgspec.Struct, kw_only=True):
    """The problems as they were judged last."""

    #: Wall clock of the judgement; 0: there was none.
    at: float = 0.0
    problems: list[SystemProblem] = []
    #: Role → when a process of it last showed life.
    roles: dict[str, float] = {}
    #: Name → web process that shows life, or did.
    web: dict[str, WebProcessFact] = {}
    #: Lowest and highest p95 of completion times that is usual at this hour.
    usual_p95: tuple[float, float] | None = None
    #: The last problem that was cleared, in words.
    last_cleared: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredProblems).decode
_acknowledgement = msgspec.json.Decoder(Acknowledgement).decode


class ProblemStore:
    """Reads and writes the problems. All methods but `acknowledge` raise redis.RedisError."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def claim(self, name: str) -> bool:
        """Claim the judging for ``name``, or renew the claim; return False while another has it."""
        key = self._keys.problem_judge
        return bool(self._client.eval(_RENEW, 1, key, name, str(JUDGE_SECONDS)))

    def release(self, name: str) -> None:
        """Give the claim back, so that another process judges at once."""
        if self._client.get(self._keys.problem_judge) == name.encode():
            self._client.delete(self._keys.problem_judge)

    def load(self) -> StoredProblems:
        """Return the problems; empty ones before the first judgement, and of another version."""
        stored = self._client.get(self._keys.problems)
        try:
            return _decode(stored) if isinstance(stored, bytes) else StoredProblems()
        except msgspec.DecodeError:
            return StoredProblems()

    def save(self, stored: StoredProblems) -> None:
        """Replace the problems."""
        self._client.set(self._keys.problems, _encode(stored))

    def acknowledgements(self) -> dict[str, Acknowledgement]:
        """Return what operators said, by problem."""
        rows = cast("dict[bytes, bytes]", self._client.hgetall(self._keys.acknowledgements))
        return {name.decode(): _acknowledgement(body) for name, body in rows.items()}

    def acknowledge(self, problem: str, given: Acknowledgement) -> None:
        """Store what an operator said to a problem. Raises Unavailable."""
        bus.write("HSET", self._keys.acknowledgements, problem, msgspec.json.encode(given))

    def withdraw(self, *problems: str) -> None:
        """Delete acknowledgements; unknown ones are not an error."""
        if problems:
            self._client.hdel(self._keys.acknowledgements, *problems)
