"""What runs in an environment may send anything: frames are bounded, calls are counted, and a model that fails ends RUN."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from domain.errors import CapacityError, InvalidRequest
from rollout.handlers import foreign
from rollout.handlers.foreign import TOKEN, TOO_LONG, AgentNotRun, AgentQuestions, ForeignHandler
from rollout.handlers.relayed_calls import (
    CALLS_AT_ONCE,
    CONTROL_PORT,
    MARK,
    MAX_FRAME_BYTES,
    RelayedCalls,
    answer_of,
)
from rollout.job import CallRefused
from rollout.llm.sampler import NoBackendAnswers
from rollout.llm.sampling_options import ContextOverflow
from rollout.ports import ActionEnd, Record


class Sent:
    """A connection to a relay that has sent some pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = [*pieces, b""]
        self.answers: list[Any] = []

    async def receive(self) -> bytes:
        """Return the next piece."""
        return self._pieces.pop(0)

    async def send(self, data: bytes) -> None:
        """Take an answer."""
        self.answers.append(json.loads(data[4:]))

    async def close(self) -> None:
        """Do nothing."""


class Open(Sent):
    """A connection that stays open."""

    async def receive(self) -> bytes:
        """Return the next piece."""
        if not self._pieces[0]:
            await asyncio.Event().wait()
        return await super().receive()


class Chat:
    """A chat of one answer or error."""

    def __init__(self, answer: Any = None, turns: int = 0) -> None:
        self._answer, self.turns = answer, turns

    async def complete(self, body: Any, request: str, *, repeated: bool) -> Any:
        """Return the answer, or raise the error."""
        if isinstance(self._answer, Exception):
            raise self._answer
        return {"asked": [body, request, repeated]}


def questions(chat: Chat, most: int = 3) -> AgentQuestions:
    given: Any = chat
    return AgentQuestions(given, 7, most)


def frame(call: Any) -> bytes:
    body = json.dumps(call).encode()
    return struct.pack(">I", len(body)) + body


class Environment:
    """An environment with a mark, and an agent's action that ended somehow."""

    rollout = SimpleNamespace(id=f"rol_{1:028x}")

    def __init__(
        self, mark: bytes | None = None, outcome: str = "completed", code: int = 3
    ) -> None:
        self.mark = mark
        self.end = ActionEnd("act_1", outcome, {"exit_code": code}, None, "it ended", 0.0, 0.0)
        options = {"agent": {"exec": {"command": ["agent"]}}}
        self.request = SimpleNamespace(options=options)
        self.connected: list[int] = []
        self.history: list[Record] = []
        self.stored: dict[str, bytes] = {}
        self.executed: Mapping[str, Any] = {}

    async def get(self, path: str) -> bytes:
        """Return the mark."""
        if self.mark is None or path != MARK:
            raise CallRefused("there is no such file")
        return self.mark

    async def put(self, path: str, content: bytes) -> None:
        """Take a file."""
        self.stored[path] = content

    async def artefact(self, name: str, content: bytes) -> None:
        """Store a file with the rollout."""
        self.history.append(Record("artefact", {"name": name}, {"content": content}))

    async def connect(self, port: int) -> Sent:
        """Refuse."""
        self.connected.append(port)
        raise CallRefused("none listens")

    async def execute(self, members: Mapping[str, Any], *, name: str = "") -> ActionEnd:
        """Return the end of the agent."""
        self.executed = members
        return self.end

    async def agent_access(self) -> Mapping[str, str]:
        """Return the access of the agent."""
        return {"trajectory": "t", "token": "tgc_x"}

    def serve(self, answer: Any) -> None:
        """Do nothing."""


def relayed(answer: Any, environment: Environment | None = None) -> RelayedCalls:
    job: Any = environment or Environment()
    return RelayedCalls(job, answer)


async def echo(method: str, asked: Mapping[str, Any]) -> Any:
    return {"completion": {"asked": asked["body"], "name": asked["request"]}}


async def test_calls_are_read_from_any_pieces() -> None:
    call = {"id": 1, "name": "a", "path": "/x/v1/chat/completions", "body": {"n": 1}}
    sent = frame(call) + frame({**call, "id": 2})
    relay: Any = Sent(*(sent[at : at + 7] for at in range(0, len(sent), 7)))
    calls = relayed(echo)

    await calls.take(relay)
    await asyncio.gather(*calls._open)

    assert [each["id"] for each in relay.answers] == [1, 2]
    assert json.loads(relay.answers[0]["body"]) == {"asked": {"n": 1}, "name": "a"}


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">I", MAX_FRAME_BYTES) + b"x",
        frame([1]),
        frame({"name": "a"}),
        struct.pack(">I", 3) + b"\xff\xff\xff",
    ],
)
async def test_what_no_relay_sends_ends_the_connection(sent: bytes) -> None:
    relay: Any = Sent(sent)
    with pytest.raises(ValueError):  # noqa: PT011 # of several kinds
        await relayed(echo).take(relay)


