"""Commands of pages to the scheduler, sent through its inbox."""

from __future__ import annotations

from typing import Any

import redis

from domain.codec import encode
from domain.errors import Unavailable
from tangram_web.lib import bus


def tell(*events: Any) -> None:
    """Append events to the inbox as one entry. Raises Unavailable; then none of them is appended."""
    packed = {str(number): encode(event) for number, event in enumerate(events)}
    if not packed:
        return
    try:
        bus.redis_client().xadd(bus.keys().inbox, packed)  # type: ignore[arg-type]
    except redis.RedisError as error:
        raise Unavailable(f"redis does not answer: {error}") from error
