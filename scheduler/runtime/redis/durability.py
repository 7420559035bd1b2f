"""Durability of Redis: whether its settings keep the promise of a 202, on disk and not evicted.

The embedded server is started with these settings; another server may have others, and the
difference would show only after a power cut.
"""

from __future__ import annotations

from typing import Any, Final, cast

import redis

#: Setting → its required value, and the loss otherwise.
_WANTED: Final = {
    "appendonly": ("yes", "no accepted request survives a restart of Redis"),
    "appendfsync": ("always", "a power cut loses the accepted requests of the last second or two, and actions"
                    " that were granted then may run twice"),
    "maxmemory-policy": ("noeviction", "a full Redis silently drops accepted requests"),
}  # fmt: skip


def risks(client: redis.Redis) -> str:
    """Return the risks of the settings of Redis; empty for none, or when it hides its settings.

    Raises redis.RedisError when it does not answer.
    """
    try:
        with client.pipeline(transaction=False) as pipeline:
            for name in ("maxmemory", *_WANTED):
                pipeline.config_get(name)
            answers = cast("list[dict[Any, Any]]", pipeline.execute())
    except redis.ResponseError:  # a hosted Redis may hide its settings
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
