"""Frames go through a real Redis: to those who listen, and into the snapshot for newcomers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import time

import msgspec
import pytest
from channels_redis.pubsub import RedisPubSubChannelLayer

from domain.errors import Unavailable
from tangram_web.live.frames import FrameFold
from tangram_web.live.publisher import HEARTBEAT_SECONDS, UNHEARD_SECONDS, FramePublisher
from tangram_web.live.topic_store import (
    FOLLOWED_TTL_SECONDS,
    followed_projects,
    newest_snapshot,
    record_followed,
    snapshot_key,
)
from tangram_web.live.topics import MESSAGE_TYPE, TopicFrame, group_of
from tests.redis_server import RedisServer
from tests.unit.live.journal import Journal

PREFIX = "t"


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    # Not the test's own folder: its name would be too long for a socket.
    server = RedisServer(Path(tmp_path_factory.mktemp("r"))).start()
    yield server
    server.stop()


@pytest.fixture
def publisher(redis: RedisServer) -> Iterator[FramePublisher]:
    client = redis.client()
    client.flushall()
    layer = RedisPubSubChannelLayer(hosts=[redis.url], prefix=f"{PREFIX}:live")
    with FramePublisher(layer, client, PREFIX) as publisher:
        yield publisher
    client.close()


def frame(*, revision: int = 1, at: float = 100.0, topic: str = "overview") -> TopicFrame:
    return TopicFrame(topic, int(at * 1000), revision, at, at, {"counts": {}}, {"points": "all"})


def publish(publisher: FramePublisher, *frames: TopicFrame) -> list[str]:
    return publisher.publish({one.topic: one for one in frames})


def test_unchanged_topic_is_not_sent_until_its_heartbeat_is_due(redis, publisher):
    listening = redis.client().pubsub()
    listening.subscribe(f"{PREFIX}:live__group__{group_of('nodes')}")
    assert listening.get_message(timeout=120) is not None
    first = publish(publisher, frame(), frame(topic="nodes"))
    again = publish(publisher, frame(at=100.25), frame(topic="nodes", at=100.25, revision=2))
    soon = publish(publisher, frame(at=100.0 + HEARTBEAT_SECONDS))

    assert (first, again, soon) == (["overview", "nodes"], ["nodes"], ["overview"])


def test_heartbeats_are_rarer_while_no_page_is_open(publisher):
    sent = [publish(publisher, frame(at=100.0 + after)) for after in (0, HEARTBEAT_SECONDS, 5.9)]
    assert sent == [["overview"], [], []]
    assert publish(publisher, frame(at=100.0 + UNHEARD_SECONDS)) == ["overview"]
    assert publish(publisher, frame(at=106.5, revision=2)) == ["overview"]


def test_snapshot_is_there_for_newcomers(redis, publisher, settings):
    settings.TANGRAM_REDIS_URL = redis.url
    settings.TANGRAM_KEY_PREFIX = PREFIX
    assert asyncio.run(newest_snapshot("overview", seconds=120)) is None

    publish(publisher, frame())

    snapshot = asyncio.run(newest_snapshot("overview", seconds=120))
    assert snapshot is not None
    assert msgspec.msgpack.decode(snapshot)["points"] == "all"
    with redis.client() as client:
        assert client.ttl(snapshot_key(PREFIX, "overview")) > 0


async def test_watched_projects_are_known_and_expire_without_renewal(redis, settings):
    settings.TANGRAM_REDIS_URL = redis.url
    settings.TANGRAM_KEY_PREFIX = PREFIX
    now = time()

    await record_followed({"lab"}, seconds=120)
    await record_followed({"lab", "x@y"}, seconds=120)

    with redis.client() as client:
        assert set(followed_projects(client, PREFIX, now)) == {"lab", "x@y"}
        assert followed_projects(client, PREFIX, now + 2 * FOLLOWED_TTL_SECONDS) == []
        assert followed_projects(client, PREFIX, now) == []


async def test_redis_that_is_away_does_not_end_a_page(settings, tmp_path):
    settings.TANGRAM_REDIS_URL = f"unix://{tmp_path}/none.sock"

    await record_followed({"lab"})


async def test_redis_that_never_answers_is_waited_for_no_longer_than_asked(settings):
    asked = asyncio.Event()

    async def listen_and_say_nothing(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        asked.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(listen_and_say_nothing, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        settings.TANGRAM_REDIS_URL = f"redis://{host}:{port}"

        with pytest.raises(Unavailable, match="does not answer"):
            await newest_snapshot("overview", seconds=0.05)
        await record_followed({"lab"}, seconds=0.05)
        await asyncio.wait_for(asked.wait(), 120)


async def test_snapshot_of_a_redis_that_is_away_is_unavailable(settings, tmp_path):
    settings.TANGRAM_REDIS_URL = f"unix://{tmp_path}/none.sock"

    with pytest.raises(Unavailable):
        await newest_snapshot("overview")


async def test_a_subscriber_before_the_first_frame_of_a_project_gets_all_of_it(redis, publisher):
    layer = RedisPubSubChannelLayer(hosts=[redis.url], prefix=f"{PREFIX}:live")
    channel = await layer.new_channel()
    await layer.group_add(group_of("overview@lab"), channel)

    with ThreadPoolExecutor(max_workers=1) as thread:
        for one in (frame(topic="overview@lab"), frame(topic="overview@lab", revision=2)):
            await asyncio.wrap_future(thread.submit(publish, publisher, one))
        messages = [await layer.receive(channel) for _ in range(2)]
        thread.submit(publisher.close).result()
    await layer.flush()

    frames = [msgspec.msgpack.decode(message["frame"]) for message in messages]
    assert [(one["snapshot"], one.get("points")) for one in frames] == [
        (True, "all"),
        (False, None),
    ]


async def test_listener_gets_frames_of_a_fold(redis, publisher):
    journal = Journal(at=100.0)
    journal.submit("a1")
    fold = FrameFold()
    layer = RedisPubSubChannelLayer(hosts=[redis.url], prefix=f"{PREFIX}:live")
    channel = await layer.new_channel()
    await layer.group_add(group_of("overview"), channel)

    # As in production: the publisher has a thread of its own, and one loop for all its calls.
    with ThreadPoolExecutor(max_workers=1) as thread:
        for entry in (*journal.entries, journal.submit("a2")):
            fold.fold(entry)
            frames = fold.frames(journal.at)
            await asyncio.wrap_future(thread.submit(publisher.publish, frames))
        messages = [await layer.receive(channel) for _ in range(2)]
        thread.submit(publisher.close).result()
    await layer.flush()

    assert {message["type"] for message in messages} == {MESSAGE_TYPE}
    queued = [msgspec.msgpack.decode(message["frame"])["counts"]["queued"] for message in messages]
    assert queued == [1, 2]
