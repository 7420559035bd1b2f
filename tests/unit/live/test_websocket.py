"""The websocket of the live page: access, messages of the client, messages to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from channels.layers import InMemoryChannelLayer, channel_layers
from django.contrib.auth.models import AnonymousUser, User

from domain.errors import Unavailable
from tangram_web.live import consumers
from tangram_web.live.access import Sight
from tangram_web.live.consumers import CLOSE_TRY_AGAIN, CLOSE_UNAUTHORISED, LiveConsumer
from tangram_web.live.topics import MESSAGE_TYPE, group_of

STAFF = User(username="ops", is_staff=True)


class Gate:
    """Stands for the pause between two sends: it lasts until the test opens it."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        self.asked: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        self.reached.set()
        await self.opened.wait()
        self.opened.clear()


class SignedOutSession(dict[str, Any]):
    """A session that is empty when it is read again."""

    def __init__(self, session_key: str = "k") -> None:
        super().__init__()
        self.session_key = session_key


class Page:
    """A browser's end of the websocket, and the channel layer behind it."""

    def __init__(self, user: Any = STAFF, **consumer: Any) -> None:
        self.snapshots: dict[str, bytes] = {}
        self.redis_is_away = False
        self.layer = InMemoryChannelLayer()
        channel_layers.backends["default"] = self.layer
        self.followed: list[set[str]] = []
        application = LiveConsumer.as_asgi(
            **{"snapshot": self._snapshot, "follow": self._follow, **consumer}
        )
        # Not channels.testing: importing it needs daphne.
        self.scope = {"type": "websocket", "path": "/ws/live/", "user": user}
        self.scope["session"] = SignedOutSession()
        self.socket = ApplicationCommunicator(application, self.scope)

    async def _snapshot(self, topic: str) -> bytes | None:
        if self.redis_is_away:
            raise Unavailable("redis does not answer")
        return self.snapshots.get(topic)

    async def _follow(self, projects: set[str]) -> None:
        self.followed.append(projects)

    async def open(self) -> None:
        await self.socket.send_input({"type": "websocket.connect"})
        assert (await self.socket.receive_output())["type"] == "websocket.accept"

    async def leave(self) -> None:
        await self.socket.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.socket.wait()
        channel_layers.backends.pop("default")

    async def send(self, **data: Any) -> None:
        await self.socket.send_input({"type": "websocket.receive"} | data)

    async def say(self, **message: Any) -> None:
        await self.send(text=json.dumps(message))

    async def hear(self) -> Any:
        output = await self.socket.receive_output()
        assert output["type"] == "websocket.send", output
        return output.get("bytes") or output["text"]

    async def hear_close(self) -> int:
        output = await self.socket.receive_output()
        assert output["type"] == "websocket.close", output
        code: int = output["code"]
        return code

    async def hear_error(self) -> str:
        answer = json.loads(await self.hear())
        assert list(answer) == ["error"]
        error: str = answer["error"]
        return error

    async def publish(self, topic: str, *frames: bytes) -> None:
        for frame in frames:
            message = {"type": MESSAGE_TYPE, "topic": topic, "frame": frame}
            await self.layer.group_send(group_of(topic), message)

    async def follow(self, *topics: str, hz: float = 4.0) -> None:
        """Subscribe, and return when the server has done so."""
        await self.say(sub=list(topics), hz=hz)
        await self.say(resync="no such topic")
        await self.hear_error()


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    page = Page()
    await page.open()
    yield page
    await page.leave()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def slow_page(gate: Gate) -> AsyncIterator[Page]:
    page = Page(pause=gate)
    await page.open()
    yield page
    await page.leave()


@pytest.mark.parametrize(
    "user",
    [AnonymousUser(), User(username="guest"), User(is_staff=True, is_active=False), None],
    ids=["anonymous", "not staff", "inactive staff", "without a role"],
)
async def test_stranger_is_asked_to_sign_in(user):
    page = Page(user)
    await page.open()

    assert await page.hear_close() == CLOSE_UNAUTHORISED
    await page.say(sub=["overview"])
    await page.leave()
    assert await page.socket.receive_nothing(0)


async def test_newcomer_gets_the_snapshot_and_then_frames(page):
    page.snapshots["overview"] = b"snapshot"
    await page.say(sub=["overview"], hz=10)
    assert await page.hear() == b"snapshot"

    await page.publish("overview", b"frame")

    assert await page.hear() == b"frame"


async def test_frames_of_other_topics_are_not_sent(page):
    await page.follow("overview")

    await page.publish("nodes", b"nodes")
    await page.publish("overview", b"overview")

    assert await page.hear() == b"overview"


async def test_page_that_looks_away_gets_nothing(page):
    await page.follow("overview")
    await page.follow()

    await page.publish("overview", b"frame")
    await page.say(resync="overview")
    await page.say(resync="no such topic")

    assert "no such topic" in await page.hear_error()


async def test_newest_frame_wins_the_slot_of_a_slow_page(slow_page, gate):
    await slow_page.follow("overview", "nodes", hz=0.5)
    await slow_page.publish("overview", b"1")
    assert await slow_page.hear() == b"1"
    await gate.reached.wait()

    await slow_page.publish("overview", *(b"%d" % number for number in range(2, 50)))
    await slow_page.publish("nodes", b"n1", b"n2")
    # The socket and the layer take turns: so many questions, and all frames have been taken.
    for _ in range(60):
        await slow_page.follow("overview", "nodes", hz=0.5)
    gate.opened.set()

    assert {await slow_page.hear(), await slow_page.hear()} == {b"49", b"n2"}
    assert gate.asked[0] == 2.0


