"""Names that the publisher and the consumers of frames share.

A topic is what all projects do (``overview``), or what one of them does (``overview@lab``). The
latter are made while somebody follows them: consumers say what they follow, every few seconds, and
the fold asks once a second what is followed (`watch_key`).
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

from tangram_web.live.frames import TOPICS

#: Message type on the channel layer; Channels calls the consumer's method of that name.
MESSAGE_TYPE = "topic.frame"
#: A consumer says so often what it follows; what nobody said for so long is not followed any more.
WATCH_EVERY_SECONDS: Final = 5.0
WATCH_LASTS_SECONDS: Final = 20.0
_PROJECT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}")


def project_of(topic: str) -> str:
    """Return the project that a topic is about; empty: all of them."""
    return topic.partition("@")[2]


def group_of(topic: str) -> str:
    """Return the channel-layer group that carries ``topic``."""
    base, at, project = topic.partition("@")
    # Groups have shorter names than projects, of fewer letters.
    return f"topic.{base}.{sha256(project.encode()).hexdigest()[:32]}" if at else f"topic.{base}"


def snapshot_key(prefix: str, topic: str) -> str:
    """Return the Redis key of the newest snapshot of ``topic``."""
    return f"{prefix}:frame:{topic}"


def watch_key(prefix: str) -> str:
    """Return the Redis key of the followed projects: a sorted set by wall clock, when it was said."""
    return f"{prefix}:watched"


def is_topic(name: str) -> bool:
    """Say whether there may be a topic of that name."""
    base, at, project = name.partition("@")
    return base in TOPICS and (not at or _PROJECT.fullmatch(project) is not None)
