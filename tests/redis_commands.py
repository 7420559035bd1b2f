"""Commands that a Redis served during a call, by name."""

from __future__ import annotations

from collections.abc import Callable

import redis

_OBSERVING = {"info", "config|resetstat"}


def commands_of(client: redis.Redis, call: Callable[[], object]) -> dict[str, int]:
    """Return how often each command ran, within scripts too."""
    client.config_resetstat()
    call()
    served = client.info("commandstats")
    names = {name.removeprefix("cmdstat_"): each["calls"] for name, each in served.items()}
    return {name: calls for name, calls in names.items() if name not in _OBSERVING}