async def test_resync_sends_the_snapshot_again(page):
    page.snapshots["nodes"] = b"first"
    await page.say(sub=["nodes"])
    assert await page.hear() == b"first"
    page.snapshots["nodes"] = b"second"

    await page.say(resync="nodes")

    assert await page.hear() == b"second"


async def test_same_subscription_again_changes_the_pace_only(page):
    page.snapshots["nodes"] = b"snapshot"
    await page.say(sub=["nodes"])
    await page.hear()

    await page.say(sub=["nodes"], hz=1)
    await page.say(resync="?")

    assert "'?'" in await page.hear_error()


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", '"sub"', '{"sub": "overview"}', '{"sub": [1]}', '{"sub": ["x"]}',
        '{"hz": 0}', '{"hz": 1e9}', '{"hz": "4"}', '{"hz": NaN}', '{"other": 1}', '{"resync": null,}',
        '{"sub": ["overview\\u0000"]}', '{"sub": ["topic.overview"]}', "\ud800",
        json.dumps({"sub": ["overview"] * 65}), json.dumps({"sub": ["x" * 5000]}),
    ],
    ids=lambda text: ascii(text)[:24],
)  # fmt: skip
async def test_garbage_gets_an_error_and_the_page_goes_on(page, text):
    await page.send(text=text)
    assert await page.hear_error()

    page.snapshots["overview"] = b"snapshot"
    await page.say(sub=["overview"])

    assert await page.hear() == b"snapshot"


async def test_bytes_are_refused(page):
    await page.send(bytes=b"\x00\xff")

    assert "JSON" in await page.hear_error()


async def member_page(monkeypatch: pytest.MonkeyPatch, **consumer: Any) -> Page:
    """A page of a user who may see the project ``lab`` and no other."""
    monkeypatch.setattr(consumers, "sight_of", lambda _: Sight(("lab",)))
    page = Page(User(username="ada"), **consumer)
    await page.open()
    return page


async def test_a_member_subscribes_to_topics_of_the_project_and_the_interest_is_recorded(
    monkeypatch,
):
    page = await member_page(monkeypatch)
    page.snapshots["overview@lab"] = b"snapshot"
    await page.say(sub=["overview@lab"])
    assert await page.hear() == b"snapshot"

    await page.publish("overview@lab", b"frame")

    assert await page.hear() == b"frame"
    assert page.followed == [{"lab"}]
    await page.leave()


@pytest.mark.parametrize(
    "topic", ["overview", "nodes", "holders", "overview@secret", "nodes@", "overview@lab@lab"]
)
async def test_hidden_channels_do_not_exist_for_a_member(monkeypatch, topic):
    page = await member_page(monkeypatch)

    await page.say(sub=["overview@lab", topic])
    assert await page.hear_error() == f"there is no topic {topic!r}"
    await page.say(resync=topic)
    assert "there is no topic" in await page.hear_error()
    await page.publish(topic, b"frame")
    await page.say(resync="?")

    assert "'?'" in await page.hear_error()
    assert page.followed == []
    await page.leave()


async def test_a_member_who_was_put_out_of_the_project_is_sent_away(monkeypatch):
    page = await member_page(monkeypatch, recheck_seconds=0.0)
    await page.follow("overview@lab")
    monkeypatch.setattr(consumers, "sight_of", lambda _: Sight(("other",)))

    await page.publish("overview@lab", b"frame")

    assert await page.hear_close() == CLOSE_UNAUTHORISED
    await page.leave()


async def test_staff_follow_one_project_as_well(page):
    page.snapshots["nodes@lab"] = b"snapshot"
    await page.say(sub=["nodes@lab"])

    assert await page.hear() == b"snapshot"


async def test_page_whose_session_ended_is_asked_to_sign_in():
    page = Page(recheck_seconds=0.0)
    await page.open()
    await page.follow("overview")

    await page.publish("overview", b"frame")

    assert await page.hear_close() == CLOSE_UNAUTHORISED
    await page.leave()


async def test_a_lost_cancellation_holds_no_ending_up() -> None:
    """Redis' client may lose one that meets a reply: what it was to end asks for itself."""
    watching, asked = asyncio.Event(), 0

    async def follow(_: set[str]) -> None:
        nonlocal asked
        asked += 1
        watching.set()
        if asked == 1:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        else:
            await asyncio.Event().wait()

    page = Page(follow=follow)
    await page.open()
    await page.say(sub=["overview@lab"])
    await asyncio.wait_for(watching.wait(), 120)
    await page.leave()
    assert asked == 1


async def test_page_whose_snapshot_cannot_be_read_is_asked_to_reconnect(page):
    page.redis_is_away = True

    await page.say(sub=["overview"])

    assert await page.hear_close() == CLOSE_TRY_AGAIN


async def test_page_that_cannot_be_subscribed_in_time_is_asked_to_reconnect(monkeypatch):
    page = Page(patience_seconds=0.01)
    await page.open()
    left: list[str] = []

    async def never(group: str, channel: str) -> None:
        await asyncio.Event().wait()

    async def leave(group: str, channel: str) -> None:
        left.append(group)

    monkeypatch.setattr(page.layer, "group_add", never)
    monkeypatch.setattr(page.layer, "group_discard", leave)
    await page.say(sub=["overview"])

    assert await page.hear_close() == CLOSE_TRY_AGAIN
    await page.leave()
    assert left == [group_of("overview")]
