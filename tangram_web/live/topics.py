"""Names that the publisher and the consumers of frames share."""

from __future__ import annotations

from tangram_web.live.frames import TOPICS

#: Message type on the channel layer; Channels calls the consumer's method of that name.
MESSAGE_TYPE = "topic.frame"


def group_of(topic: str) -> str:
    """Return the channel-layer group that carries ``topic``."""
    return f"topic.{topic}"


def snapshot_key(prefix: str, topic: str) -> str:
    """Return the Redis key of the newest snapshot of ``topic``."""
    return f"{prefix}:frame:{topic}"


def is_topic(name: str) -> bool:
    """Say whether there is a topic of that name."""
    return name in TOPICS