@pytest.mark.parametrize(
    ("call", "status"),
    [
        ({"path": "/v1/models"}, 200),
        ({"path": "/v1/embeddings", "body": {}}, 404),
        ({"path": "/v1/chat/completions", "body": [1]}, 400),
        ({"path": 3}, 404),
        ({}, 404),
    ],
)
async def test_other_requests_are_refused(call: dict[str, Any], status: int) -> None:
    found, kind, body = await answer_of(echo, call)

    assert (found, kind) == (status, "application/json")
    assert isinstance(json.loads(body), dict)


async def test_a_call_that_fails_in_an_unexpected_way_is_answered() -> None:
    """Its agent would wait for the end of RUN."""

    async def fails(method: str, asked: Mapping[str, Any]) -> Any:
        raise AttributeError("'str' object has no attribute 'get'")

    found, _, body = await answer_of(fails, {"path": "/v1/chat/completions", "body": {}})

    assert found == 500
    assert json.loads(body)["error"]["message"].startswith("AttributeError: 'str' object")


async def test_a_frame_that_is_nested_too_deeply_ends_its_connection_alone() -> None:
    nested = b"[" * 200_000
    channels = [
        Sent(struct.pack(">I", len(nested)) + nested),
        Open(frame({"id": 1, "path": "/v1/models"})),
    ]
    served = channels[1]

    class Begun(Environment):
        async def connect(self, port: int) -> Sent:
            if not channels:
                await asyncio.Event().wait()
            return channels.pop(0)

    relaying = asyncio.create_task(relayed(echo, Begun()).run())
    async with asyncio.timeout(60):
        while not served.answers and not relaying.done():
            await asyncio.sleep(0)
    relaying.cancel()
    await asyncio.wait({relaying})

    assert [each["status"] for each in served.answers] == [200]


async def test_the_calls_of_an_agent_are_bounded() -> None:
    asked = {"body": {"messages": []}, "request": "r" * 1000, "repeated": "yes"}
    found = await questions(Chat(turns=2)).answer("chat", asked)
    assert found["completion"]["asked"] == [{"messages": []}, "r" * 128, False]
    assert found["completion"]["created"] == 7

    with pytest.raises(InvalidRequest) as refused:
        await questions(Chat(turns=3)).answer("chat", asked)
    assert refused.value.code == "max_calls"


async def test_a_conversation_that_is_too_long_says_so_as_openai_does() -> None:
    asked = questions(Chat(ContextOverflow("full")))
    with pytest.raises(InvalidRequest) as refused:
        await asked.answer("chat", {"body": {}})

    assert (refused.value.code, refused.value.pointer) == (TOO_LONG, "/messages")
    assert not asked.failed.done()


async def test_a_model_that_answers_nothing_ends_run() -> None:
    """An agent that goes on without its model would be trained on."""
    asked = questions(Chat(NoBackendAnswers("all failed")))
    with pytest.raises(NoBackendAnswers):
        await asked.answer("chat", {"body": {}})

    with pytest.raises(NoBackendAnswers, match="all failed"):
        await asked.failed


async def test_no_further_call_is_read_while_many_are_open() -> None:
    """The process is shared: the relay keeps them."""
    begun, release = [0], asyncio.Event()

    async def hangs(method: str, asked: Mapping[str, Any]) -> Any:
        begun[0] += 1
        await release.wait()
        return {"completion": {}}

    sent = [
        frame({"id": each, "path": "/v1/chat/completions", "body": {}})
        for each in range(CALLS_AT_ONCE + 2)
    ]
    relay: Any = Sent(*sent)
    calls = relayed(hangs)
    taking = asyncio.create_task(calls.take(relay))
    for _ in range(5 * len(sent)):
        await asyncio.sleep(0)
    assert (begun[0], len(relay._pieces)) == (CALLS_AT_ONCE, 2)
    release.set()
    await taking
    await asyncio.gather(*calls._open)
    assert len(relay.answers) == len(sent)


async def test_calls_that_are_open_are_bounded_by_their_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollout.handlers.relayed_calls.MAX_FRAME_BYTES", 1000)
    begun: list[int] = []
    release = asyncio.Event()

    async def hangs(method: str, asked: Mapping[str, Any]) -> Any:
        begun.append(len(asked["body"]["said"]))
        await release.wait()
        return {"completion": {}}

    call = {"path": "/v1/chat/completions", "body": {"said": "x" * 300}}
    relay: Any = Sent(*(frame({"id": each, **call}) for each in range(5)))
    calls = relayed(hangs)
    taking = asyncio.create_task(calls.take(relay))
    for _ in range(30):
        await asyncio.sleep(0)
    assert len(begun) == 2
    release.set()
    await taking
    assert len(begun) == 5


