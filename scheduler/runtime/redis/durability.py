"""Whether the Redis at hand keeps the promise of a 202: on disk, and not dropped from memory.

The embedded server is started with these settings; one that somebody else runs may have others, and
nobody would notice before a power cut.
"""

from __future__ import annotations

from typing import Any, Final, cast

import redis

#: Setting → what it has to be, and what is lost otherwise.
_WANTED: Final = {
    "appendonly": ("yes", "nothing that was accepted survives a restart of Redis"),
    "appendfsync": ("always", "a power cut loses the last second or two of what was accepted, and what"
                    " it granted may run twice"),
    "maxmemory-policy": ("noeviction", "a full Redis silently drops what was accepted"),
}  # fmt: skip


def risks(client: redis.Redis) -> str:
    """Say what the settings of Redis put at risk; empty for nothing, or when it does not tell.

    Raises redis.RedisError when it does not answer.
    """
    try:
        with client.pipeline(transaction=False) as pipeline:
            for name in ("maxmemory", *_WANTED):
                pipeline.config_get(name)
            answers = cast("list[dict[Any, Any]]", pipeline.execute())
    except redis.ResponseError:  # a hosted Redis may keep its settings to itself
        return ""
    have = {_text(n): _text(value) for answer in answers for n, value in answer.items()}
    if have.get("maxmemory") == "0":
        have.pop("maxmemory-policy", None)  # it is never full
    return "; ".join(
        f"{name} is {have[name]}: {cost}"
        for name, (wanted, cost) in _WANTED.items()
        if have.get(name, wanted) != wanted
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