async def run_of(
    environment: Environment, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> Mapping[str, Any] | None:
    async def caller(job: Any) -> Any:
        return None

    def chat(_: Any) -> Chat:
        return Chat()

    environment.request.options.update(options)
    monkeypatch.setattr(foreign, "models_of_process", lambda: SimpleNamespace(caller=caller))
    monkeypatch.setattr(foreign, "ForeignChat", chat)
    monkeypatch.setattr(foreign, "accepted_at", lambda _: datetime.now(UTC))
    job: Any = environment
    return await ForeignHandler().run(job)


GATEWAY = {"access": "gateway", "base_url": "http://127.0.0.1:1"}


@pytest.mark.parametrize("outcome", ["completed", "timeout", "oom_killed"])
@pytest.mark.parametrize("options", [{}, GATEWAY])
async def test_the_end_of_an_agent_that_ran_is_data(
    outcome: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = await run_of(Environment(b'{"port": 1}', outcome), monkeypatch, **options)

    assert ran == {"outcome": outcome, "exit_code": 3, "detail": "it ended"}


async def test_an_agent_that_leaves_no_file_to_keep_is_judged_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error would spare it the reward of its work."""
    environment = Environment(b'{"port": 1}')
    await run_of(
        environment, monkeypatch, keep=["answer.json"], evaluation={"exec": {"command": ["test"]}}
    )
    environment.stored.clear()
    job: Any = environment

    found = await ForeignHandler().eval(job)

    assert environment.executed["exec"]["command"] == ["test"]
    assert environment.stored == {}
    assert "it ended" in found["reason"]


@pytest.mark.parametrize(
    ("environment", "options"),
    [
        (Environment(None, code=127), {}),
        (Environment(None, code=1), {}),
        (Environment(b"{}", "expired"), {}),
        (Environment(b'{"port": 1}', "cancelled"), {}),
        (Environment(None, "expired"), GATEWAY),
    ],
)
async def test_an_agent_that_never_ran_is_a_failure_of_the_infrastructure(
    environment: Environment, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """EVAL would judge the untouched environment, and its 0 would train."""
    with pytest.raises(AgentNotRun, match="the agent never ran") as refused:
        await run_of(environment, monkeypatch, **options)
    assert isinstance(refused.value, CapacityError)


@pytest.mark.parametrize(
    ("mark", "port"),
    [(b'{"control_port": 4711}', 4711), (b"[", CONTROL_PORT), (b"[1]", CONTROL_PORT), (None, CONTROL_PORT)],
)  # fmt: skip
async def test_the_relay_is_reached_at_the_port_that_it_says(
    mark: bytes | None, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = Environment(mark)
    relaying = asyncio.create_task(relayed(echo, environment).run())
    while not environment.connected:
        await asyncio.sleep(0)
    relaying.cancel()

    assert environment.connected == [port]


async def test_no_member_of_an_action_has_the_token_of_its_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Members are in the log, the journal and Redis, and so in backups."""
    environment = Environment()
    await run_of(environment, monkeypatch, **GATEWAY)

    assert environment.stored == {TOKEN: b"tgc_x"}
    assert "tgc_" not in json.dumps(environment.executed)
    assert environment.executed["exec"]["env"]["OPENAI_BASE_URL"].endswith("/trajectories/t/v1")


async def test_the_command_of_an_agent_gets_the_token_and_its_file_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    monkeypatch.setattr(foreign, "TOKEN", str(token))
    environment = Environment()
    agent = {"exec": {"command": ["sh", "-c", 'echo "$OPENAI_API_KEY $1"', "sh", "a  b"]}}
    await run_of(environment, monkeypatch, agent=agent, **GATEWAY)
    token.write_bytes(environment.stored[str(token)])
    started = await asyncio.create_subprocess_exec(
        *environment.executed["exec"]["command"], stdout=asyncio.subprocess.PIPE
    )
    said, _ = await started.communicate()

    assert said == b"tgc_x a  b\n"
    assert not token.exists()


@pytest.mark.parametrize("earlier", [True, False])
async def test_an_agent_that_has_begun_is_asked_for_as_it_was(
    earlier: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another call of its name would differ from the log; earlier versions had the token in it."""
    first = Environment()
    await run_of(first, monkeypatch, **GATEWAY)
    begun = json.loads(json.dumps(first.executed))
    if earlier:
        begun["exec"]["command"] = ["agent"]
        begun["exec"]["env"]["OPENAI_API_KEY"] = "tgc_x"
    successor = Environment()
    successor.history.append(Record("call", {"key": "rol_1/0/run/agent", "members": begun}))
    await run_of(successor, monkeypatch, **GATEWAY)

    assert successor.executed == begun
    assert successor.stored == {}
